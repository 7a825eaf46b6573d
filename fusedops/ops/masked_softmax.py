"""masked_softmax as ops, with and without dropout: fake kernels, derivative formulas, autocast and
vmap rules.

Formulas: y is the softmax of the scores z = scale x + bias + mask, m is dropout's factor (1 without
dropout), and k is 0 where a bool mask or the row's interval (its diagonals, start and end) hides an
element, else 1. For a gradient g of the output, with g' = m g: dz = k y (g' - sum(g' y)), dx =
scale dz, and the gradient of a bias or float mask is dz, summed over the dimensions that were
broadcast. A sink, one more score of a row, leaves this formula of dz as it is;
masked_softmax_sinks.py has the sink's gradient. With a soft cap c, z is
c tanh(scale x / c) + bias + mask, and dx = scale dz (1 - tanh(scale x / c)^2): the formulas save x
too, and compute the last factor from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from fusedops.ops import checks
from fusedops.ops.registration import vmap
from fusedops.ops.registration.autocast import register_float32_output
from fusedops.ops.registration.autograd import gradient, register_autograd
from fusedops.ops.registration.mutation import register_mutation
from fusedops.ops.registration.signature import MaybeTensor, Signature
from fusedops.ops.registration.variants import register_fake
from fusedops.ops.softmax import contiguous_like, second_derivative

ops = torch.ops.fusedops

_FORWARD = Signature("masked_softmax")
_OUT = Signature("masked_softmax_out")
_IN_PLACE = Signature("masked_softmax_")
_DROPOUT = Signature("masked_softmax_dropout")
#: The backward ops, which may have dropout, and may write into ``grad_output``.
_BACKWARDS = [
    Signature(f"masked_softmax{dropout}_backward{written}")
    for dropout in ("", "_dropout")
    for written in ("", "_")
]


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


def check_forward(op: str, call: Any, computed: torch.dtype) -> None:
    """Checks the arguments that all forward ops have, for scores of dtype ``computed``."""
    _check_hiding(op, call.input, call)
    if call.bias is not None:
        checks.check_dtype(op, "bias", call.bias.dtype)
        _check_operand(op, "bias", call.bias, call.input)
    if call.sinks is not None:
        checks.check_dtype(op, "sinks", call.sinks.dtype)
        _check_operand(op, "sinks", call.sinks, call.input, per_row=True)
    _check_mask_value(op, call.mask_value, computed)
    checks.check_softcap(op, call.softcap, computed)


def _fake_forward(op: str, call: Any) -> torch.Tensor:
    result = checks.result_dtype(op, call.input, call.dtype)
    if "seed" in call._fields:
        checks.check_seed(op, call.p, call.seed, ("input", call.input))
    check_forward(op, call, result)
    return contiguous_like(call.input, result)


def _fake_out(call: Any) -> None:
    op = "masked_softmax"
    checks.check_given(op, "input", call.input)
    checks.check_out(op, call.out, call.input)
    check_forward(op, call, call.out.dtype)


def _fake_in_place(call: Any) -> None:
    op = "masked_softmax_"
    checks.check_dtype_of(op, "input", call.input)
    checks.check_distinct(op, "input", call.input)
    check_forward(op, call, call.input.dtype)


def check_backward(op: str, call: Any) -> None:
    checks.check_dtype_of(op, "probabilities", call.probabilities)
    like = ("probabilities", call.probabilities)
    checks.check_like(op, "grad_output", call.grad_output, like)
    _check_hiding(op, call.probabilities, call)


def _fake_backward(op: str, call: Any) -> torch.Tensor | None:
    if "seed" in call._fields:
        checks.check_seed(op, call.p, call.seed, ("probabilities", call.probabilities))
    check_backward(op, call)
    if "input_dtype" not in call._fields:  # the op writes into grad_output
        checks.check_distinct(op, "grad_output", call.grad_output)
        return None
    checks.check_dtype(op, "input_dtype", call.input_dtype)
    return contiguous_like(call.probabilities, call.input_dtype)


def _fake_dropout(call: Any) -> tuple[torch.Tensor, torch.Tensor]:
    output = _fake_forward(_DROPOUT.name, call)
    return output, torch.empty_like(output)


# --- derivatives --------------------------------------------------------------------------------


class Operand(NamedTuple):
    """Holds the shape and dtype of a bias, float mask or sinks, and so of its gradient."""

    shape: torch.Size
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Operand:
        return cls(tensor.shape, tensor.dtype)


def summed_to(like: Operand, scores_grad: torch.Tensor) -> torch.Tensor:
    """Returns the gradient of an operand like ``like``: that of the scores, summed in float32 or
    wider over the dimensions to which the operand was broadcast."""
    missing = scores_grad.dim() - len(like.shape)
    shape = [1] * missing + list(like.shape)
    dims = [d for d, size in enumerate(shape) if size == 1 and scores_grad.shape[d] != 1]
    wide = torch.promote_types(scores_grad.dtype, like.dtype)
    summed = scores_grad.sum(dims, keepdim=True, dtype=wide) if dims else scores_grad
    return summed.reshape(like.shape).to(like.dtype)


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

    def gradient(
        self,
        grad: torch.Tensor,
        probabilities: torch.Tensor,
        scale: float,
        input_dtype: torch.dtype,
        *dropout: Any,
    ) -> torch.Tensor:
        """Returns ``scale`` times the gradient of the scores, by the backward op; ``dropout`` is p
        and seed, or nothing."""
        op = "masked_softmax_dropout_backward" if dropout else "masked_softmax_backward"
        hidden = self.mask, scale, self.causal
        result: torch.Tensor = gradient(
            op, grad, probabilities, *hidden, *dropout, input_dtype, *self.interval()
        )
        return result

    def interval(self) -> tuple[int, int | None, MaybeTensor, MaybeTensor]:
        return self.diagonal, self.lower_diagonal, self.start, self.end

    def visible(self, scores: torch.Tensor) -> torch.Tensor:
        """Returns k of the formulas, as a tensor of zeros and ones."""
        visible = torch.ones_like(scores)
        if self.causal:
            visible = visible.tril(_clamped_diagonal(self.diagonal, scores))
        if self.lower_diagonal is not None:
            visible = visible.triu(_clamped_diagonal(self.lower_diagonal, scores))
        columns = torch.arange(scores.shape[-1], device=scores.device)
        if self.start is not None:
            visible = visible * (columns >= self.start.unsqueeze(-1))
        if self.end is not None:
            visible = visible * (columns < self.end.unsqueeze(-1))
        return visible if self.mask is None else visible * self.mask


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


def save_forward(ctx: Any, call: Any, *tensors: torch.Tensor) -> None:
    """Saves what the gradients of a forward op need: its settings, what hides columns, ``tensors``,
    and with a soft cap the input."""
    ctx.input_dtype, ctx.scale, ctx.softcap = call.input.dtype, call.scale, call.softcap
    added = {"mask": None if _is_bool(call.mask) else call.mask, "bias": call.bias}
    ctx.operands = {name: Operand.of(t) for name, t in added.items() if t is not None}
    Visibility.save(ctx, call, None if call.softcap is None else call.input, *tensors)


def saved_forward(ctx: Any) -> tuple[Visibility, SoftCap | None, list[torch.Tensor]]:
    """Returns what :func:`save_forward` saved."""
    visibility, (capped, *tensors) = Visibility.saved(ctx)
    return visibility, None if capped is None else SoftCap(capped, ctx.scale, ctx.softcap), tensors


def forward_gradients(
    ctx: Any, signature: Signature, cap: SoftCap | None, run: Callable[[float], torch.Tensor]
) -> dict[str, MaybeTensor]:
    """Returns the gradients of input, mask and bias; ``run(scale)`` computes ``scale`` times the
    gradient of the scores."""
    of: dict[str, MaybeTensor] = {}
    to_input: MaybeTensor = None
    if signature.needs_gradient(ctx, "input"):
        to_input = run(ctx.scale)
        of["input"] = to_input if cap is None else cap.gradient(to_input)
    needed = [name for name in ctx.operands if signature.needs_gradient(ctx, name)]
    if needed:
        to_scores = to_input if to_input is not None and ctx.scale == 1 else run(1.0)
        of |= {name: summed_to(ctx.operands[name], to_scores) for name in needed}
    return of


def _setup_forward(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    save_forward(ctx, _FORWARD.bind(*inputs), output)


def _forward_formula(ctx: Any, grad_output: torch.Tensor) -> tuple[Any, ...]:
    visibility, cap, (output,) = saved_forward(ctx)

    def run(scale: float) -> torch.Tensor:
        return visibility.gradient(grad_output, output, scale, ctx.input_dtype)

    return _FORWARD.gradients(**forward_gradients(ctx, _FORWARD, cap, run))


def _setup_dropout(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    call = _DROPOUT.bind(*inputs)
    ctx.p = call.p
    ctx.set_materialize_grads(False)
    save_forward(ctx, call, output[1], call.seed)


def _dropout_formula(
    ctx: Any, grad_output: MaybeTensor, grad_probabilities: MaybeTensor
) -> tuple[Any, ...]:
    """Returns the gradients of input, mask and bias, each the sum of those by the two results."""
    visibility, cap, (probabilities, seed) = saved_forward(ctx)

    # The probabilities, the op's second result, get a gradient in a second derivative, because the
    # backward op takes them as an argument. Dropout does not apply to it.
    grads = ((grad_output, (ctx.p, seed)), (grad_probabilities, ()))
    wanted = [(grad, dropout) for grad, dropout in grads if grad is not None]

    def run(scale: float) -> torch.Tensor:
        saved = probabilities, scale, ctx.input_dtype
        results = [visibility.gradient(grad, *saved, *dropout) for grad, dropout in wanted]
        return sum(results[1:], results[0])

    if not wanted:
        return _DROPOUT.gradients()
    return _DROPOUT.gradients(**forward_gradients(ctx, _DROPOUT, cap, run))


def _with_learned_sinks(signature: Signature, *args: Any) -> Any:
    """Returns the results of the op if its sinks require grad, else NotImplemented. It calls
    masked_softmax_sinks, because the formulas here compute no gradient of sinks."""
    call = signature.bind(*args)
    if call.sinks is None or not call.sinks.requires_grad:
        return NotImplemented
    no_dropout = {"p": 0.0, "seed": None}
    results = ops.masked_softmax_sinks.default(**no_dropout | call._asdict())
    return results[:2] if "seed" in call._fields else results[0]


def multiplier(p: float, seed: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Returns m of the formulas: 1 / (1 - p) where the op keeps an element, else 0."""
    # The softmax of zeros is above 0 everywhere: only dropped elements become 0.
    uniform = torch.zeros_like(like)
    output = ops._masked_softmax_dropout.default(uniform, None, 1.0, False, 0.0, p, seed)
    return (output != 0) / (1 - p) if p < 1 else uniform


