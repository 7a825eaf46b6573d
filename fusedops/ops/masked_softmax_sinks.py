"""masked_softmax for sinks that have a gradient: fake kernels, derivative formulas and vmap rules.

Formulas, as in masked_softmax.py: the sink is one more score of a row, and t its probability, so
that t = 1 - sum(y). For a gradient g of the output, with g' = m g, the sink's gradient is
ds = -t sum(g' y), summed over the dimensions that were broadcast. The forward kernel computes t,
because 1 - sum(y) would have no correct digits where t is small.
"""

from __future__ import annotations

from typing import Any

import torch

from fusedops.ops import checks, masked_softmax
from fusedops.ops.registration import vmap
from fusedops.ops.registration.autocast import register_float32_output
from fusedops.ops.registration.autograd import gradient, register_autograd
from fusedops.ops.registration.signature import MaybeTensor, Signature
from fusedops.ops.registration.variants import register_fake
from fusedops.ops.softmax import contiguous_like, second_derivative

_FORWARD = Signature("masked_softmax_sinks")
_BACKWARD = Signature("masked_softmax_sinks_backward")


# --- fake kernels -------------------------------------------------------------------------------


def _fake_forward(call: Any) -> tuple[torch.Tensor, ...]:
    op = "masked_softmax_sinks"
    result = checks.result_dtype(op, call.input, call.dtype)
    checks.check_optional_seed(op, call.p, call.seed, ("input", call.input))
    checks.check_given(op, "sinks", call.sinks)
    masked_softmax.check_forward(op, call, result)
    output = contiguous_like(call.input, result)
    probabilities = output.new_empty([0]) if call.seed is None else torch.empty_like(output)
    statistics = checks.statistics_dtype(result)
    return output, probabilities, output.new_empty(output.shape[:-1], dtype=statistics)


def _fake_backward(call: Any) -> tuple[torch.Tensor, torch.Tensor]:
    op = "masked_softmax_sinks_backward"
    y = checks.check_given(op, "probabilities", call.probabilities)
    like = ("probabilities", y)
    checks.check_optional_seed(op, call.p, call.seed, like)
    masked_softmax.check_backward(op, call)
    checks.check_dtype(op, "input_dtype", call.input_dtype)
    checks.check_statistic(op, "sink_probabilities", call.sink_probabilities, like, y.shape[:-1])
    statistics = checks.statistics_dtype(y.dtype)
    return contiguous_like(y, call.input_dtype), y.new_empty(y.shape[:-1], dtype=statistics)


# --- derivatives --------------------------------------------------------------------------------


def _setup_forward(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
    call = _FORWARD.bind(*inputs)
    output, probabilities, sink_probabilities = outputs
    ctx.p, ctx.sinks = call.p, masked_softmax.Operand.of(call.sinks)
    ctx.set_materialize_grads(False)
    if call.seed is None:
        ctx.mark_non_differentiable(probabilities, sink_probabilities)
        masked_softmax.save_forward(ctx, call, output, sink_probabilities)
    else:
        ctx.mark_non_differentiable(sink_probabilities)
        masked_softmax.save_forward(ctx, call, probabilities, sink_probabilities, call.seed)


def _forward_formula(
    ctx: Any, grad_output: MaybeTensor, grad_probabilities: MaybeTensor, _: None
) -> tuple[Any, ...]:
    """Returns the gradients of input, mask, bias and sinks. With dropout, the probabilities before
    it are a second differentiable result, ``y``; without, ``y`` is the output."""
    visibility, cap, (y, sink_probabilities, *seed) = masked_softmax.saved_forward(ctx)
    no_dropout = (0.0, None)
    grads = (
        (grad_output, (ctx.p, *seed) if seed else no_dropout),
        (grad_probabilities, no_dropout),
    )
    wanted = [(grad, dropout) for grad, dropout in grads if grad is not None]
    if not wanted:
        return _FORWARD.gradients()
    to_sinks: list[torch.Tensor] = []

    def run(scale: float) -> torch.Tensor:
        """Returns ``scale`` times the gradient of the scores, and fills ``to_sinks``."""
        interval = (ctx.input_dtype, *visibility.interval())
        hidden = (visibility.mask, scale, visibility.causal)
        op = "masked_softmax_sinks_backward"
        results = [
            gradient(op, grad, y, sink_probabilities, *hidden, *dropout, *interval)
            for grad, dropout in wanted
        ]
        # The sinks' gradient does not depend on the scale: every run computes the same.
        to_sinks[:] = [result[1] for result in results]
        total: torch.Tensor = sum((result[0] for result in results[1:]), results[0][0])
        return total

    of = masked_softmax.forward_gradients(ctx, _FORWARD, cap, run)
    if _FORWARD.needs_gradient(ctx, "sinks"):
        if not to_sinks:
            run(1.0)
        of["sinks"] = masked_softmax.summed_to(ctx.sinks, sum(to_sinks[1:], to_sinks[0]))
    return _FORWARD.gradients(**of)


def _setup_backward(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
    call = _BACKWARD.bind(*inputs)
    masked_softmax.save_backward(ctx, call, call.sink_probabilities)


def _backward_formula(ctx: Any, to_input: torch.Tensor, to_sinks: torch.Tensor) -> tuple[Any, ...]:
    """Returns the gradients of grad_output and probabilities, from the cotangents of dx and ds."""
    scaled, dropped, y, m, (sink_probabilities,) = masked_softmax.saved_backward(ctx, to_input)
    by_dropped, by_y = second_derivative(scaled, dropped, y, -1)
    # The saved t is a constant for autograd. Adding rest - rest.detach(), which is 0, gives it the
    # derivative of 1 - sum(y), for a third derivative.
    rest = 1 - y.sum(-1, dtype=sink_probabilities.dtype)
    t = (sink_probabilities + (rest - rest.detach())).unsqueeze(-1)
    cotangent = to_sinks.unsqueeze(-1)
    total = (dropped * y).sum(-1, True, dtype=sink_probabilities.dtype)
    slope = (cotangent * t).to(y.dtype)
    by_y = by_y - slope * dropped + (cotangent * total).to(y.dtype)
    return _BACKWARD.gradients(grad_output=(by_dropped - slope * y) * m, probabilities=by_y)


# --- registration -------------------------------------------------------------------------------

register_fake("masked_softmax_sinks", _FORWARD.of_call(_fake_forward))
register_fake("masked_softmax_sinks_backward", _BACKWARD.of_call(_fake_backward))
register_autograd("masked_softmax_sinks", _forward_formula, _setup_forward)
register_autograd("masked_softmax_sinks_backward", _backward_formula, _setup_backward)
register_float32_output("masked_softmax_sinks")
# These ops make one call per slice, because of the random numbers: see masked_softmax.py.
for _op in ("masked_softmax_sinks", "masked_softmax_sinks_backward"):
    vmap.register_loop(_op)
