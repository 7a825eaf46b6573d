"""How far a result may be from the exact one: the analysis of docs/numerics_bounds.md, as code.

A bound is absolute. It is a function of the exact values, the dtype and the length of the sums, and
of nothing that another implementation computes: no CPU, thread or library changes it.

Errors are arrays of shape [2, *shape of the result]:

- ``[0]`` bounds the error of every element, even if all roundings go the same way;
- ``[1]`` is the root mean square over elements of random data, whose roundings are independent of
  each other (Higham and Mary, "A new approach to probabilistic rounding error analysis", SIAM
  J. Sci. Comput. 41, 2019). It detects the loss of a few digits in long sums.

The constants are those of "sums in kernels" and of ``_exponential``; all else follows from the
formulas. Arguments are tensors, or arrays that count as exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from tests.norm_kinds import kind_of

Array = np.ndarray
Values = torch.Tensor | Array | float


@np.errstate(invalid="ignore")  # of signalling NaNs
def exactly(values: Values) -> Array | float:
    """The values in float64, which holds every narrower dtype; in 80 bits if they are float64."""
    if not isinstance(values, torch.Tensor):
        return values
    wide = np.longdouble if values.dtype == torch.float64 else np.float64
    return values.detach().resolve_neg().double().cpu().numpy().astype(wide)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which arithmetic on ``dtype`` is done."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def unit(dtype: torch.dtype) -> float:
    """u, the unit roundoff of the dtype in which ``dtype`` is computed."""
    return torch.finfo(compute_dtype(dtype)).eps / 2


def ulps(values: Array, dtype: torch.dtype) -> Array:
    """The distance between neighbouring numbers of ``dtype`` at ``values``."""
    info = torch.finfo(dtype)
    magnitude = np.where(np.isfinite(values), np.abs(values), 0)
    magnitude = np.maximum(magnitude, info.smallest_normal)
    return np.exp2(np.floor(np.log2(magnitude))) * info.eps


def smallest(dtype: torch.dtype) -> float:
    """The smallest denormal of the dtype in which ``dtype`` is computed."""
    info = torch.finfo(compute_dtype(dtype))
    return info.smallest_normal * info.eps


# --- sums in kernels ------------------------------------------------------------------------------
#
# Each function gives the number of additions that a term of a sum goes through at most. Each of
# them rounds.


def of_row(count: int) -> float:
    """A sum along a row: at most 64 additions in a lane or thread, 5 in a tree over 32 lanes, one
    for the chunk. Chunks are added in a wider type."""
    return min(count - 1, 70)


def of_gradient_row(count: int, dtype: torch.dtype) -> float:
    """A sum in the backward of a norm, where each lane adds up to the end of the row. There are at
    least four lanes, or two of float64."""
    lanes = 2 if dtype == torch.float64 else 4
    return min(count - 1, 70 + count / lanes)


def of_column(count: int) -> float:
    """A sum over rows: at most 64 partials, each of 64 rows or of a 64th of all."""
    return min(count - 1, 64 + max(64, count / 64))


# --- errors ---------------------------------------------------------------------------------------


def rounded(times: float, size: Array | float, dtype: torch.dtype) -> Array:
    """The error of ``times`` roundings of numbers of ``size``. Each is at most u of the number, and
    evenly distributed."""
    return unit(dtype) * np.stack([times * size, np.sqrt(times / 3) * size])


def summed(
    terms: Array, additions: Callable[[int], float], dtype: torch.dtype, axis: int = -1
) -> Array:
    """The error of the sum of ``terms`` along an axis, which is kept.

    A sum of k terms in a random order is k times their mean, give or take the square root of k
    times their mean square. The typical error comes from the squares of all intermediate sums, in
    lanes of ``most`` terms and in the tree over the lanes.
    """
    count = max(terms.shape[axis], 1)
    most, size = max(additions(count), 0), np.abs(terms).sum(axis, keepdims=True)
    total = np.square(terms.sum(axis, keepdims=True))
    squares = np.square(terms).sum(axis, keepdims=True)
    in_lanes = total * most**2 / (3 * count) + squares * most / 2
    in_tree = total * min(most, 2) + squares * min(most, 6)
    return unit(dtype) * np.stack([most * size, np.sqrt((in_lanes + in_tree) / 3)])


class Bounded(NamedTuple):
    """An exact result, and the errors that a computed one may have, as arrays of the two bounds."""

    exact: Array
    error: Array

    def rounded_to(self, dtype: torch.dtype) -> Bounded:
        """Adds the last rounding: half an ulp, on average too, as results may be few and alike. The
        number that is rounded may be as large as the error makes it."""
        return Bounded(self.exact, self.error + 0.5 * ulps(np.abs(self.exact) + self.error, dtype))

    def scaled(self, factor: Values, dtype: torch.dtype) -> Bounded:
        """The product with a constant, or with the multiplier of dropout, which is rounded too."""
        factor = exactly(factor)
        exact = self.exact * factor
        return Bounded(exact, self.error * np.abs(factor) + rounded(2, np.abs(exact), dtype))

    def plus(self, other: Values, dtype: torch.dtype) -> Bounded:
        other = exactly(other)
        size = np.abs(self.exact) + np.abs(other)
        return Bounded(self.exact + other, self.error + rounded(1, size, dtype))

    def summed(self, dtype: torch.dtype) -> Bounded:
        """The sum over the first dimension."""
        exact, size = self.exact.sum(0), np.abs(self.exact).sum(0)
        return Bounded(exact, self.error.sum(1) + rounded(len(self.exact), size, dtype))


# --- softmax --------------------------------------------------------------------------------------


def _exponential(d: Array, dtype: torch.dtype) -> Array:
    """The relative error of e^d for d <= 0 that is stored as ``dtype``.

    The polynomial is within an ulp, or for results of 16 bits within 7e-6. The argument is rounded
    when the maximum is subtracted, and twice where it is reduced without fused multiply-add.
    """
    argument = rounded(3, np.abs(d), dtype)
    if dtype.itemsize == 2:
        return argument + 7e-6
    return argument + rounded(2, np.ones_like(d), dtype)


def soft_capped(scores: Values, cap: float, dtype: torch.dtype) -> Bounded:
    """cap * tanh(scores / cap), and its absolute errors, for a softmax that is stored as ``dtype``.

    The argument is multiplied by the scale and by the cap's reciprocal, all of them rounded. tanh
    is within 3 ulp, or for results of 16 bits within 4 ulp of 1, and is multiplied by the cap.
    """
    argument = exactly(scores) / cap
    capped = cap * np.tanh(argument)
    with np.errstate(over="ignore", invalid="ignore"):
        moved = np.where(np.isfinite(argument), cap * argument / np.cosh(argument) ** 2, 0)
    size = np.full_like(capped, cap) if dtype.itemsize == 2 else np.abs(capped)
    return Bounded(capped, rounded(6, np.abs(moved), dtype) + rounded(8, size, dtype))


class Softmax(NamedTuple):
    """A softmax over the last dimension, exact, and the relative errors of its parts."""

    d: Array
    e: Array
    sum: Array
    error: Array
    sum_error: Array

    @classmethod
    @np.errstate(invalid="ignore")
    def of(cls, scores: Values, dtype: torch.dtype, error: Array | float = 0.0) -> Softmax:
        """``error`` is absolute, that of the scores."""
        scores = exactly(scores)
        top = scores.max(-1, keepdims=True, initial=-np.inf)
        d = scores - np.where(top == -np.inf, 0, top)
        e = np.exp(d)
        total, counts = e.sum(-1, keepdims=True), e > 0
        of_scores = np.where(counts, error, 0)
        # The maximum is one of the scores, and wrong by no more than the worst of those near.
        of_e = np.where(counts, _exponential(np.where(counts, d, 0), dtype), 0) + of_scores
        of_e = of_e + of_scores.max(-1, keepdims=True, initial=0)
        of_sum = (e * of_e).sum(-1, keepdims=True) + summed(e, of_row, dtype)
        return cls(d, e, total, of_e, of_sum / np.where(total > 0, total, 1))

    @classmethod
    @np.errstate(invalid="ignore")
    def with_statistics(cls, x: Values, top: Values, total: Values, dtype: torch.dtype) -> Softmax:
        """The same softmax with a given maximum and sum, which count as exact."""
        d = exactly(x) - exactly(top)
        e = np.exp(d)
        return cls(d, e, exactly(total), _exponential(d, dtype), np.zeros((2,) + (1,) * e.ndim))

    def with_more_roundings_of_the_sum(self, times: float, dtype: torch.dtype) -> Softmax:
        more = rounded(times, np.ones_like(self.sum), dtype)
        return self._replace(sum_error=self.sum_error + more)


def _softmax_parts(x: Values | Softmax, dtype: torch.dtype | None) -> tuple[Softmax, torch.dtype]:
    dtype = x.dtype if dtype is None else dtype
    return (x if isinstance(x, Softmax) else Softmax.of(x, dtype)), dtype


@np.errstate(invalid="ignore", divide="ignore", over="ignore")
def softmax(x: Values | Softmax, dtype: torch.dtype | None = None, factor: Values = 1.0) -> Bounded:
    """e^d / s: the errors of both, of a quotient and of a product with dropout's ``factor``."""
    parts, dtype = _softmax_parts(x, dtype)
    exact = parts.e / parts.sum
    relative = parts.error + parts.sum_error + rounded(2, np.ones_like(exact), dtype)
    bound = Bounded(exact, exact * relative + 4 * smallest(dtype))
    if not np.isscalar(factor):
        bound = bound.scaled(factor, dtype)
    return bound.rounded_to(dtype)


