"""Recognises calls that select one element of each row of a tensor, the one of the row's class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fusedops.graph.analysis import storages
from fusedops.graph.analysis.calls import Call, kind_of
from fusedops.graph.analysis.steps import before_view_chain, call_of, has_shape
from fusedops.graph.analysis.values import constant, value
from fusedops.graph.rule import OpCall

aten = torch.ops.aten

#: The kinds of calls that `read_element` reads.
SELECTIONS = ("gather", "item", "index")


@dataclass(frozen=True)
class Element:
    """One element of each row of a tensor.

    rows: the tensor, whose last dimension has the classes.
    reader: the call that reads it.
    target: the class of each row.
    places: the tensors, if any, that say for each row where it is in a dimension of `rows`.
    counts_from_end: whether a class may be negative, and is then counted from the last one.
    """

    rows: Node
    reader: Node
    target: Node | OpCall
    places: tuple[Node, ...] = ()
    counts_from_end: bool = False

    def target_among(self, logits: Node) -> Node | OpCall:
        """Returns the class of each row, counted from the first class of the logits."""
        if not self.counts_from_end:
            return self.target
        count = value(logits).shape[-1]
        classes = count if isinstance(count, int) else OpCall(aten.sym_size.int, (logits, -1))
        is_negative = OpCall(aten.lt.Scalar, (self.target, 0))
        return OpCall(
            aten.add.Tensor, (self.target, OpCall(aten.mul.Tensor, (is_negative, classes)))
        )


def read_element(call: Call) -> Element | None:
    """Returns what a call of one of `SELECTIONS` selects, or None if it selects something else."""
    return _gathered(call) if call.kind == "gather" else _indexed(call)


# --- x.gather(-1, target.unsqueeze(-1)) -----------------------------------------------------------


def _gathered(gather: Call) -> Element | None:
    """Returns what a gather or take_along_dim selects, if it takes one column of each row.
    torch.distributions.Categorical broadcasts both tensors first, which is recognised too."""
    source, index = value(gather.input), value(gather.arguments["index"])
    if not isinstance(source, torch.Tensor) or not isinstance(index, torch.Tensor):
        return None
    rank = source.dim()
    dim = constant(gather.arguments.get("dim"))
    if rank == 0 or not isinstance(dim, int) or dim % rank != rank - 1:
        return None
    column = _before_slice(gather.arguments["index"])
    if index.dtype != torch.int64 or not has_shape(column, (*source.shape[:-1], 1)):
        return None
    return Element(
        *_before_broadcast(gather.input, gather.node), OpCall(aten.squeeze.dim, (column, -1))
    )


def _before_slice(index: Node) -> Node:
    """Returns x, if `index` is torch.broadcast_tensors(x, ...)[k][..., :1] and has the shape of x,
    else `index`. torch.distributions.Categorical writes this."""
    call = call_of(index, "item", "slice")
    if call is None:
        return index
    # An aten.slice of what x is broadcast to is x, whatever it slices, if it has the shape of x.
    if call.kind == "item" and call.arguments["index"] != (..., slice(None, 1, None)):
        return index
    column, _ = _before_broadcast(call.input, index)
    return column if has_shape(column, value(index).shape) else index


def _before_broadcast(node: Any, reader: Node) -> tuple[Any, Node]:
    """Returns the tensor that torch.broadcast_tensors broadcasts to `node`, and that call, which is
    the tensor's user. Returns `node` and its user `reader` if `node` is something else."""
    call = call_of(node, "item")
    source = call.input if call else None
    if call is None or not isinstance(source, Node) or kind_of(source) != "broadcast_tensors":
        return node, reader
    tensors: Any = source.args
    if isinstance(tensors[0], (list, tuple)):  # ATen's operator takes a list
        (tensors,) = tensors
    return tensors[call.arguments["index"]], source


# --- x[arange(len(x)), target] --------------------------------------------------------------------


def _indexed(call: Call) -> Element | None:
    """Returns what an index of all rows and of a class for each selects, as x[arange(len(x)),
    target] does."""
    source, indices = value(call.input), call.arguments.get("index")
    if not isinstance(source, torch.Tensor) or not isinstance(indices, (list, tuple)):
        return None
    rows = source.shape[:-1]
    if not rows or len(indices) != source.dim() or not has_shape(indices[-1], rows):
        return None
    target = value(indices[-1])
    if target.dtype != torch.int64 or target.device != source.device:
        return None
    if not all(_is_place(index, rows, dim) for dim, index in enumerate(indices[:-1])):
        return None
    places = tuple(index for index in indices[:-1] if isinstance(index, Node))
    return Element(call.input, call.node, indices[-1], places, counts_from_end=True)


def _is_place(index: Any, rows: torch.Size, dim: int) -> bool:
    """Returns whether an index says for each row where it is in dimension `dim`: whether it has the
    numbers from 0 on along this dimension, and repeats them along the others."""
    if isinstance(index, (list, range)):
        is_counted = all(type(each) is int and each == i for i, each in enumerate(index))
        return len(rows) == 1 and is_counted and statically_known_true(rows[0] == len(index))
    shape = [rows[dim] if each == dim else 1 for each in range(len(rows))]
    numbers = call_of(before_view_chain(index), "arange")
    if numbers is None or value(numbers.node).dtype != torch.int64 or storages.writers_of(index):
        return False
    is_shaped = has_shape(index, shape) or has_shape(index, shape[dim:])
    return is_shaped and [constant(numbers.arguments[name]) for name in ("start", "step")] == [0, 1]
