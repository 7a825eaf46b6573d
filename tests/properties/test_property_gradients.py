"""Gradients are within an absolute bound of the exact ones."""

import bounds
import drawn
import torch
from hypothesis import example, given
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
