"""Which nodes share memory, according to the storages that capture recorded, and which calls write
into it."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from torch.fx import Graph, Node

from fusedops.graph.ir import dialect
from fusedops.graph.ir.dialect import users, value, written

#: For each graph a map from storages that capture recorded as separate to the storages that they
#: share in eager mode.
_EAGER_STORAGE: WeakKeyDictionary[Graph, dict[int | None, int | None]] = WeakKeyDictionary()


def record_returned_inputs(graph: Graph) -> None:
    """Finds calls that return their input, but were captured as copies, for `storage`."""
    returning = [node for node in graph.nodes if dialect.returns_its_input(node)]
    pairs = ((_recorded(node), _recorded(node.all_input_nodes[0])) for node in returning)
    _EAGER_STORAGE[graph] = {ours: theirs for ours, theirs in pairs if ours not in (None, theirs)}


def storage(node: Node) -> int | None:
    """The identity of a tensor's memory, the same for all its views and inside `torch.func`
    transforms; None if the value is not a strided tensor."""
    in_eager, found = _EAGER_STORAGE.get(node.graph, {}), _recorded(node)
    while found in in_eager:
        found = in_eager[found]
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
    """Why nodes cannot be computed together, at `place` or at the last of them; None if they can.

    `fused_nodes` are in program order. They cannot be fused if another node in between writes into
    memory that one of them reads, or if one of them writes into memory that another node reads.
    """
    if not fused_nodes:
        return None
    ours = set(fused_nodes)
    read = {storage(node) for old in fused_nodes for node in (old, *old.all_input_nodes)}
    node, last = fused_nodes[0], max(fused_nodes[-1], place or fused_nodes[-1])
    while True:
        for target in written(node):
            if storage(target) in read and not (node in ours and _is_private(target, fused_nodes)):
                return "memory that it reads is written in place before its last call"
        if node is last:
            return None
        node = node.next


def written_after(place: Node, ours: set[Node]) -> frozenset[int | None]:
    """The memory that calls after `place`, except `ours`, write into."""
    found: set[int | None] = set()
    node = place.next
    while node.op != "root":
        if node not in ours:
            found.update(storage(target) for target in written(node))
        node = node.next
    return frozenset(found)


def version(node: Node, reader: Node) -> Node:
    """The call whose result `reader` reads from `node`: the last in-place call on it before
    `reader`, or `node` itself."""
    writers = [user for user in node.users if user < reader and written(user) == [node]]
    whole = [user for user in writers if user.op.startswith("call") and user.args[0] is node]
    return max([node, *(user for user in whole if value(user) is not None)])


def _is_private(target: Node, fused_nodes: Sequence[Node]) -> bool:
    """Whether the memory of `target` is allocated in this graph and read only by `fused_nodes`. The
    last of them may have other readers, which will read the op's new tensor."""
    memory = storage(target)
    holders = {node for node in target.graph.nodes if storage(node) == memory}
    allowed = holders.union(fused_nodes)
    return all(
        holder.op.startswith("call")
        and (holder is fused_nodes[-1] or allowed.issuperset(users(holder)))
        for holder in holders
    )
