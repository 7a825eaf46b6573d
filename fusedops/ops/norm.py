"""layer_norm, std_norm, rms_norm, l2_norm, add_layer_norm and add_rms_norm as ops: derivative
formulas, autocast and vmap rules. Their fake kernels are in _norm_fakes.py.

Formulas: let n = (x - mean) rstd, w be the weight plus its offset, g = dy w, and P the symmetric
projection P v = rstd (v - mean(v) - n mean(n v)), with means over the normalised dimensions. Then
dx = P g, dweight = sum(dy n) and dbias = sum(dy), summed over the rows. For rms_norm mean and
mean(v) are 0; for std_norm mean(n v) is replaced by sum(n v) / ((N - 1) std rstd). For l2_norm both
means are 0 too, and mean(n v) is replaced by sum(n v), or 0 in a row whose norm is below eps. Where
x = dropout(input) + residual, d residual = P g + d sum, and d input = dropout(d residual).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fusedops.ops import _checks, _vmap
from fusedops.ops._autograd import gradient, register_autograd
from fusedops.ops._forward_mode import has_tangent
from fusedops.ops._norm_fakes import FAKES, MaybeTensor, needed_of_inputs, share_gradient
from fusedops.ops._norm_second_order import SecondDerivative, multiplier, sum_of_rows
from fusedops.ops._registration import register_fake, register_float32_inputs, register_vmap

ops = torch.ops.fusedops

Grads = tuple[MaybeTensor, ...]


def default_rms_eps(dtype: torch.dtype) -> float:
    """The default eps of :func:`torch.nn.functional.rms_norm`: that of the dtype it computes in."""
    return torch.finfo(_checks.statistics_dtype(dtype)).eps


# --- derivatives --------------------------------------------------------------------------------


def _where_needed(grads: Sequence[MaybeTensor], needed: Sequence[bool]) -> Grads:
    return tuple(grad if is_needed else None for grad, is_needed in zip(grads, needed, strict=True))


def _setup_centered(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    """Saves tensors for the backward of layer_norm and std_norm."""
    input, ctx.normalized_shape, weight, bias, ctx.eps = inputs
    _, mean, rstd = output
    ctx.mark_non_differentiable(mean, rstd)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(input, mean, rstd, weight, bias)


def _centered_gradients(ctx: Any, op: str, grad_output: MaybeTensor, *settings: float) -> Grads:
    if grad_output is None:
        return (None,) * 5
    input, mean, rstd, weight, bias = ctx.saved_tensors
    _, needs_input, _, needs_weight, needs_bias, _ = ctx.needs_input_grad
    needed = [needs_input, needs_weight, needs_bias]
    grads = gradient(
        op, grad_output, input, ctx.normalized_shape, mean, rstd, weight, bias, needed, *settings
    )
    to_input, to_weight, to_bias = _where_needed(grads, needed)
    return to_input, None, to_weight, to_bias, None


def _layer_norm_formula(ctx: Any, grad_output: MaybeTensor, *_: None) -> Grads:
    return _centered_gradients(ctx, "layer_norm_backward", grad_output)


def _std_norm_formula(ctx: Any, grad_output: MaybeTensor, *_: None) -> Grads:
    return _centered_gradients(ctx, "std_norm_backward", grad_output, ctx.eps)


def _setup_rms_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    input, ctx.normalized_shape, weight, _, ctx.weight_offset, _ = inputs
    _, rstd = output
    ctx.mark_non_differentiable(rstd)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(input, rstd, weight)


def _rms_norm_formula(ctx: Any, grad_output: MaybeTensor, *_: None) -> Grads:
    if grad_output is None:
        return (None,) * 6
    input, rstd, weight = ctx.saved_tensors
    _, needs_input, _, needs_weight, *_ = ctx.needs_input_grad
    needed = [needs_input, needs_weight]
    grads = gradient(
        "rms_norm_backward",
        grad_output,
        input,
        ctx.normalized_shape,
        rstd,
        weight,
        needed,
        ctx.weight_offset,
    )
    to_input, to_weight = _where_needed(grads, needed)
    return to_input, None, to_weight, None, None, None


def _setup_l2_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    input, ctx.normalized_shape, weight, ctx.eps = inputs
    _, rstd = output
    ctx.mark_non_differentiable(rstd)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(input, rstd, weight)


def _l2_norm_formula(ctx: Any, grad_output: MaybeTensor, *_: None) -> Grads:
    if grad_output is None:
        return (None,) * 4
    input, rstd, weight = ctx.saved_tensors
    _, needs_input, _, needs_weight, _ = ctx.needs_input_grad
    needed = [needs_input, needs_weight]
    given = (grad_output, input, ctx.normalized_shape, rstd, weight)
    to_input, to_weight = _where_needed(
        gradient("l2_norm_backward", *given, needed, ctx.eps), needed
    )
    return to_input, None, to_weight, None


def _dtypes_of_terms(
    input: torch.Tensor, residual: torch.Tensor
) -> tuple[torch.dtype | None, torch.dtype | None]:
    """The last two arguments of the backward of a sum: None where both have the sum's dtype."""
    return (None, None) if input.dtype == residual.dtype else (input.dtype, residual.dtype)


