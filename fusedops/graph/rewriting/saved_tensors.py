"""Protects the tensors that an op saves for its backward pass from later writes.

Autograd raises in the backward pass if a saved tensor has been written in the meantime. An op saves
other tensors than the calls that it replaces: the quotient of a decomposed softmax may be written,
the result of the op may not. The op therefore gets a tensor of its own, by a clone, if the graph
writes to that memory later, or returns it to a caller who may, or if the tensor was created in
inference mode, so that autograd cannot save it:

    before    p = e / e.sum(-1, keepdim=True)         after    y = fusedops.softmax(x, -1)
              p.mul_(0.5)                                      p = y.clone()
                                                               p.mul_(0.5)

Inductor removes such clones, because in its functionalised graphs a write creates a new tensor.
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

#: Calls that save the same tensors as the op of the same name.
_SAVE_THE_SAME = {"softmax", "log_softmax", "layer_norm"}
_SAVE_THEIR_RESULT = {"softmax", "log_softmax", "exp"}
_PARAMETERS = {"mask", "weight", "bias", "weights", "biases"}


def unsavable_memory(match: Match) -> frozenset[int | None]:
    """The memory that the op of `match` must not save for its backward pass. It is empty if a
    single call is replaced that saves the same tensors, since its backward pass would raise too."""
    if not match.fused_nodes and match.op in _SAVE_THE_SAME:
        return frozenset()
    site, ours = match.call.node, {match.call.node, *match.fused_nodes}
    written = aliasing.written_after(match.place or site, ours)
    return written.union(map(aliasing.storage, modes.made_in_inference_mode(site))) - {None}


def with_cloned_inputs(new: OpCall, unsavable: frozenset[int | None]) -> OpCall:
    """`new` with clones of those inputs that it saves and that are in `unsavable` memory."""

    def copied(argument: Any) -> Any:
        if isinstance(argument, OpCall):
            return replace(argument, args=map_aggregate(argument.args, copied))
        copies = isinstance(argument, Node) and aliasing.storage(argument) in unsavable
        return OpCall(aten.clone.default, (argument,)) if copies else argument

    names = [argument.name for argument in new.op._schema.arguments]
    pairs = zip(names, new.args, strict=False)
    saved = _saved_inputs(new.op)
    args = (map_aggregate(given, copied) if name in saved else given for name, given in pairs)
    return replace(new, args=tuple(args)) if unsavable else new


def _saved_inputs(op: torch._ops.OpOverload) -> set[str]:
    """The arguments that an op saves. Softmaxes save their result instead of the input, and norms
    of a sum save the sum."""
    name = op._schema.name.rpartition("::")[2]
    is_norm_of_inputs = name.endswith("norm") and not name.startswith("add_")
    return _PARAMETERS | ({"input", "inputs"} if is_norm_of_inputs else set())


def is_cloned(old: Node, index: int | None, unsavable: frozenset[int | None]) -> bool:
    """Whether `old` must be replaced by a clone of the op's output of that index, because the op
    saves the output. The first of several outputs is never saved."""
    call = dialect.as_call(old)
    if index == 0 or (call is not None and call.kind in _SAVE_THEIR_RESULT):
        return False
    return aliasing.storage(old) in unsavable or (index is None and _may_be_written_outside(old))


def _may_be_written_outside(node: Node) -> bool:
    """Whether the graph returns the tensor to its caller, and it requires grad."""
    returned = map(aliasing.storage, node.graph.output_node().all_input_nodes)
    return dialect.value(node).requires_grad and aliasing.storage(node) in set(returned)
