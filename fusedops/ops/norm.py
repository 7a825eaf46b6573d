"""layer_norm and rms_norm, each with and without a residual, as ops: fake kernels, derivative
formulas, autocast and vmap rules.

With n = (x - mean) rstd, w the weight and its offset, g = dy w and the symmetric projection
P v = rstd (v - mean(v) - n mean(n v)), all means over the normalized dimensions: dx = P g,
dweight = sum(dy n), dbias = sum(dy) over the rows; for rms_norm mean and mean(v) are 0. Where
x = dropout(input) + residual, d residual = P g + d sum, and d input = dropout(d residual).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fusedops.ops import _checks, _vmap
from fusedops.ops._autocast import register_float32_inputs
from fusedops.ops._autograd import register_autograd
from fusedops.ops._library import LIBRARY
from fusedops.ops._norm_second_order import SecondDerivative, multiplier

ops = torch.ops.fusedops

Shape = Sequence[int]
MaybeTensor = torch.Tensor | None
Grads = tuple[MaybeTensor, ...]


def default_rms_eps(dtype: torch.dtype) -> float:
    """What :func:`torch.nn.functional.rms_norm` adds where no eps is given: the resolution at 1 of
    what it computes in."""
    return torch.finfo(_statistics_dtype(dtype)).eps


# --- fake kernels -------------------------------------------------------------------------------


def _statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _check_arguments(
    op: str, input: torch.Tensor, shape: Shape, weight: MaybeTensor, bias: MaybeTensor
) -> None:
    _checks.check_dtype(op, "input", input.dtype)
    _checks.check_normalized_shape(op, input, shape)
    _checks.check_norm_parameter(op, "weight", weight, input, shape)
    _checks.check_norm_parameter(op, "bias", bias, input, shape)


def _check_added(
    op: str, input: torch.Tensor, residual: torch.Tensor, p: float, seed: MaybeTensor
) -> None:
    _checks.check_like(op, "residual", residual, "input", input)
    _checks.check_device(op, "residual", residual, input)
    _checks.check_seed(op, p, seed, input)


def _fake_forward(
    op: str,
    input: torch.Tensor,
    normalized_shape: Shape,
    weight: MaybeTensor,
    bias: MaybeTensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What stands for the output and for a statistic."""
    _check_arguments(op, input, normalized_shape, weight, bias)
    _checks.check(
        all(size > 0 for size in normalized_shape),
        f"{op}: normalized_shape is {list(normalized_shape)}, wanted no dimension of size 0",
    )
    _checks.check(eps >= 0, f"{op}: eps is {eps:g}, wanted a value >= 0")
    rows = input.shape[: input.dim() - len(normalized_shape)]
    statistics_shape = [*rows, *(1 for _ in normalized_shape)]
    return (
        torch.empty_like(input, memory_format=torch.contiguous_format),
        input.new_empty(statistics_shape, dtype=_statistics_dtype(input.dtype)),
    )


def _fake_layer_norm(
    input: torch.Tensor, normalized_shape: Shape, weight: MaybeTensor, bias: MaybeTensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    output, rstd = _fake_forward("layer_norm", input, normalized_shape, weight, bias, eps)
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
    output, rstd = _fake_forward(op, input, normalized_shape, weight, bias, eps)
    _check_added(op, input, residual, p, seed)
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
    output, rstd = _fake_forward(op, input, normalized_shape, weight, None, eps)
    _check_added(op, input, residual, p, seed)
    return output, torch.empty_like(output), rstd


def _sum_where_wanted(output: torch.Tensor, wants_sum: bool) -> torch.Tensor:
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
    return output, _sum_where_wanted(output, wants_sum)


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
    return output, _sum_where_wanted(output, wants_sum)


def _grads_where_wanted(
    input: torch.Tensor,
    normalized_shape: Shape,
    wanted_inputs: Sequence[bool],
    parameters: Sequence[tuple[bool, MaybeTensor]],
) -> list[torch.Tensor]:
    """Stand-ins for gradients of ``input``'s shape, then for those of weight and bias."""
    of_inputs = [input.new_empty(input.shape if is_wanted else [0]) for is_wanted in wanted_inputs]
    of_parameters = [
        input.new_empty(
            normalized_shape if is_wanted else [0],
            dtype=input.dtype if parameter is None else parameter.dtype,
        )
        for is_wanted, parameter in parameters
    ]
    return of_inputs + of_parameters


def _fake_layer_norm_backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    normalized_shape: Shape,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: MaybeTensor,
    bias: MaybeTensor,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor, ...]:
    op = "layer_norm_backward"
    _check_arguments(op, input, normalized_shape, weight, bias)
    _checks.check_like(op, "grad_output", grad_output, "input", input)
    of_input, of_weight, of_bias = output_mask
    parameters = [(of_weight, weight), (of_bias, bias)]
    return tuple(_grads_where_wanted(input, normalized_shape, [of_input], parameters))


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
    _check_arguments(op, input, normalized_shape, weight, None)
    _checks.check_like(op, "grad_output", grad_output, "input", input)
    of_input, of_weight = output_mask
    return tuple(_grads_where_wanted(input, normalized_shape, [of_input], [(of_weight, weight)]))


