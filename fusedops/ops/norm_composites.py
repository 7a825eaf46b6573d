"""The norms composed of torch's own operators, which forward mode runs (_forward_mode.py).

A backward op takes the statistics as arguments of their own: their tangents are those that the
composite of the forward op gave them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from fusedops.ops import _checks
from fusedops.ops._forward_mode import register_composite
from fusedops.ops._norm_second_order import multiplier, projection, sum_of_rows

MaybeTensor = torch.Tensor | None
Dims = tuple[int, ...]
Results = tuple[torch.Tensor, ...]


# --- statistics ---------------------------------------------------------------------------------


def _count(x: torch.Tensor, dims: Dims) -> int:
    return math.prod(x.shape[dim] for dim in dims)


def _root_of_mean(centered: torch.Tensor, dims: Dims, eps: float) -> torch.Tensor:
    return (centered.square().mean(dims, keepdim=True) + eps).rsqrt()


def _std_and_eps(centered: torch.Tensor, dims: Dims, eps: float) -> torch.Tensor:
    # Unlike a root of a sum, vector_norm has the derivative 0 at 0, that of std_norm.
    norm = torch.linalg.vector_norm(centered, dim=dims, keepdim=True)
    rstd: torch.Tensor = 1 / (
        norm / math.sqrt(max(_count(centered, dims) - 1, 0) or math.nan) + eps
    )
    return rstd


def _norm_or_eps(x: torch.Tensor, dims: Dims, eps: float) -> torch.Tensor:
    norm = torch.linalg.vector_norm(x, dim=dims, keepdim=True)
    rstd: torch.Tensor = 1 / norm.masked_fill(norm <= eps, eps)
    return rstd


#: rstd of each kind of norm, and whether it subtracts the mean.
_KINDS: dict[str, tuple[Callable[[torch.Tensor, Dims, float], torch.Tensor], bool]] = {
    "layer_norm": (_root_of_mean, True),
    "std_norm": (_std_and_eps, True),
    "rms_norm": (_root_of_mean, False),
    "l2_norm": (_norm_or_eps, False),
}


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(_checks.statistics_dtype(tensor.dtype))


# --- norms --------------------------------------------------------------------------------------


def _norm(
    kind: str,
    input: torch.Tensor,
    rank: int,
    weight: MaybeTensor,
    bias: MaybeTensor,
    eps: float,
    weight_offset: float = 0.0,
    rounds_normalized: bool = False,
) -> tuple[torch.Tensor, ...]:
    """The output, and the statistics that the op of this kind returns."""
    scale, centers = _KINDS[kind]
    dims, x = tuple(range(-rank, 0)), _wide(input)
    mean = x.mean(dims, keepdim=True) if centers else None
    centered = x if mean is None else x - mean
    rstd = scale(centered, dims, eps)
    output = centered * rstd
    if rounds_normalized:
        output = output.to(input.dtype).to(x.dtype)
    if weight is not None:
        output = output * (weight.to(x.dtype) + weight_offset)
    if bias is not None:
        output = output + bias.to(x.dtype)
    return (output, rstd) if mean is None else (output, mean, rstd)


def _centered(
    kind: str,
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: MaybeTensor,
    bias: MaybeTensor,
    eps: float,
) -> Results:
    return _norm(kind, input, len(normalized_shape), weight, bias, eps)


def _uncentered(
    kind: str,
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: MaybeTensor,
    eps: float,
    *settings: Any,
) -> Results:
    return _norm(kind, input, len(normalized_shape), weight, None, eps, *settings)


def _added(
    input: torch.Tensor,
    residual: torch.Tensor,
    normalized_shape: Sequence[int],
    p: float,
    seed: MaybeTensor,
) -> torch.Tensor:
    """dropout(input) + residual, in the dtype that is normalised."""
    kept = _wide(input)
    if seed is not None and p > 0:
        kept = kept * multiplier(input, normalized_shape, p, seed)
    return (kept + _wide(residual)).to(torch.promote_types(input.dtype, residual.dtype))


def _add_layer_norm(
    input: torch.Tensor,
    residual: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: MaybeTensor,
    bias: MaybeTensor,
    eps: float,
    *dropout: Any,
) -> Results:
    sum = _added(input, residual, normalized_shape, *dropout)
    output, *statistics = _norm("layer_norm", sum, len(normalized_shape), weight, bias, eps)
    return output, sum, *statistics


def _add_rms_norm(
    input: torch.Tensor,
    residual: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: MaybeTensor,
    eps: float,
    weight_offset: float,
    rounds_normalized: bool,
    *dropout: Any,
) -> Results:
    sum = _added(input, residual, normalized_shape, *dropout)
    settings = (eps, weight_offset, rounds_normalized)
    output, rstd = _norm("rms_norm", sum, len(normalized_shape), weight, None, *settings)
    return output, sum, rstd


# --- their gradients ----------------------------------------------------------------------------


def _gradients(
    kind: str,
    grad_output: torch.Tensor,
    input: torch.Tensor,
    rank: int,
    mean: MaybeTensor,
    rstd: torch.Tensor,
    weight: MaybeTensor,
    eps: float = 0.0,
    weight_offset: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of input, weight and bias."""
    project = projection(kind, input, mean, rstd, rank, eps)
    dy = grad_output.to(rstd.dtype)
    g = dy if weight is None else dy * (weight.to(rstd.dtype) + weight_offset)
    return project(g), sum_of_rows(dy * project.n, rank), sum_of_rows(dy, rank)


