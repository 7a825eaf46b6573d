"""Reads the number by which a norm divides each row, a function of the row's mean square.

Models compute it in many ways: by a mean, a sum, a norm or a variance; with eps added to the mean
square or to its root, or as a lower limit; with factors in between; as a divisor or a reciprocal.
All of these are one formula, `RowScale`. The calls are read from the last one back to the
statistic, and then each call changes the formula's parameters. A function returns None if its call
has another form, and a scale with a `refusal` if no op computes the norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.selections import maximum_with_number
from fusedops.graph.analysis.steps import (
    before,
    before_view_chain,
    call_of,
    difference,
    factor_of,
    has_keepdim_shape,
    has_shape,
    is_number,
    is_widening,
    known_count,
    known_number,
    output_of,
    reduced_dims,
    same_shape,
    same_value,
    scaling,
    tensor_and_number,
)
from fusedops.graph.analysis.values import constant, value

OTHER_NORM = "it is divided by another norm than the root of its sum of squares"
CANCELS = "mean(x^2) - mean(x)^2 cancels where the variance is small, and the op would not"


@dataclass(frozen=True)
class RowScale:
    """The formula outer * f(inner * m ** power) ** exponent. `eps_mode` says which function f is:
    x + eps ("add"), max(x, eps) ("max") or x alone ("").

    m is the mean of the squares of `input` over its dimensions `dims`. If `centred`, m is the
    variance over these dimensions, with the divisor N - correction for rows of N elements.

    written_as_sum: whether the model writes a sum or a norm instead of a mean.
    by_norm: whether one function, such as torch.norm, computes the root of the sum of squares.
    """

    input: Node
    dims: tuple[int, ...]
    centred: bool = False
    correction: int | float = 0
    written_as_sum: bool = False
    by_norm: bool = False
    inner: float = 1.0
    power: float = 1.0
    eps_mode: str = ""
    eps: float = 0.0
    outer: float = 1.0
    exponent: float = 1.0
    refusal: str | None = None

    @property
    def columns(self) -> int | None:
        """The number of elements of a row, or None if it is not known at compile time."""
        return known_count(value(self.input), self.dims)

    def raised_to(self, exponent: float, factor: float = 1.0) -> RowScale | None:
        """Returns the scale to the power `exponent`, times `factor`, or None if `inner` or `outer`
        leaves the range of the dtype."""
        if self.eps_mode:
            outer = factor * power_of(self.outer, exponent)
            return replace(self, outer=outer, exponent=self.exponent * exponent)._within_range()
        inner = factor * power_of(self.inner, exponent)
        return replace(self, inner=inner, power=self.power * exponent)._within_range()

    def times(self, factor: float) -> RowScale | None:
        """Returns the scale times `factor`, or None if that is not positive, or if `inner` or
        `outer` leaves the range of the dtype."""
        fits = factor > 0 and in_range(factor, self.input)
        return self.raised_to(1.0, factor) if fits else None

    def _within_range(self) -> RowScale | None:
        """Returns the scale, or None if `inner` or `outer` is outside of the dtype's range."""
        fits = in_range(self.inner, self.input) and in_range(self.outer, self.input)
        return self if fits else None

    def with_eps(self, eps_mode: str, eps: float) -> RowScale | None:
        """Returns the scale with eps, unchanged if the model adds 0. Returns None if the scale has
        an eps already, and for two lower limits that no op has: a limit of 1 / norm, which limits
        the norm from above, and a negative one."""
        if eps_mode == "add" and eps == 0:
            return self
        is_other_limit = eps_mode == "max" and (self.power < 0 or eps < 0)
        if self.eps_mode or is_other_limit:
            return None
        return replace(self, eps_mode=eps_mode, eps=eps)

    def corrected(self, correction: int) -> RowScale | None:
        """Returns the same scale in terms of a variance with the divisor N - correction. Returns
        None if N is not known, or so small that a divisor would not be positive, or if `inner`
        leaves the range of the dtype."""
        if correction == self.correction:
            return self
        columns = self.columns
        if columns is None or columns <= max(correction, self.correction):
            return None
        ratio = (columns - correction) / (columns - self.correction)
        inner = self.inner * power_of(ratio, self.power)
        return replace(self, correction=correction, inner=inner)._within_range()

    @property
    def is_inverse_root(self) -> bool:
        return math.isclose(self.power * self.exponent, -0.5)


