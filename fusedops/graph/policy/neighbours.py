"""What Inductor does with the calls around a site."""

from __future__ import annotations

from torch.fx import Node

from fusedops.graph.analysis import aliases
from fusedops.graph.analysis.nodes import users
from fusedops.graph.analysis.products import is_unchanged, name_of


def is_pointwise(node: Node) -> bool:
    """Whether a call is elementwise, also through views, so that Inductor fuses it with its
    neighbours."""
    if is_unchanged(node) and node.all_input_nodes:
        return is_pointwise(node.all_input_nodes[0])
    return node.op.startswith("call") and name_of(node) in aliases.POINTWISE


def readers(node: Node) -> list[Node]:
    """The users of a node, with those that do not change its elements replaced by their users."""
    direct = [user for user in users(node) if not is_unchanged(user)]
    unchanged = [user for user in users(node) if is_unchanged(user)]
    return direct + [reader for user in unchanged for reader in readers(user)]


def ends_in_reduction(node: Node, steps: int = 8) -> bool:
    """Whether a node is a gather or reduction, or is used only by such calls, directly or through
    pointwise ones."""
    name = name_of(node)
    if name in aliases.REDUCTIONS:
        return True
    through = name in aliases.POINTWISE or name in aliases.VIEWS
    return bool(steps and through and node.users) and all(
        ends_in_reduction(user, steps - 1) for user in node.users
    )
