"""Fake kernels of the norms: they check the arguments and return empty results of the right shapes
and dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from fusedops.ops import _checks

Shape = Sequence[int]
MaybeTensor = torch.Tensor | None


def _check_arguments(
    op: str, like: _checks.Like, shape: Shape, weight: MaybeTensor, bias: MaybeTensor
) -> None:
    _checks.check_dtype_of(op, *like)
    _checks.check_norm_shape(op, like, shape)
    _checks.check_norm_parameter(op, "weight", weight, like, shape)
    _checks.check_norm_parameter(op, "bias", bias, like, shape)


def _fake_forward(
    op: str,
    input: torch.Tensor,
    normalized_shape: Shape,
    weight: MaybeTensor,
    bias: MaybeTensor,
    eps: float,
    *residuals: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """An empty output and an empty statistic."""
    _check_arguments(op, ("input", input), normalized_shape, weight, bias)
    _checks.check_norm_is_of_something(op, normalized_shape)
    _checks.check_eps(op, eps)
    dtype = input.dtype
    for residual in residuals:
        _checks.check_term(op, "residual", residual, ("input", input))
        dtype = torch.promote_types(dtype, residual.dtype)
    statistics_shape = _checks.norm_statistics_shape(input, normalized_shape)
    return (
        torch.empty_like(input, dtype=dtype, memory_format=torch.contiguous_format),
        input.new_empty(statistics_shape, dtype=_checks.statistics_dtype(dtype)),
    )


def _fake_centered(
    op: str,
    input: torch.Tensor,
    normalized_shape: Shape,
    weight: MaybeTensor,
    bias: MaybeTensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    output, rstd = _fake_forward(op, input, normalized_shape, weight, bias, eps)
    return output, torch.empty_like(rstd), rstd


def _fake_rms_norm(
    input: torch.Tensor,
    normalized_shape: Shape,
    weight: MaybeTensor,
    eps: float,
    weight_offset: float = 0.0,
    rounds_normalized: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    return _fake_forward("rms_norm", input, normalized_shape, weight, None, eps)


def _fake_l2_norm(
    input: torch.Tensor, normalized_shape: Shape, weight: MaybeTensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return _fake_forward("l2_norm", input, normalized_shape, weight, None, eps)


def _fake_add_layer_norm(
    input: torch.Tensor,
    residual: torch.Tensor,
    normalized_shape: Shape,
    weight: MaybeTensor,
    bias: MaybeTensor,
    eps: float,
    p: float = 0.0,
    seed: MaybeTensor = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    op = "add_layer_norm"
    _checks.check_branch_seed(op, p, seed, ("input", input))
    output, rstd = _fake_forward(op, input, normalized_shape, weight, bias, eps, residual)
    return output, torch.empty_like(output), torch.empty_like(rstd), rstd


def _fake_add_rms_norm(
    input: torch.Tensor,
    residual: torch.Tensor,
    normalized_shape: Shape,
    weight: MaybeTensor,
    eps: float,
    weight_offset: float = 0.0,
    rounds_normalized: bool = False,
    p: float = 0.0,
    seed: MaybeTensor = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    op = "add_rms_norm"
    _checks.check_branch_seed(op, p, seed, ("input", input))
    output, rstd = _fake_forward(op, input, normalized_shape, weight, None, eps, residual)
    return output, torch.empty_like(output), rstd


def _fake_sum(output: torch.Tensor, wants_sum: bool) -> torch.Tensor:
    return torch.empty_like(output) if wants_sum else output.new_empty([0])


def _fake_add_layer_norm_inference(
    input: torch.Tensor,
    residual: torch.Tensor,
    normalized_shape: Shape,
    weight: MaybeTensor,
    bias: MaybeTensor,
    eps: float,
    wants_sum: bool,
    p: float = 0.0,
    seed: MaybeTensor = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    output, *_ = _fake_add_layer_norm(input, residual, normalized_shape, weight, bias, eps, p, seed)
    return output, _fake_sum(output, wants_sum)


def _fake_add_rms_norm_inference(
    input: torch.Tensor,
    residual: torch.Tensor,
    normalized_shape: Shape,
    weight: MaybeTensor,
    eps: float,
    wants_sum: bool,
    weight_offset: float = 0.0,
    rounds_normalized: bool = False,
    p: float = 0.0,
    seed: MaybeTensor = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    arguments = (normalized_shape, weight, eps, weight_offset, rounds_normalized, p, seed)
    output, *_ = _fake_add_rms_norm(input, residual, *arguments)
    return output, _fake_sum(output, wants_sum)


def _fake_gradients(
    input: torch.Tensor,
    normalized_shape: Shape,
    needed_inputs: Sequence[tuple[bool, torch.dtype]],
    parameters: Sequence[tuple[bool, MaybeTensor]],
) -> list[torch.Tensor]:
    """Empty gradients of the inputs, which have ``input``'s shape, then those of weight and bias.
    A gradient that is not needed has shape [0]."""
    of_inputs = [
        input.new_empty(input.shape if is_needed else [0], dtype=dtype)
        for is_needed, dtype in needed_inputs
    ]
    of_parameters = [
        input.new_empty(
            normalized_shape if is_needed else [0],
            dtype=input.dtype if parameter is None else parameter.dtype,
        )
        for is_needed, parameter in parameters
    ]
    return of_inputs + of_parameters


class _Given(NamedTuple):
    """The arguments of a backward op without its options, as in ``csrc/ops/norm.h``."""

    grad_output: torch.Tensor
    input: _checks.Like
    mean: MaybeTensor
    rstd: torch.Tensor
    grad_sum: MaybeTensor = None
    eps: float = 0.0
    has_mean: bool = True


def _check_backward(
    op: str, given: _Given, shape: Shape, weight: MaybeTensor, bias: MaybeTensor
) -> None:
    _check_arguments(op, given.input, shape, weight, bias)
    _checks.check_like(op, "grad_output", given.grad_output, given.input)
    if given.grad_sum is not None:
        _checks.check_like(op, "grad_sum", given.grad_sum, given.input)
    statistics = _checks.norm_statistics_shape(given.input[1], shape)
    if given.has_mean:
        _checks.check_statistic(op, "mean", given.mean, given.input, statistics)
    _checks.check_statistic(op, "rstd", given.rstd, given.input, statistics)
    _checks.check_eps(op, given.eps)


def _fake_centered_backward(
    op: str,
    grad_output: torch.Tensor,
    input: torch.Tensor,
    normalized_shape: Shape,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: MaybeTensor,
    bias: MaybeTensor,
    output_mask: Sequence[bool],
    eps: float = 0.0,
) -> tuple[torch.Tensor, ...]:
    _checks.check_output_mask(op, output_mask, 3)
    given = _Given(grad_output, ("input", input), mean, rstd, eps=eps)
    _check_backward(op, given, normalized_shape, weight, bias)
    of_input, of_weight, of_bias = output_mask
    parameters = [(of_weight, weight), (of_bias, bias)]
    return tuple(_fake_gradients(input, normalized_shape, [(of_input, input.dtype)], parameters))


def _fake_uncentered_backward(
    op: str,
    grad_output: torch.Tensor,
    input: torch.Tensor,
    normalized_shape: Shape,
    rstd: torch.Tensor,
    weight: MaybeTensor,
    output_mask: Sequence[bool],
    eps: float = 0.0,
) -> tuple[torch.Tensor, ...]:
    _checks.check_output_mask(op, output_mask, 2)
    given = _Given(grad_output, ("input", input), None, rstd, eps=eps, has_mean=False)
    _check_backward(op, given, normalized_shape, weight, None)
    of_input, of_weight = output_mask
    needed, parameters = [(of_input, input.dtype)], [(of_weight, weight)]
    return tuple(_fake_gradients(input, normalized_shape, needed, parameters))


def _fake_rms_norm_backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    normalized_shape: Shape,
    rstd: torch.Tensor,
    weight: MaybeTensor,
    output_mask: Sequence[bool],
    weight_offset: float = 0.0,
) -> tuple[torch.Tensor, ...]:
    op = "rms_norm_backward"
    return _fake_uncentered_backward(
        op, grad_output, input, normalized_shape, rstd, weight, output_mask
    )


def needed_of_inputs(output_mask: Sequence[bool], *, shared: bool) -> list[bool]:
    """Which gradients of input and residual an op returns. ``shared``: whether the first is that of
    both (:func:`share_gradient`)."""
    of_input, of_residual, *_ = output_mask
    return [of_input or of_residual, False] if shared else [of_input, of_residual]


def share_gradient(p: float, input: torch.dtype | None, residual: torch.dtype | None) -> bool:
    """Whether input and residual of these dtypes have one gradient."""
    return p == 0 and input == residual


def _needed_with_dtypes(
    output_mask: Sequence[bool], p: float, dtypes: tuple[torch.dtype, torch.dtype]
) -> list[tuple[bool, torch.dtype]]:
    needed = needed_of_inputs(output_mask, shared=share_gradient(p, *dtypes))
    return list(zip(needed, dtypes, strict=True))


def _fake_add_layer_norm_backward(
    grad_output: torch.Tensor,
    grad_sum: MaybeTensor,
    sum: torch.Tensor,
    normalized_shape: Shape,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: MaybeTensor,
    bias: MaybeTensor,
    output_mask: Sequence[bool],
    p: float = 0.0,
    seed: MaybeTensor = None,
    input_dtype: torch.dtype | None = None,
    residual_dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, ...]:
    op = "add_layer_norm_backward"
    _checks.check_output_mask(op, output_mask, 4)
    _checks.check_branch_seed(op, p, seed, ("sum", sum))
    dtypes = _checks.check_term_dtypes(op, sum, input_dtype, residual_dtype)
    given = _Given(grad_output, ("sum", sum), mean, rstd, grad_sum)
    _check_backward(op, given, normalized_shape, weight, bias)
    parameters = [(output_mask[2], weight), (output_mask[3], bias)]
    needed = _needed_with_dtypes(output_mask, p, dtypes)
    return tuple(_fake_gradients(sum, normalized_shape, needed, parameters))


def _fake_add_rms_norm_backward(
    grad_output: torch.Tensor,
    grad_sum: MaybeTensor,
    sum: torch.Tensor,
    normalized_shape: Shape,
    rstd: torch.Tensor,
    weight: MaybeTensor,
    output_mask: Sequence[bool],
    weight_offset: float = 0.0,
    p: float = 0.0,
    seed: MaybeTensor = None,
    input_dtype: torch.dtype | None = None,
    residual_dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, ...]:
    op = "add_rms_norm_backward"
    _checks.check_output_mask(op, output_mask, 3)
    _checks.check_branch_seed(op, p, seed, ("sum", sum))
    dtypes = _checks.check_term_dtypes(op, sum, input_dtype, residual_dtype)
    given = _Given(grad_output, ("sum", sum), None, rstd, grad_sum, has_mean=False)
    _check_backward(op, given, normalized_shape, weight, None)
    needed = _needed_with_dtypes(output_mask, p, dtypes)
    parameters = [(output_mask[2], weight)]
    return tuple(_fake_gradients(sum, normalized_shape, needed, parameters))


def _output_of(fake: Callable[..., Any]) -> Callable[..., Any]:
    """The fake kernel of an op's variant that returns no statistics."""

    def output(*args: Any, **kwargs: Any) -> torch.Tensor:
        results: tuple[torch.Tensor, ...] = fake(*args, **kwargs)
        return results[0]

    return output


