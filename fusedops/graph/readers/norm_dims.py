"""Describes the dimensions over which a norm in several calls is computed: the last ones, or one
that is not the last. They decide which op computes the norm, and how its weight and bias broadcast
to the input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fusedops.graph.analysis.steps import has_shape, view_chain
from fusedops.graph.analysis.values import are_equal, known_size, value
from fusedops.graph.rule import OpCall

aten = torch.ops.aten


@dataclass(frozen=True)
class NormDims(ABC):
    """The dimensions over which a norm is computed.

    dims: the dimensions, in ascending order.
    sizes: the shape of the input.
    """

    dims: tuple[int, ...]
    sizes: torch.Size

    #: For kinds of norms the op that computes them over these dimensions, if it is not that of the
    #: same name.
    ops: ClassVar[dict[str, str]] = {}
    #: Whether the op of rms_norm has the arguments weight_offset and rounds_normalized.
    has_variants: ClassVar[bool]

    @property
    def row(self) -> list[Any]:
        """The shape of a row, which the op's parameters must have too."""
        return [self.sizes[dim] for dim in self.dims]

    @property
    def known_row(self) -> list[int | None]:
        """The sizes of a row that are known at compile time; None for the others."""
        return [known_size(size) for size in self.row]

    @abstractmethod
    def has_parameter(self, operand: Node) -> bool:
        """Returns whether a tensor can be a weight or bias: it broadcasts to the shape of a row,
        and is the same for all rows."""

    def view_chain_of(self, operand: Node) -> tuple[tuple[Node, ...], Node]:
        """Returns the views that end in a weight or bias and that the op does not need, and the
        tensor before these views."""
        return (), operand

    @abstractmethod
    def parameter(self, operand: Node) -> Node | OpCall:
        """Returns a weight or bias in the shape that the op takes, which is the shape of a row."""

    def order(self, kind: str) -> tuple[int, ...] | None:
        """Returns the order in which the op for norms of `kind` needs the input's dimensions, or
        None if the op takes the input as it is."""
        return None

    def arguments(self, kind: str) -> dict[str, Any]:
        """Returns the arguments of the op of that kind that name the dimensions."""
        return {"normalized_shape": self.known_row}


@dataclass(frozen=True)
class LastDims(NormDims):
    """The last dimensions of the input. The op takes its weight and bias in their shape."""

    has_variants: ClassVar[bool] = True

    def has_parameter(self, operand: Node) -> bool:
        """Returns whether a tensor can be a weight or bias. A weight or bias is the same for all
        rows, and has one value for each element of a row. If a row has several dimensions, it may
        have size 1 in some of them, such as one value for each channel of an image."""
        extra = value(operand).dim() - len(self.dims)
        if extra > len(self.sizes) - len(self.dims):
            return False
        trailing = self.row[max(-extra, 0) :]
        shape = value(operand).shape[max(extra, 0) :]
        is_one = [statically_known_true(size == 1) for size in shape]
        row = [1 if one else size for one, size in zip(is_one, trailing, strict=True)]
        return not all(is_one) and has_shape(operand, [1] * extra + row)

    def parameter(self, operand: Node) -> Node | OpCall:
        if has_shape(operand, self.row):
            return operand
        extra = max(value(operand).dim() - len(self.dims), 0)
        shape = list(value(operand).shape[extra:])
        if are_equal(shape, self.row):
            return OpCall(aten.reshape.default, (operand, self.known_row))
        squeezed = OpCall(aten.reshape.default, (operand, shape)) if extra else operand
        return OpCall(aten.expand.default, (squeezed, self.known_row))


@dataclass(frozen=True)
class SpatialDim(NormDims):
    """One dimension that is not the last, such as the channels of images. Weight and bias vary
    along this dimension alone, as weight[:, None, None] does; the op takes them as vectors.
    std_norm and l2_norm have no op for such a dimension, so that their op runs on the permuted
    input. Permuting costs nothing if the tensor is in the channels_last memory format."""

    ops: ClassVar[dict[str, str]] = {
        "layer_norm": "spatial_layer_norm",
        "rms_norm": "spatial_rms_norm",
    }
    has_variants: ClassVar[bool] = False

    def has_parameter(self, operand: Node) -> bool:
        (dim,), rank = self.dims, value(operand).dim()
        at = dim - len(self.sizes)
        if not -at <= rank <= len(self.sizes):
            return False
        shape: list[Any] = [1] * rank
        shape[at] = self.sizes[dim]
        return has_shape(operand, shape)

    def view_chain_of(self, operand: Node) -> tuple[tuple[Node, ...], Node]:
        return view_chain(operand)

    def parameter(self, operand: Node) -> Node | OpCall:
        if value(operand).dim() == 1:
            return operand
        return OpCall(aten.reshape.default, (operand, [-1]))

    def order(self, kind: str) -> tuple[int, ...] | None:
        if kind in self.ops:
            return None
        (normalized,) = self.dims
        return (*(dim for dim in range(len(self.sizes)) if dim != normalized), normalized)

    def arguments(self, kind: str) -> dict[str, Any]:
        return super().arguments(kind) if self.order(kind) else {"dim": self.dims[0]}


def norm_dims(dims: Sequence[int], sizes: torch.Size) -> NormDims | None:
    """Returns the description of `dims`, dimensions of a tensor with these sizes, or None if no op
    normalises over them."""
    if tuple(dims) == tuple(range(len(sizes) - len(dims), len(sizes))):
        return LastDims(tuple(dims), sizes)
    return SpatialDim(tuple(dims), sizes) if len(dims) == 1 else None