def _check_add_backward(
    op: str,
    grad_output: torch.Tensor,
    grad_sum: MaybeTensor,
    sum: torch.Tensor,
    p: float,
    seed: MaybeTensor,
) -> None:
    _checks.check_like(op, "grad_output", grad_output, "input", sum)
    if grad_sum is not None:
        _checks.check_like(op, "grad_sum", grad_sum, "input", sum)
    _checks.check_seed(op, p, seed, sum)


def _wanted_of_inputs(output_mask: Sequence[bool], p: float) -> list[bool]:
    of_input, of_residual, *_ = output_mask
    return [of_input or of_residual, False] if p == 0 else [of_input, of_residual]


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
) -> tuple[torch.Tensor, ...]:
    op = "add_layer_norm_backward"
    _check_arguments(op, sum, normalized_shape, weight, bias)
    _check_add_backward(op, grad_output, grad_sum, sum, p, seed)
    parameters = [(output_mask[2], weight), (output_mask[3], bias)]
    wanted = _wanted_of_inputs(output_mask, p)
    return tuple(_grads_where_wanted(sum, normalized_shape, wanted, parameters))


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
) -> tuple[torch.Tensor, ...]:
    op = "add_rms_norm_backward"
    _check_arguments(op, sum, normalized_shape, weight, None)
    _check_add_backward(op, grad_output, grad_sum, sum, p, seed)
    wanted = _wanted_of_inputs(output_mask, p)
    parameters = [(output_mask[2], weight)]
    return tuple(_grads_where_wanted(sum, normalized_shape, wanted, parameters))


# --- derivatives --------------------------------------------------------------------------------


def _where_wanted(grads: Sequence[MaybeTensor], wanted: Sequence[bool]) -> Grads:
    return tuple(grad if is_wanted else None for grad, is_wanted in zip(grads, wanted, strict=True))


def _setup_layer_norm(ctx: Any, inputs: tuple, output: tuple) -> None:
    input, ctx.normalized_shape, weight, bias, _ = inputs
    _, mean, rstd = output
    ctx.mark_non_differentiable(mean, rstd)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(input, mean, rstd, weight, bias)


def _layer_norm_formula(ctx: Any, grad_output: MaybeTensor, *_: None) -> Grads:
    if grad_output is None:
        return (None,) * 5
    input, mean, rstd, weight, bias = ctx.saved_tensors
    needs_input, _, needs_weight, needs_bias, _ = ctx.needs_input_grad
    wanted = [needs_input, needs_weight, needs_bias]
    grads = ops.layer_norm_backward.default(
        grad_output, input, ctx.normalized_shape, mean, rstd, weight, bias, wanted
    )
    to_input, to_weight, to_bias = _where_wanted(grads, wanted)
    return to_input, None, to_weight, to_bias, None


def _setup_rms_norm(ctx: Any, inputs: tuple, output: tuple) -> None:
    input, ctx.normalized_shape, weight, _, ctx.weight_offset, _ = inputs
    _, rstd = output
    ctx.mark_non_differentiable(rstd)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(input, rstd, weight)


def _rms_norm_formula(ctx: Any, grad_output: MaybeTensor, _: None) -> Grads:
    if grad_output is None:
        return (None,) * 6
    input, rstd, weight = ctx.saved_tensors
    needs_input, _, needs_weight, *_ = ctx.needs_input_grad
    wanted = [needs_input, needs_weight]
    grads = ops.rms_norm_backward.default(
        grad_output, input, ctx.normalized_shape, rstd, weight, wanted, ctx.weight_offset
    )
    to_input, to_weight = _where_wanted(grads, wanted)
    return to_input, None, to_weight, None, None, None


def _gradients_of_added(grads: Sequence[torch.Tensor], wanted: Sequence[bool], p: float) -> Grads:
    """The gradients of input, residual and parameters: without dropout one serves both inputs."""
    to_input, to_residual, *to_parameters = grads
    return _where_wanted([to_input, to_input if p == 0 else to_residual, *to_parameters], wanted)


