"""Moves the view between masked scores and their softmax behind the softmax.

before    s = s.view(batch, heads, queries, keys) + mask
          p = F.softmax(s.view(batch * heads, queries, keys), -1)
          y = F.dropout(p, 0.1)
after     s = s.view(batch, heads, queries, keys) + mask
          p = F.softmax(s, -1)
          y = F.dropout(p, 0.1).view(batch * heads, queries, keys)

Rows stay rows, so that the results are the same, and the rules find the mask beside the softmax.
fairseq writes attention like this, and so did many models of Hugging Face.
"""

from __future__ import annotations

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fusedops.graph.analysis import storages
from fusedops.graph.analysis.calls import kind_of
from fusedops.graph.analysis.nodes import annotate, users
from fusedops.graph.analysis.steps import call_of
from fusedops.graph.analysis.values import fake_mode, value
from fusedops.graph.rewriting.layouts import memory_order

#: The kinds of calls whose results a mask or a bias may be part of.
_MASKED = ("add", "sub", "masked_fill", "where")


def sink_views(graph: Graph) -> None:
    """Moves views behind the softmaxes that read them, and behind the casts and dropouts that
    follow, if what is viewed is masked or has a bias."""
    moved: set[Node] = set()
    for node in list(graph.nodes):
        view = _view_before(node)
        if view is not None and (view in moved or _is_read_by_softmax(view, node)):
            moved.add(_moved_behind(view, node))


def _view_before(node: Node) -> Node | None:
    """Returns the view that a softmax over the last dimension, cast or dropout reads as its input,
    if nothing else reads it, and it leaves the rows of a contiguous tensor as they are."""
    call = call_of(node, "softmax", "cast", "dropout")
    view = call_of(call.input, "reshape") if call is not None else None
    if call is None or view is None or node.args[:1] != (view.node,):
        return None
    if call.kind == "softmax" and call.arguments["dim"] != -1:
        return None
    readers = [user for user in users(view.node) if storages.reads_memory(user, view.node)]
    tensors = [value(each) for each in (view.input, view.node, node)]
    is_alone = readers == [node] and view.node.args[0] is view.input
    return view.node if is_alone and all(map(_is_contiguous, tensors)) else None


def _is_contiguous(tensor: torch.Tensor | None) -> bool:
    """Returns whether a tensor is known to be contiguous, without adding a guard."""
    return tensor is not None and memory_order(tensor) == tuple(range(tensor.dim()))


def _is_read_by_softmax(view: Node, node: Node) -> bool:
    """Returns whether a view leaves the last dimension of masked scores as it is, and `node` is
    their softmax."""
    scores = view.all_input_nodes[0]
    columns, viewed_columns = value(scores).shape[-1], value(view).shape[-1]
    keeps_rows = statically_known_true(columns == viewed_columns)
    return keeps_rows and kind_of(scores) in _MASKED and kind_of(node) == "softmax"


def _moved_behind(view: Node, node: Node) -> Node:
    """Makes `node` read what `view` views, and returns a view of its result in place of it."""
    viewed, result = view.all_input_nodes[0], value(node)
    with node.graph.inserting_after(node):
        moved = node.graph.create_node(view.op, view.target, (node, *view.args[1:]), view.kwargs)
    node.replace_all_uses_with(moved, delete_user_cb=lambda user: user is not moved)
    annotate(moved, result, like=node)
    with fake_mode(node), torch.enable_grad():
        recorded = result.view(value(viewed).shape)
    annotate(node, recorded, like=moved)
    for user in [node, *(user for user in view.users if kind_of(user) == "cast")]:
        user.replace_input_with(view, viewed)
    if not view.users:
        view.graph.erase_node(view)
    return moved
