"""Describes the dimensions over which a norm in several calls is computed: the last ones, or one
that is not the last. They decide which op computes the norm, and how its weight and bias broadcast
to the input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fusedops.graph.analysis.steps import has_shape, view_chain
from fusedops.graph.analysis.values import are_equal, known_size, value
from fusedops.graph.rule import OpCall

aten = torch.ops.aten

#: Kind of norm -> the op that computes it over one dimension that is not the last.
_SPATIAL_OPS = {"layer_norm": "spatial_layer_norm", "rms_norm": "spatial_rms_norm"}


@dataclass(frozen=True)
class NormDims:
    """The dimensions over which a norm is computed: the last ones, or a spatial one, which is not
    the last, such as the channels of images.

    dims: the dimensions, in ascending order.
    sizes: the shape of the input.
    """

    dims: tuple[int, ...]
    sizes: torch.Size

    @property
    def are_last(self) -> bool:
        """Whether these are the last dimensions. Only then does the op of rms_norm have the
        arguments weight_offset and rounds_normalized."""
        return self.dims[-1] == len(self.sizes) - 1

    @property
    def row(self) -> list[Any]:
        """The shape of a row, which the op's parameters must have too."""
        return [self.sizes[dim] for dim in self.dims]

    @property
    def known_row(self) -> list[int | None]:
        """The sizes of a row that are known at compile time; None for the others."""
        return [known_size(size) for size in self.row]

    def op(self, kind: str) -> str:
        """Returns the name of the op that computes norms of `kind`."""
        return kind if self.are_last else _SPATIAL_OPS.get(kind, kind)

    def has_parameter(self, operand: Node) -> bool:
        """Returns whether a tensor can be a weight or bias: it broadcasts to the input, is the same
        for all rows, and has one value for each element of a row. If a row has several dimensions,
        it may have size 1 in some of them, such as one value for each channel of an image. Beside a
        spatial dimension it varies along that one alone, as weight[:, None, None] does."""
        rank, of_row = value(operand).dim(), [dim - len(self.sizes) for dim in self.dims]
        shape = [self.sizes[dim] if dim in of_row else 1 for dim in range(-rank, 0)]
        if self.are_last:
            is_one = [statically_known_true(size == 1) for size in value(operand).shape]
            shape = [1 if one else size for one, size in zip(is_one, shape, strict=True)]
            has_row = not all(is_one)
        else:
            has_row = -rank <= of_row[0]
        return has_row and rank <= len(self.sizes) and has_shape(operand, shape)

    def view_chain_of(self, operand: Node) -> tuple[tuple[Node, ...], Node]:
        """Returns the views that end in a weight or bias and that the op does not need, and the
        tensor before these views."""
        return ((), operand) if self.are_last else view_chain(operand)

    def parameter(self, operand: Node) -> Node | OpCall:
        """Returns a weight or bias in the shape that the op takes, which is the shape of a row."""
        if not self.are_last:
            is_row = value(operand).dim() == 1
            return operand if is_row else OpCall(aten.reshape.default, (operand, [-1]))
        if has_shape(operand, self.row):
            return operand
        extra = max(value(operand).dim() - len(self.dims), 0)
        shape = list(value(operand).shape[extra:])
        if are_equal(shape, self.row):
            return OpCall(aten.reshape.default, (operand, self.known_row))
        squeezed = OpCall(aten.reshape.default, (operand, shape)) if extra else operand
        return OpCall(aten.expand.default, (squeezed, self.known_row))

    def order(self, kind: str) -> tuple[int, ...] | None:
        """Returns the order in which the op for norms of `kind` needs the input's dimensions, or
        None if the op takes the input as it is. std_norm and l2_norm have no op for a spatial
        dimension, so that their op runs on the permuted input. Permuting costs nothing if the
        tensor is in the channels_last memory format."""
        if self.are_last or kind in _SPATIAL_OPS:
            return None
        (normalized,) = self.dims
        return (*(dim for dim in range(len(self.sizes)) if dim != normalized), normalized)

    def arguments(self, kind: str) -> dict[str, Any]:
        """Returns the arguments of the op of that kind that name the dimensions."""
        is_spatial = self.op(kind) != kind
        return {"dim": self.dims[0]} if is_spatial else {"normalized_shape": self.known_row}


def norm_dims(dims: Sequence[int], sizes: torch.Size) -> NormDims | None:
    """Returns the description of `dims`, dimensions of a tensor with these sizes, or None if no op
    normalises over them."""
    are_last = tuple(dims) == tuple(range(len(sizes) - len(dims), len(sizes)))
    return NormDims(tuple(dims), sizes) if are_last or len(dims) == 1 else None
