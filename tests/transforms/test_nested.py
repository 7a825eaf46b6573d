"""Softmaxes and norms of nested tensors, strided and jagged, are those of each tensor in them."""

import pytest
import torch

import fusedops
from fusedops import reference

WEIGHT = torch.randn(4, dtype=torch.float64)
BIAS = torch.randn(4, dtype=torch.float64)

#: Functions of one tensor, or of the nested tensor of which it is part; ``d`` is the number of
#: dimensions before those of the tensor. Each with its definition.
FUNCTIONS = {
    "softmax": (lambda t, d: fusedops.softmax(t, -1), lambda t: t.softmax(-1)),
    "softmax over the ragged dimension": (
        lambda t, d: fusedops.softmax(t, d),
        lambda t: t.softmax(0),
    ),
    "log_softmax": (lambda t, d: fusedops.log_softmax(t, d + 1), lambda t: t.log_softmax(1)),
    "layer_norm": (
        lambda t, d: fusedops.layer_norm(t, [4], WEIGHT, BIAS),
        lambda t: reference.layer_norm(t, [4], WEIGHT, BIAS),
    ),
    "std_norm": (
        lambda t, d: fusedops.std_norm(t, [4], WEIGHT),
        lambda t: reference.std_norm(t, [4], WEIGHT),
    ),
    "rms_norm": (
        lambda t, d: fusedops.rms_norm(t, [4], WEIGHT, 1e-6),
        lambda t: reference.rms_norm(t, [4], WEIGHT, 1e-6),
    ),
    "l2_norm": (lambda t, d: fusedops.l2_norm(t, [4]), lambda t: reference.l2_norm(t, [4])),
}


def nested(layout, requires_grad=False):
    parts = [torch.randn(rows, 4, dtype=torch.float64) for rows in (2, 5, 1)]
    return torch.nested.nested_tensor(parts, layout=layout, requires_grad=requires_grad)


LAYOUTS = [torch.strided, torch.jagged]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_result_is_that_of_each_tensor(name, layout):
    function, definition = FUNCTIONS[name]
    given = nested(layout)
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with mode():
            found = function(given, 1)
            assert found.layout == layout
            for result, part in zip(found.unbind(), given.unbind(), strict=True):
                torch.testing.assert_close(result, definition(part))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_gradient_is_that_of_each_tensor(name, layout):
    function, definition = FUNCTIONS[name]
    given = nested(layout, requires_grad=True)
    total = sum(part.sin().sum() for part in function(given, 1).unbind())
    (found,) = torch.autograd.grad(total, given)
    for grad, part in zip(found.unbind(), given.detach().unbind(), strict=True):
        (expected,) = torch.autograd.grad(definition(part.requires_grad_()).sin().sum(), part)
        torch.testing.assert_close(grad, expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_gradients_of_weight_and_bias_are_summed_over_all_tensors(layout):
    given = nested(layout)
    parameters = [p.clone().requires_grad_() for p in (WEIGHT, BIAS)]
    found = fusedops.layer_norm(given, [4], *parameters)
    found = torch.autograd.grad(sum(part.sin().sum() for part in found.unbind()), parameters)
    rows = reference.layer_norm(torch.cat(given.unbind()), [4], *parameters)
    torch.testing.assert_close(found, torch.autograd.grad(rows.sin().sum(), parameters))


def test_a_jagged_result_has_the_structure_of_its_input():
    given = nested(torch.jagged)
    for function, _ in FUNCTIONS.values():
        assert (given + function(given, 1)).shape == given.shape


def test_a_jagged_tensor_with_holes_is_computed_without_them():
    whole = torch.full((2, 3, 4), torch.nan, dtype=torch.float64)
    whole[0, :2], whole[1, :1] = 1.0, 2.0
    lengths = torch.tensor([2, 1])
    given = torch.nested.narrow(whole, 1, torch.tensor([0, 0]), lengths, layout=torch.jagged)
    weight = WEIGHT.clone().requires_grad_()
    found = fusedops.rms_norm(given, [4], weight, 0.0)
    torch.testing.assert_close(found.unbind()[0], weight.expand(2, 4))
    (grad,) = torch.autograd.grad(sum(part.sum() for part in found.unbind()), weight)
    torch.testing.assert_close(grad, torch.full_like(weight, 3))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda t: fusedops.softmax(t, 0), "softmax: dim is 0, .* counts its tensors"),
        (lambda t: fusedops.log_softmax(t, 3), "log_softmax: dim is 3"),
        (lambda t: fusedops.layer_norm(t, [3, 5, 4]), "layer_norm: normalized_shape is"),
        (lambda t: fusedops.rms_norm(t, [2, 4]), "rms_norm: normalized_shape"),
        (lambda t: fusedops.masked_softmax(t), "masked_softmax: input is a nested tensor"),
        (lambda t: fusedops.layer_norm(t, [4], t), "layer_norm: weight is a nested tensor"),
        (lambda t: fusedops.spatial_rms_norm(t, 1, eps=0.1), "rms_norm: input is a nested tensor"),
    ],
)
def test_what_is_not_a_row_of_one_tensor_is_refused(call, words):
    for layout in LAYOUTS:
        for mode in (torch.enable_grad(), torch.inference_mode()):
            with mode, pytest.raises(RuntimeError, match=words):
                call(nested(layout))