def save_backward(ctx: Any, call: Any, *tensors: torch.Tensor) -> None:
    """Saves what the derivative of a backward op needs, and ``tensors``."""
    ctx.scale, ctx.p = call.scale, getattr(call, "p", 0.0)
    seed = getattr(call, "seed", None)
    Visibility.save(ctx, call, call.grad_output, call.probabilities, seed, *tensors)


def saved_backward(
    ctx: Any, cotangent: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Any, list[torch.Tensor]]:
    """Returns five values: the cotangent of dz = y (m g - sum(m g y)); m g; y; m; and the other
    tensors that :func:`save_backward` saved. ``cotangent`` is that of the op's result."""
    visibility, (g, y, seed, *tensors) = Visibility.saved(ctx)
    m = 1.0 if seed is None else multiplier(ctx.p, seed, y).to(y.dtype)
    scaled = cotangent.to(y.dtype) * ctx.scale * visibility.visible(y)
    return scaled, g * m, y, m, tensors


def _setup_backward(
    signature: Signature, ctx: Any, inputs: tuple[Any, ...], _: torch.Tensor
) -> None:
    save_backward(ctx, signature.bind(*inputs))


def _backward_formula(
    signature: Signature, ctx: Any, cotangent: torch.Tensor
) -> tuple[MaybeTensor, ...]:
    """Returns the derivative of a backward op, a second derivative of the softmax: the gradients of
    its grad_output g and probabilities y, from that of its result."""
    scaled, dropped, y, m, _ = saved_backward(ctx, cotangent)
    by_dropped, by_y = second_derivative(scaled, dropped, y, -1)
    return signature.gradients(grad_output=by_dropped * m, probabilities=by_y)


