"""Recognises a softmax over scores and a sink, which is one more logit for each row whose
probability is dropped.

before    s = torch.cat([scores, sinks], -1)        or F.pad(scores, (0, 1)), a sink of 0
          s = s - s.max(-1, keepdim=True).values    or without this
          y = torch.softmax(s, -1)[..., :-1]
after     y = torch.ops.fusedops.masked_softmax(scores, ..., sinks=sinks.squeeze(-1))
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fusedops.graph.analysis import storages
from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.nodes import is_private
from fusedops.graph.analysis.products import feeds_products
from fusedops.graph.analysis.selections import filled_number
from fusedops.graph.analysis.steps import (
    broadcasts,
    call_of,
    known_number,
    only_user,
    same_value,
    upstream,
)
from fusedops.graph.analysis.values import rounded, value
from fusedops.graph.readers.softmax_chain import SoftmaxChain, with_casts
from fusedops.graph.readers.softmax_decomposed import maximum_of
from fusedops.graph.rule import OpCall

aten = torch.ops.aten


@dataclass(frozen=True)
class Sink:
    """One more logit for each row.

    logit: a tensor whose last dimension has size 1, or a number.
    calls: the call that expands or fills the tensor, which the op does not need, if there is one.
    is_joined: whether the model concatenates the sink to the scores, which makes eager's rows
        longer by one.
    """

    logit: Node | float
    calls: frozenset[Node] = frozenset()
    is_joined: bool = True

    def may_need_gradient(self, result: Node) -> bool:
        """Returns whether the sink's gradient may be needed. Only in Dynamo's graphs can it be
        known that it is not, because Dynamo captures again for tensors that require grad."""
        if not isinstance(self.logit, Node):
            return False
        needed = value(self.logit).requires_grad and value(result).requires_grad
        return needed or "example_value" not in result.meta

    def operand(self, result: torch.Tensor) -> OpCall:
        """Returns the call that makes the argument `sinks` of masked_softmax. The argument has no
        dimension for the columns, which a logit that is a tensor has with size 1. A number becomes
        a tensor, in the precision in which the op computes its `result`."""
        if isinstance(self.logit, Node):
            return OpCall(aten.squeeze.dim, (self.logit, -1))
        precision = torch.promote_types(result.dtype, torch.float32)
        kwargs = {"dtype": precision, "device": result.device}
        return OpCall(aten.scalar_tensor.default, (self.logit,), kwargs)


def read_sink(chain: SoftmaxChain) -> tuple[SoftmaxChain, Sink] | None:
    """Returns the softmax of the scores alone, and its sink; None if the softmax has no sink."""
    if chain.sink is not None:
        sink = _sink(chain.sink) if isinstance(chain.sink, Node) else Sink(chain.sink)
        return replace(chain, sink=None), replace(sink, is_joined=False)
    shorter = only_user(chain.last, "item", "slice")
    if shorter is None or not _drops_last_column(shorter):
        return None
    joined = _without_maximum(chain.input)
    scores_and_sink = _joined(joined)
    if scores_and_sink is None:
        return None
    scores, sink = scores_and_sink
    nodes = {*upstream(chain.last, until=set(joined.all_input_nodes)), shorter.node}
    # In eager mode the result is a slice of longer rows, so that its strides differ from the op's.
    # Nothing may depend on them, or on the memory of the result.
    is_read_alone = feeds_products(shorter.node) and not storages.writers_of(shorter.node)
    if not is_private(nodes, shorter.node) or not is_read_alone:
        return None
    return with_casts(replace(chain, input=scores, nodes=tuple(sorted(nodes)))), sink


def _drops_last_column(call: Call) -> bool:
    """Returns whether a call is y[..., :-1]."""
    source, result = value(call.input), value(call.node)
    if call.kind == "slice":
        dim, start, end, step = (call.arguments.get(n) for n in ("dim", "start", "end", "step"))
        is_last = dim in (-1, source.dim() - 1)
        return is_last and start in (None, 0) and end == -1 and step in (None, 1)
    index = call.arguments["index"]
    items = list(index) if isinstance(index, tuple) else [index]
    whole = all(item in (..., slice(None)) for item in items[:-1])
    return whole and items[-1:] == [slice(None, -1)] and source.dim() == result.dim()


def _without_maximum(joined: Node) -> Node:
    """Returns x, if `joined` is x - x.max(-1, keepdim=True), since x has the same softmax; else
    `joined`."""
    shifted = call_of(joined, "sub")
    maximum = maximum_of(shifted.arguments["other"])[0] if shifted else None
    if shifted is None or maximum is None:
        return joined
    x: Node = shifted.input
    dim, keeps = maximum.arguments.get("dim"), maximum.arguments.get("keepdim")
    last = dim in (-1, [-1], (-1,), value(x).dim() - 1)
    return x if same_value(maximum.input, x) and last and keeps else joined


def _joined(joined: Node) -> tuple[Node, Sink] | None:
    """Returns the scores and the sink in torch.cat([scores, sinks], -1) or F.pad(scores, (0, 1),
    value=sink); None for other calls."""
    if (padded := call_of(joined, "pad")) is not None:
        pad, fill = padded.arguments.get("pad"), known_number(padded.arguments.get("value") or 0.0)
        is_constant = padded.arguments.get("mode", "constant") == "constant"
        one_column = isinstance(pad, (tuple, list)) and tuple(pad) == (0, 1) and is_constant
        scores = padded.input
        if not one_column or fill is None:
            return None
        return scores, Sink(float(rounded(fill, value(joined).dtype)))
    call = call_of(joined, "cat")
    if call is None or call.arguments.get("dim", 0) not in (-1, value(joined).dim() - 1):
        return None
    tensors = call.arguments["tensors"]
    if not isinstance(tensors, (tuple, list)) or len(tensors) != 2:
        return None
    scores, logit = tensors
    is_per_row = statically_known_true(value(logit).shape[-1] == 1) and broadcasts(logit, scores)
    has_same_rank = value(logit).dim() == value(scores).dim()
    return (scores, _sink(logit)) if is_per_row and has_same_rank else None


def _sink(logit: Node) -> Sink:
    """Returns the `Sink` for the tensor `logit`, which has one logit for each row. The `Sink` holds
    a number if one number fills `logit`, the smaller tensor if `logit` is an expansion of a tensor
    with as many dimensions, and `logit` itself otherwise."""
    fill = filled_number(logit)
    if fill is not None:
        return Sink(fill, frozenset([logit]))
    expanded = call_of(logit, "expand")
    if expanded is not None and value(expanded.input).dim() == value(logit).dim():
        return Sink(expanded.input, frozenset([logit]))
    return Sink(logit)
