"""Computes the mask of a relu's gradient from a tensor that the backward pass needs anyway.

before    mask = aten.le(relu, 0)                     saved for the backward graph, as bools
after     mask = aten.view(aten.le(view, 0), shape)   computed in the backward graph, where
          view = aten.view(relu, [-1, features])      is saved for the product after the relu

A linear layer views what it gets as a matrix, and saves the view for the gradient of its weight.
torch does not see that this is relu's result, and saves the mask too. Inductor's code for a CPU
converts bools one at a time: training the feed-forward layer of a transformer, 512 to 2048 features
and back, takes 1.4 times as long for it in float32, and twice as long in bfloat16 (on a core of
Sapphire Rapids).
"""

from __future__ import annotations

import torch
from torch.fx import Graph

from fusedops.graph.memory.recorded import insert_call, replace, sizes_of

_aten = torch.ops.aten
_VIEWS = (_aten.view.default, _aten.reshape.default, _aten._unsafe_view.default)


def read_views_of_relus(joint_graph: Graph) -> None:
    """Edits the graph: a comparison of a relu's result with 0 reads a view of it that comes before
    the comparison, if there is one."""
    for mask in joint_graph.find_nodes(op="call_function", target=_aten.le.Scalar):
        relu, limit = mask.args
        if relu.target is not _aten.relu.default or limit != 0:
            continue
        view = next((user for user in relu.users if user.target in _VIEWS and user < mask), None)
        if view is not None:
            of_view = insert_call(mask, _aten.le.Scalar, view, 0)
            shape = sizes_of(mask, relu)
            replace(mask, insert_call(mask, _aten.view.default, of_view, shape))
