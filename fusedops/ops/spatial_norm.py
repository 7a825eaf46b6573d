"""spatial_layer_norm and spatial_rms_norm as ops: fake kernels, derivative formulas, autocast and
vmap rules. The formulas are those of norm.py, with means over ``dim`` and sums over all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fusedops.ops import _checks, _vmap
from fusedops.ops._autograd import gradient, register_autograd
from fusedops.ops._norm_second_order import SecondDerivative
from fusedops.ops._registration import register_fake, register_float32_inputs, register_vmap

ops = torch.ops.fusedops

MaybeTensor = torch.Tensor | None
Grads = tuple[MaybeTensor, ...]


# --- fake kernels -------------------------------------------------------------------------------


def _check_parameter(
    op: str, name: str, parameter: MaybeTensor, input: torch.Tensor, dim: int
) -> None:
    if parameter is None:
        return
    size = input.shape[dim] if input.dim() > 0 else 1
    at = dim % max(input.dim(), 1)
    _checks.check(
        list(parameter.shape) == [size],
        f"{op}: {name} has shape {list(parameter.shape)}, wanted [{size}], the size of dim {at}",
    )
    _checks.check_device(op, name, parameter, ("input", input))
    _checks.check_dtype(op, name, parameter.dtype)


def _check_arguments(
    op: str, input: torch.Tensor, dim: int, weight: MaybeTensor, bias: MaybeTensor
) -> None:
    _checks.check_dtype_of(op, "input", input)
    _checks.check_dim(op, input, dim)
    _check_parameter(op, "weight", weight, input, dim)
    _check_parameter(op, "bias", bias, input, dim)


def _statistics_shape(input: torch.Tensor, dim: int) -> list[int]:
    shape = list(input.shape)
    if shape:
        shape[dim] = 1
    return shape


def is_innermost(tensor: torch.Tensor, dim: int) -> bool:
    """Whether ``dim`` is the innermost dimension of a dense tensor in memory, though not its
    last."""
    return not tensor.is_contiguous() and tensor.movedim(dim, -1).is_contiguous()


def _empty_like(input: torch.Tensor, dim: int, innermost: bool) -> torch.Tensor:
    if not innermost:
        return torch.empty_like(input, memory_format=torch.contiguous_format)
    moved = input.movedim(dim, -1)
    return torch.empty_like(moved, memory_format=torch.contiguous_format).movedim(-1, dim)


def _fake_forward(
    op: str, input: torch.Tensor, dim: int, weight: MaybeTensor, bias: MaybeTensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """An empty output and an empty statistic."""
    _check_arguments(op, input, dim, weight, bias)
    _checks.check(
        input.dim() == 0 or input.shape[dim] > 0,
        f"{op}: dim {dim % max(input.dim(), 1)} has size 0, wanted at least one element",
    )
    _checks.check_eps(op, eps)
    output = _empty_like(input, dim, is_innermost(input, dim))
    dtype = _checks.statistics_dtype(input.dtype)
    return output, input.new_empty(_statistics_shape(input, dim), dtype=dtype)


def _fake_layer_norm(
    input: torch.Tensor, dim: int, weight: MaybeTensor, bias: MaybeTensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    output, rstd = _fake_forward("spatial_layer_norm", input, dim, weight, bias, eps)
    return output, torch.empty_like(rstd), rstd


def _fake_rms_norm(
    input: torch.Tensor, dim: int, weight: MaybeTensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return _fake_forward("spatial_rms_norm", input, dim, weight, None, eps)


def _output_of(fake: Callable[..., tuple[torch.Tensor, ...]]) -> Callable[..., torch.Tensor]:
    return lambda *args, **kwargs: fake(*args, **kwargs)[0]


def _fake_gradients(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    dim: int,
    of_input: bool,
    parameters: Sequence[tuple[bool, MaybeTensor]],
) -> tuple[torch.Tensor, ...]:
    """Empty gradients; one that is not needed has shape [0]."""
    innermost = is_innermost(input, dim) and is_innermost(grad_output, dim)
    grad_input = _empty_like(input, dim, innermost) if of_input else input.new_empty([0])
    size = input.shape[dim] if input.dim() > 0 else 1
    of_parameters = (
        input.new_empty(
            [size if is_needed else 0], dtype=input.dtype if given is None else given.dtype
        )
        for is_needed, given in parameters
    )
    return grad_input, *of_parameters


def _fake_layer_norm_backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    dim: int,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: MaybeTensor,
    bias: MaybeTensor,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor, ...]:
    op = "spatial_layer_norm_backward"
    _checks.check_output_mask(op, output_mask, 3)
    _check_arguments(op, input, dim, weight, bias)
    _checks.check_like(op, "grad_output", grad_output, ("input", input))
    shape = _statistics_shape(input, dim)
    _checks.check_statistic(op, "mean", mean, ("input", input), shape)
    _checks.check_statistic(op, "rstd", rstd, ("input", input), shape)
    parameters = [(output_mask[1], weight), (output_mask[2], bias)]
    return _fake_gradients(grad_output, input, dim, output_mask[0], parameters)


def _fake_rms_norm_backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    dim: int,
    rstd: torch.Tensor,
    weight: MaybeTensor,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor, ...]:
    op = "spatial_rms_norm_backward"
    _checks.check_output_mask(op, output_mask, 2)
    _check_arguments(op, input, dim, weight, None)
    _checks.check_like(op, "grad_output", grad_output, ("input", input))
    _checks.check_statistic(op, "rstd", rstd, ("input", input), _statistics_shape(input, dim))
    return _fake_gradients(grad_output, input, dim, output_mask[0], [(output_mask[1], weight)])


# --- derivatives --------------------------------------------------------------------------------


def _where_needed(grads: Sequence[MaybeTensor], needed: Sequence[bool]) -> Grads:
    return tuple(grad if is_needed else None for grad, is_needed in zip(grads, needed, strict=True))


def _setup_layer_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    input, ctx.dim, weight, bias, _ = inputs
    _, mean, rstd = output
    ctx.mark_non_differentiable(mean, rstd)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(input, mean, rstd, weight, bias)


def _layer_norm_formula(ctx: Any, grad_output: MaybeTensor, *_: None) -> Grads:
    if grad_output is None:
        return (None,) * 5
    input, *rest = ctx.saved_tensors
    _, of_input, _, of_weight, of_bias, _ = ctx.needs_input_grad
    needed = [of_input, of_weight, of_bias]
    op = "spatial_layer_norm_backward"
    grads = gradient(op, grad_output, input, ctx.dim, *rest, needed)
    to_input, to_weight, to_bias = _where_needed(grads, needed)
    return to_input, None, to_weight, to_bias, None


def _setup_rms_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    input, ctx.dim, weight, _ = inputs
    _, rstd = output
    ctx.mark_non_differentiable(rstd)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(input, rstd, weight)


def _rms_norm_formula(ctx: Any, grad_output: MaybeTensor, *_: None) -> Grads:
    if grad_output is None:
        return (None,) * 4
    input, rstd, weight = ctx.saved_tensors
    _, of_input, _, of_weight, _ = ctx.needs_input_grad
    needed = [of_input, of_weight]
    op = "spatial_rms_norm_backward"
    grads = gradient(op, grad_output, input, ctx.dim, rstd, weight, needed)
    to_input, to_weight = _where_needed(grads, needed)
    return to_input, None, to_weight, None


# --- second derivatives -------------------------------------------------------------------------


def _setup_layer_norm_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    grad_output, input, ctx.dim, mean, rstd, weight, _, ctx.output_mask = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(grad_output, input, mean, rstd, weight)


def _setup_rms_norm_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    grad_output, input, ctx.dim, rstd, weight, ctx.output_mask = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(grad_output, input, None, rstd, weight)


def _second_derivatives(ctx: Any, op: str, cotangents: Grads) -> Grads:
    """The gradients of grad_output, input and weight: those of the norm over the last dimension."""
    *in_dim, weight = ctx.saved_tensors

    def moved(tensor: MaybeTensor) -> MaybeTensor:
        return None if tensor is None else tensor.movedim(ctx.dim, -1)

    to_input, *to_parameters = cotangents
    by_grad_output, by_input, by_weight = SecondDerivative.apply(
        op, 1, 0.0, moved(to_input), *to_parameters, *map(moved, in_dim), weight
    )
    return by_grad_output.movedim(-1, ctx.dim), by_input.movedim(-1, ctx.dim), by_weight


def _layer_norm_backward_formula(ctx: Any, *cotangents: MaybeTensor) -> Grads:
    needed = _where_needed(cotangents, ctx.output_mask)
    by_grad_output, by_input, by_weight = _second_derivatives(ctx, "spatial_layer_norm", needed)
    return by_grad_output, by_input, None, None, None, by_weight, None, None


def _rms_norm_backward_formula(ctx: Any, *cotangents: MaybeTensor) -> Grads:
    needed = (*_where_needed(cotangents, ctx.output_mask), None)
    by_grad_output, by_input, by_weight = _second_derivatives(ctx, "spatial_rms_norm", needed)
    return by_grad_output, by_input, None, None, by_weight, None


# --- vmap ---------------------------------------------------------------------------------------


def _register_vmap(op: str) -> None:
    """Registers a rule of one call for the batch, whose slices are further outer indices. It is one
    call per slice where slices have parameters or gradients of parameters of their own."""
    overload = getattr(ops, op).default
    names = [argument.name for argument in overload._schema.arguments]

    def rule(info: Any, in_dims: _vmap.BatchDims, *args: Any) -> tuple[Any, Any]:
        given = dict(zip(names, args, strict=True))
        dims = dict(zip(names, in_dims, strict=True))
        differs = any(dims.get(name) is not None for name in ("weight", "bias"))
        rank = given["input"].dim() - (dims["input"] is not None)
        if differs or rank == 0 or any(given.get("output_mask", ())[1:]):
            return _vmap.loop(overload, info.batch_size, in_dims, args)
        for name, arg in given.items():
            if isinstance(arg, torch.Tensor) and name not in ("weight", "bias"):
                front = _vmap.in_front(arg, dims[name], info.batch_size)
                given[name] = front.contiguous() if name in ("mean", "rstd") else front
        given["dim"] = _vmap.shifted_dim(given["dim"], rank)
        results = overload(*given.values())
        if isinstance(results, torch.Tensor):
            return results, 0
        # Gradients that are not needed have shape [0].
        return results, tuple(0 if result.dim() > 1 else None for result in results)

    register_vmap(op, rule)


# --- registration -------------------------------------------------------------------------------

_FAKES: dict[str, Callable[..., Any]] = {
    "spatial_layer_norm": _fake_layer_norm,
    "_spatial_layer_norm_output": _output_of(_fake_layer_norm),
    "spatial_layer_norm_backward": _fake_layer_norm_backward,
    "spatial_rms_norm": _fake_rms_norm,
    "_spatial_rms_norm_output": _output_of(_fake_rms_norm),
    "spatial_rms_norm_backward": _fake_rms_norm_backward,
}
for _op, _fake in _FAKES.items():
    register_fake(_op, _fake)
    _register_vmap(_op)
    if not _op.endswith("_backward"):
        register_float32_inputs(_op)

register_autograd("spatial_layer_norm", _layer_norm_formula, _setup_layer_norm)
register_autograd(
    "spatial_layer_norm_backward", _layer_norm_backward_formula, _setup_layer_norm_backward
)
register_autograd("spatial_rms_norm", _rms_norm_formula, _setup_rms_norm)
register_autograd("spatial_rms_norm_backward", _rms_norm_backward_formula, _setup_rms_norm_backward)