def _centered_backward(
    kind: str,
    grad_output: torch.Tensor,
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: MaybeTensor,
    _: MaybeTensor,
    __: Sequence[bool],
    eps: float = 0.0,
) -> Results:
    rank = len(normalized_shape)
    return _gradients(kind, grad_output, input, rank, mean, rstd, weight, eps)


def _rms_norm_backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    rstd: torch.Tensor,
    weight: MaybeTensor,
    _: Sequence[bool],
    weight_offset: float,
) -> Results:
    given = (grad_output, input, len(normalized_shape), None, rstd, weight)
    return _gradients("rms_norm", *given, weight_offset=weight_offset)[:2]


def _l2_norm_backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    rstd: torch.Tensor,
    weight: MaybeTensor,
    _: Sequence[bool],
    eps: float,
) -> Results:
    given = (grad_output, input, len(normalized_shape), None, rstd, weight)
    return _gradients("l2_norm", *given, eps)[:2]


def _gradients_of_added(
    grads: Sequence[torch.Tensor],
    grad_sum: MaybeTensor,
    normalized_shape: Sequence[int],
    p: float,
    seed: MaybeTensor,
    *_: Any,
) -> Results:
    """The gradients of input, residual and parameters, from those of the sum and parameters."""
    total, *to_parameters = grads
    if grad_sum is not None:
        total = total + grad_sum
    to_input = total if p == 0 else total * multiplier(total, normalized_shape, p, seed)
    return to_input, total, *to_parameters


def _add_layer_norm_backward(
    grad_output: torch.Tensor,
    grad_sum: MaybeTensor,
    sum: torch.Tensor,
    normalized_shape: Sequence[int],
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: MaybeTensor,
    _: MaybeTensor,
    __: Sequence[bool],
    *dropout: Any,
) -> Results:
    given = (grad_output, sum, len(normalized_shape), mean, rstd, weight)
    grads = _gradients("layer_norm", *given)
    return _gradients_of_added(grads, grad_sum, normalized_shape, *dropout)


def _add_rms_norm_backward(
    grad_output: torch.Tensor,
    grad_sum: MaybeTensor,
    sum: torch.Tensor,
    normalized_shape: Sequence[int],
    rstd: torch.Tensor,
    weight: MaybeTensor,
    _: Sequence[bool],
    weight_offset: float,
    *dropout: Any,
) -> Results:
    given = (grad_output, sum, len(normalized_shape), None, rstd, weight)
    grads = _gradients("rms_norm", *given, weight_offset=weight_offset)[:2]
    return _gradients_of_added(grads, grad_sum, normalized_shape, *dropout)