def power_of(base: float, exponent: float) -> float:
    """Returns base ** exponent for a base >= 0; infinity where Python would raise an error."""
    try:
        return float(base**exponent)
    except (OverflowError, ZeroDivisionError):
        return math.inf


def in_range(factor: float, tensor: Any) -> bool:
    """Returns whether a factor is a normal number in the dtype in which eager multiplies `tensor`
    by it, which is float32 at least. Other factors become infinite or denormal in that dtype. The
    op would multiply by the product of all factors, and eager's result differs from that if one of
    the factors is not normal."""
    limits = torch.finfo(torch.promote_types(value(tensor).dtype, torch.float32))
    return limits.tiny <= abs(factor) <= limits.max


def read_row_scale(node: Any, steps: int = 16) -> RowScale | None:
    """Returns the scale of rows that `node` computes, or None if it is not known to compute one. At
    most `steps` calls are followed back from `node`."""
    # A view keeps the order of the rows, and `as_one_per_row` checks later whether its shape
    # broadcasts to the input.
    call = call_of(before_view_chain(node))
    if call is None or steps == 0 or not isinstance(value(node), torch.Tensor):
        return None
    reader = _STATISTICS.get(call.kind)
    if reader is not None and (scale := reader(call)) is not None:
        return scale
    step = _STEPS.get(call.kind)
    return step(call, steps - 1) if step is not None else None


def as_one_per_row(scale: RowScale, node: Node) -> RowScale | None:
    """Returns the scale that `node` computes, if `node` has one element for each row of the scale's
    input and broadcasts to it, or is expanded to the input's shape; else None. The tensor of which
    the input is a view is tried too, and becomes the `input` of the result."""
    for input, dims in ((scale.input, scale.dims), before_views(scale.input, scale.dims)):
        if has_keepdim_shape(node, input, dims) or same_shape(node, input):
            return replace(scale, input=input, dims=dims)
    return None


# --- means, squares, and deviations from the mean -------------------------------------------------


def centred(node: Any) -> tuple[Node, tuple[int, ...]] | None:
    """Returns x and dims, if `node` is x - mean(x, dims), else None."""
    operands = difference(node)
    if operands is None:
        return None
    matching = (mean for mean in _row_means(operands[1]) if same_value(operands[0], mean[0]))
    return next(matching, None)


def _row_means(node: Any) -> Iterator[tuple[Node, tuple[int, ...]]]:
    """Yields each x and dims for which `node` is mean(x, dims). The node has to broadcast to x, or
    to be an expansion to the shape of x."""
    kept = before(node, "expand")
    for mean in means(before_view_chain(kept)):
        for input, dims in (mean, before_views(*mean)):
            if has_keepdim_shape(kept, input, dims) and (kept is node or same_shape(node, input)):
                yield input, dims


def means(node: Any) -> Iterator[tuple[Node, tuple[int, ...]]]:
    """Yields x and dims, if `node` is mean(x, dims), also written as var_mean(x, dims)[1] or as
    sum(x, dims) / N. If x is itself a mean of a tensor z, also yields z and the dimensions of z
    over which the two means are taken."""
    beside_variance = output_of(node, 1, "var_mean", "std_mean")
    call = call_of(node, "mean") or beside_variance or _sum_over_size(node)
    input: Any = call.input if call else None
    dims = reduced_dims(call, value(input)) if call else None
    if not dims:
        return
    yield input, dims
    for source, inner in means(input):
        shape = value(source).shape
        left = [dim for dim in range(len(shape)) if dim not in inner]
        if has_keepdim_shape(input, source, inner):
            left = list(range(len(shape)))
        elif not has_shape(input, [shape[dim] for dim in left]):
            # A view between the means has changed the dimensions.
            continue
        yield source, tuple(sorted({*inner, *(left[dim] for dim in dims)}))


