"""The norms as ops, of each kind of norm_kinds.py, of rows or over one dimension, with and without
a residual: derivative formulas, autocast and vmap rules. Their fake kernels are in norm_fakes.py.

Formulas: let n = (x - mean) rstd, w be the weight plus its offset, g = dy w, and P the symmetric
projection P v = rstd (v - mean(v) - n along_n(v)) of the kind (norm_kinds.py), with means over the
normalised dimensions. Then dx = P g, dweight = sum(dy n) and dbias = sum(dy), summed over the rows.
Where the op normalises x = dropout(input) + residual, and returns x as its result ``sum``,
d residual = P g + d sum, and d input = dropout(d residual).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from fusedops.ops import checks
from fusedops.ops.norm_fakes import fake_backward, fake_forward, needed_of_inputs, share_gradient
from fusedops.ops.norm_kinds import NORM_OPS, NormOp
from fusedops.ops.norm_second_order import (
    SecondDerivative,
    moved_back,
    multiplier,
    normalized_rank,
    sum_of_rows,
    with_dim_last,
)
from fusedops.ops.registration import vmap
from fusedops.ops.registration.autocast import register_float32_inputs
from fusedops.ops.registration.autograd import gradient, register_autograd
from fusedops.ops.registration.forward_mode import is_forward_mode_on
from fusedops.ops.registration.libraries import argument_names
from fusedops.ops.registration.saved import Saved
from fusedops.ops.registration.variants import register_fake, register_vmap

MaybeTensor = torch.Tensor | None
Grads = tuple[MaybeTensor, ...]


def default_rms_eps(dtype: torch.dtype) -> float:
    """Returns the default eps of :func:`torch.nn.functional.rms_norm` for an input of ``dtype``:
    the machine epsilon of the dtype in which the norm is computed."""
    return torch.finfo(checks.statistics_dtype(dtype)).eps


# --- derivatives --------------------------------------------------------------------------------


def _parameters_and_settings(op: NormOp) -> tuple[slice, slice]:
    """Returns two slices of a forward op's arguments: the weight and, if the kind has one, the
    bias; and the settings that the backward op takes too, after its output_mask."""
    names = op.names
    taken = {"eps", "weight_offset"}.intersection(argument_names(f"{op.name}_backward"))
    start = min(map(names.index, taken), default=0)
    return slice(names.index("weight"), names.index("eps")), slice(start, start + len(taken))


def _needed(grads: Sequence[torch.Tensor], needed: Sequence[bool]) -> Grads:
    return tuple(grad if wanted else None for grad, wanted in zip(grads, needed, strict=True))


def _register_formula(op: NormOp) -> None:
    """Registers the derivative of ``op``, a forward op without a residual."""
    (parameters, taken), backward_op = _parameters_and_settings(op), f"{op.name}_backward"
    _, *statistics = op.results

    def formula(ctx: Any, grad_output: MaybeTensor, *_: None) -> Grads:
        needed = ctx.needs_input_grad[1:]
        if grad_output is None:
            return (None,) * len(needed)
        (input, *rest), (normalized, *settings) = ctx.saved_tensors, ctx.settings
        grads = gradient(backward_op, grad_output, input, normalized, *rest, needed, *settings)
        return _needed(grads, needed)

    tensors = ["input", *statistics, *op.names[parameters]]
    settings = [op.names[1], *op.names[taken]]  # the first is normalized_shape or dim
    register_autograd(op.name, formula, Saved(tensors, settings, constants=statistics))


def _register_formula_of_sum(op: NormOp) -> None:
    """Registers the derivative of ``op``, a forward op with a residual. Its second result is the
    sum that it normalises."""
    (parameters, settings), backward_op = _parameters_and_settings(op), f"{op.name}_backward"

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        input, residual, normalized, *_, ctx.p, seed = inputs
        ctx.normalized = tuple(normalized)  # the caller may change its list
        _, sum, *statistics = output
        # To the backward op None stands for the sum's dtype.
        same = input.dtype == residual.dtype
        ctx.dtypes = (None, None) if same else (input.dtype, residual.dtype)
        ctx.settings = inputs[settings]
        # A sum without the mark would require grad where only weight or bias does.
        _, of_input, of_residual, *_ = ctx.needs_input_grad
        ctx.mark_non_differentiable(*(statistics if of_input or of_residual else output[1:]))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(sum, *statistics, *inputs[parameters], seed)

    def formula(ctx: Any, grad_output: MaybeTensor, grad_sum: MaybeTensor, *_: None) -> Grads:
        sum, *rest, seed = ctx.saved_tensors
        if grad_output is None:
            if grad_sum is None:
                return (None,) * (len(ctx.needs_input_grad) - 1)
            return _gradients_of_sum(ctx, grad_sum, seed)
        needed = ctx.needs_input_grad[1:-1]  # the last tensor is the seed
        saved = (grad_output, grad_sum, sum, ctx.normalized, *rest, needed, *ctx.settings)
        grads = gradient(backward_op, *saved, ctx.p, seed, *ctx.dtypes)
        to_input, to_residual, *to_parameters = grads
        if share_gradient(ctx.p, *ctx.dtypes):
            to_residual = to_input
        return *_needed([to_input, to_residual, *to_parameters], needed), None

    register_autograd(op.name, formula, setup_context)


def _gradients_of_sum(ctx: Any, grad_sum: torch.Tensor, seed: MaybeTensor) -> Grads:
    """Returns the gradients where nothing depends on the norm of the sum. The backward op would
    make those of a row NaN whose norm is."""
    branch = grad_sum
    if seed is not None:
        branch = grad_sum * multiplier(grad_sum, ctx.normalized, ctx.p, seed)
    of_input, of_residual = (
        term.to(dtype or grad_sum.dtype)
        for term, dtype in zip((branch, grad_sum), ctx.dtypes, strict=True)
    )
    needed = ctx.needs_input_grad[1:-1]
    missing = (None,) * (len(needed) - 2)
    return *_needed([of_input, of_residual], needed[:2]), *missing, None


# --- a weight of another dtype ------------------------------------------------------------------


class _ScaledByWeight(torch.autograd.Function):
    """Computes ``weight * normalized`` for different dtypes. The gradient of the weight is summed
    over the rows by our backward kernel, in its fixed order. torch's sum splits a single column
    among threads, so that its bits depend on their number."""

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
    """Returns the gradient of the weight: the sum of grad_output * normalized over all rows."""
    if torch.is_grad_enabled():  # a second derivative may follow
        return sum_of_rows(grad_output * normalized, weight.dim()).to(weight.dtype)
    wide = normalized.to(grad_output.dtype)
    kept = [*wide.shape[: wide.dim() - weight.dim()], *[1] * weight.dim()]
    rstd = wide.new_ones(kept, dtype=checks.statistics_dtype(wide.dtype))
    # With rstd = 1 the op takes normalized for n, and sums dy n over the rows.
    shape, needed = list(weight.shape), [False, True]
    by_weight: torch.Tensor
    _, by_weight = gradient("rms_norm_backward", grad_output, wide, shape, rstd, None, needed, 0.0)
    return by_weight.to(weight.dtype)


def scaled_by_weight(normalized: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Returns ``weight * normalized``, two tensors of different dtypes. Autograd records it as
    _ScaledByWeight; compilers and forward mode see torch's product, which carries the tangents of
    each level of torch.func."""
    is_recorded = torch.is_grad_enabled() and weight.requires_grad
    if torch.compiler.is_compiling() or not is_recorded or is_forward_mode_on():
        return weight * normalized
    scaled: torch.Tensor = _ScaledByWeight.apply(normalized, weight)
    return scaled


