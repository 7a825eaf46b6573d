"""cross_entropy composed of torch's own operators, for forward-mode AD (forward_mode.py).

The backward op takes losses and lse as arguments; these have tangents because the composite of the
forward op computed them.
"""

from __future__ import annotations

from typing import Any

import torch

from fusedops.ops.cross_entropy import (
    Logits,
    gradients_of_rows,
    ignored_rows,
    one_hot,
    weights_of_classes,
    without_gradient,
)
from fusedops.ops.registration.forward_mode import register_composite


def _cross_entropy(call: Any) -> tuple[torch.Tensor, ...]:
    """Returns losses, lse and lse_error of each row, the last as zeros."""
    ignored, e = ignored_rows(call.target, call.ignore_index), call.label_smoothing
    z = Logits.of(call).z
    if not call.reads_ignored:
        z = z.masked_fill(ignored.unsqueeze(-1), 0)
    lse, classes = z.logsumexp(-1), call.target.to(torch.int64)
    column = classes.clamp(0, z.shape[-1] - 1)
    losses = lse - z.gather(-1, column.unsqueeze(-1)).squeeze(-1)
    if e != 0:
        losses = (1 - e) * losses + e * (lse - z.mean(-1))
    # The loss of a class out of range is NaN, as on CUDA.
    losses = losses.masked_fill(column != classes, torch.nan).masked_fill(ignored, 0)
    lse = lse if call.reads_ignored else lse.masked_fill(ignored, 0)
    return losses, lse, torch.zeros_like(lse)


def _cross_entropy_backward(call: Any) -> torch.Tensor:
    """Returns the gradient of the input."""
    logits, (g, h) = Logits.of(call), gradients_of_rows(call)
    p = (logits.z - call.lse.unsqueeze(-1) - call.lse_error.unsqueeze(-1)).exp()
    if call.label_smoothing == 0:
        # As in the kernel, p - 1 of the row's class is expm1(-loss): if p is near 1, subtracting 1
        # from it would lose digits.
        of_class = g * torch.expm1(-call.losses).unsqueeze(-1) + h * p
        dz = torch.where(one_hot(call.target, p), of_class, (g + h) * p)
    else:
        dz = (g + h) * p - g * weights_of_classes(call, p)
    return (logits.slope * dz).masked_fill(without_gradient(call), 0)


register_composite("cross_entropy", _cross_entropy)
register_composite("cross_entropy_backward", _cross_entropy_backward)
