"""cross_entropy as ops: fake kernels, derivative formulas and vmap rules.

Formulas: z are a row's logits (scaled and capped, csrc/args.h), p their softmax, lse the log of the
sum of their exponentials, t the row's class, e the label smoothing, and
q = (1 - e) [column is t] + e / columns. For gradients g of the loss, taken as 0 where the row is
ignored, and h of lse: dz = (g + h) p - g q, and dx = z' dz, where z' is the derivative of the
logits by the input. The second derivative regards p as a function of the input alone: losses and
lse, which are arguments of the backward op too, get no gradient from it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from fusedops.ops import checks
from fusedops.ops.registration import vmap
from fusedops.ops.registration.autograd import gradient, register_autograd
from fusedops.ops.registration.mutation import register_mutation
from fusedops.ops.registration.saved import Saved
from fusedops.ops.registration.signature import MaybeTensor, Signature
from fusedops.ops.registration.variants import register_fake
from fusedops.ops.softmax import contiguous_like

#: The dtypes that class indices may have.
CLASSES = (torch.int64, torch.int32, torch.uint8)

_FORWARD = Signature("cross_entropy")
_BACKWARD = Signature("cross_entropy_backward")


# --- fake kernels -------------------------------------------------------------------------------


def _check(op: str, call: Any) -> None:
    """Checks what forward and backward op both take: the logits, the classes and the settings."""
    checks.check_dtype_of(op, "input", call.input)
    shape = list(call.input.shape)
    *rows, classes = shape or [0]
    checks.check(
        not isinstance(classes, int) or classes > 0 or 0 in rows,
        f"{op}: input has shape {shape}, wanted at least one class in the last dimension",
    )
    checks.check_cols(op, classes)
    check_target(op, checks.check_given(op, "target", call.target), call.input, "classes")
    computed = checks.statistics_dtype(call.input.dtype)
    checks.check(
        abs(call.scale) <= torch.finfo(computed).max,
        f"{op}: scale is {call.scale:g}, wanted a finite number of {computed}",
    )
    check_settings(op, call, call.input.dtype)


def check_settings(op: str, call: Any, computed: torch.dtype) -> None:
    """Checks the label smoothing and the soft cap, for logits of dtype ``computed``."""
    checks.check(
        0 <= call.label_smoothing <= 1,
        f"{op}: label_smoothing is {call.label_smoothing:g}, wanted a value in [0, 1]",
    )
    checks.check_softcap(op, call.softcap, computed)


def check_target(op: str, target: torch.Tensor, input: torch.Tensor, what: str) -> None:
    """Checks that ``target`` has a class for each row of ``input``; errors call the elements of a
    row ``what``."""
    checks.check(
        target.dtype in CLASSES,
        f"{op}: target is {target.dtype}, wanted classes of torch.int64, torch.int32 or "
        "torch.uint8",
    )
    shape, rows = list(target.shape), list(input.shape[:-1])
    checks.check(
        shape == rows,
        f"{op}: target has shape {shape}, wanted that of input without its {what}, {rows}",
    )
    checks.check_device(op, "target", target, ("input", input))


def _fake_forward(call: Any) -> tuple[torch.Tensor, ...]:
    _check("cross_entropy", call)
    shape, dtype = call.input.shape[:-1], checks.statistics_dtype(call.input.dtype)
    return tuple(call.input.new_empty(shape, dtype=dtype) for _ in range(3))


def _check_backward(op: str, call: Any) -> None:
    _check(op, call)
    check_row_gradients(op, call, call.input.shape[:-1], "cross_entropy")


def check_row_gradients(op: str, call: Any, rows: torch.Size, source: str) -> None:
    """Checks the results of the op ``source`` and their gradients, all of shape ``rows``, and that
    there is at least one gradient."""
    like = ("input", call.input)
    for name in ("losses", "lse", "lse_error"):
        checks.check_statistic(op, name, getattr(call, name), like, rows, source)
    checks.check(
        call.grad_losses is not None or call.grad_lse is not None,
        f"{op}: grad_losses and grad_lse are both None, wanted at least one of them",
    )
    for name in ("grad_losses", "grad_lse"):
        if (grad := getattr(call, name)) is not None:
            checks.check_statistic(op, name, grad, like, rows, "autograd")


def _fake_backward(call: Any) -> torch.Tensor:
    _check_backward("cross_entropy_backward", call)
    return contiguous_like(call.input, call.input.dtype)


def _fake_in_place(call: Any) -> None:
    op = "cross_entropy_backward_"
    _check_backward(op, call)
    checks.check_distinct(op, "input", call.input)


# --- formulas of torch's own operators ----------------------------------------------------------


def widened(target: torch.Tensor) -> torch.Tensor:
    """Returns the classes as int64. ``to`` would take 0.6 us even if it converted nothing."""
    return target if target.dtype == torch.int64 else target.to(torch.int64)


def ignored_rows(target: torch.Tensor, ignore_index: int | None) -> torch.Tensor:
    """Returns which rows are ignored. Classes are converted to int64 first, because
    ``ignore_index`` may be a number that their dtype does not have."""
    if ignore_index is None:
        return torch.zeros_like(target, dtype=torch.bool)
    return widened(target) == ignore_index


def without_ignored_rows(
    grad_lse: MaybeTensor, target: torch.Tensor, ignore_index: int | None
) -> MaybeTensor:
    """Returns the gradient of lse, with 0 for ignored rows: their lse is the constant 0."""
    if grad_lse is None or ignore_index is None:
        return grad_lse
    return grad_lse.masked_fill(ignored_rows(target, ignore_index), 0)


def one_hot(target: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Returns a bool tensor of ``like``'s shape that is True in the column of each row's class."""
    return torch.arange(like.shape[-1], device=like.device) == target.unsqueeze(-1)