def _setup_add_layer_norm(ctx: Any, inputs: tuple, output: tuple) -> None:
    _, _, ctx.normalized_shape, weight, bias, _, ctx.p, seed = inputs
    _, sum, mean, rstd = output
    ctx.mark_non_differentiable(mean, rstd)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(sum, mean, rstd, weight, bias, seed)


def _add_layer_norm_formula(
    ctx: Any, grad_output: MaybeTensor, grad_sum: MaybeTensor, *_: None
) -> Grads:
    if grad_output is None and grad_sum is None:
        return (None,) * 8
    sum, mean, rstd, weight, bias, seed = ctx.saved_tensors
    grad_output = torch.zeros_like(sum) if grad_output is None else grad_output
    of_input, of_residual, _, of_weight, of_bias, *_ = ctx.needs_input_grad
    wanted = [of_input, of_residual, of_weight, of_bias]
    statistics, parameters = (mean, rstd), (weight, bias)
    grads = ops.add_layer_norm_backward.default(
        grad_output,
        grad_sum,
        sum,
        ctx.normalized_shape,
        *statistics,
        *parameters,
        wanted,
        ctx.p,
        seed,
    )
    to_input, to_residual, to_weight, to_bias = _gradients_of_added(grads, wanted, ctx.p)
    return to_input, to_residual, None, to_weight, to_bias, None, None, None


def _setup_add_rms_norm(ctx: Any, inputs: tuple, output: tuple) -> None:
    _, _, ctx.normalized_shape, weight, _, ctx.weight_offset, _, ctx.p, seed = inputs
    _, sum, rstd = output
    ctx.mark_non_differentiable(rstd)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(sum, rstd, weight, seed)


def _add_rms_norm_formula(
    ctx: Any, grad_output: MaybeTensor, grad_sum: MaybeTensor, _: None
) -> Grads:
    if grad_output is None and grad_sum is None:
        return (None,) * 9
    sum, rstd, weight, seed = ctx.saved_tensors
    grad_output = torch.zeros_like(sum) if grad_output is None else grad_output
    of_input, of_residual, _, of_weight, *_ = ctx.needs_input_grad
    wanted = [of_input, of_residual, of_weight]
    given = (grad_output, grad_sum, sum, ctx.normalized_shape, rstd, weight)
    grads = ops.add_rms_norm_backward.default(*given, wanted, ctx.weight_offset, ctx.p, seed)
    to_input, to_residual, to_weight = _gradients_of_added(grads, wanted, ctx.p)
    return to_input, to_residual, None, to_weight, *(None,) * 5


# --- second derivatives -------------------------------------------------------------------------


def _setup_layer_norm_backward(ctx: Any, inputs: tuple, output: tuple) -> None:
    grad_output, input, ctx.normalized_shape, mean, rstd, weight, _, ctx.output_mask = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(grad_output, input, mean, rstd, weight)


def _layer_norm_backward_formula(ctx: Any, *cotangents: MaybeTensor) -> Grads:
    wanted = _where_wanted(cotangents, ctx.output_mask)
    by_grad_output, by_input, by_weight = SecondDerivative.apply(
        "layer_norm", len(ctx.normalized_shape), 0.0, *wanted, *ctx.saved_tensors
    )
    return by_grad_output, by_input, None, None, None, by_weight, None, None


def _setup_rms_norm_backward(ctx: Any, inputs: tuple, output: tuple) -> None:
    grad_output, input, ctx.normalized_shape, rstd, weight, ctx.output_mask, offset = inputs
    ctx.weight_offset = offset
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(grad_output, input, None, rstd, weight)


def _rms_norm_backward_formula(ctx: Any, *cotangents: MaybeTensor) -> Grads:
    to_input, to_weight = _where_wanted(cotangents, ctx.output_mask)
    rank, saved = len(ctx.normalized_shape), ctx.saved_tensors
    by_grad_output, by_input, by_weight = SecondDerivative.apply(
        "rms_norm", rank, ctx.weight_offset, to_input, to_weight, None, *saved
    )
    return by_grad_output, by_input, None, None, by_weight, None, None


def _cotangent_of_total(
    ctx: Any, to_input: MaybeTensor, to_residual: MaybeTensor, sum: torch.Tensor, seed: MaybeTensor
) -> MaybeTensor:
    """Of d residual, which d input is a multiple of; without dropout they are one tensor."""
    if ctx.p > 0 and to_input is not None:
        to_input = to_input * multiplier(sum, ctx.normalized_shape, ctx.p, seed).to(to_input.dtype)
    if to_input is None or to_residual is None:
        return to_residual if to_input is None else to_input
    return to_input + to_residual


