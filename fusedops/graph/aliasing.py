"""Which nodes share memory, by the storages that capture recorded, and when it is written."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import Node

from fusedops.graph.dialect import value, written


def storage(node: Node) -> int | None:
    """The identity of a tensor's memory, the same for all its views; None where it is no tensor."""
    tensor = value(node)
    return tensor.untyped_storage()._cdata if isinstance(tensor, torch.Tensor) else None


def written_between(swallowed: Sequence[Node]) -> str | None:
    """Why `swallowed`, nodes in program order, may not be computed where the last of them stands:
    memory that one of them reads is written before; or None."""
    if not swallowed:
        return None
    read = {storage(node) for old in swallowed for node in (old, *old.all_input_nodes)}
    node = swallowed[0]
    while node is not swallowed[-1]:
        node = node.next
        if any(storage(target) in read for target in written(node)):
            return "what it reads is written in place before it is done"
    return None