class Logits(NamedTuple):
    """Holds logits as the kernels compute them, their derivative, and the tanh of a soft cap."""

    z: torch.Tensor
    slope: torch.Tensor | float
    tanh: MaybeTensor

    @classmethod
    def of(cls, call: Any) -> Logits:
        """Returns the logits of a call, and what their derivatives are computed from."""
        scale, cap = call.scale, call.softcap
        x = checks.wide(call.input)
        if cap is None:
            return cls(x * scale, scale, None)
        tanh = torch.tanh(x * (scale / cap))
        return cls(tanh * cap, scale * (1 - tanh * tanh), tanh)

    def curvature(self, call: Any) -> torch.Tensor | None:
        """Returns the second derivative of the logits by the input; None if it is 0."""
        if self.tanh is None:
            return None
        factor: float = -2 * call.scale / call.softcap
        return self.tanh * self.slope * factor


def weights_of_classes(call: Any, like: torch.Tensor) -> torch.Tensor:
    """Returns q of the formulas: how much of a row's loss belongs to each column."""
    e: float = call.label_smoothing
    return one_hot(call.target, like).to(like.dtype) * (1 - e) + e / like.shape[-1]


def without_gradient(call: Any) -> torch.Tensor:
    """Returns, in shape [..., 1], which rows have no gradient: the ignored ones where the gradient
    of lse is 0 or None. Kernels do not read these rows, so a NaN there must not spread."""
    ignored = ignored_rows(call.target, call.ignore_index)
    if call.grad_lse is not None:
        ignored = ignored & (call.grad_lse == 0)
    return ignored.unsqueeze(-1)


def gradients_of_rows(call: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns g and h of the formulas, in shape [..., 1]."""
    ignored = ignored_rows(call.target, call.ignore_index)
    grads = (call.grad_losses, call.grad_lse)
    g, h = (torch.zeros_like(call.lse) if grad is None else grad for grad in grads)
    return g.masked_fill(ignored, 0).unsqueeze(-1), h.unsqueeze(-1)


# --- derivatives --------------------------------------------------------------------------------


def _forward_formula(
    ctx: Any, grad_losses: MaybeTensor, grad_lse: MaybeTensor, *_: None
) -> tuple[MaybeTensor, ...]:
    if grad_losses is None and grad_lse is None:
        return _FORWARD.gradients()
    input, target, *results = ctx.saved_tensors
    *settings, reads_ignored = ctx.settings
    if not reads_ignored:
        grad_lse = without_ignored_rows(grad_lse, target, settings[0])
    saved = (input, target, *results, grad_losses, grad_lse)
    return _FORWARD.gradients(input=gradient("cross_entropy_backward", *saved, *settings))


def _backward_formula(ctx: Any, cotangent: torch.Tensor) -> tuple[MaybeTensor, ...]:
    """Returns the derivatives of dx = z' ((g + h) p - g q). They are computed by torch's functions,
    which autograd records for a third derivative."""
    call = _BACKWARD.bind(*ctx.saved_tensors, *ctx.settings)
    logits, (g, h) = Logits.of(call), gradients_of_rows(call)
    p, q = logits.z.softmax(-1), weights_of_classes(call, logits.z)
    cotangent = cotangent.to(p.dtype)
    v = cotangent * logits.slope
    of: dict[str, MaybeTensor] = {}
    if _BACKWARD.needs_gradient(ctx, "grad_losses"):
        ignored = ignored_rows(call.target, call.ignore_index)
        of["grad_losses"] = (v * (p - q)).sum(-1).masked_fill(ignored, 0)
    if _BACKWARD.needs_gradient(ctx, "grad_lse"):
        of["grad_lse"] = (v * p).sum(-1)
    if _BACKWARD.needs_gradient(ctx, "input"):
        product = v * p
        by_input = (g + h) * logits.slope * (product - p * product.sum(-1, keepdim=True))
        if (curvature := logits.curvature(call)) is not None:
            by_input = by_input + cotangent * curvature * ((g + h) * p - g * q)
        by_input = by_input.masked_fill(without_gradient(call), 0)
        of["input"] = by_input.to(call.input.dtype)
    return _BACKWARD.gradients(**of)


# --- registration -------------------------------------------------------------------------------

register_fake("cross_entropy", _fake_forward)
register_fake("cross_entropy_backward", _fake_backward)
register_fake("cross_entropy_backward_", _fake_in_place)
register_autograd(
    "cross_entropy",
    _forward_formula,
    Saved([*_FORWARD.tensors, *_FORWARD.results], _FORWARD.settings, constants=["lse_error"]),
)
register_autograd(
    "cross_entropy_backward", _backward_formula, Saved(_BACKWARD.tensors, _BACKWARD.settings)
)
register_mutation("cross_entropy_backward_", functional="cross_entropy_backward")
for _op in ("cross_entropy", "cross_entropy_backward", "cross_entropy_backward_"):
    vmap.register_rows(_op)
