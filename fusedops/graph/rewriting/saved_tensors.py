"""Protects the tensors that an op saves for its backward pass from later writes.

Autograd raises an error in the backward pass if a saved tensor has been written in the meantime. An
op saves other tensors than the calls that it replaces: eager's quotient of exponentials may be
written, but the result of the softmax op may not. The op therefore saves a clone of a tensor if the
graph writes into the tensor's memory later, or returns it to a caller who may write into it, or if
the tensor was created in inference mode, so that autograd cannot save it:

    before    p = e / e.sum(-1, keepdim=True)         after    y = fusedops.softmax(x, -1)
              p.mul_(0.5)                                      p = y.clone()
                                                               p.mul_(0.5)

Inductor removes such clones, because in its functionalised graphs a write creates a new tensor.

Writes by the caller, between the two passes, need more where eager mode saves a mask that it has
computed, and the op saves what the mask is computed from:

    before    hidden = keys >= lengths[:, None]       after    end = lengths & lengths
              y = x.masked_fill(hidden, -inf)                  y = masked_softmax(x, end=end)
              y = y.softmax(-1)

Without this copy Inductor would save a view of `lengths`, whose writes autograd does not notice.
The copy is no clone, which Inductor would remove, and its node says that Inductor must save it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import map_aggregate

from fusedops.graph.analysis import modes, storages
from fusedops.graph.analysis.calls import as_call
from fusedops.graph.analysis.values import value
from fusedops.graph.rewriting import layouts
from fusedops.graph.rewriting.evaluation import Evaluation
from fusedops.graph.rewriting.layouts import Replacement
from fusedops.graph.rule import SAVED, Match, OpCall, arguments_by_name, nodes_of, schema_of

aten = torch.ops.aten

#: The kinds of calls that save the same tensors as the op of the same name.
_SAVE_THE_SAME = {"softmax", "log_softmax", "layer_norm"}
#: The kinds of calls that save their result, so that it must not be written even in eager mode.
_SAVE_THEIR_RESULT = {"softmax", "log_softmax", "exp"}
#: The arguments that an op saves if it has them.
_PARAMETERS = {"mask", "weight", "bias", "weights", "biases", "start", "end", "sinks"}

#: The arguments that hide columns.
_HIDING = ("mask", "start", "end")


def _is_unsavable(node: Node, match: Match) -> bool:
    """Returns whether the op of `match` must not save the memory of a node for its backward pass.
    It may if it replaces a single call that saves the same tensors, since eager's backward pass
    would raise the same error."""
    saves_the_same = len(match.nodes) == 1 and match.op in _SAVE_THE_SAME
    if saves_the_same or storages.storage(node) is None:
        return False
    holders = storages.holders_of(node)
    has_left = any(modes.has_left_inference_mode(match.call.node, each) for each in holders)
    return has_left or _is_written_later(node, match)


def _is_written_later(node: Node, match: Match) -> bool:
    """Returns whether a call after the place of the op writes into the memory of a node. The calls
    that the op replaces do not count."""
    return storages.is_written_after(node, match.place, {*match.nodes})


def with_cloned_inputs(new: OpCall, match: Match) -> OpCall:
    """Returns `new` with clones in place of the inputs that it would save but must not."""

    def copied(argument: Any) -> Any:
        if isinstance(argument, OpCall):
            return replace(argument, args=map_aggregate(argument.args, copied))
        copies = isinstance(argument, Node) and _is_unsavable(argument, match)
        return _clone(argument) if copies else argument

    saved = _saved_inputs(new)
    args = (
        map_aggregate(argument, copied) if name in saved else argument
        for name, argument in arguments_by_name(new).items()
    )
    return replace(new, args=tuple(args))


def _saved_inputs(new: OpCall) -> set[str]:
    """Returns the names of the arguments that an op saves. The input is not among them for
    softmaxes without a soft cap, which save their result, and for norms of a sum, which save the
    sum."""
    name = schema_of(new).name.rpartition("::")[2]
    is_norm_of_inputs = name.endswith("norm") and not name.startswith("add_")
    is_capped = arguments_by_name(new).get("softcap") is not None
    return _PARAMETERS | ({"input", "inputs"} if is_norm_of_inputs or is_capped else set())


def with_kept_masks(new: OpCall, match: Match, evaluation: Evaluation) -> OpCall:
    """Returns `new` with copies, which Inductor must save, in place of the bool mask and the limits
    of rows, if the site's result requires grad."""
    arguments = arguments_by_name(new)
    if arguments.keys().isdisjoint(_HIDING) or not value(match.call.node).requires_grad:
        return new
    kept = {
        name: _kept(arguments[name], evaluation.value(arguments[name]))
        for name in _HIDING
        if name in arguments and _is_computed_mask(arguments[name])
    }
    return replace(new, args=tuple((arguments | kept).values()))


def _is_computed_mask(argument: Any) -> bool:
    """Returns whether an argument that hides columns is computed from tensors. An input of the
    graph is not: autograd notices writes into it. A float mask is not saved."""
    values = map(value, nodes_of([argument]))
    tensors = [tensor for tensor in values if isinstance(tensor, torch.Tensor)]
    is_input = isinstance(argument, Node) and argument.op == "placeholder"
    is_float = any(tensor.is_floating_point() for tensor in tensors)
    return bool(tensors) and not is_input and not is_float


def _kept(argument: Node | OpCall, tensor: torch.Tensor) -> OpCall:
    """Returns the call of a copy that Inductor must save. Dimensions along which the tensor repeats
    its elements get size 1, so that the copy is no larger than what it copies."""
    for dim, stride in enumerate(tensor.stride()):
        if statically_known_true(stride == 0):
            argument = OpCall(aten.slice.Tensor, (argument, dim, 0, 1))
    return OpCall(aten.bitwise_and.Tensor, (argument, argument), meta=SAVED)


def with_cloned_results(replacement: Replacement, match: Match) -> Replacement:
    """Returns the replacement with a clone in place of each result that must not share memory with
    the op's output."""

    def cloned(old: Node, result: OpCall) -> OpCall:
        saved = _saves_unsavable(old, match)
        # A result that is a view of the op's output is cloned too if the graph writes into it
        # later, because autograd refuses writes into views that were made in no_grad mode.
        must_be_own = saved or (result.op in layouts.VIEWS and _is_written_later(old, match))
        return _clone(result) if must_be_own and not layouts.is_copied(result) else result

    return replace(
        replacement, results={old: cloned(old, new) for old, new in replacement.results.items()}
    )


def _saves_unsavable(old: Node, match: Match) -> bool:
    """Returns whether the op saves the output that replaces `old`, although it must not. The first
    of several outputs is never saved. If eager's call saves its own result, there are no writes
    from which the op's output would need protection."""
    output, call = match.results[old], as_call(old)
    if output == 0 or (call is not None and call.kind in _SAVE_THEIR_RESULT):
        return False
    # The graph's caller may write into a tensor that the graph returns.
    may_be_written_outside = value(old).requires_grad and storages.is_returned(old)
    return _is_unsavable(old, match) or (not isinstance(output, int) and may_be_written_outside)


def _clone(argument: Node | OpCall) -> OpCall:
    return OpCall(aten.clone.default, (argument,))