# --- norms over one dimension -------------------------------------------------------------------


def _spatial(kind: str, input: torch.Tensor, dim: int, weight: MaybeTensor, *rest: Any) -> Results:
    bias, eps = rest if len(rest) == 2 else (None, *rest)
    if input.dim() == 0:
        return tuple(t.squeeze(0) for t in _norm(kind, input[None], 1, weight, bias, eps))
    results = _norm(kind, input.movedim(dim, -1), 1, weight, bias, eps)
    return tuple(result.movedim(-1, dim) for result in results)


def _spatial_backward(
    kind: str, grad_output: torch.Tensor, input: torch.Tensor, dim: int, *rest: Any
) -> Results:
    mean, rstd, weight, *_ = rest if kind == "layer_norm" else (None, *rest)
    own_mean = None if mean is None else _as_line(mean, dim)
    lines = (_as_line(grad_output, dim), _as_line(input, dim))
    grads = _gradients(kind, *lines, 1, own_mean, _as_line(rstd, dim), weight)
    to_input, *to_parameters = grads if kind == "layer_norm" else grads[:2]
    of_input = to_input.squeeze(0) if input.dim() == 0 else to_input.movedim(-1, dim)
    return of_input, *to_parameters


def _as_line(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    return tensor[None] if tensor.dim() == 0 else tensor.movedim(dim, -1)


# --- stacks -------------------------------------------------------------------------------------


def _stack_layer_norm(
    inputs: Sequence[torch.Tensor],
    normalized_shape: Sequence[int],
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor],
    eps: float,
    stack_dim: int,
) -> Results:
    none: list[MaybeTensor] = [None] * len(inputs)
    slots = zip(inputs, weights or none, biases or none, strict=True)
    norms = [_norm("layer_norm", x, len(normalized_shape), w, b, eps) for x, w, b in slots]
    output, mean, rstd = zip(*norms, strict=True)
    return torch.stack(output, stack_dim), torch.stack(mean), torch.stack(rstd)


def _stack_layer_norm_backward(
    grad_output: torch.Tensor,
    inputs: Sequence[torch.Tensor],
    normalized_shape: Sequence[int],
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weights: Sequence[torch.Tensor],
    _: Sequence[torch.Tensor],
    stack_dim: int,
    __: Sequence[bool],
) -> Results:
    rank, none = len(normalized_shape), [None] * len(inputs)
    of_slots = (grad_output.unbind(stack_dim), inputs, mean.unbind(), rstd.unbind())
    slots = zip(*of_slots, weights or none, strict=True)
    of_each = [_gradients("layer_norm", g, x, rank, m, r, w) for g, x, m, r, w in slots]
    return tuple(torch.stack(of) for of in zip(*of_each, strict=True))


_COMPOSITES: dict[str, Callable[..., Any]] = {
    "layer_norm": partial(_centered, "layer_norm"),
    "layer_norm_backward": partial(_centered_backward, "layer_norm"),
    "std_norm": partial(_centered, "std_norm"),
    "std_norm_backward": partial(_centered_backward, "std_norm"),
    "rms_norm": partial(_uncentered, "rms_norm"),
    "rms_norm_backward": _rms_norm_backward,
    "l2_norm": partial(_uncentered, "l2_norm"),
    "l2_norm_backward": _l2_norm_backward,
    "add_layer_norm": _add_layer_norm,
    "add_layer_norm_backward": _add_layer_norm_backward,
    "add_rms_norm": _add_rms_norm,
    "add_rms_norm_backward": _add_rms_norm_backward,
    "spatial_layer_norm": partial(_spatial, "layer_norm"),
    "spatial_layer_norm_backward": partial(_spatial_backward, "layer_norm"),
    "spatial_rms_norm": partial(_spatial, "rms_norm"),
    "spatial_rms_norm_backward": partial(_spatial_backward, "rms_norm"),
    "stack_layer_norm": _stack_layer_norm,
    "stack_layer_norm_backward": _stack_layer_norm_backward,
}
for _op, _composite in _COMPOSITES.items():
    register_composite(_op, _composite)
