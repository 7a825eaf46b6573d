"""linear_cross_entropy as ops: fake kernels, derivative formulas, autocast and vmap rules.

There are two pairs of ops. ``linear_cross_entropy`` is the sum of the losses of all rows; where
autograd records it, ``linear_cross_entropy_gradients`` runs instead and computes the gradients too,
for each chunk of rows while its logits are in memory. ``linear_cross_entropy_losses`` returns the
loss and the lse of each row. The gradients of these results arrive only in the backward pass, whose
op, ``linear_cross_entropy_losses_backward``, therefore computes the logits again.

Where a gradient is to be differentiated again (``create_graph=True``), it is composed of torch's
matrix products and cross_entropy's ops: they keep the logits of all rows, and have derivatives of
every order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fusedops.ops import checks
from fusedops.ops.cross_entropy import (
    check_row_gradients,
    check_settings,
    check_target,
    without_ignored_rows,
)
from fusedops.ops.registration import vmap
from fusedops.ops.registration.autocast import register_lower_precision
from fusedops.ops.registration.autograd import (
    gradient,
    is_observed,
    register_autograd,
    register_composed_autograd,
    requires_grad,
)
from fusedops.ops.registration.forward_mode import register_composite
from fusedops.ops.registration.saved import Saved
from fusedops.ops.registration.signature import MaybeTensor, Signature
from fusedops.ops.registration.variants import register_fake

ops = torch.ops.fusedops

_LOSS = Signature("linear_cross_entropy")
_GRADIENTS = Signature("linear_cross_entropy_gradients")
_LOSSES = Signature("linear_cross_entropy_losses")
_BACKWARD = Signature("linear_cross_entropy_losses_backward")
#: The arguments that have gradients, in the order of output_mask.
_DIFFERENTIABLE = ("input", "linear_weight", "linear_bias")


# --- fake kernels -------------------------------------------------------------------------------


def _check(op: str, call: Any) -> None:
    """Checks the linear layer, the classes and the settings."""
    checks.check_dtype_of(op, "input", call.input)
    shape = list(call.input.shape)
    checks.check(len(shape) == 2, f"{op}: input has shape {shape}, wanted [rows, features]")
    _check_weight(op, checks.check_given(op, "linear_weight", call.linear_weight), call.input)
    target = checks.check_given(op, "target", call.target)
    check_target(op, target, call.input, "features")
    if call.linear_bias is not None:
        like, classes = ("input", call.input), call.linear_weight.shape[:1]
        dtype, because = call.input.dtype, "input and linear_weight have them"
        checks.check_tensor(op, "linear_bias", call.linear_bias, dtype, classes, like, because)
    check_settings(op, call, call.input.dtype)


def _check_weight(op: str, weight: torch.Tensor, input: torch.Tensor) -> None:
    shape, features = list(weight.shape), input.shape[1]
    is_empty = len(shape) > 0 and isinstance(shape[0], int) and shape[0] == 0
    checks.check(
        len(shape) == 2 and not is_empty and shape[1] == features,
        f"{op}: linear_weight has shape {shape}, wanted [classes, {features}], at least one class "
        "and the features of input",
    )
    checks.check_cols(op, shape[0])
    checks.check(
        weight.dtype == input.dtype,
        f"{op}: linear_weight is {weight.dtype}, wanted {input.dtype} as input is; convert one of "
        "them, or use torch.autocast",
    )
    checks.check_device(op, "linear_weight", weight, ("input", input))


def _fake_loss(call: Any) -> torch.Tensor:
    op = _LOSS.name
    _check(op, call)
    like, dtype = ("input", call.input), checks.statistics_dtype(call.input.dtype)
    for name, shape in (("row_weights", call.input.shape[:1]), ("scale", ())):
        if (factor := getattr(call, name)) is not None:
            checks.check_tensor(op, name, factor, dtype, shape, like, "a factor of the losses")
    most = torch.finfo(dtype).max / 2  # the derivative multiplies by 2 * z_loss
    checks.check(
        0 <= call.z_loss <= most,
        f"{op}: z_loss is {call.z_loss:g}, wanted a number from 0 to {most:g}",
    )
    return torch.empty((), dtype=dtype, device=call.input.device)


def _fakes_of_gradients(call: Any) -> tuple[torch.Tensor, ...]:
    """Returns uninitialised tensors for the gradients, of shape [0] where output_mask is False, and
    for the bias also where there is none."""
    tensors = {name: getattr(call, name) for name in _DIFFERENTIABLE}
    of = {name: call.input.new_empty(t.shape) for name, t in tensors.items() if t is not None}
    return _selected(call, of)


def _fake_gradients(call: Any) -> tuple[torch.Tensor, ...]:
    loss = _fake_loss(call)
    checks.check_output_mask(_LOSS.name, call.output_mask, 3)
    return loss, *_fakes_of_gradients(call)


def _fake_losses(call: Any) -> tuple[torch.Tensor, ...]:
    _check("linear_cross_entropy_losses", call)
    shape, dtype = call.input.shape[:1], checks.statistics_dtype(call.input.dtype)
    return tuple(call.input.new_empty(shape, dtype=dtype) for _ in range(3))


def _fake_backward(call: Any) -> tuple[torch.Tensor, ...]:
    _check(_BACKWARD.name, call)
    check_row_gradients(_BACKWARD.name, call, call.input.shape[:1], _LOSSES.name)
    checks.check_output_mask(_BACKWARD.name, call.output_mask, 3)
    return _fakes_of_gradients(call)


# --- composed of other ops ----------------------------------------------------------------------


def _logits(call: Any) -> torch.Tensor:
    return torch.nn.functional.linear(call.input, call.linear_weight, call.linear_bias)


def _settings(call: Any) -> tuple[Any, ...]:
    """Returns the trailing arguments of cross_entropy's ops."""
    return call.ignore_index, call.label_smoothing, 1.0, call.softcap