def _gradients_of_added(ctx: Any, grads: Sequence[torch.Tensor], needed: Sequence[bool]) -> Grads:
    """The gradients of input, residual and parameters. Without dropout, and with one dtype, the op
    returns one gradient for both inputs."""
    to_input, to_residual, *to_parameters = grads
    shared = share_gradient(ctx.p, *ctx.dtypes)
    return _where_needed([to_input, to_input if shared else to_residual, *to_parameters], needed)


def _mark_non_differentiable(ctx: Any, sum: torch.Tensor, *statistics: torch.Tensor) -> None:
    """Marks the statistics, and the sum if neither input nor residual requires grad. Otherwise the
    sum would require grad where only weight or bias does."""
    _, of_input, of_residual, *_ = ctx.needs_input_grad
    has_gradient = of_input or of_residual
    ctx.mark_non_differentiable(*statistics, *(() if has_gradient else (sum,)))


def _setup_add_layer_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    input, residual, ctx.normalized_shape, weight, bias, _, ctx.p, seed = inputs
    _, sum, mean, rstd = output
    ctx.dtypes = _dtypes_of_terms(input, residual)
    _mark_non_differentiable(ctx, sum, mean, rstd)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(sum, mean, rstd, weight, bias, seed)


def _add_layer_norm_formula(
    ctx: Any, grad_output: MaybeTensor, grad_sum: MaybeTensor, *_: None
) -> Grads:
    if grad_output is None and grad_sum is None:
        return (None,) * 8
    sum, mean, rstd, weight, bias, seed = ctx.saved_tensors
    grad_output = torch.zeros_like(sum) if grad_output is None else grad_output
    _, of_input, of_residual, _, of_weight, of_bias, *_ = ctx.needs_input_grad
    needed = [of_input, of_residual, of_weight, of_bias]
    statistics, parameters = (mean, rstd), (weight, bias)
    grads = gradient(
        "add_layer_norm_backward",
        grad_output,
        grad_sum,
        sum,
        ctx.normalized_shape,
        *statistics,
        *parameters,
        needed,
        ctx.p,
        seed,
        *ctx.dtypes,
    )
    to_input, to_residual, to_weight, to_bias = _gradients_of_added(ctx, grads, needed)
    return to_input, to_residual, None, to_weight, to_bias, None, None, None


def _setup_add_rms_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    input, residual, ctx.normalized_shape, weight, _, ctx.weight_offset, _, ctx.p, seed = inputs
    _, sum, rstd = output
    ctx.dtypes = _dtypes_of_terms(input, residual)
    _mark_non_differentiable(ctx, sum, rstd)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(sum, rstd, weight, seed)


