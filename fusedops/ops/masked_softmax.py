"""masked_softmax as ops, with and without dropout and sinks that have a gradient: fake kernels,
derivative formulas, autocast and vmap rules.

Formulas: y is the softmax of the scores z = scale x + bias + mask, m is dropout's factor (1 without
dropout), and k is 0 where a bool mask or the row's interval (its diagonals, start and end) hides an
element, else 1. For a gradient g of the output, with g' = m g: dz = k y (g' - sum(g' y)), dx =
scale dz, and the gradient of a bias or float mask is dz, summed over the dimensions that were
broadcast. With a soft cap c, z is c tanh(scale x / c) + bias + mask, and
dx = scale dz (1 - tanh(scale x / c)^2): the formulas save x too, and compute the last factor from
it.

A sink, one more score of a row, leaves the formula of dz as it is. With the sink's probability
t = 1 - sum(y), its gradient is ds = -t sum(g' y), summed like that of a bias. The forward kernel of
masked_softmax_sinks computes t, because 1 - sum(y) would have no correct digits where t is small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import torch

from fusedops.ops import checks
from fusedops.ops.dropout import multiplier
from fusedops.ops.registration import vmap
from fusedops.ops.registration.autocast import register_float32_output
from fusedops.ops.registration.autograd import gradient, register_autograd
from fusedops.ops.registration.mutation import register_mutation
from fusedops.ops.registration.signature import MaybeTensor, Signature
from fusedops.ops.registration.variants import register_fake
from fusedops.ops.softmax import (
    fake_forward,
    fake_gradient,
    fake_in_place,
    fake_out,
    second_derivative,
)

ops = torch.ops.fusedops


def _is_bool(mask: MaybeTensor) -> bool:
    return mask is not None and mask.dtype == torch.bool


# --- fake kernels -------------------------------------------------------------------------------


def _broadcasts(shape: list[int], wanted: list[int]) -> bool:
    return len(shape) <= len(wanted) and all(
        size == 1 or size == full
        for size, full in zip(reversed(shape), reversed(wanted), strict=False)
    )


def _check_operand(
    op: str, name: str, operand: torch.Tensor, input: torch.Tensor, per_row: bool = False
) -> None:
    """Checks that an operand broadcasts to the scores or, if it is ``per_row``, to the rows."""
    checks.check_device(op, name, operand, ("input", input))
    shape, wanted = list(operand.shape), list(input.shape[:-1] if per_row else input.shape)
    of_rows = " without its last dimension" if per_row else ""
    checks.check(
        _broadcasts(shape, wanted),
        f"{op}: {name} has shape {shape}, wanted one that broadcasts to {wanted}, input's shape"
        f"{of_rows}",
    )


def _check_mask(op: str, mask: MaybeTensor, input: torch.Tensor) -> None:
    if mask is None:
        return
    checks.check(
        _is_bool(mask) or mask.dtype in checks.FLOATING,
        f"{op}: mask is {mask.dtype}, wanted torch.bool (True where visible) or a floating dtype "
        "(added); convert it, as in mask != 0",
    )
    _check_operand(op, "mask", mask, input)


def _check_bound(op: str, name: str, bound: MaybeTensor, input: torch.Tensor) -> None:
    if bound is None:
        return
    checks.check(
        bound.dtype in (torch.int32, torch.int64),
        f"{op}: {name} is {bound.dtype}, wanted torch.int32 or torch.int64, a column for each row; "
        "convert it",
    )
    _check_operand(op, name, bound, input, per_row=True)


def _check_hiding(op: str, input: torch.Tensor, call: Any) -> None:
    """Checks scale, mask and interval for scores of ``input``'s shape."""
    shape = list(input.shape)
    checks.check(len(shape) > 0, f"{op}: input has no dimension, wanted at least one")
    for name, is_given in (
        ("causal", call.causal),
        ("lower_diagonal", call.lower_diagonal is not None),
    ):
        checks.check(
            not is_given or len(shape) > 1,
            f"{op}: {name} needs queries and keys, the last two dimensions; input has shape "
            f"{shape}",
        )
    checks.check_cols(op, shape[-1])
    checks.check(not math.isnan(call.scale), f"{op}: scale is NaN, wanted a number")
    _check_mask(op, call.mask, input)
    _check_bound(op, "start", call.start, input)
    _check_bound(op, "end", call.end, input)