def _setup_add_layer_norm_backward(ctx: Any, inputs: tuple, output: tuple) -> None:
    grad_output, grad_sum, sum, ctx.normalized_shape, mean, rstd, weight, *rest = inputs
    _, ctx.output_mask, ctx.p, seed = rest
    ctx.has_grad_sum = grad_sum is not None
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(grad_output, sum, mean, rstd, weight, seed)


def _add_layer_norm_backward_formula(ctx: Any, *cotangents: MaybeTensor) -> Grads:
    *saved, seed = ctx.saved_tensors
    wanted = [*_wanted_of_inputs(ctx.output_mask, ctx.p), *ctx.output_mask[2:]]
    to_input, to_residual, to_weight, to_bias = _where_wanted(cotangents, wanted)
    total = _cotangent_of_total(ctx, to_input, to_residual, saved[1], seed)
    by_grad_output, by_sum, by_weight = SecondDerivative.apply(
        "add_layer_norm", len(ctx.normalized_shape), 0.0, total, to_weight, to_bias, *saved
    )
    by_grad_sum = total if ctx.has_grad_sum else None
    return by_grad_output, by_grad_sum, by_sum, None, None, None, by_weight, *(None,) * 4


def _setup_add_rms_norm_backward(ctx: Any, inputs: tuple, output: tuple) -> None:
    grad_output, grad_sum, sum, ctx.normalized_shape, rstd, weight, *rest = inputs
    ctx.output_mask, ctx.weight_offset, ctx.p, seed = rest
    ctx.has_grad_sum = grad_sum is not None
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(grad_output, sum, None, rstd, weight, seed)


def _add_rms_norm_backward_formula(ctx: Any, *cotangents: MaybeTensor) -> Grads:
    *saved, seed = ctx.saved_tensors
    wanted = [*_wanted_of_inputs(ctx.output_mask, ctx.p), ctx.output_mask[2]]
    to_input, to_residual, to_weight = _where_wanted(cotangents, wanted)
    total = _cotangent_of_total(ctx, to_input, to_residual, saved[1], seed)
    rank = len(ctx.normalized_shape)
    by_grad_output, by_sum, by_weight = SecondDerivative.apply(
        "add_rms_norm", rank, ctx.weight_offset, total, to_weight, None, *saved
    )
    by_grad_sum = total if ctx.has_grad_sum else None
    return by_grad_output, by_grad_sum, by_sum, None, None, by_weight, *(None,) * 4


# --- vmap ---------------------------------------------------------------------------------------

#: Tensors that one call has one of, for all slices of a batch.
_SHARED = ("weight", "bias", "seed")


def _register_vmap(op: str) -> None:
    """One call for the batch, whose slices are further rows; one a slice where slices differ in
    their parameters, want gradients of parameters, each its own, or draw random numbers."""
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
        # What was not wanted is empty, of one dimension.
        return results, tuple(0 if result.dim() > 1 else None for result in results)

    torch.library.register_vmap(f"fusedops::{op}", rule)


# --- registration -------------------------------------------------------------------------------

_FAKES = {
    "layer_norm": _fake_layer_norm,
    "_layer_norm": _fake_layer_norm,
    "layer_norm_backward": _fake_layer_norm_backward,
    "rms_norm": _fake_rms_norm,
    "_rms_norm": _fake_rms_norm,
    "rms_norm_backward": _fake_rms_norm_backward,
    "add_layer_norm": _fake_add_layer_norm,
    "_add_layer_norm": _fake_add_layer_norm_inference,
    "add_layer_norm_backward": _fake_add_layer_norm_backward,
    "add_rms_norm": _fake_add_rms_norm,
    "_add_rms_norm": _fake_add_rms_norm_inference,
    "add_rms_norm_backward": _fake_add_rms_norm_backward,
}
for _op, _fake in _FAKES.items():
    torch.library.register_fake(f"fusedops::{_op}", _fake)

register_autograd("layer_norm", _layer_norm_formula, _setup_layer_norm)
register_autograd("layer_norm_backward", _layer_norm_backward_formula, _setup_layer_norm_backward)
register_autograd("rms_norm", _rms_norm_formula, _setup_rms_norm)
register_autograd("rms_norm_backward", _rms_norm_backward_formula, _setup_rms_norm_backward)
register_autograd("add_layer_norm", _add_layer_norm_formula, _setup_add_layer_norm)
register_autograd(
    "add_layer_norm_backward", _add_layer_norm_backward_formula, _setup_add_layer_norm_backward
)
register_autograd("add_rms_norm", _add_rms_norm_formula, _setup_add_rms_norm)
register_autograd(
    "add_rms_norm_backward", _add_rms_norm_backward_formula, _setup_add_rms_norm_backward
)

for _op in _FAKES:
    _register_vmap(_op)
    if not _op.endswith("_backward"):
        register_float32_inputs(LIBRARY, _op)