# --- second derivatives -------------------------------------------------------------------------


def _cotangent_of_total(
    named: dict[str, Any],
    to_input: MaybeTensor,
    to_residual: MaybeTensor,
    sum: torch.Tensor,
    seed: MaybeTensor,
) -> MaybeTensor:
    """Returns the cotangent of the total P g + d sum, from those of d input and d residual; None if
    both are None. d residual and d input are the total in dtypes of their own, d input times
    dropout's factors."""
    terms = (to_input, to_residual)
    to_input, to_residual = (None if term is None else term.to(sum.dtype) for term in terms)
    if named["p"] > 0 and to_input is not None:
        factor = multiplier(sum, named["normalized_shape"], named["p"], seed)
        to_input = to_input * factor.to(sum.dtype)
    if to_input is None or to_residual is None:
        return to_residual if to_input is None else to_input
    return to_input + to_residual


def _returned(named: dict[str, Any], dtype: torch.dtype) -> list[bool]:
    """Returns which of its gradients a backward op has computed; the others are empty."""
    mask: list[bool] = named["output_mask"]
    if "p" not in named:
        return mask
    terms = (named["input_dtype"] or dtype, named["residual_dtype"] or dtype)
    return [*needed_of_inputs(mask, shared=share_gradient(named["p"], *terms)), *mask[2:]]


