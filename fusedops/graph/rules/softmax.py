"""Replaces softmax and log_softmax over any dimension, with the casts around them, and those that
models write as several calls.

before    y = torch.softmax(x.float(), dim).to(x.dtype)
          y = torch.softmax(x, dim, dtype=dtype)
          y = torch.exp(torch.log_softmax(x, dim))
after     y = torch.ops.fusedops.softmax(x, dim, dtype)

before    e = torch.exp(x - x.amax(dim, keepdim=True))
          y = e / e.sum(dim, keepdim=True)
          y = torch.exp(x - torch.logsumexp(x, dim, keepdim=True))
after     y = torch.ops.fusedops.softmax(x, dim)

before    s = x - x.amax(dim, keepdim=True)
          y = s - torch.log(torch.exp(s).sum(dim, keepdim=True))
          y = x - torch.logsumexp(x, dim, keepdim=True)
after     y = torch.ops.fusedops.log_softmax(x, dim)

`readers/softmax_decomposed.py` recognises the quotients, which may also have a mask, or a sink (one
more logit for each row). A softmax that does not subtract the maximum is refused, because its exp
overflows where the op does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.values import value
from fusedops.graph.availability import KERNEL_DTYPES
from fusedops.graph.readers.softmax_chain import ZEROES, SoftmaxChain
from fusedops.graph.rule import Match, OpCall, Rule

NOT_MASKED = "only masked_softmax has sinks and masks, over the last dimension"


class Softmax(Rule):
    """Replaces a softmax or log_softmax that `read` finds, unless masked_softmax is the only op
    that computes it."""

    def __init__(self, name: str, read: Callable[[Call], SoftmaxChain | None]) -> None:
        self.name, self.read = name, read

    def match(self, call: Call) -> Match | None:
        chain = self.read(call)
        if chain is None:
            return None
        arguments = {"input": chain.input, "dim": chain.dim, "dtype": chain.dtype}
        refusal = chain.refusal
        if chain.needs_masks:
            refusal = refusal or (ZEROES if chain.zeroes_hidden_rows else NOT_MASKED)
        site = Call(chain.op, chain.op, chain.last, arguments, refusal)
        return Match(site, {chain.last: None}, chain.nodes)

    def refusal(self, match: Match) -> str | None:
        arguments = match.call.arguments
        if not isinstance(arguments["dim"], int):
            return "dim is not a number known at compile time"
        input_dtype = value(arguments["input"]).dtype
        computed = arguments["dtype"] or input_dtype
        if computed not in KERNEL_DTYPES:
            return f"unsupported dtype {computed}"
        is_integer = not (input_dtype.is_floating_point or input_dtype.is_complex)
        return None if is_integer else super().refusal(match)

    def emit(self, match: Match) -> OpCall:
        """Returns the op with the site's arguments, or with the dtype of eager's result as the
        argument `dtype` if the op would give another one."""
        call, result = super().emit(match), value(match.call.node).dtype
        input, dim, dtype = call.args
        # On some devices autocast runs softmax in float32; with this dtype the op does the same.
        is_same = result == (dtype or value(input).dtype)
        return call if is_same else replace(call, args=(input, dim, result))
