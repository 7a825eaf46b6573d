"""masked_softmax as ops, with and without dropout: fake kernels, derivative formulas, autocast and
vmap rules.

Formulas: y is the softmax of the scores z = scale x + bias + mask, m is dropout's factor (1 without
dropout), and k is 0 where a bool mask or causality hides an element, else 1. For a gradient g of
the output, with g' = m g: dz = k y (g' - sum(g' y)), dx = scale dz, and the gradient of a bias or
float mask is dz, summed over the dimensions that were broadcast.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from fusedops.ops import _checks, _vmap
from fusedops.ops._autograd import gradient, register_autograd
from fusedops.ops._mutation import register_mutation
from fusedops.ops._registration import register_fake, register_float32_output, register_vmap

ops = torch.ops.fusedops

MaybeTensor = torch.Tensor | None


def _is_bool(mask: MaybeTensor) -> bool:
    return mask is not None and mask.dtype == torch.bool


# --- fake kernels -------------------------------------------------------------------------------


def _check_operand(op: str, name: str, operand: torch.Tensor, input: torch.Tensor) -> None:
    _checks.check_device(op, name, operand, ("input", input))
    own, wanted = list(operand.shape), list(input.shape)
    fits = len(own) <= len(wanted) and all(
        size == 1 or size == full
        for size, full in zip(reversed(own), reversed(wanted), strict=False)
    )
    _checks.check(
        fits,
        f"{op}: {name} has shape {own}, wanted one that broadcasts to {wanted}, input's shape",
    )


def _check_mask(op: str, mask: MaybeTensor, input: torch.Tensor) -> None:
    if mask is None:
        return
    _checks.check(
        _is_bool(mask) or mask.dtype in _checks.FLOATING,
        f"{op}: mask is {mask.dtype}, wanted torch.bool (True where visible) or a floating dtype "
        "(added); convert it, as in mask != 0",
    )
    _check_operand(op, "mask", mask, input)


def _check_options(op: str, input: torch.Tensor, scale: float, causal: bool) -> None:
    """Checks the options for scores like ``input``, whose rows are its last dimension."""
    shape = list(input.shape)
    _checks.check(len(shape) > 0, f"{op}: input has no dimension, wanted at least one")
    _checks.check(
        not causal or len(shape) > 1,
        f"{op}: causal needs queries and keys, the last two dimensions; input has shape {shape}",
    )
    _checks.check_cols(op, shape[-1])
    _checks.check(not math.isnan(scale), f"{op}: scale is NaN, wanted a number")


def _check_mask_value(op: str, value: float | None, computed: torch.dtype) -> None:
    if value is None:  # -inf
        return
    _checks.check(not math.isnan(value), f"{op}: mask_value is NaN, wanted a number")
    single = torch.finfo(torch.float32)
    fits = computed == torch.float64 or math.isinf(value) or abs(value) <= single.max
    _checks.check(
        fits,
        f"{op}: mask_value is {value:g}, beyond float32, which {computed} is computed in; "
        f"wanted -inf or at least {single.min:g}",
    )


def _check_forward(
    op: str,
    input: torch.Tensor,
    mask: MaybeTensor,
    scale: float,
    causal: bool,
    mask_value: float | None,
    bias: MaybeTensor,
    computed: torch.dtype,
) -> None:
    _check_options(op, input, scale, causal)
    _check_mask(op, mask, input)
    if bias is not None:
        _checks.check_dtype(op, "bias", bias.dtype)
        _check_operand(op, "bias", bias, input)
    _check_mask_value(op, mask_value, computed)


def _contiguous_like(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_like(tensor, dtype=dtype, memory_format=torch.contiguous_format)


def _fake_forward(
    input: torch.Tensor,
    mask: MaybeTensor,
    scale: float,
    causal: bool,
    mask_value: float | None,
    bias: MaybeTensor = None,
    dtype: torch.dtype | None = None,
    diagonal: int = 0,
    zero_masked_rows: bool = False,
) -> torch.Tensor:
    op = "masked_softmax"
    result = _checks.result_dtype(op, input, dtype)
    _check_forward(op, input, mask, scale, causal, mask_value, bias, result)
    return _contiguous_like(input, result)


def _fake_out(
    input: torch.Tensor,
    mask: MaybeTensor,
    scale: float,
    causal: bool,
    mask_value: float | None,
    bias: MaybeTensor,
    diagonal: int,
    zero_masked_rows: bool,
    out: torch.Tensor,
) -> None:
    op = "masked_softmax"
    _checks.check_given(op, "input", input)
    _checks.check_out(op, out, input)
    _check_forward(op, input, mask, scale, causal, mask_value, bias, out.dtype)


def _fake_in_place(
    input: torch.Tensor,
    mask: MaybeTensor,
    scale: float,
    causal: bool,
    mask_value: float | None,
    bias: MaybeTensor = None,
    diagonal: int = 0,
    zero_masked_rows: bool = False,
) -> None:
    op = "masked_softmax_"
    _checks.check_dtype_of(op, "input", input)
    _checks.check_distinct(op, "input", input)
    _check_forward(op, input, mask, scale, causal, mask_value, bias, input.dtype)


def _check_backward(
    op: str,
    grad_output: torch.Tensor,
    probabilities: torch.Tensor,
    mask: MaybeTensor,
    scale: float,
    causal: bool,
) -> None:
    _checks.check_dtype_of(op, "probabilities", probabilities)
    _checks.check_like(op, "grad_output", grad_output, ("probabilities", probabilities))
    _check_options(op, probabilities, scale, causal)
    _check_mask(op, mask, probabilities)


def _fake_backward(
    grad_output: torch.Tensor,
    probabilities: torch.Tensor,
    mask: MaybeTensor,
    scale: float,
    causal: bool,
    input_dtype: torch.dtype,
    diagonal: int = 0,
) -> torch.Tensor:
    op = "masked_softmax_backward"
    _check_backward(op, grad_output, probabilities, mask, scale, causal)
    _checks.check_dtype(op, "input_dtype", input_dtype)
    return _contiguous_like(probabilities, input_dtype)


def _fake_backward_in_place(
    grad_output: torch.Tensor,
    probabilities: torch.Tensor,
    mask: MaybeTensor,
    scale: float,
    causal: bool,
    diagonal: int = 0,
) -> None:
    op = "masked_softmax_backward_"
    _check_backward(op, grad_output, probabilities, mask, scale, causal)
    _checks.check_distinct(op, "grad_output", grad_output)


def _fake_dropout_inference(
    input: torch.Tensor,
    mask: MaybeTensor,
    scale: float,
    causal: bool,
    mask_value: float | None,
    p: float,
    seed: torch.Tensor,
    bias: MaybeTensor = None,
    dtype: torch.dtype | None = None,
    diagonal: int = 0,
    zero_masked_rows: bool = False,
) -> torch.Tensor:
    op = "masked_softmax_dropout"
    result = _checks.result_dtype(op, input, dtype)
    _checks.check_seed(op, p, seed, ("input", input))
    _check_forward(op, input, mask, scale, causal, mask_value, bias, result)
    return _contiguous_like(input, result)


def _fake_dropout(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    output = _fake_dropout_inference(*args, **kwargs)
    return output, torch.empty_like(output)


def _fake_dropout_backward(
    grad_output: torch.Tensor,
    probabilities: torch.Tensor,
    mask: MaybeTensor,
    scale: float,
    causal: bool,
    p: float,
    seed: torch.Tensor,
    input_dtype: torch.dtype,
    diagonal: int = 0,
) -> torch.Tensor:
    op = "masked_softmax_dropout_backward"
    _checks.check_seed(op, p, seed, ("probabilities", probabilities))
    _check_backward(op, grad_output, probabilities, mask, scale, causal)
    _checks.check_dtype(op, "input_dtype", input_dtype)
    return _contiguous_like(probabilities, input_dtype)


def _fake_dropout_backward_in_place(
    grad_output: torch.Tensor,
    probabilities: torch.Tensor,
    mask: MaybeTensor,
    scale: float,
    causal: bool,
    p: float,
    seed: torch.Tensor,
    diagonal: int = 0,
) -> None:
    op = "masked_softmax_dropout_backward_"
    _checks.check_seed(op, p, seed, ("probabilities", probabilities))
    _check_backward(op, grad_output, probabilities, mask, scale, causal)
    _checks.check_distinct(op, "grad_output", grad_output)


# --- derivatives --------------------------------------------------------------------------------


class _Operand(NamedTuple):
    """The shape and dtype of a bias or float mask, which its gradient gets."""

    shape: torch.Size
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Operand:
        return cls(tensor.shape, tensor.dtype)


def _summed_to(like: _Operand, scores_grad: torch.Tensor) -> torch.Tensor:
    """The gradient of a broadcast operand. torch.sum accumulates it in float32 or wider."""
    missing = scores_grad.dim() - len(like.shape)
    shape = [1] * missing + list(like.shape)
    dims = [d for d, size in enumerate(shape) if size == 1 and scores_grad.shape[d] != 1]
    wide = torch.promote_types(scores_grad.dtype, like.dtype)
    summed = scores_grad.sum(dims, keepdim=True, dtype=wide) if dims else scores_grad
    return summed.reshape(like.shape).to(like.dtype)


class _Saved:
    """Saves tensors of the forward pass of either op, and computes gradients from them."""

    @staticmethod
    def save(
        ctx: Any, input: torch.Tensor, mask: MaybeTensor, bias: MaybeTensor, *tensors: torch.Tensor
    ) -> None:
        ctx.input_dtype = input.dtype
        hides = _is_bool(mask)
        added = (None if hides else mask, bias)
        ctx.operands = [None if operand is None else _Operand.of(operand) for operand in added]
        ctx.save_for_backward(mask if hides else None, *tensors)

    @staticmethod
    def gradients(
        ctx: Any, run: Callable[[float], torch.Tensor], bias_at: int
    ) -> list[MaybeTensor]:
        """Gradients of input, mask and bias; ``run(scale)`` computes the first for any scale."""
        needs = ctx.needs_input_grad[1:]
        needs_input, needs_operand = needs[0], (needs[1], needs[bias_at])
        to_input = run(ctx.scale) if needs_input else None
        if not any(needs_operand):
            return [to_input, None, None]
        to_scores = to_input if to_input is not None and ctx.scale == 1 else run(1.0)
        return [to_input] + [
            _summed_to(operand, to_scores) if needed else None
            for operand, needed in zip(ctx.operands, needs_operand, strict=True)
        ]


def _setup_forward(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    input, mask, ctx.scale, ctx.causal, _, bias, _, ctx.diagonal, _ = inputs
    _Saved.save(ctx, input, mask, bias, output)


def _forward_formula(ctx: Any, grad_output: torch.Tensor) -> tuple[Any, ...]:
    mask, output = ctx.saved_tensors

    def run(scale: float) -> torch.Tensor:
        hidden, given = (mask, scale, ctx.causal), (ctx.input_dtype, ctx.diagonal)
        grad: torch.Tensor = gradient(
            "masked_softmax_backward", grad_output, output, *hidden, *given
        )
        return grad

    to_input, to_mask, to_bias = _Saved.gradients(ctx, run, bias_at=5)
    return to_input, to_mask, None, None, None, to_bias, None, None, None


def _setup_dropout(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    input, mask, ctx.scale, ctx.causal, _, ctx.p, seed, bias, _, ctx.diagonal, _ = inputs
    ctx.set_materialize_grads(False)
    _Saved.save(ctx, input, mask, bias, output[1], seed)


def _dropout_formula(
    ctx: Any, grad_output: MaybeTensor, grad_probabilities: MaybeTensor
) -> tuple[Any, ...]:
    mask, probabilities, seed = ctx.saved_tensors

    def run(scale: float) -> torch.Tensor:
        hidden, given = (mask, scale, ctx.causal), (ctx.input_dtype, ctx.diagonal)
        grads: list[torch.Tensor] = []
        if grad_output is not None:
            op = "masked_softmax_dropout_backward"
            dropped = (*hidden, ctx.p, seed, *given)
            grads.append(gradient(op, grad_output, probabilities, *dropped))
        if grad_probabilities is not None:
            op = "masked_softmax_backward"
            grads.append(gradient(op, grad_probabilities, probabilities, *hidden, *given))
        return sum(grads[1:], grads[0])

    if grad_output is None and grad_probabilities is None:
        return (None,) * 11
    to_input, to_mask, to_bias = _Saved.gradients(ctx, run, bias_at=7)
    return to_input, to_mask, *[None] * 5, to_bias, None, None, None


def _visible(mask: MaybeTensor, causal: bool, diagonal: int, scores: torch.Tensor) -> torch.Tensor:
    """k of the formulas, as a tensor of zeros and ones."""
    visible = torch.ones_like(scores)
    if causal:
        rows, cols = scores.shape[-2:]
        bounded = torch.sym_min(torch.sym_max(diagonal, -rows), cols)
        visible = visible.tril(bounded)  # tril overflows for larger diagonals
    return visible if mask is None or not _is_bool(mask) else visible * mask


def _second_derivative(
    cotangent: torch.Tensor, g: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of g and y from a cotangent of y (g - sum(g y))."""
    to_g = ops.softmax_backward.default(cotangent, y, -1, y.dtype)
    to_y = cotangent * (g - (g * y).sum(-1, True)) - g * (cotangent * y).sum(-1, True)
    return to_g, to_y