def _register_second_derivative(op: NormOp) -> None:
    """Registers the derivative of ``op``, a backward op: the gradients of its tensor arguments."""
    tensors = ("grad_output", op.input, "mean", "rstd", "weight", "seed")

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        named = dict(zip(op.names, inputs, strict=True))
        ctx.has_grad_sum = named.get("grad_sum") is not None
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*map(named.get, tensors))
        ctx.named = {k: v for k, v in named.items() if not isinstance(v, torch.Tensor)}

    def formula(ctx: Any, *cotangents: MaybeTensor) -> Grads:
        return op.gradients(**_second_derivatives(op, ctx, cotangents))

    register_autograd(op.name, formula, setup_context)


def _second_derivatives(
    op: NormOp, ctx: Any, cotangents: tuple[MaybeTensor, ...]
) -> dict[str, MaybeTensor]:
    """Returns the gradients by the names of a backward op's arguments, from the cotangents of its
    results. For a norm over ``dim``, that dimension is moved to the end and back."""
    named, (*row_tensors, weight, seed) = ctx.named, ctx.saved_tensors
    normalized = row_tensors[1]
    returned = _returned(named, normalized.dtype)
    to_input, *rest = (
        c if is_needed else None for c, is_needed in zip(cotangents, returned, strict=True)
    )
    if op.has_residual:
        to_input = _cotangent_of_total(named, to_input, rest.pop(0), normalized, seed)
    to_weight, to_bias = (*rest, None)[:2]
    dim = named.get("dim")
    by_grad_output, by_input, by_weight = SecondDerivative.apply(
        op.name.removesuffix("_backward"),
        normalized_rank(named),
        named.get("weight_offset", 0.0),
        with_dim_last(to_input, dim),
        to_weight,
        to_bias,
        *(with_dim_last(tensor, dim) for tensor in row_tensors),
        weight,
        named.get("eps", 0.0),
    )
    return {
        "grad_output": moved_back(by_grad_output, normalized, dim),
        op.input: moved_back(by_input, normalized, dim),
        "weight": by_weight,
        "grad_sum": to_input if ctx.has_grad_sum else None,
    }


# --- vmap ---------------------------------------------------------------------------------------

#: The tensors that all rows of a call share.
_SHARED_BY_ROWS = ("weight", "bias", "seed")


def _register_vmap(op: NormOp) -> None:
    """Registers a rule that makes one call for the batch, to which each slice adds rows. It makes
    one call per slice where slices have parameters or gradients of parameters of their own, draw
    random numbers, or have no dimension."""
    row_gradient_count = 2 if op.has_residual else 1  # the first entries of output_mask

    def rule(info: Any, in_dims: vmap.BatchDims, *args: Any) -> tuple[Any, Any]:
        named = dict(zip(op.names, args, strict=False))
        dims = dict(zip(op.names, in_dims, strict=False))
        rank = named[op.input].dim() - (dims[op.input] is not None)
        differs = any(dims.get(name) is not None for name in _SHARED_BY_ROWS)
        sums_rows = any(named.get("output_mask", ())[row_gradient_count:])
        if differs or sums_rows or rank == 0 or named.get("seed") is not None:
            return vmap.loop(op.name, info.batch_size, in_dims, args)
        for name, arg in named.items():
            if isinstance(arg, torch.Tensor) and name not in _SHARED_BY_ROWS:
                front = vmap.in_front(arg, dims[name], info.batch_size)
                named[name] = front.contiguous() if name in ("mean", "rstd") else front
        if op.is_spatial:
            named["dim"] = vmap.shifted_dim(named["dim"], rank)
        results = op.overload(*named.values())
        if isinstance(results, torch.Tensor):
            return results, 0
        # Gradients that are not needed have shape [0], without a batch dimension.
        return results, tuple(0 if result.dim() > 1 else None for result in results)

    register_vmap(op.name, rule)


# --- registration -------------------------------------------------------------------------------

for _op in NORM_OPS:
    register_fake(_op.name, partial(fake_backward if _op.is_backward else fake_forward, _op))
    _register_vmap(_op)
    if not _op.is_backward:
        register_float32_inputs(_op.name)
    if _op.is_backward:
        _register_second_derivative(_op)
    elif not _op.name.startswith("_"):
        (_register_formula_of_sum if _op.has_residual else _register_formula)(_op)
