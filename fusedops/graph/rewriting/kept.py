"""What an op keeps for its gradient, safe from writes behind it.

A call keeps tensors for its gradient, and autograd refuses the gradient where one of them is
written before. What several calls keep is not what the op keeps that stands for them: the quotient
of a softmax written by hand may be written, the result of the op may not. So the op keeps a tensor
of its own wherever the graph writes to that memory later, or gives it to a caller who may, or made
it in inference mode, whose tensors are not kept:

    before    p = e / e.sum(-1, keepdim=True)         after    y = fusedops.softmax(x, -1)
              p.mul_(0.5)                                      p = y.clone()
                                                               p.mul_(0.5)

Inductor takes such copies out again, for there a write is a new tensor.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_aggregate

from fusedops.graph.ir import aliasing, dialect, modes
from fusedops.graph.rules.rule import Match, OpCall

aten = torch.ops.aten

#: What one call keeps that an op of the same name keeps too.
_KEEP_THE_SAME = {"softmax", "log_softmax", "layer_norm"}
_KEEP_THEIR_RESULT = {"softmax", "log_softmax", "exp"}
_PARAMETERS = {"mask", "weight", "bias", "weights", "biases"}


def not_to_keep(match: Match) -> frozenset[int | None]:
    """The memory that the op of `match` must not keep, where that matters: a single call could not
    have been differentiated either."""
    if not match.fused_nodes and match.op in _KEEP_THE_SAME:
        return frozenset()
    site, ours = match.call.node, {match.call.node, *match.fused_nodes}
    written = aliasing.written_behind(match.place or site, ours)
    return written.union(map(aliasing.storage, modes.made_in_inference_mode(site))) - {None}


def with_own_inputs(new: OpCall, unkept: frozenset[int | None]) -> OpCall:
    """`new`, given copies of those inputs that it keeps and that are in memory of `unkept`."""

    def copied(argument: Any) -> Any:
        if isinstance(argument, OpCall):
            return replace(argument, args=map_aggregate(argument.args, copied))
        copies = isinstance(argument, Node) and aliasing.storage(argument) in unkept
        return OpCall(aten.clone.default, (argument,)) if copies else argument

    names = [argument.name for argument in new.op._schema.arguments]
    pairs = zip(names, new.args, strict=False)
    kept = _kept_inputs(new.op)
    args = (map_aggregate(given, copied) if name in kept else given for name, given in pairs)
    return replace(new, args=tuple(args)) if unkept else new


def _kept_inputs(op: torch._ops.OpOverload) -> set[str]:
    """Softmaxes keep their result in place of the input, norms behind a sum the sum."""
    name = op._schema.name.rpartition("::")[2]
    is_norm_of_inputs = name.endswith("norm") and not name.startswith("add_")
    return _PARAMETERS | ({"input", "inputs"} if is_norm_of_inputs else set())


def gives_copy(old: Node, index: int | None, unkept: frozenset[int | None]) -> bool:
    """Whether a copy of an op's result of that index takes the place of `old`, and the op keeps the
    result to itself. The first of several results is what the others are kept for."""
    call = dialect.as_call(old)
    if index == 0 or (call is not None and call.kind in _KEEP_THEIR_RESULT):
        return False
    return aliasing.storage(old) in unkept or (index is None and _may_be_written_outside(old))


def _may_be_written_outside(node: Node) -> bool:
    """Whether the caller of the graph is given a tensor that it will differentiate."""
    returned = map(aliasing.storage, node.graph.output_node().all_input_nodes)
    return dialect.value(node).requires_grad and aliasing.storage(node) in set(returned)