def _check_mask_value(op: str, value: float | None, computed: torch.dtype) -> None:
    if value is None:  # stands for -inf
        return
    checks.check(not math.isnan(value), f"{op}: mask_value is NaN, wanted a number")
    single = torch.finfo(torch.float32)
    fits = computed == torch.float64 or math.isinf(value) or abs(value) <= single.max
    checks.check(
        fits,
        f"{op}: mask_value is {value:g}, beyond float32, which {computed} is computed in; "
        f"wanted -inf or at least {single.min:g}",
    )


def _check_forward(op: str, call: Any, computed: torch.dtype) -> None:
    """Checks the arguments of a forward op, for scores of dtype ``computed``."""
    _check_dropout(op, call, ("input", call.input))
    if _has_sinks(op):
        checks.check_given(op, "sinks", call.sinks)
    _check_hiding(op, call.input, call)
    if call.bias is not None:
        checks.check_dtype(op, "bias", call.bias.dtype)
        _check_operand(op, "bias", call.bias, call.input)
    if call.sinks is not None:
        checks.check_dtype(op, "sinks", call.sinks.dtype)
        _check_operand(op, "sinks", call.sinks, call.input, per_row=True)
    _check_mask_value(op, call.mask_value, computed)
    checks.check_softcap(op, call.softcap, computed)


def _check_dropout(op: str, call: Any, like: checks.Like) -> None:
    """Checks the seed of an op that has one; without sinks it must be given."""
    if "seed" in call._fields:
        check_seed = checks.check_optional_seed if _has_sinks(op) else checks.check_seed
        check_seed(op, call.p, call.seed, like)


def _has_sinks(op: str) -> bool:
    """Whether the op computes the probabilities of sinks or their gradient."""
    return op.startswith("masked_softmax_sinks")


def _fake_results(op: str, call: Any) -> Any:
    """Returns the output and, of an op that has dropout, the probabilities before it and those of
    the sinks."""
    output = fake_forward(_check_forward, op, call)
    if "seed" not in call._fields:
        return output
    probabilities = output.new_empty([0]) if call.seed is None else torch.empty_like(output)
    return (output, probabilities, _fake_statistic(output))[: 3 if _has_sinks(op) else 2]


def _fake_statistic(scores: torch.Tensor) -> torch.Tensor:
    return scores.new_empty(scores.shape[:-1], dtype=checks.statistics_dtype(scores.dtype))


def _fake_backward(op: str, call: Any) -> Any:
    y = call.probabilities
    if _has_sinks(op):
        checks.check_given(op, "probabilities", y)
    like = ("probabilities", y)
    _check_dropout(op, call, like)
    checks.check_dtype_of(op, "probabilities", y)
    checks.check_like(op, "grad_output", call.grad_output, like)
    _check_hiding(op, y, call)
    to_input = fake_gradient(op, call, y)
    if not _has_sinks(op):
        return to_input
    checks.check_statistic(op, "sink_probabilities", call.sink_probabilities, like, y.shape[:-1])
    return to_input, _fake_statistic(y)


# --- derivatives --------------------------------------------------------------------------------


def _summed_to(operand: tuple[torch.Size, torch.dtype], grad: torch.Tensor) -> torch.Tensor:
    """Returns the gradient of an operand of this shape and dtype: ``grad``, that of what it was
    broadcast to, summed in float32 or wider over the dimensions of the broadcast."""
    shape, dtype = operand
    full = [1] * (grad.dim() - len(shape)) + list(shape)
    dims = [d for d, size in enumerate(full) if size == 1 and grad.shape[d] != 1]
    wide = torch.promote_types(grad.dtype, dtype)
    summed = grad.sum(dims, keepdim=True, dtype=wide) if dims else grad
    return summed.reshape(shape).to(dtype)


