"""Computes the gradient of a small table, such as T5's position bias, in memory that threads do not
share.

before    grad = _unsafe_masked_index_put_accumulate(zeros([num, C]), mask, [index], values)
after     rows = scatter_add(zeros([C, Q, num]), 2, index, values with C first)
          grad = rows.sum(1).t()                            index has shape [Q, K]

In the first form the threads of Inductor's code for a CPU add to the same num x C numbers, by
atomic instructions: 512 x 512 gradients of 12 heads and 32 buckets take 8 ms on one thread, and 66
on two. In the second each row of the index has numbers of its own, so that torch's kernel needs no
atomic instructions. It takes 8 ms on one thread too, and adds in the same order at every run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from fusedops.graph.analysis.values import hints, value
from fusedops.graph.memory.recorded import insert_call, replace, sizes_of

_aten = torch.ops.aten
_PUT = _aten._unsafe_masked_index_put_accumulate.default

#: A table is small if it has at most this share of the numbers of a row of the index, and few
#: columns, because the values are read column by column.
_SHARE, _MOST_COLUMNS = 1 / 4, 64


def separate_rows(joint_graph: Graph) -> None:
    """Edits the graph: gradients of small tables on a CPU are added up row by row."""
    for put in joint_graph.find_nodes(op="call_function", target=_PUT):
        if _is_small(put):
            replace(put, _sum_of_rows(put))


def _is_small(put: Node) -> bool:
    """Returns whether a call adds values to zeros on a CPU, and these are a small table."""
    arguments: Any = put.args
    table, _, indices, values = arguments
    if table.target is not _aten.full.default or table.args[1] != 0 or len(indices) != 1:
        return False
    index, (rows, columns) = value(indices[0]), value(table).shape
    is_table = value(put).device.type == "cpu" and isinstance(rows * columns, int)
    sizes = hints(index) if index.dtype == torch.int64 else None  # as scatter_add wants it
    if not is_table or not sizes or value(values).dim() != len(sizes) + 1:
        return False
    return bool(columns <= _MOST_COLUMNS and rows <= _SHARE * sizes[-1])


def _sum_of_rows(put: Node) -> Node:
    """Inserts the calls that compute the result of `put`, and returns the last one."""
    arguments: Any = put.args
    table, mask, (index,), values = arguments
    rows, columns = value(table).shape
    sizes = sizes_of(put, index)
    dims = len(sizes)
    kept = insert_call(put, _aten.where.self, mask, values, _zeros(put, []))
    by_column = insert_call(put, _aten.permute.default, kept, [dims, *range(dims)])
    # An index that the mask leaves out may be outside of the table.
    of_index = insert_call(put, _aten.squeeze.dim, mask, -1)
    inside = insert_call(put, _aten.mul.Tensor, index, of_index)
    of_all = insert_call(put, _aten.expand.default, inside, [columns, *sizes])
    zeros = _zeros(put, [columns, *sizes[:-1], rows])
    added = insert_call(put, _aten.scatter_add.default, zeros, dims, of_all, by_column)
    if dims > 1:
        added = insert_call(put, _aten.sum.dim_IntList, added, list(range(1, dims)))
    return insert_call(put, _aten.permute.default, added, [1, 0])


def _zeros(put: Node, sizes: list[Any]) -> Node:
    result = value(put)
    options = {"dtype": result.dtype, "layout": torch.strided, "device": result.device}
    return insert_call(put, _aten.full.default, sizes, 0, pin_memory=False, **options)
