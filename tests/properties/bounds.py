"""How far a result may be from the exact one: the error analysis of the kernels, once.

Notation: u is the unit roundoff of what is computed in (2^-24 for float32, which 16-bit tensors are
computed in too; 2^-53 for float64). A result is rounded once to its dtype, which costs half an ulp
of it. Everything before that is an error in the arithmetic, first order in u:

- **sums**: an addition chain of k terms costs k u of the sum of magnitudes. The kernels add at most
  64 times to each of 8 or more lanes, add the lanes in a tree, and chunks in a wider type:
  ``S(n) = min(n / 8, 64) + min(log2 n, 6)``.
- **exp** of d <= 0: 1.4 u, or for results of 16 bits a shorter polynomial of 7e-6, plus the
  roundings of d and of its reduction, 3 u |d| without fused multiply-add.
- **softmax** e^d / s: the exponential's error, that of s, which is the mean of the exponentials'
  weighted with the result plus S(n) u, and 2 u for the quotient. **log_softmax** d - log s: the
  same errors, absolute, and u |d|, u |log s|. A **mask** and a **bias** add the roundings of each
  sum and product to the error of d, and to the error of the maximum.
- **norms** z w + b: the mean is kept in two parts and the variance taken around it, so S(n) enters
  the mean in standard deviations, not in means: (2 + |z|) (S(n) + 4) u |w|, and 2 u for each of the
  product and the sum. Without a mean it is |z| (S(n) / 2 + 4) u |w|.
  Where 1 / scale overflows what it is kept in, there is no bound.
- below the smallest normal number of what is computed in, errors are absolute: 4 of the smallest
  denormals.

References are in 80 bits, where numpy has them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

Array = np.ndarray


class Bounded(NamedTuple):
    """The exact result, and the largest error of one that is computed and rounded."""

    exact: Array
    error: Array

    def rounded_to(self, dtype: torch.dtype) -> Bounded:
        return Bounded(self.exact, self.error + 0.5 * ulps(self.exact, dtype))


def exactly(tensor: torch.Tensor) -> Array:
    return tensor.detach().resolve_neg().double().numpy().astype(np.longdouble)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def unit(dtype: torch.dtype) -> np.longdouble:
    """u of what ``dtype`` is computed in."""
    return np.longdouble(torch.finfo(compute_dtype(dtype)).eps) / 2


def ulps(values: Array, dtype: torch.dtype) -> Array:
    """The distance of neighbouring numbers of ``dtype`` at ``values``."""
    info = torch.finfo(dtype)
    magnitude = np.maximum(np.abs(np.nan_to_num(values)), np.longdouble(info.smallest_normal))
    return np.exp2(np.floor(np.log2(magnitude))) * np.longdouble(info.eps)


def smallest(dtype: torch.dtype) -> np.longdouble:
    info = torch.finfo(compute_dtype(dtype))
    return np.longdouble(info.smallest_normal) * np.longdouble(info.eps)


def additions(count: int) -> float:
    """S(n)."""
    return min(count / 8, 64) + min(np.log2(max(count, 1)), 6)


def _exp_error(d: Array, dtype: torch.dtype) -> Array:
    """Relative, of exponentials that are stored as ``dtype``."""
    of_polynomial = 7e-6 if dtype.itemsize == 2 else 1.4 * unit(dtype)
    return of_polynomial + 3 * unit(dtype) * np.abs(d)


class Softmax(NamedTuple):
    """A softmax over the last dimension, exact, and the relative errors of its parts."""

    d: Array
    e: Array
    sum: Array
    error: Array
    sum_error: Array

    @classmethod
    def of(cls, scores: Array, dtype: torch.dtype, error_of_scores: Array | float = 0.0) -> Softmax:
        with np.errstate(invalid="ignore"):
            top = scores.max(-1, keepdims=True, initial=-np.inf)
            d = scores - np.where(top == -np.inf, 0, top)
            e = np.exp(d)
            total = e.sum(-1, keepdims=True)
            of_scores = np.where(e > 0, error_of_scores, 0)
            error = np.where(e > 0, _exp_error(np.where(e > 0, d, 0), dtype), 0) + of_scores
            # The maximum is one of the scores, and wrong by no more than the worst of those near.
            error = error + of_scores.max(-1, keepdims=True, initial=0)
            weighted = (e * error).sum(-1, keepdims=True) / np.where(total > 0, total, 1)
            sum_error = weighted + additions(scores.shape[-1]) * unit(dtype)
        return cls(d, e, total, error, sum_error)


@np.errstate(invalid="ignore", divide="ignore", over="ignore")
def softmax(parts: Softmax, dtype: torch.dtype) -> Bounded:
    exact = parts.e / parts.sum
    relative = parts.error + parts.sum_error + 2 * unit(dtype)
    return Bounded(exact, exact * relative + 4 * smallest(dtype)).rounded_to(dtype)


@np.errstate(invalid="ignore", divide="ignore", over="ignore")
def log_softmax(parts: Softmax, dtype: torch.dtype) -> Bounded:
    logarithm = np.log(parts.sum)
    exact = parts.d - logarithm
    size = np.where(np.isfinite(parts.d), np.abs(parts.d), 0) + np.abs(logarithm)
    error = parts.error + parts.sum_error + 2 * unit(dtype) * size + unit(dtype)
    return Bounded(exact, error).rounded_to(dtype)


@np.errstate(invalid="ignore", divide="ignore", over="ignore")
def statistics(parts: Softmax, dtype: torch.dtype) -> Bounded:
    """The bound of the sum; the maximum is exact."""
    return Bounded(parts.sum, parts.sum * parts.sum_error).rounded_to(compute_dtype(dtype))


@np.errstate(invalid="ignore", divide="ignore", over="ignore")
def norm(
    kind: str, x: Array, weight: Array | float, bias: Array | float, eps: float, dtype: torch.dtype
) -> Bounded:
    """layer_norm, std_norm or rms_norm over the last dimension."""
    columns, u = x.shape[-1], unit(dtype)
    mean = 0 if kind == "rms_norm" else x.mean(-1, keepdims=True)
    squares = np.square(x - mean)
    if kind == "std_norm":
        scale = np.sqrt(squares.sum(-1, keepdims=True) / (columns - 1 or np.nan)) + eps
    else:
        scale = np.sqrt(squares.mean(-1, keepdims=True) + eps)
    z = (x - mean) / scale
    s, size = additions(columns), np.abs(np.nan_to_num(z))
    of_z = size * (s / 2 + 4) if kind == "rms_norm" else (2 + size) * (s + 4)
    error = np.abs(weight) * of_z * u + 2 * u * (size * np.abs(weight) + np.abs(bias))
    kept = 1 / scale < torch.finfo(compute_dtype(dtype)).max
    error = np.where(kept | np.isnan(scale), error + 4 * smallest(dtype), np.inf)
    return Bounded(z * weight + bias, error).rounded_to(dtype)


def assert_within(actual: torch.Tensor, wanted: Bounded) -> None:
    """NaN where and only where it is exact, and no error above the bound."""
    got = exactly(actual)
    assert got.shape == wanted.exact.shape
    with np.errstate(invalid="ignore"):
        error, largest = np.abs(got - wanted.exact), torch.finfo(actual.dtype).max
        overflows = np.abs(wanted.exact) + wanted.error >= largest
        same_sign = np.sign(got) == np.sign(wanted.exact)
        right = (np.isnan(got) & np.isnan(wanted.exact)) | (got == wanted.exact)
        right |= (error <= wanted.error) | np.isposinf(wanted.error)
        right |= overflows & np.isinf(got) & same_sign
    if not right.all():
        worst = tuple(np.argwhere(~right)[0])
        raise AssertionError(
            f"{(~right).sum()} of {right.size} are wrong; at {worst}: {float(got[worst])!r}, exact "
            f"{float(wanted.exact[worst])!r}, off by {float(error[worst]):.3g}, at most "
            f"{float(wanted.error[worst]):.3g} allowed, an ulp is "
            f"{float(ulps(wanted.exact, actual.dtype)[worst]):.3g}"
        )


# --- gradients ------------------------------------------------------------------------------------
#
# These bounds are for a result y with an incoming gradient g, and start from what the formula uses:
# y itself as rounded, or the mean and scale of a row.


@np.errstate(invalid="ignore", over="ignore")
def softmax_gradient(y: Array, grad: Array, dtype: torch.dtype) -> Bounded:
    """y (g - sum(g y)), of y as it was rounded: its error counts as y's own."""
    products = grad * y
    exact = y * (grad - products.sum(-1, keepdims=True))
    size = np.abs(y) * (np.abs(grad) + np.abs(products).sum(-1, keepdims=True))
    return Bounded(exact, size * _of_sums(y, dtype) + 4 * smallest(dtype)).rounded_to(dtype)