# --- registration -------------------------------------------------------------------------------

register_fake("masked_softmax", _FORWARD.of_call(partial(_fake_forward, _FORWARD.name)))
register_fake("masked_softmax_out", _OUT.of_call(_fake_out))
register_fake("masked_softmax_", _IN_PLACE.of_call(_fake_in_place))
register_fake("masked_softmax_dropout", _DROPOUT.of_call(_fake_dropout))
register_fake("_masked_softmax_dropout", _DROPOUT.of_call(partial(_fake_forward, _DROPOUT.name)))

for _signature, _formula, _setup in (
    (_FORWARD, _forward_formula, _setup_forward),
    (_DROPOUT, _dropout_formula, _setup_dropout),
):
    _other = partial(_with_learned_sinks, _signature)
    register_autograd(_signature.name, _formula, _setup, _other)
register_mutation("masked_softmax_out", written=_OUT.names.index("out"))
register_mutation("masked_softmax_", written=0)
for _signature in _BACKWARDS:
    register_fake(_signature.name, _signature.of_call(partial(_fake_backward, _signature.name)))
    if _signature.name.endswith("_"):
        register_mutation(_signature.name, written=0)
    else:
        _both = partial(_backward_formula, _signature), partial(_setup_backward, _signature)
        register_autograd(_signature.name, *_both)

for _op in ("masked_softmax", "masked_softmax_out", "masked_softmax_", "masked_softmax_backward"):
    vmap.register_rows(_op, mask=0, bias=0, start=1, end=1, sinks=1)
for _op in ("masked_softmax", "masked_softmax_dropout", "_masked_softmax_dropout"):
    register_float32_output(_op)
# These ops make one call per slice. Random numbers depend on a row's index in the call, so that in
# one call for the batch, slices with the same seed would get different numbers.
for _op in ("masked_softmax_dropout", "_masked_softmax_dropout", "masked_softmax_dropout_backward"):
    vmap.register_loop(_op)
