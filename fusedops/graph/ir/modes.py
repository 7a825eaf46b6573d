"""Grad mode, inference mode and autocast: in which of them each call of a graph runs.

What several calls compute can be one op only where all of them ran in the same modes: under
`no_grad` a sum has no gradient, behind it the norm has one. So, while the rules look at a graph, a
wall stands wherever a tensor goes from one mode to another:

    with torch.no_grad():              _set_grad_enabled(False)
        s = x + r                      s = x + r
    y = F.layer_norm(s, (8,))          w = wall(s)
                                       _set_grad_enabled(True)
                                       y = layer_norm(w, (8,))

No rule knows what a wall is, so none steps through one; each still finds what lies between walls.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph, Node

from fusedops.graph.ir import dialect


@dataclass(frozen=True)
class Modes:
    """What the graph has switched to so far. What it never switched is as its caller has it: None,
    or in `autocast`, which has `torch.autocast`'s arguments for each type of device, absent."""

    grad: bool | None = None
    inference: bool | None = None
    autocast: tuple[tuple[Any, ...], ...] = ()


def modes(graph: Graph) -> Iterator[tuple[Node, Modes]]:
    """Each node, and the modes behind it; a call that is no switch runs in them."""
    current = Modes()
    before: dict[Node, Modes] = {}
    for node in graph.nodes:
        switch = dialect.mode_switch(node)
        if switch:
            before[node] = current
            current = _switched(switch, node, before)
        yield node, current


def _switched(switch: str, node: Node, before: dict[Node, Modes]) -> Modes:
    current = before[node]
    given: Any = node.args[0]  # a bool, the node that entered what is left, or a type of device
    if switch == "set_grad":
        return replace(current, grad=given)
    if switch == "enter_inference":  # which sets the grad mode too: to on, where it leaves
        return replace(current, grad=not given, inference=given)
    if switch == "exit_inference":
        entered = before[given]
        return replace(current, grad=entered.grad, inference=entered.inference)
    if switch == "exit_autocast":
        return replace(current, autocast=before[given].autocast)
    others = (entered for entered in current.autocast if entered[0] != given)
    return replace(current, autocast=tuple(sorted((*others, node.args), key=lambda a: a[0])))


@contextmanager
def autocast_of(site: Node) -> Iterator[None]:
    """Autocast as the calls at `site` have it, for what is computed on fake tensors."""
    with ExitStack() as stack:
        if dialect.has_mode_switches(site.graph, "enter_autocast"):
            at_site = next(found for node, found in modes(site.graph) if node is site)
            for arguments in at_site.autocast:
                stack.enter_context(torch.autocast(*arguments))
        yield


def made_in_inference_mode(site: Node) -> Iterator[Node]:
    """What calls of the graph give in inference mode, where `site` runs outside of it."""
    if dialect.has_mode_switches(site.graph, "enter_inference"):
        found = {node: one.inference for node, one in modes(site.graph)}
        yield from (node for node in found if found[node] and not found[site])


@contextmanager
def walls(graph: Graph) -> Iterator[None]:
    """Walls in `graph` for as long as the context lasts."""
    built = _build(graph) if dialect.has_mode_switches(graph) else []
    try:
        yield
    finally:
        for wall in built:
            wall.replace_all_uses_with(wall.all_input_nodes[0])
            graph.erase_node(wall)


def _build(graph: Graph) -> list[Node]:
    of_call = {node: _own(node, found) for node, found in modes(graph) if _runs_in_modes(node)}
    built = []
    for node, own in of_call.items():
        others = dict.fromkeys(of_call[user] for user in node.users if user in of_call)
        for other in others if _carries_gradients(node) else ():
            if other != own:
                users = {user for user in node.users if of_call.get(user) == other}
                built.append(_wall(node, users))
    return built


def _runs_in_modes(node: Node) -> bool:
    return node.op.startswith("call") and dialect.mode_switch(node) is None


def _own(node: Node, found: Modes) -> Modes:
    """The modes of a call; what the graph has not switched yet, capture may have seen."""
    known = dialect.value(node)
    saw_gradient = isinstance(known, torch.Tensor) and known.requires_grad
    recorded = found.grad is None and saw_gradient and not dialect.written(node)
    return replace(found, grad=True) if recorded else found


def _carries_gradients(node: Node) -> bool:
    """Whether modes matter to a result: not to numbers and masks."""
    known = dialect.value(node)
    if isinstance(known, torch.Tensor):
        return known.is_floating_point() or known.is_complex()
    return not isinstance(known, (int, float, torch.SymInt, torch.SymFloat, torch.SymBool))


def _wall(node: Node, users: set[Node]) -> Node:
    """Between `node` and `users`. It stands right behind `node`, before all that may use it."""
    with node.graph.inserting_after(node):
        wall = node.graph.call_function(_unchanged, (node,))
    dialect.annotate(wall, dialect.value(node), like=node)
    for user in users:
        user.replace_input_with(node, wall)
    return wall


def _unchanged(tensor: Any) -> Any:
    """What a wall computes."""
    return tensor