def _setup_backward(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    grad_output, probabilities, mask, ctx.scale, ctx.causal, _, ctx.diagonal = inputs
    ctx.save_for_backward(grad_output, probabilities, mask)


def _backward_formula(ctx: Any, cotangent: torch.Tensor) -> tuple[Any, ...]:
    g, y, mask = ctx.saved_tensors
    visible = _visible(mask, ctx.causal, ctx.diagonal, y)
    to_g, to_y = _second_derivative(cotangent.to(y.dtype) * ctx.scale * visible, g, y)
    return to_g, to_y, None, None, None, None, None


def _multiplier(p: float, seed: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """m of the formulas: 1 / (1 - p) where an op with this seed keeps an element, else 0."""
    uniform = torch.zeros_like(like)
    output = ops._masked_softmax_dropout.default(uniform, None, 1.0, False, 0.0, p, seed)
    return (output != 0) / (1 - p) if p < 1 else uniform


def _setup_dropout_backward(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    grad_output, probabilities, mask, ctx.scale, ctx.causal, ctx.p, seed, _, ctx.diagonal = inputs
    ctx.save_for_backward(grad_output, probabilities, mask, seed)


def _dropout_backward_formula(ctx: Any, cotangent: torch.Tensor) -> tuple[Any, ...]:
    g, y, mask, seed = ctx.saved_tensors
    multiplier = _multiplier(ctx.p, seed, y).to(y.dtype)
    visible = _visible(mask, ctx.causal, ctx.diagonal, y)
    scaled = cotangent.to(y.dtype) * ctx.scale * visible
    to_g, to_y = _second_derivative(scaled, g * multiplier, y)
    return to_g * multiplier, to_y, None, None, None, None, None, None, None


# --- vmap ---------------------------------------------------------------------------------------


def _forward_vmap(info: Any, in_dims: _vmap.BatchDims, *args: Any) -> tuple[torch.Tensor, int]:
    op = ops.masked_softmax.default
    dims, (input, mask, scale, causal, mask_value, bias, *rest) = _vmap.with_defaults(
        op, in_dims, args
    )
    batched = _vmap.in_front(input, dims[0], info.batch_size)
    rank = batched.dim() - 1
    mask, bias = _vmap.aligned(mask, dims[1], rank), _vmap.aligned(bias, dims[5], rank)
    return op(batched, mask, scale, causal, mask_value, bias, *rest), 0


def _backward_vmap(info: Any, in_dims: _vmap.BatchDims, *args: Any) -> tuple[torch.Tensor, int]:
    grad_output, probabilities, mask, *rest = args
    grad, y = (
        _vmap.in_front(tensor, dim, info.batch_size)
        for tensor, dim in zip((grad_output, probabilities), in_dims[:2], strict=True)
    )
    mask = _vmap.aligned(mask, in_dims[2], y.dim() - 1)
    return ops.masked_softmax_backward.default(grad, y, mask, *rest), 0


# --- registration -------------------------------------------------------------------------------

register_fake("masked_softmax", _fake_forward)
register_fake("masked_softmax_out", _fake_out)
register_fake("masked_softmax_", _fake_in_place)
register_fake("masked_softmax_backward", _fake_backward)
register_fake("masked_softmax_backward_", _fake_backward_in_place)
register_fake("masked_softmax_dropout", _fake_dropout)
register_fake("_masked_softmax_dropout", _fake_dropout_inference)
register_fake("masked_softmax_dropout_backward", _fake_dropout_backward)
register_fake("masked_softmax_dropout_backward_", _fake_dropout_backward_in_place)

register_autograd("masked_softmax", _forward_formula, _setup_forward)
register_autograd("masked_softmax_dropout", _dropout_formula, _setup_dropout)
register_autograd("masked_softmax_backward", _backward_formula, _setup_backward)
register_autograd(
    "masked_softmax_dropout_backward", _dropout_backward_formula, _setup_dropout_backward
)
register_mutation("masked_softmax_out", written=8)
for _op in ("masked_softmax_", "masked_softmax_backward_", "masked_softmax_dropout_backward_"):
    register_mutation(_op, written=0)

register_vmap("masked_softmax", _forward_vmap)
register_vmap("masked_softmax_backward", _backward_vmap)
for _op in ("masked_softmax", "masked_softmax_dropout", "_masked_softmax_dropout"):
    register_float32_output(_op)
# Random numbers depend on the row's number in the whole batch: in one call, slices with the same
# seed would get different numbers.
for _op in ("masked_softmax_dropout", "_masked_softmax_dropout", "masked_softmax_dropout_backward"):
    _vmap.register_loop(_op)
