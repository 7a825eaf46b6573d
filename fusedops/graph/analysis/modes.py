"""Finds the grad mode, inference mode and autocast state in which each call of a graph runs.

Calls can be fused only if all of them run in the same modes: under `no_grad` a sum has no gradient,
but a norm of it after the block has one. While the rewrite rules match, a barrier node, which
returns its argument, is therefore inserted wherever a tensor is used in other modes than those in
which it was computed:

    with torch.no_grad():              _set_grad_enabled(False)
        s = x + r                      s = x + r
    y = F.layer_norm(s, (8,))          b = barrier(s)
                                       _set_grad_enabled(True)
                                       y = layer_norm(b, (8,))

Barriers have no normal form, so that no rule matches across one. The rules still find sites between
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import tracing
from torch.fx import Graph, Node

from fusedops.graph.analysis import aliases
from fusedops.graph.analysis.nodes import annotate
from fusedops.graph.analysis.values import value
from fusedops.graph.analysis.writes import written


@dataclass(frozen=True)
class Modes:
    """The modes that the graph has set up to some node.

    grad, inference: None if the graph has not set them; the caller's modes then apply.
    autocast: the arguments of `torch.autocast` for each device type that the graph has set.
    """

    grad: bool | None = None
    inference: bool | None = None
    autocast: tuple[tuple[Any, ...], ...] = ()


def modes(graph: Graph) -> Iterator[tuple[Node, Modes]]:
    """Yields each node with the modes after it. Calls that switch no mode run in these modes."""
    current = Modes()
    before: dict[Node, Modes] = {}
    for node in graph.nodes:
        switch = _mode_switch(node)
        if switch:
            before[node] = current
            current = _switched(switch, node, before)
        yield node, current


def _mode_switch(node: Node) -> str | None:
    """Names the way in which a call changes the modes of the calls after it, by a value of
    `aliases.MODE_SWITCHES`; None if it does not change them."""
    return aliases.MODE_SWITCHES.get(node.target) if node.op == "call_function" else None


def _switched(switch: str, node: Node, before: dict[Node, Modes]) -> Modes:
    """Returns the modes after `node`, which switches a mode. `before` maps this switch and each
    earlier one to the modes before it: an exit restores the modes from before the call that entered
    the mode."""
    current = before[node]
    # The argument is a bool for set_grad and enter_inference, a device type for enter_autocast, and
    # for exits the node that entered the mode.
    argument: Any = node.args[0]
    if switch == "set_grad":
        return replace(current, grad=argument)
    # inference_mode(True) disables gradients too, and inference_mode(False) enables them.
    if switch == "enter_inference":
        return replace(current, grad=not argument, inference=argument)
    if switch == "exit_inference":
        entered = before[argument]
        return replace(current, grad=entered.grad, inference=entered.inference)
    if switch == "exit_autocast":
        return replace(current, autocast=before[argument].autocast)
    others = (entered for entered in current.autocast if entered[0] != argument)
    return replace(current, autocast=tuple(sorted((*others, node.args), key=lambda a: a[0])))


#: Graph -> the modes of its nodes, which `record` reads once for all rules.
_RECORDED: WeakKeyDictionary[Graph, dict[Node, Modes]] = WeakKeyDictionary()


def record(graph: Graph) -> None:
    """Records the modes of all nodes of a graph for the other functions. Call it again after adding
    nodes whose modes are needed, or after changing the calls that switch modes."""
    _RECORDED[graph] = dict(modes(graph))


def inherit(new: Node, site: Node) -> None:
    """Records that a new node runs in the modes of `site`, a node of what it replaces."""
    _RECORDED[new.graph][new] = _modes_of(site)


def _modes_of(node: Node) -> Modes:
    if node not in _RECORDED.get(node.graph, ()):
        record(node.graph)
    return _RECORDED[node.graph][node]


@contextmanager
def evaluating(site: Node) -> Iterator[None]:
    """Sets the autocast state of `site` and disables gradients, for computations on fake tensors.

    Calls are dispatched in Python, because C++ decompositions of torch 2.10, such as linear's, turn
    symbolic sizes into constants. The tracing context is unset: torch 2.10's Dynamo leaves one with
    another fake mode than the graph's values have, and collectives refuse to mix the two.
    """
    with tracing(None), enable_python_dispatcher(), torch.no_grad(), ExitStack() as stack:
        for arguments in _modes_of(site).autocast:
            stack.enter_context(torch.autocast(*arguments))
        yield


def has_left_inference_mode(site: Node, other: Node) -> bool:
    """Returns whether `other` runs in inference mode, and `site` outside of it."""
    return bool(_modes_of(other).inference) and not _modes_of(site).inference


def are_alike(call: Node, other: Node) -> bool:
    """Returns whether two calls run in the same modes. A rule has to ask this about two calls that
    only read the same graph input, because barriers are inserted only between a call and its users.
    """
    first, second = (_with_inferred_grad(node, _modes_of(node)) for node in (call, other))
    return first == second


@contextmanager
def barriers(graph: Graph) -> Iterator[None]:
    """Inserts barriers into `graph` for the duration of the context."""
    inserted = _insert_barriers(graph) if any(map(_mode_switch, graph.nodes)) else []
    try:
        yield
    finally:
        for barrier in inserted:
            if barrier._erased:  # the rewriter erased it with a mask that nothing uses any more
                continue
            barrier.replace_all_uses_with(barrier.all_input_nodes[0])
            graph.erase_node(barrier)


def is_barrier(node: Node) -> bool:
    return node.target is _barrier


def _insert_barriers(graph: Graph) -> list[Node]:
    """Inserts barriers between calls and their users in other modes, and returns them."""
    modes_by_call = {
        node: _with_inferred_grad(node, graph_modes)
        for node, graph_modes in modes(graph)
        if node.op.startswith("call") and _mode_switch(node) is None
    }
    inserted = []
    for node, call_modes in modes_by_call.items():
        others = dict.fromkeys(modes_by_call[user] for user in node.users if user in modes_by_call)
        for other in others if _carries_gradients(node) else ():
            if other != call_modes:
                users = {user for user in node.users if modes_by_call.get(user) == other}
                inserted.append(_insert_barrier(node, users))
    return inserted


def _with_inferred_grad(node: Node, graph_modes: Modes) -> Modes:
    """Returns the modes of a call. If the graph has not set the grad mode, a result that capture
    recorded with requires_grad shows that it was on."""
    tensor = value(node)
    saw_gradient = isinstance(tensor, torch.Tensor) and tensor.requires_grad
    # A call that writes returns its input, which may require grad although grad mode is off.
    was_on = graph_modes.grad is None and saw_gradient and not written(node)
    return replace(graph_modes, grad=True) if was_on else graph_modes


def _carries_gradients(node: Node) -> bool:
    """Returns whether the modes matter for a node's result. Modes do not matter for numbers and for
    tensors of ints or bools, such as masks, which have no gradients."""
    recorded = value(node)
    if isinstance(recorded, torch.Tensor):
        return recorded.is_floating_point() or recorded.is_complex()
    return not isinstance(recorded, (int, float, torch.SymInt, torch.SymFloat, torch.SymBool))


def _insert_barrier(node: Node, users: set[Node]) -> Node:
    """Inserts a barrier between `node` and `users`, directly after `node`."""
    with node.graph.inserting_after(node):
        barrier = node.graph.call_function(_barrier, (node,))
    annotate(barrier, value(node), like=node)
    node.replace_all_uses_with(barrier, delete_user_cb=users.__contains__)
    return barrier


def _barrier(tensor: Any) -> Any:
    """Returns its argument. No rule matches a call of this function."""
    return tensor
