"""The softmaxes composed of torch's own operators, for forward-mode AD (forward_mode.py)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from fusedops.ops.checks import wide
from fusedops.ops.dropout import multiplier
from fusedops.ops.masked_softmax import visible_columns
from fusedops.ops.registration.forward_mode import register_composite
from fusedops.ops.softmax_stats import shift_of

# --- softmax and log_softmax --------------------------------------------------------------------


def _softmax(softmax: Callable[..., torch.Tensor], call: Any) -> torch.Tensor:
    return softmax(call.input, call.dim, call.dtype)


def _stack(softmax: Callable[..., torch.Tensor], call: Any) -> torch.Tensor:
    return torch.stack([softmax(input, call.dim) for input in call.inputs], call.stack_dim)


def _softmax_backward(call: Any) -> torch.Tensor:
    g, y = wide(call.grad_output), wide(call.output)
    return y * (g - (g * y).sum(call.dim, keepdim=True))


def _log_softmax_backward(call: Any) -> torch.Tensor:
    g, y = wide(call.grad_output), wide(call.output)
    return g - y.exp() * g.sum(call.dim, keepdim=True)


# --- softmax in two steps -----------------------------------------------------------------------


def _softmax_stats(call: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes the statistics, and treats ``max`` as a constant, as reverse mode does."""
    x = wide(call.input)
    max = x.detach().amax(call.dim, keepdim=True)
    return max, (x - shift_of(max)).exp().sum(call.dim, keepdim=True)


def _softmax_apply(call: Any) -> torch.Tensor:
    result: torch.Tensor = (wide(call.input) - call.max).exp() / call.sum
    return result


# --- masked softmax -----------------------------------------------------------------------------


def masked_scores(call: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the scores, with the mask value where hidden, and which rows have no visible score
    above -inf."""
    computed = call.input if call.dtype is None else call.input.to(call.dtype)
    scores = wide(computed) * call.scale
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    for added in (call.bias, call.mask):
        if added is not None and added.dtype != torch.bool:
            scores = scores + added.to(scores.dtype)
    hidden = visible_columns(call, scores) == 0
    value = -torch.inf if call.mask_value is None else call.mask_value
    hidden_rows = (hidden | (scores == -torch.inf)).all(-1, keepdim=True)
    return scores.masked_fill(hidden, value), hidden_rows


def _probabilities(call: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the softmax of each row, and the probability of its sink, 0 if it has none."""
    scores, hidden_rows = masked_scores(call)
    sinks = scores.new_full((), -torch.inf) if call.sinks is None else call.sinks
    sinks = sinks.to(scores.dtype).unsqueeze(-1).expand(*scores.shape[:-1], 1)
    y, sink = torch.cat([scores, sinks], -1).softmax(-1).split([scores.shape[-1], 1], -1)
    return y.masked_fill(hidden_rows, 0) if call.zero_masked_rows else y, sink.squeeze(-1)


def _masked_softmax_dropout(call: Any) -> tuple[torch.Tensor, torch.Tensor]:
    y, _ = _probabilities(call)
    return y * multiplier(call.p, call.seed, y), y


def _masked_softmax_sinks(call: Any) -> tuple[torch.Tensor, ...]:
    y, sink = _probabilities(call)
    output = y if call.seed is None else y * multiplier(call.p, call.seed, y)
    return output, y, sink


def masked_gradient(
    call: Any, g: torch.Tensor, y: torch.Tensor, total: torch.Tensor
) -> torch.Tensor:
    """Returns ``scale`` times the gradient of the scores, which without a soft cap is the gradient
    of the input; ``total`` is the sum of g y over each row."""
    scale: float = call.scale
    return visible_columns(call, y) * scale * y * (g - total)


def _gradients(call: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns ``scale`` times the gradient of the scores, and the gradient of the sink divided by
    the sink's probability."""
    g, y = wide(call.grad_output), wide(call.probabilities)
    if getattr(call, "seed", None) is not None:
        g = g * multiplier(call.p, call.seed, y)
    total = (g * y).sum(-1, keepdim=True)
    return masked_gradient(call, g, y, total), -total.squeeze(-1)


def _masked_softmax_sinks_backward(call: Any) -> tuple[torch.Tensor, torch.Tensor]:
    to_input, to_sinks = _gradients(call)
    return to_input, call.sink_probabilities * to_sinks


_COMPOSITES: dict[str, Callable[[Any], Any]] = {
    "softmax": partial(_softmax, torch.softmax),
    "log_softmax": partial(_softmax, torch.log_softmax),
    "softmax_backward": _softmax_backward,
    "log_softmax_backward": _log_softmax_backward,
    "stack_softmax": partial(_stack, torch.softmax),
    "stack_log_softmax": partial(_stack, torch.log_softmax),
    "softmax_stats": _softmax_stats,
    "softmax_apply": _softmax_apply,
    "masked_softmax": lambda call: _probabilities(call)[0],
    "masked_softmax_backward": lambda call: _gradients(call)[0],
    "masked_softmax_dropout": _masked_softmax_dropout,
    "masked_softmax_dropout_backward": lambda call: _gradients(call)[0],
    "masked_softmax_sinks": _masked_softmax_sinks,
    "masked_softmax_sinks_backward": _masked_softmax_sinks_backward,
}


for _op, _composite in _COMPOSITES.items():
    register_composite(_op, _composite)
