"""Recognises which calls before and after a softmax or norm Inductor would fuse with it, and which
ones reduce its result."""

from __future__ import annotations

from torch.fx import Node

from fusedops.graph.analysis import storages
from fusedops.graph.analysis.calls import kind_of
from fusedops.graph.analysis.nodes import users
from fusedops.graph.analysis.products import VIEWS, is_unchanged

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
    through = kind in _POINTWISE or kind in VIEWS
    return bool(steps and through and node.users) and all(
        ends_in_reduction(user, steps - 1) for user in node.users
    )