def before_views(input: Node, dims: tuple[int, ...]) -> tuple[Node, tuple[int, ...]]:
    """Returns the tensor before the order-keeping views that end in `input`, and the dimensions of
    that tensor whose elements are those along `dims` of `input`. For x.view(n, -1) and dimension 1,
    these are all dimensions of x but the first. Returns `input` and `dims` themselves if `dims` are
    not the last dimensions, or if a size is not known."""
    source = before_view_chain(input)
    shape, sizes = value(input).shape, value(source).shape
    row = known_count(value(input), dims)
    if source is input or row is None or dims != tuple(range(len(shape) - len(dims), len(shape))):
        return input, dims
    for first in reversed(range(len(sizes))):
        last = tuple(range(first, len(sizes)))
        if known_count(value(source), last) == row:
            return source, last
    return input, dims


def _sum_over_size(node: Any) -> Call | None:
    """Returns the sum in sum(x, dims) / N or sum(x, dims) * (1 / N), if a row has N elements."""
    call = call_of(node, "div", "mul")
    total = call_of(before_view_chain(scaling(call)[0]), "sum") if call else None
    dims = reduced_dims(total, value(total.input)) if total else None
    if call is None or total is None or dims is None:
        return None
    count, factor = known_count(value(total.input), dims), factor_of(call)
    return total if count and factor and math.isclose(factor, 1 / count) else None


def base_of_square(node: Any) -> Node | None:
    """Returns the tensor whose square `node` is, by square, by pow with exponent 2, or by a product
    with itself; None for other nodes. If that tensor is abs(x), the result is x, which has the same
    square."""
    call = call_of(node, "square", "pow", "mul")
    if call is None:
        return None
    is_square = (
        call.kind == "square"
        or (call.kind == "pow" and call.arguments["exponent"] in (2, 2.0))
        or (call.kind == "mul" and same_value(*call.operands))
    )
    return before(call.input, "abs") if is_square else None


# --- statistics -----------------------------------------------------------------------------------


def _of_mean(call: Call) -> RowScale | None:
    """Returns the scale x.pow(2).mean(-1, keepdim=True), or a mean of such means over another
    dimension; None if the call is another mean."""
    scale = (_of_squares(*mean) for mean in means(call.node))
    return next(filter(None, scale), None)


def _of_squares(squares: Node, dims: tuple[int, ...]) -> RowScale | None:
    """Returns the scale for the mean of `squares` over `dims`; None if `squares` is no square."""
    base = base_of_square(squares)
    return _scale_of_mean_square(base, dims) if base else None


def _scale_of_mean_square(base: Node, dims: tuple[int, ...]) -> RowScale | None:
    """Returns the scale for the mean over `dims` of the square of `base`. The mean square is a
    variance if `base` is a tensor minus its mean over the same dimensions. Returns None if `base`
    is a tensor minus its mean over other dimensions."""
    deviation = centred(base)
    if deviation is None:
        return RowScale(base, dims)
    input, mean_dims = deviation
    return RowScale(input, dims, centred=True) if mean_dims == dims else None


def _of_sum(call: Call) -> RowScale | None:
    """Returns the scale x.pow(2).sum(-1, keepdim=True); None if the call is another sum."""
    summed: Node = call.input
    dims = reduced_dims(call, value(summed))
    return _times_columns(_of_squares(summed, dims)) if dims else None


def _times_columns(mean: RowScale | None) -> RowScale | None:
    """Returns the scale of a sum, which is the scale of a mean times the number of elements of a
    row; None if there is none, or if that number is not known."""
    columns = mean.columns if mean else None
    return replace(mean, written_as_sum=True, inner=float(columns)) if mean and columns else None