def _add_rms_norm_formula(
    ctx: Any, grad_output: MaybeTensor, grad_sum: MaybeTensor, *_: None
) -> Grads:
    if grad_output is None and grad_sum is None:
        return (None,) * 9
    sum, rstd, weight, seed = ctx.saved_tensors
    grad_output = torch.zeros_like(sum) if grad_output is None else grad_output
    _, of_input, of_residual, _, of_weight, *_ = ctx.needs_input_grad
    needed = [of_input, of_residual, of_weight]
    given = (grad_output, grad_sum, sum, ctx.normalized_shape, rstd, weight)
    settings = (ctx.weight_offset, ctx.p, seed, *ctx.dtypes)
    grads = gradient("add_rms_norm_backward", *given, needed, *settings)
    to_input, to_residual, to_weight = _gradients_of_added(ctx, grads, needed)
    return to_input, to_residual, None, to_weight, *(None,) * 5


class _ScaledByWeight(torch.autograd.Function):
    """``weight * normalized`` for different dtypes. The gradient of the weight is summed over the
    rows by our backward kernel, in its fixed order. torch's sum splits a single column among
    threads, so that its bits depend on their number."""

    generate_vmap_rule = True

    @staticmethod
    def forward(normalized: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return weight * normalized

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Grads:
        normalized, weight = ctx.saved_tensors
        of_normalized, of_weight = ctx.needs_input_grad
        by_normalized = (grad_output * weight).to(normalized.dtype) if of_normalized else None
        return by_normalized, _sum_of_rows(grad_output, normalized, weight) if of_weight else None


def _sum_of_rows(
    grad_output: torch.Tensor, normalized: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    """The gradient of the weight: the sum of grad_output * normalized over all rows."""
    if torch.is_grad_enabled():  # a second derivative may follow
        return sum_of_rows(grad_output * normalized, weight.dim()).to(weight.dtype)
    wide = normalized.to(grad_output.dtype)
    kept = [*wide.shape[: wide.dim() - weight.dim()], *[1] * weight.dim()]
    rstd = wide.new_ones(kept, dtype=_checks.statistics_dtype(wide.dtype))
    shape, needed = list(weight.shape), [False, True]
    by_weight: torch.Tensor
    _, by_weight = gradient("rms_norm_backward", grad_output, wide, shape, rstd, None, needed, 0.0)
    return by_weight.to(weight.dtype)


def scaled_by_weight(normalized: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``weight * normalized`` for different dtypes; differentiable."""
    is_recorded = torch.is_grad_enabled() and weight.requires_grad
    if torch.compiler.is_compiling() or not is_recorded or has_tangent((normalized, weight)):
        return weight * normalized
    scaled: torch.Tensor = _ScaledByWeight.apply(normalized, weight)
    return scaled


# --- second derivatives -------------------------------------------------------------------------


def _setup_centered_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    grad_output, input, ctx.normalized_shape, mean, rstd, weight, _, ctx.output_mask, *_ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(grad_output, input, mean, rstd, weight)


def _centered_second_derivatives(ctx: Any, op: str, cotangents: Grads) -> Grads:
    needed = _where_needed(cotangents, ctx.output_mask)
    by_grad_output, by_input, by_weight = SecondDerivative.apply(
        op, len(ctx.normalized_shape), 0.0, *needed, *ctx.saved_tensors
    )
    return by_grad_output, by_input, None, None, None, by_weight, None, None


def _layer_norm_backward_formula(ctx: Any, *cotangents: MaybeTensor) -> Grads:
    return _centered_second_derivatives(ctx, "layer_norm", cotangents)


def _std_norm_backward_formula(ctx: Any, *cotangents: MaybeTensor) -> Grads:
    return *_centered_second_derivatives(ctx, "std_norm", cotangents), None


def _setup_rms_norm_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    grad_output, input, ctx.normalized_shape, rstd, weight, ctx.output_mask, offset = inputs
    ctx.weight_offset = offset
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(grad_output, input, None, rstd, weight)


def _rms_norm_backward_formula(ctx: Any, *cotangents: MaybeTensor) -> Grads:
    to_input, to_weight = _where_needed(cotangents, ctx.output_mask)
    rank, saved = len(ctx.normalized_shape), ctx.saved_tensors
    by_grad_output, by_input, by_weight = SecondDerivative.apply(
        "rms_norm", rank, ctx.weight_offset, to_input, to_weight, None, *saved
    )
    return by_grad_output, by_input, None, None, by_weight, None, None


def _setup_l2_norm_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    grad_output, input, ctx.normalized_shape, rstd, weight, ctx.output_mask, ctx.eps = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(grad_output, input, None, rstd, weight)


def _l2_norm_backward_formula(ctx: Any, *cotangents: MaybeTensor) -> Grads:
    to_input, to_weight = _where_needed(cotangents, ctx.output_mask)
    rank, saved = len(ctx.normalized_shape), ctx.saved_tensors
    by_grad_output, by_input, by_weight = SecondDerivative.apply(
        "l2_norm", rank, 0.0, to_input, to_weight, None, *saved, ctx.eps
    )
    return by_grad_output, by_input, None, None, by_weight, None, None


def _cotangent_of_total(
    ctx: Any, to_input: MaybeTensor, to_residual: MaybeTensor, sum: torch.Tensor, seed: MaybeTensor
) -> MaybeTensor:
    """The cotangent of d sum. d residual is d sum in its own dtype; with dropout d input is a
    multiple of d sum."""
    if to_input is not None:
        to_input = to_input.to(sum.dtype)
    if to_residual is not None:
        to_residual = to_residual.to(sum.dtype)
    if ctx.p > 0 and to_input is not None:
        to_input = to_input * multiplier(sum, ctx.normalized_shape, ctx.p, seed).to(sum.dtype)
    if to_input is None or to_residual is None:
        return to_residual if to_input is None else to_input
    return to_input + to_residual


def _needed_of_added(ctx: Any) -> list[bool]:
    """Which gradients of input, residual and parameters a backward has returned."""
    shared = share_gradient(ctx.p, *ctx.dtypes)
    return [*needed_of_inputs(ctx.output_mask, shared=shared), *ctx.output_mask[2:]]


def _setup_add_layer_norm_backward(
    ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]
) -> None:
    grad_output, grad_sum, sum, ctx.normalized_shape, mean, rstd, weight, *rest = inputs
    _, ctx.output_mask, ctx.p, seed, *dtypes = rest
    ctx.dtypes = [dtype or sum.dtype for dtype in dtypes]
    ctx.has_grad_sum = grad_sum is not None
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(grad_output, sum, mean, rstd, weight, seed)


def _add_layer_norm_backward_formula(ctx: Any, *cotangents: MaybeTensor) -> Grads:
    *saved, seed = ctx.saved_tensors
    to_input, to_residual, to_weight, to_bias = _where_needed(cotangents, _needed_of_added(ctx))
    total = _cotangent_of_total(ctx, to_input, to_residual, saved[1], seed)
    by_grad_output, by_sum, by_weight = SecondDerivative.apply(
        "add_layer_norm", len(ctx.normalized_shape), 0.0, total, to_weight, to_bias, *saved
    )
    by_grad_sum = total if ctx.has_grad_sum else None
    return by_grad_output, by_grad_sum, by_sum, None, None, None, by_weight, *(None,) * 6


def _setup_add_rms_norm_backward(
    ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]
) -> None:
    grad_output, grad_sum, sum, ctx.normalized_shape, rstd, weight, *rest = inputs
    ctx.output_mask, ctx.weight_offset, ctx.p, seed, *dtypes = rest
    ctx.dtypes = [dtype or sum.dtype for dtype in dtypes]
    ctx.has_grad_sum = grad_sum is not None
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(grad_output, sum, None, rstd, weight, seed)


def _add_rms_norm_backward_formula(ctx: Any, *cotangents: MaybeTensor) -> Grads:
    *saved, seed = ctx.saved_tensors
    to_input, to_residual, to_weight = _where_needed(cotangents, _needed_of_added(ctx))
    total = _cotangent_of_total(ctx, to_input, to_residual, saved[1], seed)
    rank = len(ctx.normalized_shape)
    by_grad_output, by_sum, by_weight = SecondDerivative.apply(
        "add_rms_norm", rank, ctx.weight_offset, total, to_weight, None, *saved
    )
    by_grad_sum = total if ctx.has_grad_sum else None
    return by_grad_output, by_grad_sum, by_sum, None, None, by_weight, *(None,) * 6


# --- vmap ---------------------------------------------------------------------------------------

#: The tensors of which one call takes a single one for all rows.
_SHARED = ("weight", "bias", "seed")


def _register_vmap(op: str) -> None:
    """Registers a rule of one call for the batch, whose slices are further rows. It is one call per
    slice where slices have parameters or gradients of parameters of their own, or draw random
    numbers."""
    overload = getattr(ops, op).default
    names = [argument.name for argument in overload._schema.arguments]
    of_rows = 2 if op.startswith("add_") else 1  # the first entries of output_mask

    def rule(info: Any, in_dims: _vmap.BatchDims, *args: Any) -> tuple[Any, Any]:
        given = dict(zip(names, args, strict=False))
        dims = dict(zip(names, in_dims, strict=False))
        differs = any(dims.get(name) is not None for name in _SHARED)
        sums_rows = any(given.get("output_mask", ())[of_rows:])
        if differs or sums_rows or given.get("seed") is not None:
            return _vmap.loop(overload, info.batch_size, in_dims, args)
        for name, arg in given.items():
            if isinstance(arg, torch.Tensor) and name not in _SHARED:
                front = _vmap.in_front(arg, dims[name], info.batch_size)
                given[name] = front.contiguous() if name in ("mean", "rstd") else front
        results = overload(*given.values())
        if isinstance(results, torch.Tensor):
            return results, 0
        # Gradients that are not needed have shape [0].
        return results, tuple(0 if result.dim() > 1 else None for result in results)

    register_vmap(op, rule)


# --- registration -------------------------------------------------------------------------------

for _op, _fake in FAKES.items():
    register_fake(_op, _fake)

register_autograd("layer_norm", _layer_norm_formula, _setup_centered)
register_autograd("layer_norm_backward", _layer_norm_backward_formula, _setup_centered_backward)
register_autograd("std_norm", _std_norm_formula, _setup_centered)
register_autograd("std_norm_backward", _std_norm_backward_formula, _setup_centered_backward)
register_autograd("rms_norm", _rms_norm_formula, _setup_rms_norm)
register_autograd("rms_norm_backward", _rms_norm_backward_formula, _setup_rms_norm_backward)
register_autograd("l2_norm", _l2_norm_formula, _setup_l2_norm)
register_autograd("l2_norm_backward", _l2_norm_backward_formula, _setup_l2_norm_backward)
register_autograd("add_layer_norm", _add_layer_norm_formula, _setup_add_layer_norm)
register_autograd(
    "add_layer_norm_backward", _add_layer_norm_backward_formula, _setup_add_layer_norm_backward
)
register_autograd("add_rms_norm", _add_rms_norm_formula, _setup_add_rms_norm)
register_autograd(
    "add_rms_norm_backward", _add_rms_norm_backward_formula, _setup_add_rms_norm_backward
)

for _op in FAKES:
    _register_vmap(_op)
    if not _op.endswith("_backward"):
        register_float32_inputs(_op)