class Visibility(NamedTuple):
    """Holds the arguments that hide columns: a mask, if it is bool, and the interval."""

    mask: MaybeTensor
    causal: bool
    diagonal: int
    lower_diagonal: int | None
    start: MaybeTensor
    end: MaybeTensor

    @staticmethod
    def save(ctx: Any, call: Any, *tensors: MaybeTensor) -> None:
        """Saves these arguments of ``call``, and ``tensors``."""
        ctx.options = call.causal, call.diagonal, call.lower_diagonal
        mask = call.mask if _is_bool(call.mask) else None
        ctx.save_for_backward(mask, call.start, call.end, *tensors)

    @classmethod
    def saved(cls, ctx: Any) -> tuple[Visibility, list[torch.Tensor]]:
        """Returns what :meth:`save` saved."""
        mask, start, end, *tensors = ctx.saved_tensors
        causal, diagonal, lower_diagonal = ctx.options
        return cls(mask, causal, diagonal, lower_diagonal, start, end), tensors


def visible_columns(call: Any, scores: torch.Tensor) -> torch.Tensor:
    """Returns k of the formulas, as a tensor of zeros and ones. ``call`` may be a Visibility."""
    visible = torch.ones_like(scores)
    if call.causal:
        visible = visible.tril(_clamped_diagonal(call.diagonal, scores))
    if call.lower_diagonal is not None:
        visible = visible.triu(_clamped_diagonal(call.lower_diagonal, scores))
    columns = torch.arange(scores.shape[-1], device=scores.device)
    if call.start is not None:
        visible = visible * (columns >= call.start.unsqueeze(-1))
    if call.end is not None:
        visible = visible * (columns < call.end.unsqueeze(-1))
    return visible * call.mask if _is_bool(call.mask) else visible


def _clamped_diagonal(diagonal: int, scores: torch.Tensor) -> Any:
    """Clamps a diagonal to the matrix, because tril and triu overflow far outside of it."""
    rows, cols = scores.shape[-2:]
    return torch.sym_min(torch.sym_max(diagonal, -rows), cols)


class SoftCap(NamedTuple):
    """Holds the input and the numbers that the derivative of a soft cap is computed from."""

    input: torch.Tensor
    scale: float
    cap: float

    def gradient(self, to_capped: torch.Tensor) -> torch.Tensor:
        """Returns the gradient of the input, from ``scale`` times that of the capped scores. It is
        computed in float32 or wider, because near 1 a tanh of 16 bits would leave 1 - tanh^2 no
        digits."""
        wide = torch.promote_types(to_capped.dtype, torch.float32)
        # Nothing names the argument of tanh, so that it is freed before the gradient is computed.
        factor, grad = self.scale / self.cap, to_capped.to(wide)
        result: torch.Tensor
        if torch.compiler.is_compiling():
            # With s = sigmoid(-2 |a|), 1 - tanh^2 a is 4 s (1 - s). Inductor fuses all of this, and
            # on the CPU its code for a tanh takes two to three times as long as that for s.
            sigmoid = torch.sigmoid((self.input.to(wide) * factor).abs() * -2)
            result = torch.ops.aten.sigmoid_backward(grad, sigmoid) * 4
        else:
            tanh = torch.tanh(self.input.to(wide) * factor)
            result = torch.ops.aten.tanh_backward(grad, tanh)
        return result.to(to_capped.dtype)


def _setup_forward(signature: Signature, ctx: Any, inputs: tuple[Any, ...], outputs: Any) -> None:
    """Saves the settings, what hides columns, the input if there is a soft cap, the probabilities
    before dropout, the seed and the probabilities of the sinks."""
    call = signature.bind(*inputs)
    others: list[torch.Tensor]
    output, *others = (outputs,) if isinstance(outputs, torch.Tensor) else outputs
    seed = getattr(call, "seed", None)
    y = output if seed is None else others.pop(0)
    if others:  # without a seed the first is empty
        ctx.mark_non_differentiable(*others)
    ctx.set_materialize_grads(False)
    # Scores of another dtype have no gradient, or autograd converts it to that dtype.
    is_ours = call.input.dtype in checks.FLOATING
    ctx.input_dtype = call.input.dtype if is_ours else output.dtype
    ctx.scale, ctx.softcap = call.scale, call.softcap
    ctx.p = getattr(call, "p", 0.0)
    mask = None if _is_bool(call.mask) else call.mask
    sinks = call.sinks if others else None
    added = (("mask", mask), ("bias", call.bias), ("sinks", sinks))
    ctx.operands = {name: (t.shape, t.dtype) for name, t in added if t is not None}
    capped = None if call.softcap is None else _converted(call)
    Visibility.save(ctx, call, capped, y, seed, *others[-1:])