def _of_einsum(call: Call) -> RowScale | None:
    """Returns the scale einsum("...d,...d->...", x, x), or one that sums over other dimensions;
    None if the call is another einsum or a matrix product."""
    equation, tensors = call.arguments.get("equation"), call.arguments.get("tensors")
    if not isinstance(equation, str) or not isinstance(tensors, (list, tuple)):
        return None
    base, *others = tensors
    inputs, _, output = equation.replace(" ", "").partition("->")
    first, _, second = inputs.partition(",")
    if not isinstance(base, Node) or len(others) != 1 or first != second:
        return None
    if not same_value(base, others[0]):
        return None
    summed = _summed_dims(first, output, value(base).dim())
    return _times_columns(_scale_of_mean_square(base, summed)) if summed else None


def _summed_dims(input: str, output: str, rank: int) -> tuple[int, ...] | None:
    """Returns the dimensions over which an einsum sums, if it keeps the others in their order, else
    None. Dimensions without a name ("...") have to be the first."""
    names, kept = input.removeprefix("..."), output.removeprefix("...")
    is_plain = names.isalpha() and len(set(names)) == len(names)
    keeps_unnamed = input.startswith("...") == output.startswith("...")
    if not is_plain or not keeps_unnamed or kept != "".join(n for n in names if n in kept):
        return None
    first = rank - len(names)
    return tuple(first + i for i, name in enumerate(names) if name not in kept)


def _of_norm(call: Call) -> RowScale | None:
    """Returns the scale x.norm(dim=-1, keepdim=True) or torch.linalg.norm(x, dim=-1). The scale has
    a refusal if the norm is not the Euclidean one."""
    base, order = call.input, call.arguments["p"]
    dims = reduced_dims(call, value(base))
    is_euclidean = order in (None, "fro") or constant(order) == 2
    # Over two dimensions linalg.norm computes a norm of matrices. Only the Frobenius norm ("fro")
    # is the root of a sum of squares.
    is_spectral = call.kind == "linalg_norm" and order != "fro"
    if dims is None or (is_spectral and len(dims) > 1):
        return None
    scale = _times_columns(_scale_of_mean_square(base, dims))
    if scale is None:
        return None
    refusal = scale.refusal or (None if is_euclidean else OTHER_NORM)
    norm = scale.raised_to(0.5)
    return replace(norm, by_norm=True, refusal=refusal) if norm else None


def _of_variance(call: Call) -> RowScale | None:
    """Returns the scale x.var(-1), x.std(-1), torch.var_mean(x, -1)[0] or torch.std_mean(x, -1)[0],
    where x may also be a tensor minus its mean."""
    if call.kind == "item":
        pair = output_of(call.node, 0, "var_mean", "std_mean")
        return _of_variance(pair) if pair else None
    input, correction = call.input, call.arguments["correction"]
    dims = reduced_dims(call, value(input))
    if dims is None or correction is None:
        return None
    deviation = centred(input)  # the variance of x - mean(x) is that of x
    source = deviation[0] if deviation and deviation[1] == dims else input
    scale = RowScale(source, dims, centred=True, correction=correction)
    return scale.raised_to(0.5) if call.kind.startswith("std") else scale


def _of_difference(call: Call) -> RowScale | None:
    """Returns the scale mean(x^2) - mean(x)^2, a variance, which always has the refusal
    `CANCELS`."""
    first, mean = read_row_scale(call.input), base_of_square(call.arguments["other"])
    if first is None or first.centred:
        return None
    is_of_input = any(same_value(input, first.input) for input, _ in _row_means(mean))
    return replace(first, centred=True, refusal=CANCELS) if is_of_input else None


#: Kind of call -> the function that reads the statistic which such a call computes from rows.
_STATISTICS: dict[str, Callable[[Call], RowScale | None]] = {
    "mean": _of_mean,
    "sum": _of_sum,
    "matmul": _of_einsum,
    "norm": _of_norm,
    "linalg_norm": _of_norm,
    "var": _of_variance,
    "std": _of_variance,
    "item": _of_variance,
    "sub": _of_difference,
}


# --- what is done with a statistic ----------------------------------------------------------------