def _row_losses(call: Any) -> tuple[torch.Tensor, ...]:
    results: tuple[torch.Tensor, ...] = ops.cross_entropy(
        _logits(call), call.target, *_settings(call)
    )
    return results


def _composed_loss(call: Any) -> torch.Tensor:
    losses, lse, _ = _row_losses(call)
    if call.row_weights is not None:
        losses = losses * call.row_weights
    total = losses.sum()
    if call.z_loss != 0:
        total = total + call.z_loss * lse.square().sum()
    return total if call.scale is None else total * call.scale


def _composed_gradients(
    call: Any, logits: torch.Tensor, results: Sequence[torch.Tensor], *grads: MaybeTensor
) -> dict[str, torch.Tensor]:
    """Returns the gradients of the linear layer's arguments by name; ``grads`` are those of the
    losses and of lse."""
    arguments = (logits, call.target, *results, *grads)
    dz = ops.cross_entropy_backward(*arguments, *_settings(call))
    return {
        "input": dz @ call.linear_weight,
        "linear_weight": dz.t() @ call.input,
        "linear_bias": dz.sum(0),
    }


def _gradients_of_loss(call: Any, factor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Returns the gradients of the composed loss, times a factor, by the names of the arguments."""
    factor = factor if call.scale is None else factor * call.scale
    weights = call.row_weights
    if weights is None:
        weights = torch.ones_like(call.target, dtype=factor.dtype)
    logits = _logits(call)
    results = ops.cross_entropy(logits, call.target, *_settings(call))
    grad_lse = None if call.z_loss == 0 else results[1] * (factor * (2 * call.z_loss))
    return _composed_gradients(call, logits, results, weights * factor, grad_lse)


def _composed_loss_and_gradients(call: Any) -> tuple[torch.Tensor, ...]:
    loss = _composed_loss(call)
    of = _gradients_of_loss(call, torch.ones_like(loss))
    return loss, *_selected(call, of)


def _composed_backward(call: Any) -> tuple[torch.Tensor, ...]:
    grad_lse = without_ignored_rows(call.grad_lse, call.target, call.ignore_index)
    results = (call.losses, call.lse, call.lse_error)
    of = _composed_gradients(call, _logits(call), results, call.grad_losses, grad_lse)
    return _selected(call, of)


def _selected(call: Any, of: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Returns the gradients that output_mask selects, and tensors of shape [0] for the others and
    for a bias that is None."""
    empty = call.input.new_empty(0)
    return tuple(
        of[name] if wanted and getattr(call, name) is not None else empty
        for name, wanted in zip(_DIFFERENTIABLE, call.output_mask, strict=True)
    )


# --- derivatives of the sum ---------------------------------------------------------------------


def _recorded_loss(call: Any) -> torch.Tensor:
    """Returns the loss for a call that autograd records, from the op that also computes the
    gradients of the arguments that require grad."""
    if requires_grad(call.row_weights) or requires_grad(call.scale):
        raise RuntimeError(
            "linear_cross_entropy: row_weights or scale requires grad, which it would get none of "
            "here; multiply the results of linear_cross_entropy_losses by it"
        )
    mask = [requires_grad(getattr(call, name)) for name in _DIFFERENTIABLE]
    loss: torch.Tensor = ops.linear_cross_entropy_gradients(*call, mask)[0]
    return loss


def _gradients_formula(ctx: Any, grad: MaybeTensor, *_: None) -> tuple[MaybeTensor, ...]:
    """Returns the gradients that the forward op has computed, times ``grad``. Where autograd
    records their derivative, they are composed of other ops instead."""
    if grad is None:
        return _GRADIENTS.gradients()
    *inputs, of_input, of_weight, of_bias = ctx.saved_tensors
    call = _GRADIENTS.bind(*inputs, *ctx.settings)
    needed = [name for name in _DIFFERENTIABLE if _GRADIENTS.needs_gradient(ctx, name)]
    for name, has_gradient in zip(_DIFFERENTIABLE, call.output_mask, strict=True):
        checks.check(
            has_gradient or name not in needed,
            f"{_GRADIENTS.name}: output_mask leaves out the gradient of {name}, which requires "
            "grad",
        )
    if torch.is_grad_enabled() and any(map(requires_grad, (grad, *inputs))):
        of = _gradients_of_loss(call, grad)
    else:
        ready = dict(zip(_DIFFERENTIABLE, (of_input, of_weight, of_bias), strict=True))
        of = {name: _scaled(ready[name], grad) for name in needed}
    return _GRADIENTS.gradients(**{name: of[name] for name in needed})


def _scaled(gradient: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Returns the product, computed with the factor unrounded. Beside a 16-bit tensor torch rounds
    a factor without dimensions to 16 bits, except in its eager kernels on the CPU; so the factor
    gets a dimension."""
    if gradient.dtype == factor.dtype or (gradient.device.type == "cpu" and not is_observed()):
        return gradient * factor
    return torch.mul(gradient, factor.reshape(1), out=torch.empty_like(gradient))


# --- derivatives of each row's loss -------------------------------------------------------------


def _losses_formula(
    ctx: Any, grad_losses: MaybeTensor, grad_lse: MaybeTensor, *_: None
) -> tuple[MaybeTensor, ...]:
    """Returns the gradients of input, weight and bias that are needed, by the backward op."""
    if grad_losses is None and grad_lse is None:
        return _LOSSES.gradients()
    input, linear_weight, target, linear_bias, *results = ctx.saved_tensors
    grad_lse = without_ignored_rows(grad_lse, target, ignore_index=ctx.settings[0])
    mask = [_LOSSES.needs_gradient(ctx, name) for name in _DIFFERENTIABLE]
    saved = (input, linear_weight, target, linear_bias, *results, grad_losses, grad_lse)
    grads = gradient(_BACKWARD.name, *saved, *ctx.settings, mask)
    of = dict(zip(_DIFFERENTIABLE, grads, strict=True))
    return _LOSSES.gradients(**{n: of[n] for n, w in zip(_DIFFERENTIABLE, mask, strict=True) if w})


# --- registration -------------------------------------------------------------------------------

for _signature, _fake, _composed in (
    (_LOSS, _fake_loss, _composed_loss),
    (_GRADIENTS, _fake_gradients, _composed_loss_and_gradients),
    (_LOSSES, _fake_losses, _row_losses),
    (_BACKWARD, _fake_backward, _composed_backward),
):
    register_fake(_signature.name, _fake)
    register_composite(_signature.name, _composed)
    vmap.register_loop(_signature.name)
register_composed_autograd(_LOSS.name, _recorded_loss)
_, *_computed = _GRADIENTS.results
register_autograd(
    _GRADIENTS.name,
    _gradients_formula,
    Saved([*_GRADIENTS.tensors, *_computed], _GRADIENTS.settings, constants=_computed),
)
register_autograd(
    _LOSSES.name,
    _losses_formula,
    Saved([*_LOSSES.tensors, *_LOSSES.results], _LOSSES.settings, constants=["lse_error"]),
)
register_composed_autograd(_BACKWARD.name, _composed_backward)
for _signature in (_LOSS, _LOSSES):
    register_lower_precision(_signature.name, _DIFFERENTIABLE)