@np.errstate(invalid="ignore", over="ignore")
def log_softmax_gradient(y: Array, grad: Array, dtype: torch.dtype) -> Bounded:
    """g - e^y sum(g)."""
    e = np.exp(y)
    exact = grad - e * grad.sum(-1, keepdims=True)
    of_exp = _exp_error(np.where(np.isfinite(y), y, 0), dtype) + _of_sums(y, dtype)
    size = np.abs(grad) * unit(dtype) + e * np.abs(grad).sum(-1, keepdims=True) * of_exp
    return Bounded(exact, size + 4 * smallest(dtype)).rounded_to(dtype)


def _of_sums(y: Array, dtype: torch.dtype) -> np.longdouble:
    return (additions(y.shape[-1]) + 4) * unit(dtype)


class NormGradients(NamedTuple):
    """The bounds of the input, the weight and the bias; the last two are summed over rows."""

    input: Bounded
    weight: Bounded
    bias: Bounded


@np.errstate(invalid="ignore", divide="ignore", over="ignore")
def norm_gradients(
    kind: str, x: Array, weight: Array | float, grad: Array, eps: float, dtype: torch.dtype
) -> NormGradients:
    """With gw = g w: (gw - mean(gw) - z mean(gw z)) / scale, and the sums over rows of g z and g.

    For std_norm the second mean has the divisor N - 1 and the factor (std + eps) / std, 0 where std
    is. Errors are those of the forward, z's in |z| + 2 and what the mean lost when it was kept for
    the backward, which enters twice; sums over rows add at most 64 partial sums of 64 rows or a
    64th of them.
    """
    columns, u = x.shape[-1], unit(dtype)
    s = 3 * (additions(columns) + 6)
    row_mean = x.mean(-1, keepdims=True) * (kind != "rms_norm")
    scale, divisor, stretch = _scale(kind, x - row_mean, eps)
    z, gw, size = (x - row_mean) / scale, grad * weight, np.abs(grad * weight)
    of_z = np.abs(z) + 2 + _as_kept(row_mean, s * u * scale, dtype) / (s * u * scale)
    mean, along = gw.mean(-1, keepdims=True), (gw * z).sum(-1, keepdims=True) / divisor * stretch
    exact = (gw - (0 if kind == "rms_norm" else mean) - z * along) / scale
    of_along = (size * of_z).sum(-1, keepdims=True) / divisor * stretch
    error = (size + size.mean(-1, keepdims=True) + of_z * of_along) / scale
    rows = x.reshape(-1, columns).shape[0]
    s_rows = s + min(rows, 64 + max(64, rows / 64))
    weight_error = _over_rows(np.abs(grad) * of_z) * s_rows * u
    return NormGradients(
        Bounded(exact, s * u * error + 4 * smallest(dtype)).rounded_to(dtype),
        Bounded(_over_rows(grad * z), weight_error + 4 * smallest(dtype)),
        Bounded(_over_rows(grad), _over_rows(np.abs(grad)) * s_rows * u),
    )


def _scale(kind: str, centered: Array, eps: float) -> tuple[Array, int, Array | int]:
    """What z is divided by, and the divisor and the factor of the second mean."""
    columns = centered.shape[-1]
    squares = np.square(centered).sum(-1, keepdims=True)
    if kind != "std_norm":
        return np.sqrt(squares / columns + eps), columns, 1
    std = np.sqrt(squares / (columns - 1 or np.nan))
    return std + eps, columns - 1, np.where(std > 0, (std + eps) / std, 0)


def _as_kept(mean: Array, error: Array, dtype: torch.dtype) -> Array:
    """How far the mean may be off that is kept, rounded, of one with an error."""
    kept = np.float64 if dtype == torch.float64 else np.float32
    rounded = [(mean + side * error).astype(kept).astype(np.longdouble) for side in (-1, 1)]
    return np.maximum(*[np.abs(each - mean) for each in rounded])


def _over_rows(values: Array) -> Array:
    return values.reshape(-1, values.shape[-1]).sum(0)
