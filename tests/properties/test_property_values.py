"""Results are within an absolute bound of the exact ones, whatever the input."""

import dataclasses

import bounds
import drawn
import numpy as np
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import fusedops
from fusedops import reference

SOFTMAXES = {"softmax": bounds.softmax, "log_softmax": bounds.log_softmax}
NORMS = ("layer_norm", "std_norm", "rms_norm")
OPTIONAL_DTYPES = st.sampled_from((None, *drawn.DTYPES))


@given(st.sampled_from(sorted(SOFTMAXES)), drawn.tensors(), drawn.DIMS, OPTIONAL_DTYPES)
def test_a_softmax_is_within_its_bound(op, given, dim, dtype):
    x, dim = given.tensor(), dim % len(given.shape)
    result = getattr(fusedops, op)(x, dim, dtype)
    converted = x if dtype is None else x.to(dtype)  # before anything is computed
    assert result.dtype == converted.dtype and result.is_contiguous()
    bounds.assert_within(result.movedim(dim, -1), SOFTMAXES[op](converted.movedim(dim, -1)))


@given(drawn.tensors(), st.integers(1, 4))
def test_statistics_in_parts_are_within_the_bound_of_the_whole(given, count):
    x = given.tensor()
    of_parts = [fusedops.softmax_stats(part, -1) for part in x.chunk(count, -1)]
    max, sum = fusedops.merge_softmax_stats(of_parts)
    wide = bounds.compute_dtype(x.dtype)
    # One more exponential and product for each part, and their sum.
    parts = bounds.Softmax.of(x, wide).with_more_roundings_of_the_sum(8 + 3 * count, wide)
    has_nan = np.isnan(parts.sum)
    top = np.where(has_nan, 0, bounds.exactly(x).max(-1, keepdims=True))
    assert max.dtype == sum.dtype == wide
    assert np.array_equal(np.where(has_nan, 0, bounds.exactly(max)), top)
    bounds.assert_within(sum, bounds.softmax_sum(parts, wide))
    applied = fusedops.softmax_apply(x, max, sum, -1)
    # Exponentials as precise as those of the parts, times a reciprocal that is rounded.
    own = bounds.Softmax.of(x, x.dtype)._replace(sum_error=parts.sum_error)
    own = own.with_more_roundings_of_the_sum(2, x.dtype)
    bounds.assert_within(applied, bounds.softmax(own, x.dtype))


@dataclasses.dataclass(frozen=True)
class Mask:
    """A mask or a bias: its dtype, and the dimensions of the scores that it is broadcast over."""

    dtype: torch.dtype
    broadcast: tuple[bool, ...]
    share: float
    seed: int
    specials: tuple[str, ...] = ()

    def tensor(self, shape: tuple[int, ...]) -> torch.Tensor:
        left_out = (*self.broadcast, False, False)[: len(shape)]
        own = tuple(1 if out else size for out, size in zip(left_out, shape, strict=True))
        if self.dtype != torch.bool:
            made = drawn.Drawn(self.dtype, own, seed=self.seed, specials=self.specials)
            return made.tensor()
        generator = torch.Generator().manual_seed(self.seed)
        return torch.rand(own, generator=generator) >= self.share


def _masks(*dtypes):
    return st.none() | st.builds(
        Mask,
        dtype=st.sampled_from(dtypes),
        broadcast=st.tuples(st.booleans(), st.booleans()),
        share=st.sampled_from((0.0, 0.3, 0.9, 1.0)),
        seed=st.integers(0, 2**32 - 1),
        specials=st.just(()) | st.sampled_from(drawn.SPECIALS).map(lambda name: (name,)),
    )


@given(
    drawn.tensors(shape=drawn.shapes().filter(lambda shape: len(shape) > 1)),
    _masks(torch.bool, torch.bool, *drawn.DTYPES),
    _masks(*drawn.DTYPES),
    st.sampled_from((1.0, 0.125, -3.0, 0.0)),
    st.sampled_from((False, "top_left", "bottom_right")),
    st.sampled_from((-np.inf, -1e4, 0.0, -3e38)),
)
def test_a_masked_softmax_is_within_its_bound(given, mask, bias, scale, causal, mask_value):
    x = given.tensor()
    mask, bias = (None if m is None else m.tensor(given.shape) for m in (mask, bias))
    result = fusedops.masked_softmax(
        x, mask, scale=scale, causal=causal, mask_value=mask_value, bias=bias
    )
    corner = {False: None, "top_left": 0, "bottom_right": x.shape[-1] - x.shape[-2]}
    parts = bounds.masked_scores(x, mask, scale, corner[causal], mask_value, bias)
    bounds.assert_within(result, bounds.softmax(parts, x.dtype))


