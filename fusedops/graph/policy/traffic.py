"""Counts the memory traffic of the calls that a rewrite fuses, and of the op that replaces them.
Also recognises which calls before and after a softmax or norm Inductor would fuse with it, and
which ones reduce its result."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.fx import Node

from fusedops.graph.analysis import storages
from fusedops.graph.analysis.calls import kind_of
from fusedops.graph.analysis.nodes import users
from fusedops.graph.analysis.products import VIEWS, is_unchanged
from fusedops.graph.analysis.steps import call_of
from fusedops.graph.analysis.values import bytes_of, hints, value
from fusedops.graph.rule import Match


def bytes_saved(match: Match) -> int:
    """Returns how many bytes less the op reads and writes than the calls of a match, if each of
    these reads its inputs and writes its result. Returns 0 for a single call. Symbolic sizes have
    their values at capture."""
    calls = (*unused_masks(match), *match.nodes)
    if len(calls) == 1:
        return 0
    separately = sum(_moved(call) for call in calls)
    read = {node for call in (*calls, *match.mask_calls) for node in call.all_input_nodes}
    inputs = read.difference(calls, match.mask_calls)
    together = _bytes(inputs) - unread_bytes(match) + _bytes(match.results)
    return max(0, separately - together)


def unread_bytes(match: Match) -> int:
    """Returns the bytes of those scores that the op does not read because a diagonal, as of a
    causal mask or a window, hides them. Scores that the op's arguments `start` and `end` hide are
    not counted, because their number is not known at compile time."""
    arguments = match.call.arguments
    scores, first = value(arguments.get("input")), arguments.get("lower_diagonal")
    sizes = hints(scores) if isinstance(scores, torch.Tensor) else None
    if not sizes or len(sizes) < 2 or not match.op.startswith("masked_softmax"):
        return 0
    rows, columns = sizes[-2:]
    last = arguments.get("diagonal") if arguments.get("causal") else columns
    hidden = rows * columns - _before(last + 1, rows, columns) if isinstance(last, int) else 0
    hidden += _before(first, rows, columns) if isinstance(first, int) else 0
    return bytes_of(scores) // max(rows * columns, 1) * min(hidden, rows * columns)


def _before(limit: int, rows: int, columns: int) -> int:
    """Returns how many scores lie before a diagonal: the sum over all rows i of the number of
    columns before limit + i."""

    def total(greatest: int) -> int:
        """Returns the sum of min(n, columns) for n from 1 to `greatest`."""
        rising = max(0, min(greatest, columns))
        return rising * (rising + 1) // 2 + columns * max(0, greatest - columns)

    return total(limit + rows - 1) - total(limit - 1)


def unused_masks(match: Match) -> list[Node]:
    """Returns those of the match's mask calls whose results nothing but the match uses."""
    unused: set[Node] = set()
    for call in sorted(match.mask_calls, reverse=True):
        if unused.union(match.nodes).issuperset(users(call)):
            unused.add(call)
    return sorted(unused)


def _moved(node: Node) -> int:
    """Returns the bytes that a call reads and writes; 0 if it moves none, such as a view."""
    if is_unchanged(node) or call_of(node, "item") is not None:
        return 0
    return _bytes([*node.all_input_nodes, node])


def _bytes(nodes: Iterable[Node]) -> int:
    tensors = [value(node) for node in nodes]
    return sum(bytes_of(t) for t in tensors if isinstance(t, torch.Tensor))


# --- neighbours -----------------------------------------------------------------------------------

#: The kinds of calls that Inductor fuses with their neighbours: elementwise ones, and those that
#: move elements, whose new order it computes as it reads or writes.
_POINTWISE = set(
    "add sub mul div neg pow square sqrt rsqrt reciprocal exp log sin cos tanh sigmoid erf relu "
    "relu6 gelu silu elu leaky_relu softplus mish hardtanh hardswish hardsigmoid celu selu abs "
    "clamp where masked_fill dropout cast maximum minimum eq ne lt le gt ge not addcmul lerp "
    "native_dropout quickgeluactivation newgeluactivation roll pad constant_pad_nd".split()
)
#: The kinds of gathers and reductions.
_REDUCTIONS = set(
    "gather take_along_dim nll_loss nll_loss_nd kl_div sum mean amax amin max min argmax argmin "
    "norm linalg_norm logsumexp prod topk multinomial".split()
)


def is_pointwise(node: Node) -> bool:
    """Returns whether a call is elementwise, so that Inductor would fuse it. A view counts as
    elementwise if the call that it reads is. A copy, as that which Swin Transformer makes of its
    windows, is elementwise itself."""
    if is_unchanged(node) and node.all_input_nodes:
        return _is_copy(node) or is_pointwise(node.all_input_nodes[0])
    return kind_of(node) in _POINTWISE


def _is_copy(node: Node) -> bool:
    """Returns whether a call that only changes shapes or strides had to copy: a reshape, a clone or
    a contiguous() whose result does not share its input's memory."""
    is_view = kind_of(node) in VIEWS
    return is_view and storages.storage(node) != storages.storage(node.all_input_nodes[0])


def readers(node: Node) -> list[Node]:
    """Returns the calls that read the elements of a node. These are its users, but a user that only
    passes the elements on, such as a view, is replaced by its own readers."""
    found = []
    for user in users(node):
        is_view = is_unchanged(user) and not _is_copy(user)
        found += readers(user) if is_view else [user]
    return found


def ends_in_reduction(node: Node, steps: int = 8) -> bool:
    """Returns whether a node is a gather or reduction, or is used only by calls that lead to one.
    At most `steps` pointwise calls and views, the node included, may come before it on each
    path."""
    kind = kind_of(node)
    if kind in _REDUCTIONS:
        return True
    through, used_by = kind in _POINTWISE or kind in VIEWS, users(node)
    return bool(steps and through and used_by) and all(
        ends_in_reduction(user, steps - 1) for user in used_by
    )