@np.errstate(invalid="ignore", divide="ignore", over="ignore")
def log_softmax(x: Values | Softmax, dtype: torch.dtype | None = None) -> Bounded:
    """d - log s: the relative error of s is the absolute one of log s; both round twice."""
    parts, dtype = _softmax_parts(x, dtype)
    logarithm = np.log(parts.sum)
    exact = parts.d - logarithm
    size = np.where(np.isfinite(parts.d), np.abs(parts.d), 0) + np.abs(logarithm)
    return Bounded(exact, parts.sum_error + rounded(2, size, dtype)).rounded_to(dtype)


@np.errstate(invalid="ignore", divide="ignore", over="ignore")
def softmax_sum(x: Values | Softmax, dtype: torch.dtype) -> Bounded:
    """The sum of a softmax's statistics; the maximum is exact."""
    parts = x if isinstance(x, Softmax) else Softmax.of(x, dtype)
    return Bounded(parts.sum, parts.sum * parts.sum_error).rounded_to(compute_dtype(dtype))


@np.errstate(all="ignore")
def masked_scores(
    x: torch.Tensor,
    mask: torch.Tensor | None = None,
    scale: float = 1.0,
    diagonal: int | None = None,
    mask_value: float = -np.inf,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> Softmax:
    """The softmax of ``scale`` x + bias + mask: one product, two sums and three conversions. The
    product may be soft-capped, and ``sinks`` are one more column, which is left out."""
    dtype = x.dtype if dtype is None else dtype
    compute, is_bool = compute_dtype(dtype), mask is not None and mask.dtype == torch.bool
    scores = exactly(x) * exactly(torch.tensor(scale, dtype=compute))
    addends = [t for t in (bias, None if is_bool else mask) if t is not None]
    error, roundings = np.zeros((2, *scores.shape)), 4
    if softcap is not None:
        (scores, error), roundings = soft_capped(scores, softcap, dtype), len(addends)
    size, largest = np.abs(scores), torch.finfo(compute).max
    for added in addends:
        added = np.broadcast_to(exactly(added.to(compute)), scores.shape)
        scores, size = scores + added, size + np.abs(added)
    # Finite scores that overflow do so in the kernel as well.
    scores = np.where(np.abs(scores) > largest, np.sign(scores) * np.inf, scores)
    hidden = np.zeros(scores.shape, bool)
    if is_bool:
        hidden = hidden | ~mask.cpu().numpy()
    if diagonal is not None:
        hidden = hidden | ~np.tril(np.ones(scores.shape, bool), diagonal)
    error = error + rounded(roundings, size, dtype)
    error = np.where(hidden | ~np.isfinite(size), 0, error)
    scores = np.where(hidden, mask_value, scores)
    if sinks is None:
        return Softmax.of(scores, dtype, error)
    column = exactly(sinks)[..., None] * np.ones((*x.shape[:-1], 1))
    error = np.concatenate([error, np.zeros((2, *column.shape))], -1)
    parts = Softmax.of(np.concatenate([scores, column], -1), dtype, error)
    return parts._replace(d=parts.d[..., :-1], e=parts.e[..., :-1], error=parts.error[..., :-1])


# Gradients are of a result y that is given, as rounded: its error counts as y's own.


@np.errstate(invalid="ignore", over="ignore")
def softmax_gradient(y: Values, grad: Values, dtype: torch.dtype) -> Bounded:
    """y (g - sum(g y))."""
    y, grad = exactly(y), exactly(grad)
    total, error = total_of_products(grad, y, dtype)
    size = np.abs(y) * (np.abs(grad) + np.abs(total))
    error = np.abs(y) * error
    error = error + rounded(4, size, dtype) + 4 * smallest(dtype)
    return Bounded(y * (grad - total), error)


@np.errstate(invalid="ignore", over="ignore")
def log_softmax_gradient(y: Values, grad: Values, dtype: torch.dtype) -> Bounded:
    """g - e^y sum(g)."""
    y, grad = exactly(y), exactly(grad)
    e, total = np.exp(y), grad.sum(-1, keepdims=True)
    of_e = _exponential(np.where(np.isfinite(y), y, 0), dtype)
    error = e * (summed(grad, of_row, dtype) + of_e * np.abs(total))
    error = error + rounded(3, np.abs(grad) + e * np.abs(total), dtype) + 4 * smallest(dtype)
    return Bounded(grad - e * total, error)


def total_of_products(grad: Array, y: Array, dtype: torch.dtype) -> Bounded:
    """sum(g y) of each row."""
    products = grad * y
    error = summed(products, of_row, dtype) + _of_terms(products, dtype)
    return Bounded(products.sum(-1, keepdims=True), error)


def _of_terms(terms: Array, dtype: torch.dtype) -> Array:
    """The error of a sum whose terms are products, each rounded once."""
    squares = np.sqrt(np.square(terms).sum(-1, keepdims=True))
    return np.stack([np.abs(terms).sum(-1, keepdims=True), squares / 3**0.5]) * unit(dtype)


# --- norms ----------------------------------------------------------------------------------------


class Norm(NamedTuple):
    """The statistics of rows and what is made of them, exact and with their errors.

    Deviations are summed from a shift that is within a standard deviation of the mean, so that each
    is at most twice as large as from the mean, and so are the errors of both sums.
    """

    mean: Array
    scale: Array  # what deviations are divided by
    z: Array
    of_mean: Array
    of_rstd: Array  # relative
    of_z: Array

    @classmethod
    @np.errstate(invalid="ignore", divide="ignore", over="ignore")
    def of(
        cls, kind: str, x: Values, eps: float, dtype: torch.dtype, error: Array | float = 0.0
    ) -> Norm:
        """``error`` is absolute, that of ``x``."""
        mean, centered = _centered(exactly(x), kind)
        columns, shifted = centered.shape[-1], 1 + kind_of(kind).has_mean
        error = np.broadcast_to(error, (2, *centered.shape))
        squares = np.square(centered)
        total = squares.sum(-1, keepdims=True)
        scale = kind_of(kind).scale(total, columns, eps)
        some = np.where(total > 0, total, 1)
        deviation = np.sqrt(total / columns)
        of_squares = shifted * (summed(squares, of_row, dtype) + _of_terms(squares, dtype)) / some
        of_mean = shifted * summed(centered, of_row, dtype) / columns
        of_mean = of_mean + rounded(4, deviation, dtype) + error.mean(-1, keepdims=True)
        of_mean = of_mean * (shifted - 1)
        of_rstd = of_squares / 2 + rounded(4, np.ones_like(scale), dtype)
        of_rstd = of_rstd + np.sqrt(np.square(error).mean(-1, keepdims=True)) / scale
        z = centered / scale
        size = np.abs(np.nan_to_num(z))
        of_z = (of_mean + error) / scale + size * of_rstd + rounded(3, size, dtype)
        return cls(mean, scale, z, of_mean, of_rstd, of_z)

    def statistics(self, dtype: torch.dtype) -> tuple[Bounded, Bounded]:
        """The mean and the reciprocal of the scale, as they are returned."""
        compute, rstd = compute_dtype(dtype), 1 / self.scale
        mean = Bounded(self.mean, self.of_mean).rounded_to(compute)
        return mean, Bounded(rstd, rstd * self.of_rstd).rounded_to(compute)


def _centered(x: Array, kind: str) -> tuple[Array, Array]:
    """The mean, and what is left: of the differences from an element, for of values far from zero
    even 80 bits of a mean leave too few of what lies around it."""
    if not kind_of(kind).has_mean:
        return np.zeros_like(x[..., :1]), x
    apart = x - x[..., :1]
    mean = apart.mean(-1, keepdims=True)
    return x[..., :1] + mean, apart - mean


@np.errstate(invalid="ignore", divide="ignore", over="ignore")
def norm(
    kind: str,
    x: torch.Tensor,
    weight: Values = 1.0,
    bias: Values = 0.0,
    eps: float = 1e-5,
    dtype: torch.dtype | None = None,
    rounds_normalized: bool = False,
    error: Array | float = 0.0,
) -> Bounded:
    """layer_norm, std_norm or rms_norm over the last dimension: z w + b.

    ``rounds_normalized``: to the input's dtype, before the weight. ``error``: of x. There is no
    bound where 1 / scale overflows what it is kept in.
    """
    dtype = x.dtype if dtype is None else dtype
    rows, weight, bias = Norm.of(kind, x, eps, dtype, error), exactly(weight), exactly(bias)
    weighted = rows.z * weight
    error = np.abs(weight) * (rows.of_z + _dropped(rows, dtype)) + rounded(
        3, np.abs(np.nan_to_num(weighted)) + np.abs(bias), dtype
    )
    if rounds_normalized:
        largest = np.abs(rows.z) + rows.of_z
        error = error + 0.5 * np.abs(weight) * ulps(largest, x.dtype)
    kept = 1 / rows.scale < torch.finfo(compute_dtype(dtype)).max
    error = np.where(kept | np.isnan(rows.scale), error + 4 * smallest(dtype), np.inf)
    return Bounded(weighted + bias, error).rounded_to(dtype)


def _dropped(rows: Norm, dtype: torch.dtype) -> Array:
    """The part of a mean that its rounding drops, divided by the scale: kernels subtract it too,
    unless it is denormal."""
    info = torch.finfo(compute_dtype(dtype))
    part = ulps(rows.mean, compute_dtype(dtype)) / 2 / rows.scale
    return np.minimum(part, info.smallest_normal)


def added(x: torch.Tensor, residual: Values, factor: Values = 1.0) -> Bounded:
    """dropout(x) + residual, rounded once."""
    dropped = Bounded(exactly(x), np.zeros((2, *x.shape))).scaled(factor, x.dtype)
    return dropped.plus(residual, x.dtype).rounded_to(x.dtype)


class NormGradients(NamedTuple):
    """The bounds of the input, the weight and the bias; the last two are summed over rows."""

    input: Bounded
    weight: Bounded
    bias: Bounded


@np.errstate(invalid="ignore", divide="ignore", over="ignore")
def norm_gradients(
    kind: str, x: torch.Tensor, weight: Values, grad: Values, eps: float
) -> NormGradients:
    """With gw = g w: (gw - mean(gw) - z mean(gw z)) / scale, and the sums over rows of g z and g.

    The second mean has the divisor and the factor, ``stretch``, that its kind gives it. Errors are
    those of the statistics as they were kept, of both means, and of what cancels.
    """
    dtype, rows = x.dtype, Norm.of(kind, x, eps, x.dtype)
    grad, columns = exactly(grad), x.shape[-1]
    gw, z = grad * exactly(weight), rows.z

    def additions(count: int) -> float:
        return of_gradient_row(count, dtype)

    of_z = rows.of_z + _as_kept(rows, dtype) / rows.scale + rounded(2, np.abs(z), dtype)
    has_mean, _, count, factor_of = kind_of(kind)
    stretch = factor_of(rows.scale, eps)
    factor = stretch / count(columns)
    mean = gw.mean(-1, keepdims=True) * has_mean
    along = (gw * z).sum(-1, keepdims=True) * factor
    of_means = (summed(gw, additions, dtype) + 2 * _of_terms(gw, dtype)) / columns
    of_along = summed(gw * z, additions, dtype) + 3 * _of_terms(gw * z, dtype)
    of_along = (of_along + (np.abs(gw) * of_z).sum(-1, keepdims=True)) * factor
    of_rstd = rows.of_rstd + rounded(4, np.ones_like(stretch), dtype)
    of_along = of_along + np.abs(along) * of_rstd * (1 + stretch)
    exact = gw - mean - z * along
    size = np.abs(gw) + np.abs(mean) + np.abs(z * along)
    error = of_means * has_mean + of_z * np.abs(along) + (np.abs(z) + of_z) * of_along
    error = error + rounded(4, size, dtype) + np.abs(exact) * rows.of_rstd
    return NormGradients(
        Bounded(exact / rows.scale, error / rows.scale + 4 * smallest(dtype)),
        _column_sum(grad * z, np.abs(grad) * of_z, dtype),
        _column_sum(grad, np.zeros((2, *grad.shape)), dtype),
    )


def _as_kept(rows: Norm, dtype: torch.dtype) -> Array:
    """The error of a mean that is kept: its own error, and the rounding to what it is kept in.

    The exact mean is rounded too, to 80 bits at most: not small beside a float64's rounding.
    """
    kept = np.float64 if dtype == torch.float64 else np.float32
    sides = [(rows.mean + side * rows.of_mean).astype(kept) for side in (-1, 1)]
    of_exact = np.abs(rows.mean) * np.finfo(rows.mean.dtype).eps / 2
    return np.maximum(*[np.abs(each - rows.mean) for each in sides]) + of_exact


def _column_sum(terms: Array, errors: Array, dtype: torch.dtype) -> Bounded:
    """The sum over all rows of terms that have errors, and that are rounded products."""
    terms = terms.reshape(-1, terms.shape[-1])
    errors = errors.reshape(2, *terms.shape) + rounded(2, np.abs(terms), dtype)
    of_terms = np.stack([errors[0].sum(0), np.sqrt(np.square(errors[1]).sum(0))])
    of_sum = summed(terms, of_column, dtype, axis=0)[:, 0]
    return Bounded(terms.sum(0), of_sum + of_terms + 4 * smallest(dtype))


# --- assertions -----------------------------------------------------------------------------------

#: The mean error of fewer elements may differ a lot from the typical one.
FEW = 32


class Tally:
    """The root mean square of the errors of several results, in units of the typical error."""

    def __init__(self) -> None:
        self._squares, self._count = 0.0, 0

    def add(self, actual: torch.Tensor | Array, wanted: Bounded) -> None:
        """Adds a result, but for elements whose bound is zero: those are exact."""
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.abs(exactly(actual) - wanted.exact) / wanted.error[1]
        ratio = ratio[np.isfinite(ratio)]
        self._squares += float(np.square(ratio).sum())
        self._count += ratio.size

    @property
    def value(self) -> float:
        return (self._squares / max(self._count, 1)) ** 0.5

    def assert_typical(self) -> None:
        """Allows twice the standard error of the mean of n random numbers: sigma / sqrt(n)."""
        if self._count >= FEW:
            most = 1 + 2 / self._count**0.5
            assert self.value <= most, (
                f"the errors are {self.value:.2f} times what is typical, in the root mean square "
                f"over {self._count} elements"
            )


def assert_within(actual: torch.Tensor | Array, wanted: Bounded) -> None:
    """NaN exactly where the exact result is NaN, and no error above the bound."""
    got, most = exactly(actual), wanted.error[0]
    assert got.shape == wanted.exact.shape
    dtype = actual.dtype if isinstance(actual, torch.Tensor) else torch.float32
    with np.errstate(invalid="ignore"):
        error, largest = np.abs(got - wanted.exact), torch.finfo(dtype).max
        overflows = np.abs(wanted.exact) + most >= largest
        same_sign = np.sign(got) == np.sign(wanted.exact)
        right = (np.isnan(got) & np.isnan(wanted.exact)) | (got == wanted.exact)
        right |= (error <= most) | np.isposinf(most)
        right |= overflows & np.isinf(got) & same_sign
    if not right.all():
        worst = tuple(np.argwhere(~right)[0])
        raise AssertionError(
            f"{(~right).sum()} of {right.size} are wrong; at {worst}: {float(got[worst])!r}, exact "
            f"{float(wanted.exact[worst])!r}, off by {float(error[worst]):.3g}, at most "
            f"{float(most[worst]):.3g} allowed, an ulp is "
            f"{float(ulps(wanted.exact, dtype)[worst]):.3g}"
        )


def assert_typical(actual: torch.Tensor, wanted: Bounded) -> None:
    """Every element of random data is within its bound, and the root mean square of the errors is
    no larger than independent roundings make it."""
    assert_within(actual, wanted)
    tally = Tally()
    tally.add(actual, wanted)
    tally.assert_typical()