@given(
    drawn.tensors(),
    st.sampled_from((0.0, 0.1, 0.5, 0.999, 1.0)),
    st.integers(-(2**63), 2**63 - 1),
)
def test_dropout_is_within_the_bound_of_a_product(given, p, seed):
    x = given.tensor()
    words = reference.philox(seed, x[..., 0].numel(), x.shape[-1]).view(x.shape).numpy()
    factor = (words >= p * 2**32) / (1 - p) if p < 1 else 0.0
    with np.errstate(invalid="ignore"):  # of an infinity that is dropped
        product = bounds.Bounded(bounds.exactly(x), np.zeros((2, *x.shape))).scaled(factor, x.dtype)
        wanted = product.rounded_to(x.dtype)
    bounds.assert_within(fusedops.dropout(x, p, seed=torch.tensor(seed)), wanted)


# The mean of doubles that are close to each other, alone and in segments, has more than 64 bits.
@example("layer_norm", drawn.Drawn(torch.float64, (1, 5), "shifted", 1e-3, 300), None, 1e-5, False)
@example("std_norm", drawn.Drawn(torch.float64, (1, 70_000), "shifted", 1e-9, 1), None, 0.0, False)
# The rounding of a denormal mean is not mended.
@example("layer_norm", drawn.Drawn(torch.float32, (2, 2), "tiny", seed=458), None, 1e-5, False)
@given(
    st.sampled_from(NORMS),
    drawn.tensors(specials=drawn.SUBTRACTABLE),
    st.sampled_from((None, *drawn.DTYPES)),
    st.sampled_from((1e-5, 1e-12, 0.0, 1.0)),
    st.booleans(),
)
def test_a_norm_is_within_its_bound(op, given, parameters, eps, is_sum):
    x, columns = given.tensor(), given.shape[-1:]
    weight, bias = _parameters(parameters, columns, given.seed)
    arguments = [columns, weight] if op == "rms_norm" else [columns, weight, bias]
    if is_sum and op != "std_norm":
        residual = dataclasses.replace(given, seed=given.seed ^ 1).tensor()
        result, x = getattr(fusedops, f"add_{op}")(x, residual, *arguments, eps=eps)
        eager = given.tensor() + residual
        assert torch.equal(x.nan_to_num(0.25), eager.nan_to_num(0.25))
    else:
        result = getattr(fusedops, op)(x, *arguments, eps=eps)
    w, b = (default if p is None else p for p, default in ((weight, 1.0), (bias, 0.0)))
    b = 0.0 if op == "rms_norm" else b
    bounds.assert_within(result, bounds.norm(op, x, w, b, eps))


def _parameters(dtype, shape, seed):
    if dtype is None:
        return None, None
    return [drawn.Drawn(dtype, shape, seed=seed ^ number).tensor() for number in (2, 3)]


@given(drawn.tensors(), st.integers(0, 2**16))
def test_a_cross_entropy_is_within_its_bound(given, first):
    """The largest logit is subtracted from all, and the difference is rounded. An error of the sum
    over the other classes counts by their share of all; the rest is computed in double."""
    x = given.tensor()
    target = (torch.arange(first, first + x[..., 0].numel()) % x.shape[-1]).view(x.shape[:-1])
    losses = fusedops.cross_entropy(x, target, dim=-1, reduction="none")
    exact, columns = bounds.exactly(x), np.arange(x.shape[-1])
    is_class = columns == target.numpy()[..., None]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        behind = np.nan_to_num(exact.max(-1, keepdims=True) - exact, nan=0, posinf=0)
        rounding = np.where(is_class, 0, bounds.rounded(1, behind, x.dtype))
        others = bounds.Softmax.of(np.where(is_class, -np.inf, exact), x.dtype, rounding)
        largest = np.where(is_class, -np.inf, exact).max(-1)
        above = np.log(others.sum[..., 0]) + largest - exact[is_class].reshape(largest.shape)
        loss = np.logaddexp(0, above)
        error = np.where(above > -np.inf, np.exp(above - loss) * others.sum_error[..., 0], 0)
    loss = np.where((np.isnan(exact) | (exact == np.inf)).any(-1), np.nan, loss)
    size = 1 + np.where(np.isfinite(exact), np.abs(exact), 0).max(-1)
    error = error + bounds.rounded(6, size, torch.float64)
    bound = bounds.Bounded(loss, error).rounded_to(bounds.compute_dtype(x.dtype))
    bounds.assert_within(losses, bound)
