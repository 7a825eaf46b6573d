"""What an op keeps for its gradient, safe from writes behind it.

A call keeps tensors for its gradient, and autograd refuses the gradient where one of them is
written before. What several calls keep is not what the op keeps that stands for them: the quotient
of a softmax written by hand may be written, the result of the op may not. So the op keeps a tensor
of its own wherever the graph writes to that memory later, or made it in inference mode, whose
tensors are not kept:

    before    p = e / e.sum(-1, keepdim=True)         after    y = fusedops.softmax(x, -1)
              p.mul_(0.5)                                      p = y.clone()
                                                               p.mul_(0.5)

Where the graph is compiled the copy is gone: there a write is a new tensor.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_aggregate

from fusedops.graph import aliasing, modes
from fusedops.graph.rule import Match, New

aten = torch.ops.aten

#: What one call keeps that an op of the same name keeps too.
_KEEP_THE_SAME = {"softmax", "log_softmax", "layer_norm"}
_PARAMETERS = {"mask", "weight", "bias", "weights", "biases"}


def not_to_keep(match: Match) -> frozenset[int | None]:
    """The memory that the op of `match` must not keep, where that matters: a single call could not
    have been differentiated either."""
    if not match.swallowed and match.op in _KEEP_THE_SAME:
        return frozenset()
    site, ours = match.call.node, {match.call.node, *match.swallowed}
    written = aliasing.written_behind(match.place or site, ours)
    return written.union(map(aliasing.storage, modes.made_in_inference_mode(site))) - {None}


def with_own_inputs(new: New, unkept: frozenset[int | None]) -> New:
    """`new`, given copies of those inputs that it keeps and that are in memory of `unkept`."""

    def copied(argument: Any) -> Any:
        if isinstance(argument, New):
            return replace(argument, args=map_aggregate(argument.args, copied))
        copies = isinstance(argument, Node) and aliasing.storage(argument) in unkept
        return New(aten.clone.default, (argument,)) if copies else argument

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


def is_kept(index: int | None) -> bool:
    """Whether an op keeps its result of that index: all but the first of several, which is what
    the others are for."""
    return index != 0
