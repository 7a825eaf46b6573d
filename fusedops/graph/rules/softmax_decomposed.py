"""Replaces softmaxes and log_softmaxes that models write as several calls.

before    e = torch.exp(x - x.amax(dim, keepdim=True))
          y = e / e.sum(dim, keepdim=True)
          y = torch.exp(x - torch.logsumexp(x, dim, keepdim=True))
after     y = torch.ops.fusedops.softmax(x, dim)

before    s = x - x.amax(dim, keepdim=True)
          y = s - torch.log(torch.exp(s).sum(dim, keepdim=True))
          y = x - torch.logsumexp(x, dim, keepdim=True)
after     y = torch.ops.fusedops.log_softmax(x, dim)

`readers/exponentials.py` recognises the quotients, which may also have a mask, or a sink (one more
logit for each row). A softmax that does not subtract the maximum is refused, because its exp
overflows where the op does not.
"""

from __future__ import annotations

from fusedops.graph.analysis.calls import Call
from fusedops.graph.readers.softmax_decomposed import read_softmax_decomposed
from fusedops.graph.rule import Match
from fusedops.graph.rules.softmax import Softmax, match_softmax


class SoftmaxDecomposed(Softmax):
    """Replaces a softmax or log_softmax that is written as several calls."""

    name = "softmax_decomposed"

    def match(self, call: Call) -> Match | None:
        chain = read_softmax_decomposed(call)
        return None if chain is None else match_softmax(chain)
