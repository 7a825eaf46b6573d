"""Which nodes share memory, by the storages that capture recorded, and when it is written."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import Node

from fusedops.graph.dialect import users, value, written


def storage(node: Node) -> int | None:
    """The identity of a tensor's memory, the same for all its views and inside `torch.func`
    transforms; None where it is no strided tensor."""
    tensor = value(node)
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        return None
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor.untyped_storage()._cdata


def written_between(swallowed: Sequence[Node], place: Node | None = None) -> str | None:
    """Why `swallowed`, nodes in program order, may not be computed at `place`, by default where the
    last of them stands: memory that one of them reads is written elsewhere meanwhile; or one of
    them writes, and something else sees it. None where they may."""
    if not swallowed:
        return None
    ours = set(swallowed)
    read = {storage(node) for old in swallowed for node in (old, *old.all_input_nodes)}
    node, last = swallowed[0], max(swallowed[-1], place or swallowed[-1])
    while True:
        for target in written(node):
            if storage(target) in read and not (node in ours and _is_private(target, swallowed)):
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


def _is_private(target: Node, swallowed: Sequence[Node]) -> bool:
    """Whether what is written into `target` is made in this graph, and only `swallowed` ever see
    it; what others see of the last of them will be a new tensor."""
    memory = storage(target)
    holders = {node for node in target.graph.nodes if storage(node) == memory}
    seers = holders.union(swallowed)
    return all(
        holder.op.startswith("call")
        and (holder is swallowed[-1] or seers.issuperset(users(holder)))
        for holder in holders
    )
