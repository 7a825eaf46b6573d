"""Replaces softmax and log_softmax over any dimension, with the casts around them.

before    y = torch.softmax(x.float(), dim).to(x.dtype)
          y = torch.softmax(x, dim, dtype=dtype)
          y = torch.exp(torch.log_softmax(x, dim))
after     y = torch.ops.fusedops.softmax(x, dim, dtype)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.values import value
from fusedops.graph.availability import KERNEL_DTYPES
from fusedops.graph.readers.softmax_chain import ZEROES, SoftmaxChain, read_softmax
from fusedops.graph.rule import Match, OpCall, Rule, op_of

NOT_MASKED = "only masked_softmax has sinks and masks, over the last dimension"


class Softmax(Rule):
    """Replaces a call of softmax or log_softmax, together with the casts around it."""

    name = "softmax"

    def match(self, call: Call) -> Match | None:
        chain = read_softmax(call)
        return None if chain is None else match_softmax(chain)

    def refusal(self, match: Match) -> str | None:
        arguments = match.call.arguments
        if not isinstance(arguments["dim"], int):
            return "dim is not a number known at compile time"
        input_dtype = value(arguments["input"]).dtype
        computed = arguments["dtype"] or input_dtype
        if computed not in KERNEL_DTYPES:
            return f"unsupported dtype {computed}"
        integer = not (input_dtype.is_floating_point or input_dtype.is_complex)
        return (
            None if integer or input_dtype in KERNEL_DTYPES else f"unsupported dtype {input_dtype}"
        )

    def emit(self, match: Match) -> Iterator[OpCall]:
        """Yields the op with the site's arguments, then with the dtype of eager's result as the
        argument `dtype`."""
        call = op_of(match)
        yield call
        # On some devices autocast runs softmax in float32; with this dtype the op does the same.
        yield replace(call, args=(*call.args[:2], value(match.call.node).dtype))


def match_softmax(chain: SoftmaxChain) -> Match:
    """Returns the site of the softmax that a reader found. The site is refused if masked_softmax is
    the only op that computes this softmax."""
    arguments = {"input": chain.input, "dim": chain.dim, "dtype": chain.dtype}
    refusal = chain.refusal
    if chain.needs_masks:
        refusal = refusal or (ZEROES if chain.zeroes_hidden_rows else NOT_MASKED)
    site = Call(chain.op, chain.op, chain.last, arguments, refusal)
    fused_nodes = chain.nodes if len(chain.nodes) > 1 else ()
    return Match(site, chain.op, {chain.last: None}, fused_nodes)
