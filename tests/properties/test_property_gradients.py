"""Gradients are within an absolute bound of the exact ones, and agree with finite differences."""

import bounds
import drawn
import fuzzing
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fusedops

TAME = ("normal", "shifted", "constant", "ties")


def _leaf(given):
    return given.tensor().detach().requires_grad_()


def _grad_output(given):
    return drawn.Drawn(given.dtype, given.shape, seed=given.seed ^ 11).tensor()


@given(
    st.sampled_from(("softmax", "log_softmax", "softmax_", "masked_softmax")),
    drawn.tensors(specials=("-inf", "-0", "denormal")),
    st.sampled_from((1.0, 0.125, -3.0)),
)
def test_the_gradient_of_a_softmax_is_within_its_bound(op, given, scale):
    x, grad = _leaf(given), _grad_output(given)
    if op == "masked_softmax":
        y = fusedops.masked_softmax(x, scale=scale)
    else:
        y, scale = getattr(fusedops, op)(x * 1 if op == "softmax_" else x, -1), 1.0
    (gradient,) = torch.autograd.grad(y, x, grad)
    formula = bounds.log_softmax_gradient if op == "log_softmax" else bounds.softmax_gradient
    wanted = formula(y, grad, x.dtype)
    if scale != 1.0:
        wanted = wanted.scaled(scale, x.dtype)
    bounds.assert_within(gradient, wanted.rounded_to(x.dtype))


# The mean is kept with an error of a fifth of the scale.
@example("layer_norm", drawn.Drawn(torch.float32, (1, 3), "shifted", 1e-3, 1e4), 1e-5, False)
# The bound is that of the mean's rounding alone, and the error is that large.
@example(
    "layer_norm",
    drawn.Drawn(torch.float64, (2, 5), "shifted", 1e-3, 1e4, seed=4048675),
    1e-5,
    False,
)
@given(
    st.sampled_from(("layer_norm", "std_norm", "rms_norm", "add_layer_norm", "add_rms_norm")),
    drawn.tensors(
        specials=(), values=TAME, shape=drawn.shapes(drawn.COLUMNS[1:]) | drawn.shapes(drawn.LONG)
    ),
    st.sampled_from((1e-5, 1e-12, 1.0)),
    st.booleans(),
)
def test_the_gradients_of_a_norm_are_within_their_bounds(op, given, eps, has_weight):
    x, grad, columns = _leaf(given), _grad_output(given), given.shape[-1:]
    weight, bias = (
        drawn.Drawn(torch.float32, columns, seed=given.seed ^ n).tensor().requires_grad_()
        for n in (2, 3)
    )
    parameters = [weight] * has_weight + [bias] * (has_weight and "rms" not in op)
    before = (torch.zeros_like(x.detach()),) if op.startswith("add") else ()
    y = getattr(fusedops, op)(x, *before, columns, *parameters, eps=eps)
    y = y[0] if before else y
    of_x, *of_parameters = torch.autograd.grad(y, (x, *parameters), grad)
    kind = op.removeprefix("add_")
    wanted = bounds.norm_gradients(kind, x, weight if has_weight else 1.0, grad, eps)
    bounds.assert_within(of_x, wanted.input.rounded_to(x.dtype))
    for gradient, bound in zip(of_parameters, wanted[1:], strict=False):
        bounds.assert_within(gradient, bound.rounded_to(gradient.dtype))


def _seed():
    return torch.tensor(5)


#: In float64, of x and y of one shape and of w, a row of them.
DIFFERENTIABLE = {
    "softmax": lambda x, y, w: fusedops.softmax(x, -1),
    "softmax of dim 0": lambda x, y, w: fusedops.softmax(x, 0),
    "softmax of all": lambda x, y, w: fusedops.softmax(x, None),
    "log_softmax": lambda x, y, w: fusedops.log_softmax(x, 0),
    "softmax_": lambda x, y, w: fusedops.softmax_(x * 1, -1),
    "logsumexp": lambda x, y, w: _logsumexp(*fusedops.softmax_stats(x, -1)),
    "in parts": lambda x, y, w: _in_parts(x, y),
    "masked_softmax": lambda x, y, w: fusedops.masked_softmax(x, y, scale=0.5, bias=w),
    "causal": lambda x, y, w: fusedops.masked_softmax(x, bias=w, causal=True, mask_value=-9.0),
    "dropout": lambda x, y, w: fusedops.masked_softmax_dropout(x, y, p=0.4, seed=_seed(), bias=w),
    "layer_norm": lambda x, y, w: fusedops.layer_norm(x, w.shape, w, w, eps=0.1),
    "layer_norm of two dims": lambda x, y, w: fusedops.layer_norm(x, x.shape, y, None, 0.1),
    "std_norm": lambda x, y, w: fusedops.std_norm(x, w.shape, w, w, eps=0.1),
    "rms_norm": lambda x, y, w: fusedops.rms_norm(x, w.shape, w, 0.1),
    "gemma": lambda x, y, w: fusedops.rms_norm(x, w.shape, w, 0.1, variant="gemma"),
    "llama": lambda x, y, w: fusedops.rms_norm(x, w.shape, w, 0.1, variant="llama"),
    "add_layer_norm": lambda x, y, w: sum(fusedops.add_layer_norm(x, y, w.shape, w, w, 0.1)),
    "add_rms_norm": lambda x, y, w: sum(fusedops.add_rms_norm(x, y, w.shape, w, 0.1)),
    "dropped sum": lambda x, y, w: fusedops.add_layer_norm(
        x, y, w.shape, w, w, 0.1, p=0.4, seed=_seed(), return_sum=False
    ),
    "stack_softmax": lambda x, y, w: fusedops.stack_softmax([x, y], -1, 1),
    "stack_log_softmax": lambda x, y, w: fusedops.stack_log_softmax([x, y, x], 0),
    "stack_layer_norm": lambda x, y, w: fusedops.stack_layer_norm(
        [x, y], w.shape, [w, w + 1], [w, w], 0.1
    ),
}


def _logsumexp(max, sum):
    return max + sum.log()


def _in_parts(x, y):
    stats = fusedops.merge_softmax_stats([fusedops.softmax_stats(part, -1) for part in (x, y)])
    return fusedops.softmax_apply(x, *stats, -1)


def _leaves(shape, seed):
    generator = torch.Generator().manual_seed(seed)
    sizes = (shape, shape, shape[-1:])
    drawn = (torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes)
    return [leaf.requires_grad_() for leaf in drawn]


SMALL = st.tuples(st.integers(1, 3), st.integers(2, 6))


@settings(max_examples=fuzzing.examples(250))
@given(st.sampled_from(sorted(DIFFERENTIABLE)), SMALL, st.integers(0, 2**32 - 1))
def test_gradients_agree_with_finite_differences(op, shape, seed):
    leaves = _leaves(shape, seed)
    assert torch.autograd.gradcheck(DIFFERENTIABLE[op], leaves, fast_mode=True)


@settings(max_examples=fuzzing.examples(100))
@given(st.sampled_from(sorted(DIFFERENTIABLE)), SMALL, st.integers(0, 2**32 - 1))
def test_second_derivatives_agree_with_finite_differences(op, shape, seed):
    leaves = _leaves(shape, seed)
    assert torch.autograd.gradgradcheck(DIFFERENTIABLE[op], leaves, fast_mode=True)