def _through_power(call: Call, steps: int) -> RowScale | None:
    """Returns the scale sqrt(s), rsqrt(s), 1 / s, s * s (square) or s ** number of another scale
    s."""
    exponent = _EXPONENTS.get(call.kind) or constant(call.arguments.get("exponent"))
    scale = read_row_scale(call.input, steps)
    return scale.raised_to(exponent) if scale is not None and exponent else None


_EXPONENTS = {"sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0, "square": 2.0}


def _through_mul(call: Call, steps: int) -> RowScale | None:
    """Returns the scale s * number or s * s of another scale s."""
    first, other = tensor_and_number(call)
    scale = read_row_scale(first, steps)
    if scale is None:
        return None
    factor = known_number(other)
    if factor is not None:
        return scale.times(factor)
    return scale.raised_to(2.0) if same_value(first, other) else None


def _through_div(call: Call, steps: int) -> RowScale | None:
    """Returns the scale s / number or number / s of another scale s."""
    tensor, operand = tensor_and_number(call)
    scale = read_row_scale(tensor, steps)
    number = known_number(operand) if scale else None
    if scale is None or not number:
        return None
    if tensor is call.input:
        return scale.times(1 / number)
    inverse = scale.raised_to(-1.0)
    return inverse.times(number) if inverse else None


def _through_add(call: Call, steps: int) -> RowScale | None:
    """Returns the scale s + eps of another scale s."""
    first, eps = tensor_and_number(call)
    if not is_number(eps):  # the sum is a residual connection, which is no scale
        return None
    scale = read_row_scale(first, steps)
    eps_value = known_number(eps) if scale else None
    return scale.with_eps("add", eps_value) if scale and eps_value is not None else None


def _through_clamp(call: Call, steps: int) -> RowScale | None:
    """Returns the scale s.clamp(min=eps) or torch.maximum(s, eps) of another scale s."""
    least = call.arguments.get("min", call.arguments.get("other"))
    scale = read_row_scale(call.input, steps)
    limit = known_number(least) if scale and call.arguments.get("max") is None else None
    return scale.with_eps("max", limit) if scale and limit is not None else None


def _through_larger(call: Call, steps: int) -> RowScale | None:
    """Returns the scale max(s, eps), where(s > eps, s, eps) or s.masked_fill(s < eps, eps) of
    another scale s."""
    maximum = maximum_with_number(call)
    scale = read_row_scale(maximum[0], steps) if maximum else None
    if maximum is None or scale is None:
        return None
    # If eps has the shape of the input, the maximum broadcasts the scale to that shape. This
    # changes nothing, provided that the scale has one element for each row.
    is_alike = same_shape(call.node, maximum[0]) or as_one_per_row(scale, maximum[0])
    return scale.with_eps("max", maximum[1]) if is_alike else None


def _through_cast(call: Call, steps: int) -> RowScale | None:
    """Returns the scale s.to(dtype) of another scale s, with a refusal if the cast rounds s."""
    scale = read_row_scale(call.input, steps)
    if scale is None or is_widening(call):
        return scale
    reason = f"the scale of its rows is rounded to {call.arguments['dtype']}"
    return replace(scale, refusal=scale.refusal or reason)


def _through_expand(call: Call, steps: int) -> RowScale | None:
    """Returns the scale s.expand(shape) of another scale s, if s has one element for each row."""
    source = call.input
    scale = read_row_scale(source, steps)
    return as_one_per_row(scale, source) if scale is not None else None


#: Kind of call -> the function that reads such a call of a scale, with the number of calls that may
#: still be followed back.
_STEPS: dict[str, Callable[[Call, int], RowScale | None]] = {
    **dict.fromkeys((*_EXPONENTS, "pow"), _through_power),
    "mul": _through_mul,
    "div": _through_div,
    "add": _through_add,
    "clamp": _through_clamp,
    "maximum": _through_clamp,
    **dict.fromkeys(("max", "where", "masked_fill"), _through_larger),
    "cast": _through_cast,
    "expand": _through_expand,
}
