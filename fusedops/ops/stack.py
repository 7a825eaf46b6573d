"""Stacks of softmax, log_softmax or layer_norm of several tensors: fake kernels, derivative
formulas, autocast and vmap rules.

The formulas are those of the single ops. The gradient of a stack of softmaxes is one softmax
gradient; its slots, the slices along the new dimension, are the gradients of the inputs. Gradients
of a stack of norms that autograd records, or that have tangents, are computed by the single op.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from fusedops.ops import checks
from fusedops.ops.registration import vmap
from fusedops.ops.registration.autocast import register_float32_inputs
from fusedops.ops.registration.autograd import (
    gradient,
    register_autograd,
    register_composed_autograd,
)
from fusedops.ops.registration.forward_mode import composite_results, register_composite
from fusedops.ops.registration.signature import Signature
from fusedops.ops.registration.variants import register_fake, register_vmap

ops = torch.ops.fusedops

Tensors = Sequence[torch.Tensor]

_FORWARD = Signature("stack_layer_norm")
_BACKWARD = Signature("stack_layer_norm_backward")


def _wrapped(stack_dim: int, rank: int) -> int:
    """Returns ``stack_dim`` of a stack of tensors of ``rank`` dimensions, counted from the
    front."""
    return stack_dim % (rank + 1)


def _stacked(shape: Sequence[int], stack_dim: int, count: int) -> list[int]:
    """Returns the shape of a stack of ``count`` tensors of ``shape``."""
    sizes = list(shape)
    sizes.insert(_wrapped(stack_dim, len(sizes)), count)
    return sizes


# --- checks -------------------------------------------------------------------------------------


def _check_alike(op: str, name: str, tensors: Tensors) -> None:
    """Checks that a list is not empty, and that its tensors have one dtype, shape and device."""
    checks.check(len(tensors) > 0, f"{op}: {name} is empty, wanted at least one tensor")
    first = tensors[0]
    for index, tensor in enumerate(tensors):
        checks.check(
            tensor.dtype == first.dtype
            and tensor.shape == first.shape
            and tensor.device == first.device,
            f"{op}: {name}[{index}] is {tensor.dtype} of shape {list(tensor.shape)} on "
            f"{tensor.device}, wanted {first.dtype} of shape {list(first.shape)} on "
            f"{first.device} as {name}[0] is",
        )


def _check_inputs(op: str, inputs: Tensors) -> checks.Like:
    """Checks the inputs; returns the first one, which stands for all, with their name in errors."""
    _check_alike(op, "inputs", inputs)
    checks.check_dtype(op, "inputs", inputs[0].dtype)
    return "inputs", inputs[0]


def _check_stack_dim(op: str, rank: int, stack_dim: int) -> None:
    checks.check(
        -rank - 1 <= stack_dim <= rank,
        f"{op}: stack_dim is {stack_dim}, wanted a value in [{-rank - 1}, {rank}] for tensors of "
        f"{rank} dimensions",
    )


def _check_parameters(op: str, name: str, call: Any) -> None:
    """Checks that the list is empty, or has a tensor of the normalised shape for each input."""
    parameters: Tensors = getattr(call, name)
    if not parameters:
        return
    checks.check(
        len(parameters) == len(call.inputs),
        f"{op}: there are {len(parameters)} {name}, wanted as many as inputs, {len(call.inputs)}, "
        "or none",
    )
    _check_alike(op, name, parameters)
    like = ("inputs", call.inputs[0])
    checks.check_norm_parameter(op, name, parameters[0], like, call.normalized_shape)


def _check_norm(op: str, call: Any) -> checks.Like:
    like = _check_inputs(op, call.inputs)
    _check_parameters(op, "weights", call)
    _check_parameters(op, "biases", call)
    checks.check_norm_shape(op, like, call.normalized_shape)
    return like


# --- fake kernels -------------------------------------------------------------------------------


def _fake_softmax(op: str, call: Any) -> torch.Tensor:
    _, input = _check_inputs(op, call.inputs)
    checks.check_dim(op, input, call.dim)
    _check_stack_dim(op, input.dim(), call.stack_dim)
    return input.new_empty(_stacked(input.shape, call.stack_dim, len(call.inputs)))


def _fake_layer_norm(call: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    op, count = _FORWARD.name, len(call.inputs)
    _, input = _check_norm(op, call)
    checks.check_eps(op, call.eps)
    _check_stack_dim(op, input.dim(), call.stack_dim)
    shape = [count, *checks.norm_statistics_shape(input, call.normalized_shape)]
    dtype = checks.statistics_dtype(input.dtype)
    output = input.new_empty(_stacked(input.shape, call.stack_dim, count))
    return output, input.new_empty(shape, dtype=dtype), input.new_empty(shape, dtype=dtype)


def _fake_layer_norm_backward(call: Any) -> tuple[torch.Tensor, ...]:
    op, count = _BACKWARD.name, len(call.inputs)
    checks.check_output_mask(op, call.output_mask, 3)
    like = _check_norm(op, call)
    input = like[1]
    _check_stack_dim(op, input.dim(), call.stack_dim)
    wanted = _stacked(input.shape, call.stack_dim, count)
    because = "the stack is"
    checks.check_tensor(op, "grad_output", call.grad_output, input.dtype, wanted, like, because)
    statistics = [count, *checks.norm_statistics_shape(input, call.normalized_shape)]
    checks.check_statistic(op, "mean", call.mean, like, statistics)
    checks.check_statistic(op, "rstd", call.rstd, like, statistics)
    shapes = ([count, *input.shape], *[[count, *call.normalized_shape]] * 2)
    dtypes = ((of or call.inputs)[0].dtype for of in (call.inputs, call.weights, call.biases))
    return tuple(
        input.new_empty(shape if is_needed else [0], dtype=dtype)
        for shape, dtype, is_needed in zip(shapes, dtypes, call.output_mask, strict=True)
    )


# --- derivatives --------------------------------------------------------------------------------


def _register_softmax_formula(op: str, backward_op: str) -> None:
    """Registers the derivative of ``op``, a stack of softmaxes: one call of ``backward_op``."""

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        tensors, dim, stack_dim = inputs
        rank = tensors[0].dim()
        ctx.stack_dim = _wrapped(stack_dim, rank)
        positive = dim % max(rank, 1)
        # In the stack, the new dimension may come before ``dim``.
        ctx.dim = positive + (ctx.stack_dim <= positive)
        ctx.save_for_backward(output)

    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[Any, ...]:
        (output,) = ctx.saved_tensors
        if output.dim() == 1:  # a stack of scalars
            columns = (grad_output.unsqueeze(1), output.unsqueeze(1))
            grad = gradient(backward_op, *columns, 1, output.dtype).squeeze(1)
        else:
            grad = gradient(backward_op, grad_output, output, ctx.dim, output.dtype)
        grads: tuple[torch.Tensor, ...] = grad.unbind(ctx.stack_dim)
        return grads

    register_autograd(op, backward, setup_context)


def _setup_layer_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    tensors, ctx.normalized_shape, weights, biases, _, ctx.stack_dim = inputs
    _, mean, rstd = output
    ctx.counts = (len(tensors), len(weights), len(biases))
    ctx.mark_non_differentiable(mean, rstd)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, *weights, *biases, mean, rstd)


def _layer_norm_formula(ctx: Any, grad_output: torch.Tensor | None, *_: None) -> tuple[Any, ...]:
    """Returns the gradients of all inputs, weights and biases; None for lists that need none."""
    if grad_output is None:
        count: int = sum(ctx.counts)
        return (None,) * count
    *tensors, mean, rstd = ctx.saved_tensors
    inputs, weights, biases = _split(tensors, ctx.counts)
    # needs_input_grad has a flag for each tensor of a list. If one of a list's gradients is needed,
    # all of them are computed.
    wanted = [any(needed) for needed in _split(ctx.needs_input_grad[1:], ctx.counts)]
    saved = (inputs, ctx.normalized_shape, mean, rstd, weights, biases, ctx.stack_dim, wanted)
    if not is_dynamo_compiling() and torch._C._functorch.is_legacy_batchedtensor(grad_output):
        # is_grads_batched of torch.autograd.grad passes a batch of gradients, which is refused by
        # ops that take lists of tensors.
        stacked = _gradients_one_by_one(_BACKWARD.bind(grad_output, *saved))
    else:
        stacked = gradient(_BACKWARD.name, grad_output, *saved)
    return tuple(
        slot
        for grads, is_needed, count in zip(stacked, wanted, ctx.counts, strict=True)
        for slot in (grads.unbind() if is_needed else (None,) * count)
    )


def _split(values: Sequence[Any], counts: Sequence[int]) -> list[list[Any]]:
    """Returns consecutive lists of the values, of these lengths."""
    remaining = iter(values)
    return [list(itertools.islice(remaining, count)) for count in counts]


# --- stacks of norms, composed of single norms --------------------------------------------------


def _norms_one_by_one(call: Any) -> tuple[torch.Tensor, ...]:
    """Returns the results of the forward op by one composite per slot."""
    none = [None] * len(call.inputs)
    slots = zip(call.inputs, call.weights or none, call.biases or none, strict=True)
    shape, eps = call.normalized_shape, call.eps
    of_each = [composite_results("layer_norm", (x, shape, w, b, eps)) for x, w, b in slots]
    output, mean, rstd = zip(*of_each, strict=True)
    return torch.stack(output, call.stack_dim), torch.stack(mean), torch.stack(rstd)


def _gradients_one_by_one(
    call: Any, single: Callable[..., Any] = ops.layer_norm_backward
) -> tuple[torch.Tensor, ...]:
    """Returns the results of the backward op, with the same bits, by one call of ``single`` per
    slot."""
    none = [None] * len(call.inputs)
    slots = zip(
        call.grad_output.unbind(call.stack_dim),
        call.inputs,
        call.mean.unbind(),
        call.rstd.unbind(),
        call.weights or none,
        call.biases or none,
        strict=True,
    )
    of_each = [
        single(g, x, call.normalized_shape, *rest, call.output_mask) for g, x, *rest in slots
    ]
    return tuple(
        torch.stack(grads) if is_needed else grads[0]
        for grads, is_needed in zip(zip(*of_each, strict=True), call.output_mask, strict=True)
    )


def _gradient_composites(call: Any) -> tuple[torch.Tensor, ...]:
    """Does the same by composites, also for slots without a tangent: all are rounded alike."""
    return _gradients_one_by_one(call, lambda *args: composite_results("layer_norm_backward", args))


# --- vmap ---------------------------------------------------------------------------------------


def _all_in_front(info: Any, in_dims: Sequence[Any], tensors: Tensors) -> list[torch.Tensor]:
    return [
        vmap.in_front(tensor, dim, info.batch_size)
        for tensor, dim in zip(tensors, in_dims, strict=True)
    ]


def _softmax_rule(
    op: str, info: Any, in_dims: tuple[Any, ...], inputs: Tensors, dim: int, stack_dim: int
) -> tuple[Any, ...]:
    """Makes one call for the batch, to which each slice adds rows."""
    overload, batched = getattr(ops, op).default, _all_in_front(info, in_dims[0], inputs)
    rank = batched[0].dim() - 1
    batched_stack_dim = _wrapped(stack_dim, rank) + 1
    if rank == 0:
        columns = [tensor.unsqueeze(1) for tensor in batched]
        return overload(columns, 1, batched_stack_dim).squeeze(-1), 0
    return overload(batched, vmap.shifted_dim(dim, rank), batched_stack_dim), 0


def _layer_norm_rule(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, ...]:
    """Makes one call for the batch, to which each slice adds rows, or one call per slice where
    slices have parameters of their own."""
    inputs, shape, weights, biases, eps, stack_dim = args
    if any(dim is not None for dims in (in_dims[2], in_dims[3]) for dim in dims or ()):
        return vmap.loop(_FORWARD.name, info.batch_size, in_dims, args)
    batched = _all_in_front(info, in_dims[0], inputs)
    batched_stack_dim = _wrapped(stack_dim, batched[0].dim() - 1) + 1
    return _FORWARD.overload(batched, shape, weights, biases, eps, batched_stack_dim), (0, 1, 1)


# --- registration -------------------------------------------------------------------------------

for _op, _backward in (
    ("stack_softmax", "softmax_backward"),
    ("stack_log_softmax", "log_softmax_backward"),
):
    register_fake(_op, partial(_fake_softmax, _op))
    _register_softmax_formula(_op, _backward)
    register_vmap(_op, partial(_softmax_rule, _op))
register_fake(_FORWARD.name, _fake_layer_norm)
register_fake(_BACKWARD.name, _fake_layer_norm_backward)
register_vmap(_FORWARD.name, _layer_norm_rule)
register_autograd(_FORWARD.name, _layer_norm_formula, _setup_layer_norm)
register_composed_autograd(_BACKWARD.name, _gradients_one_by_one)
register_composite(_FORWARD.name, _norms_one_by_one)
register_composite(_BACKWARD.name, _gradient_composites)
vmap.register_loop(_BACKWARD.name)
for _op in ("stack_softmax", "stack_log_softmax", "stack_layer_norm"):
    register_float32_inputs(_op)
