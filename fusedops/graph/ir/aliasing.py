"""Which nodes share memory, by the storages that capture recorded, and when it is written."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from torch.fx import Graph, Node

from fusedops.graph.ir import dialect
from fusedops.graph.ir.dialect import users, value, written

#: By graph the memory that capture recorded for a result, and the memory that it is in eager.
_REALLY: WeakKeyDictionary[Graph, dict[int | None, int | None]] = WeakKeyDictionary()


def note_returned_inputs(graph: Graph) -> None:
    """Look for calls that return their input, which capture recorded as copies."""
    returning = [node for node in graph.nodes if dialect.returns_its_input(node)]
    pairs = ((_recorded(node), _recorded(node.all_input_nodes[0])) for node in returning)
    _REALLY[graph] = {ours: theirs for ours, theirs in pairs if ours not in (None, theirs)}


def storage(node: Node) -> int | None:
    """The identity of a tensor's memory, the same for all its views and inside `torch.func`
    transforms; None where it is no strided tensor."""
    really, found = _REALLY.get(node.graph, {}), _recorded(node)
    while found in really:
        found = really[found]
    return found


def _recorded(node: Node) -> int | None:
    tensor = value(node)
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        return None
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    address: int = tensor.untyped_storage()._cdata
    return address


def written_between(fused_nodes: Sequence[Node], place: Node | None = None) -> str | None:
    """Why nodes may not be computed together, at `place` or where the last of them stands, or None.

    `fused_nodes` are in program order. They may not where memory that one of them reads is written
    in between by another node, or where one of them writes memory that another node sees.
    """
    if not fused_nodes:
        return None
    ours = set(fused_nodes)
    read = {storage(node) for old in fused_nodes for node in (old, *old.all_input_nodes)}
    node, last = fused_nodes[0], max(fused_nodes[-1], place or fused_nodes[-1])
    while True:
        for target in written(node):
            if storage(target) in read and not (node in ours and _is_private(target, fused_nodes)):
                return "what it reads is written in place before it is done"
        if node is last:
            return None
        node = node.next


def written_behind(place: Node, ours: set[Node]) -> frozenset[int | None]:
    """The memory that calls behind `place` write to, but for `ours`."""
    found: set[int | None] = set()
    node = place.next
    while node.op != "root":
        if node not in ours:
            found.update(storage(target) for target in written(node))
        node = node.next
    return frozenset(found)


def version(node: Node, reader: Node) -> Node:
    """The call whose result `reader` sees in `node`: the last to write into it in place, or it."""
    writers = [user for user in node.users if user < reader and written(user) == [node]]
    whole = [user for user in writers if user.op.startswith("call") and user.args[0] is node]
    return max([node, *(user for user in whole if value(user) is not None)])


def _is_private(target: Node, fused_nodes: Sequence[Node]) -> bool:
    """Whether what is written into `target` is made in this graph, and only `fused_nodes` ever see
    it; what others see of the last of them will be a new tensor."""
    memory = storage(target)
    holders = {node for node in target.graph.nodes if storage(node) == memory}
    seers = holders.union(fused_nodes)
    return all(
        holder.op.startswith("call")
        and (holder is fused_nodes[-1] or seers.issuperset(users(holder)))
        for holder in holders
    )