#: The fake kernel of each op.
FAKES: dict[str, Callable[..., Any]] = {
    "layer_norm": partial(_fake_centered, "layer_norm"),
    "_layer_norm_output": _output_of(partial(_fake_centered, "layer_norm")),
    "layer_norm_backward": partial(_fake_centered_backward, "layer_norm_backward"),
    "std_norm": partial(_fake_centered, "std_norm"),
    "_std_norm_output": _output_of(partial(_fake_centered, "std_norm")),
    "std_norm_backward": partial(_fake_centered_backward, "std_norm_backward"),
    "rms_norm": _fake_rms_norm,
    "_rms_norm_output": _output_of(_fake_rms_norm),
    "rms_norm_backward": _fake_rms_norm_backward,
    "l2_norm": _fake_l2_norm,
    "_l2_norm_output": _output_of(_fake_l2_norm),
    "l2_norm_backward": partial(_fake_uncentered_backward, "l2_norm_backward"),
    "add_layer_norm": _fake_add_layer_norm,
    "_add_layer_norm": _fake_add_layer_norm_inference,
    "add_layer_norm_backward": _fake_add_layer_norm_backward,
    "add_rms_norm": _fake_add_rms_norm,
    "_add_rms_norm": _fake_add_rms_norm_inference,
    "add_rms_norm_backward": _fake_add_rms_norm_backward,
}