def _converted(call: Any) -> torch.Tensor:
    """Returns the input as the op converts it. A conversion to more bits is left out: it changes no
    value, and would take memory until the backward pass."""
    input: torch.Tensor = call.input
    is_wider = call.dtype is None or call.dtype.itemsize > input.dtype.itemsize
    return input if is_wider else input.to(call.dtype)


def _forward_formula(
    signature: Signature,
    ctx: Any,
    grad_output: MaybeTensor,
    grad_probabilities: MaybeTensor = None,
    *_: None,
) -> tuple[MaybeTensor, ...]:
    """Returns the gradients of input, mask, bias and sinks, each the sum of those by two results.

    The second result, the probabilities before dropout, gets a gradient in a second derivative,
    because the backward op takes them as an argument. Dropout does not apply to it.
    """
    visibility, (capped, y, seed, *sinks) = Visibility.saved(ctx)
    terms = ((grad_output, ctx.p, seed), (grad_probabilities, 0.0, None))
    wanted: list[tuple[Any, ...]] = [term for term in terms if term[0] is not None]
    if not wanted:
        return signature.gradients()

    needed = [name for name in ctx.operands if signature.needs_gradient(ctx, name)]
    # The gradient of a float32 bias beside 16-bit scores would lose digits as a number of 16 bits.
    dtypes = [ctx.operands[name][1] for name in needed if name != "sinks"]
    dtype = reduce(torch.promote_types, dtypes, ctx.input_dtype)

    def run(scale: float) -> Sequence[torch.Tensor]:
        """Returns ``scale`` times the gradient of the scores, and the sinks' if they have one."""
        saved: tuple[Any, ...] = (y, sinks, visibility, scale, dtype)
        total, *others = [_gradients_of_scores(*term, *saved) for term in wanted]
        for grads in others:
            total = [a + b for a, b in zip(total, grads, strict=True)]
        return total

    of: dict[str, MaybeTensor] = {}
    grads: Sequence[torch.Tensor] = ()
    if signature.needs_gradient(ctx, "input"):
        grads = run(ctx.scale)
        cap = None if capped is None else SoftCap(capped, ctx.scale, ctx.softcap)
        to_input = grads[0] if cap is None else cap.gradient(grads[0])
        of["input"] = to_input.to(ctx.input_dtype)
    # The sinks' gradient does not depend on the scale.
    if needed and not (grads and (ctx.scale == 1 or needed == ["sinks"])):
        grads = run(1.0)
    of |= {name: _summed_to(ctx.operands[name], grads[name == "sinks"]) for name in needed}
    return signature.gradients(**of)


def _gradients_of_scores(
    grad: torch.Tensor,
    p: float,
    seed: MaybeTensor,
    y: torch.Tensor,
    sinks: list[torch.Tensor],
    visibility: Visibility,
    scale: float,
    input_dtype: torch.dtype,
) -> Sequence[torch.Tensor]:
    """Calls a backward op; ``sinks`` are the probabilities of the sinks, or nothing."""
    dropout = (p, seed) if sinks or seed is not None else ()
    kind = "_sinks" if sinks else "_dropout" if dropout else ""
    mask, causal, *interval = visibility
    settings = (mask, scale, causal, *dropout, input_dtype, *interval)
    results = gradient(f"masked_softmax{kind}_backward", grad, y, *sinks, *settings)
    return results if sinks else [results]


def _with_learned_sinks(call: Any) -> Any:
    """Returns the results of the op if its sinks require grad, else NotImplemented. It calls
    masked_softmax_sinks, because the formulas here compute no gradient of sinks."""
    if call.sinks is None or not call.sinks.requires_grad:
        return NotImplemented
    no_dropout = {"p": 0.0, "seed": None}
    results = ops.masked_softmax_sinks.default(**no_dropout | call._asdict())
    return results[:2] if "seed" in call._fields else results[0]


