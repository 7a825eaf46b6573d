"""Computes the gradient of a small table, such as T5's or BEiT's position bias, in memory that
threads do not share.

before    grad = _unsafe_masked_index_put_accumulate(zeros([num, C]), mask, [index], values)
or        grad = index_put(zeros([num, C]), [index], values, accumulate=True)
after     rows = scatter_add(zeros([C, Q, num]), 2, index, values with C first)
          grad = rows.sum(1).t().contiguous()               index has shape [Q, K]

The first call is the derivative of an embedding, the second that of ``table[index]``. In both the
threads of Inductor's code for a CPU add to the same num x C numbers, by atomic instructions: 512 x
512 gradients of 12 heads and 32 buckets take 8 ms on one thread, and 66 on two. Afterwards each row
of the index has numbers of its own, so that torch's kernel needs no atomic instructions. It takes
8 ms on one thread too, adds in the same order at every run, and adds 16-bit values as floats.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from fusedops.graph.analysis.values import hints, value
from fusedops.graph.memory.recorded import insert_call, replace, sizes_of

_aten = torch.ops.aten
_MASKED_PUT = _aten._unsafe_masked_index_put_accumulate.default
_PUT = _aten.index_put.default

#: A table is small if it has at most this share of the numbers of a row of the index, and few
#: columns, because the values are read column by column.
_SHARE, _MOST_COLUMNS = 1 / 4, 64


class _Sum(NamedTuple):
    """A call that adds ``values`` to the rows of ``table`` that the index ``at`` names: all values,
    or those that ``mask`` has."""

    put: Node
    table: Node
    at: Node
    values: Node
    mask: Node | None


def separate_rows(joint_graph: Graph) -> None:
    """Edits the graph: gradients of small tables on a CPU are added up row by row."""
    for target in (_MASKED_PUT, _PUT):
        for put in joint_graph.find_nodes(op="call_function", target=target):
            sum_ = _sum_of(put)
            if sum_ is not None and _is_small(sum_):
                replace(put, _sum_of_rows(sum_))


def _sum_of(put: Node) -> _Sum | None:
    arguments: Any = put.args
    if put.target is _MASKED_PUT:
        table, mask, indices, values = arguments
    elif arguments[3:] == (True,):
        (table, indices, values), mask = arguments[:3], None
    else:
        return None
    return _Sum(put, table, indices[0], values, mask) if len(indices) == 1 else None


def _is_small(sum_: _Sum) -> bool:
    """Returns whether floating values are added to zeros on a CPU, and these are a small table."""
    put, table, index, values, mask = sum_
    if table.target is not _aten.full.default or table.args[1] != 0 or value(table).dim() != 2:
        return False
    rows, columns = value(table).shape
    on_cpu = value(put).device.type == "cpu" and value(put).is_floating_point()
    is_table = on_cpu and isinstance(rows * columns, int)
    sizes = hints(value(index)) if value(index).dtype == torch.int64 else None  # scatter_add's
    if not is_table or not sizes or hints(value(values)) != [*sizes, columns]:
        return False
    selects_rows = mask is None or hints(value(mask)) == [*sizes, 1]
    return bool(selects_rows and columns <= _MOST_COLUMNS and rows <= _SHARE * sizes[-1])


def _sum_of_rows(sum_: _Sum) -> Node:
    """Inserts the calls that compute the result, and returns the last one."""
    put, table = sum_.put, value(sum_.table)
    rows, columns = table.shape
    masked, values = _masked(sum_)
    index = _from_start(put, masked, rows)
    sizes = sizes_of(put, index)
    dims = len(sizes)
    sums_dtype = torch.promote_types(table.dtype, torch.float32)
    by_column = insert_call(put, _aten.permute.default, values, [dims, *range(dims)])
    of_all = insert_call(put, _aten.expand.default, index, [columns, *sizes])
    zeros = _zeros(put, [columns, *sizes[:-1], rows], sums_dtype)
    wide = _converted(put, by_column, sums_dtype)
    sums = insert_call(put, _aten.scatter_add.default, zeros, dims, of_all, wide)
    if dims > 1:
        sums = insert_call(put, _aten.sum.dim_IntList, sums, list(range(1, dims)))
    by_row = _converted(put, insert_call(put, _aten.permute.default, sums, [1, 0]), table.dtype)
    return insert_call(put, _aten.clone.default, by_row, memory_format=torch.contiguous_format)


def _masked(sum_: _Sum) -> tuple[Node, Node]:
    """Returns the index and the values with zeros where the mask is false. An index that the mask
    leaves out may be outside of the table."""
    put, _, index, values, mask = sum_
    if mask is None:
        return index, values
    of_index = insert_call(put, _aten.squeeze.dim, mask, -1)
    index = insert_call(put, _aten.mul.Tensor, index, of_index)
    zero = _zeros(put, [], value(values).dtype)
    return index, insert_call(put, _aten.where.self, mask, values, zero)


def _from_start(put: Node, index: Node, rows: int) -> Node:
    """Returns the index with -1, which is the last row, as the number of that row."""
    is_negative = insert_call(put, _aten.lt.Scalar, index, 0)
    from_end = insert_call(put, _aten.add.Tensor, index, rows)
    return insert_call(put, _aten.where.self, is_negative, from_end, index)


def _converted(put: Node, tensor: Node, dtype: torch.dtype) -> Node:
    if value(tensor).dtype == dtype:
        return tensor
    return insert_call(put, torch.ops.prims.convert_element_type.default, tensor, dtype)


def _zeros(put: Node, sizes: list[Any], dtype: torch.dtype) -> Node:
    options = {"dtype": dtype, "layout": torch.strided, "device": value(put).device}
    return insert_call(put, _aten.full.default, sizes, 0, pin_memory=False, **options)
