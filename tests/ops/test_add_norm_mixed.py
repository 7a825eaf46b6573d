"""add_layer_norm and add_rms_norm of a branch and a residual of different dtypes, as autocast makes
them: what the ops compute from both in the sum's dtype, with gradients rounded once more."""

from functools import partial
from itertools import permutations

import pytest
import torch
from oracle import DTYPES, same_bits
from test_add_norm import ADDS, LAYOUTS, gradients

import fusedops

#: The dtypes of branch and residual.
PAIRS = list(permutations(DTYPES.values(), 2))
IDS = ["+".join(pair) for pair in permutations(DTYPES, 2)]
#: Pairs of which kernels convert nothing; in the last, the terms trade places.
DIRECT = [
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float32),
    (torch.float32, torch.bfloat16),
]
SEED = torch.tensor(5)


def terms(shape, dtypes):
    return [torch.randn(shape).to(dtype) for dtype in dtypes]


def parameters(kind, cols):
    return list(torch.randn(2 if kind == "layer" else 1, cols))


def in_sums_dtype(x, r):
    dtype = torch.promote_types(x.dtype, r.dtype)
    return x.to(dtype), r.to(dtype)


@pytest.mark.parametrize("kind", ADDS)
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("dtypes", PAIRS, ids=IDS)
@pytest.mark.parametrize("rows, cols", [(70, 3), (33, 64), (7, 129), (5, 5000), (2, 65537)])
def test_results_have_the_bits_of_the_terms_in_the_sums_dtype(kind, p, dtypes, rows, cols):
    x, r = terms((rows, cols), dtypes)
    affine = parameters(kind, cols)
    options = {"p": p, "seed": SEED}
    y, s = ADDS[kind](x, r, *affine, **options)
    wide_y, wide_s = ADDS[kind](*in_sums_dtype(x, r), *affine, **options)
    assert y.dtype == s.dtype == torch.promote_types(*dtypes)
    assert same_bits(s, wide_s) and same_bits(y, wide_y)
    assert same_bits(y, ADDS[kind](x, r, *affine, return_sum=False, **options))
    if p == 0:
        assert same_bits(s, x + r)


@pytest.mark.parametrize("kind", ADDS)
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("dtypes", PAIRS, ids=IDS)
@pytest.mark.parametrize("rows, cols", [(70, 3), (33, 64), (300, 129), (5, 5000), (1, 65537)])
@pytest.mark.parametrize("used", ["both", "output"])
def test_gradients_are_those_of_the_sums_dtype_rounded_once(kind, p, dtypes, rows, cols, used):
    x, r = terms((rows, cols), dtypes)
    affine = parameters(kind, cols)
    of_results = list(terms((2, rows, cols), [torch.promote_types(*dtypes)])[0])
    of_results[1] = of_results[1] if used == "both" else None
    options = {"p": p, "seed": SEED}
    found = gradients(partial(ADDS[kind], **options), [x, r, *affine], of_results)
    wide = gradients(partial(ADDS[kind], **options), [*in_sums_dtype(x, r), *affine], of_results)
    for tensor, gradient, exact in zip([x, r, *affine], found, wide, strict=True):
        assert gradient.dtype == tensor.dtype
        assert same_bits(gradient, exact.to(tensor.dtype))


@pytest.mark.parametrize("kind", ADDS)
@pytest.mark.parametrize("dtypes", DIRECT, ids=str)
@pytest.mark.parametrize("layout", ["every other row", "columns", "shifted"])
def test_the_terms_may_have_any_layout(kind, dtypes, layout):
    x, r = map(LAYOUTS[layout], terms((80, 90), dtypes))
    affine = parameters(kind, x.shape[-1])
    results = ADDS[kind](x, r, *affine)
    for found, wanted in zip(results, ADDS[kind](*in_sums_dtype(x, r), *affine), strict=True):
        assert same_bits(found, wanted)


@pytest.mark.parametrize("variant", ["torch", "llama", "t5", "gemma"])
@pytest.mark.parametrize("w_dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("eps", [None, 1e-3])
def test_every_variant_is_the_norm_of_the_sum(variant, w_dtype, eps):
    x, r = terms((50, 64), (torch.bfloat16, torch.float32))
    w = torch.randn(64).to(w_dtype)
    y, s = fusedops.add_rms_norm(x, r, [64], w, eps, variant=variant)
    assert same_bits(s, x + r)
    assert same_bits(y, fusedops.rms_norm(x + r, [64], w, eps, variant=variant))


def test_the_default_eps_is_that_of_the_sum():
    x, r = torch.zeros(1, 8), torch.full((1, 8), 1e-12, dtype=torch.float64)
    y, s = fusedops.add_rms_norm(x, r, [8])
    assert same_bits(y, fusedops.rms_norm(s, [8]))


@pytest.mark.parametrize("kind", ADDS)
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("dtypes", PAIRS, ids=IDS)
def test_second_derivatives_are_those_of_converted_terms(kind, p, dtypes):
    """A conversion before the call is a step of its own for autograd and rounds the same values."""
    x, r = terms((6, 10), dtypes)
    affine = parameters(kind, 10)

    def second(add):
        leaves = [t.clone().requires_grad_() for t in (x, r, *affine)]
        y, s = add(*leaves)
        first = torch.autograd.grad((y.pow(3) + s.pow(2)).sum(), leaves, create_graph=True)
        total = sum(gradient.to(s.dtype).pow(2).sum() for gradient in first)
        return torch.autograd.grad(total, leaves)

    def mixed(x, r, *affine):
        return ADDS[kind](x, r, *affine, p=p, seed=SEED)

    def wide(x, r, *affine):
        return mixed(*in_sums_dtype(x, r), *affine)

    for tensor, found, wanted in zip((x, r, *affine), second(mixed), second(wide), strict=True):
        assert found.dtype == tensor.dtype
        tolerance = 4 * torch.finfo(min(dtypes, key=lambda d: d.itemsize)).eps
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance * 50)


@pytest.mark.parametrize("kind", ADDS)
def test_the_branch_of_an_autocast_linear_needs_no_conversion(kind):
    linear = torch.nn.Linear(16, 16)
    r = torch.randn(4, 16)
    affine = parameters(kind, 16)
    with torch.autocast("cpu", torch.bfloat16):
        branch = linear(torch.randn(4, 16))
        y, s = ADDS[kind](branch, r, *affine)
    assert branch.dtype == torch.bfloat16 and y.dtype == s.dtype == torch.float32
    assert same_bits(s, branch + r)
    y.sum().backward()
    assert linear.weight.grad.dtype == torch.float32