def _setup_backward(signature: Signature, ctx: Any, inputs: tuple[Any, ...], _: Any) -> None:
    call = signature.bind(*inputs)
    ctx.scale, ctx.p = call.scale, getattr(call, "p", 0.0)
    optional = (getattr(call, name, None) for name in ("seed", "sink_probabilities"))
    Visibility.save(ctx, call, call.grad_output, call.probabilities, *optional)


def _backward_formula(
    signature: Signature, ctx: Any, to_input: torch.Tensor, to_sinks: MaybeTensor = None
) -> tuple[MaybeTensor, ...]:
    """Returns the derivative of a backward op, a second derivative of the softmax: the gradients of
    its grad_output g and probabilities y, from the cotangents of dx and ds."""
    visibility, (g, y, seed, sink_probabilities) = Visibility.saved(ctx)
    m: Any = 1.0 if seed is None else multiplier(ctx.p, seed, y).to(y.dtype)
    dropped, scaled = g * m, to_input.to(y.dtype) * ctx.scale * visible_columns(visibility, y)
    by_dropped, by_y = second_derivative(scaled, dropped, y, -1)
    if to_sinks is not None:
        # The saved t is a constant for autograd. Adding rest - rest.detach(), which is 0, gives it
        # the derivative of 1 - sum(y), for a third derivative.
        rest = 1 - y.sum(-1, dtype=sink_probabilities.dtype)
        t = (sink_probabilities + (rest - rest.detach())).unsqueeze(-1)
        cotangent = to_sinks.unsqueeze(-1)
        total = (dropped * y).sum(-1, True, dtype=sink_probabilities.dtype)
        slope = (cotangent * t).to(y.dtype)
        by_dropped = by_dropped - slope * y
        by_y = by_y - slope * dropped + (cotangent * total).to(y.dtype)
    return signature.gradients(grad_output=by_dropped * m, probabilities=by_y)


# --- registration -------------------------------------------------------------------------------


def _register_forward(op: str) -> None:
    signature = Signature(op)
    register_fake(op, partial(_fake_results, op))
    formula, setup = partial(_forward_formula, signature), partial(_setup_forward, signature)
    register_autograd(op, formula, setup, None if _has_sinks(op) else _with_learned_sinks)
    register_float32_output(op)


def _register_backward(op: str) -> None:
    signature = Signature(op)
    register_fake(op, partial(_fake_backward, op))
    if op.endswith("_"):
        register_mutation(op)
    else:
        formula, setup = partial(_backward_formula, signature), partial(_setup_backward, signature)
        register_autograd(op, formula, setup)


for _op in ("masked_softmax", "masked_softmax_dropout", "masked_softmax_sinks"):
    _register_forward(_op)
    _register_backward(f"{_op}_backward")
for _op in ("masked_softmax_backward_", "masked_softmax_dropout_backward_"):
    _register_backward(_op)
for _op, _fake, _name in (
    ("masked_softmax_out", fake_out, "masked_softmax"),
    ("masked_softmax_", fake_in_place, "masked_softmax_"),
    ("_masked_softmax_dropout", fake_forward, "masked_softmax_dropout"),
):
    register_fake(_op, partial(_fake, _check_forward, _name))
for _op in ("masked_softmax_out", "masked_softmax_"):
    register_mutation(_op)
register_float32_output("_masked_softmax_dropout")

for _op in ("masked_softmax", "masked_softmax_out", "masked_softmax_", "masked_softmax_backward"):
    vmap.register_rows(_op, mask=0, bias=0, start=1, end=1, sinks=1)
# These ops make one call per slice. Random numbers depend on a row's index in the call, so that in
# one call for the batch, slices with the same seed would get different numbers.
for _op in (
    "masked_softmax_dropout",
    "_masked_softmax_dropout",
    "masked_softmax_dropout_backward",
    "masked_softmax_sinks",
    "masked_softmax_sinks_backward",
):
    vmap.register_loop(_op)
