"""Any of a norm's gradients may be left out, and the others stay the same: for rows of any length,
in stacks, with and without parameters."""

from itertools import product

import pytest
import torch
from oracle import same_bits

import fusedops  # noqa: F401 (registers the operators)

ops = torch.ops.fusedops

#: One column, rows that are computed in groups, rows that are not, and a row that threads share.
LENGTHS = [1, 12, 300, 70001]
MASKS = list(product([True, False], repeat=3))


def rows_of(cols):
    """More rows than are interleaved, where any are."""
    return 40 if cols < 100 else 3


def statistics(op, x, parameters):
    if op == "rms_norm":
        return ops.rms_norm(x, [x.shape[-1]], parameters[0], 1e-5)[1:]
    return getattr(ops, op)(x, [x.shape[-1]], *parameters, 1e-5)[1:]


def gradients(op, grad, x, kept, parameters, mask):
    backward, shape = getattr(ops, f"{op}_backward"), [x.shape[-1]]
    if op == "rms_norm":
        return backward(grad, x, shape, *kept, parameters[0], mask[:2])
    settings = [1e-5] if op == "std_norm" else []
    return backward(grad, x, shape, *kept, *parameters, mask, *settings)


def assert_parts_of(whole, part, mask):
    for wanted, one, all_of_it in zip(mask, part, whole, strict=False):
        assert same_bits(one, all_of_it) if wanted else one.numel() == 0


@pytest.mark.parametrize("op", ["layer_norm", "std_norm", "rms_norm"])
@pytest.mark.parametrize("cols", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("given", ["both", "weight", "bias", "none"])
def test_any_of_the_gradients_may_be_left_out(op, cols, dtype, given):
    x, grad = torch.randn(2, rows_of(cols), cols).to(dtype)
    w, b = torch.randn(2, cols).to(dtype)
    parameters = (
        w if given in ("both", "weight") else None,
        b if given in ("both", "bias") else None,
    )
    kept = statistics(op, x, parameters)
    whole = gradients(op, grad, x, kept, parameters, [True] * 3)
    for mask in MASKS:
        assert_parts_of(whole, gradients(op, grad, x, kept, parameters, list(mask)), mask)


@pytest.mark.parametrize("cols", LENGTHS)
def test_any_of_the_gradients_of_a_stack_may_be_left_out(cols):
    inputs = [torch.randn(rows_of(cols), cols) for _ in range(2)]
    grad = torch.randn(2, rows_of(cols), cols)
    weights, biases = list(torch.randn(2, cols)), list(torch.randn(2, cols))
    _, *kept = ops.stack_layer_norm(inputs, [cols], weights, biases, 1e-5, 0)
    settings = (grad, inputs, [cols], *kept, weights, biases, 0)
    whole = ops.stack_layer_norm_backward(*settings, [True] * 3)
    for mask in MASKS:
        assert_parts_of(whole, ops.stack_layer_norm_backward(*settings, list(mask)), mask)


@pytest.mark.parametrize("op", ["add_layer_norm", "add_rms_norm"])
@pytest.mark.parametrize("cols", LENGTHS)
def test_any_of_the_gradients_after_a_residual_may_be_left_out(op, cols):
    is_layer = op == "add_layer_norm"
    x, residual, grad, grad_sum = torch.randn(4, rows_of(cols), cols)
    parameters = list(torch.randn(2, cols))[: 2 if is_layer else 1]
    settings = [] if is_layer else [0.0, False]
    _, total, *kept = getattr(ops, op)(x, residual, [cols], *parameters, 1e-5, *settings, 0.0, None)
    offset = [] if is_layer else [0.0]

    def backward(mask):
        given = (grad, grad_sum, total, [cols], *kept, *parameters, list(mask))
        return getattr(ops, f"{op}_backward")(*given, *offset, 0.0, None)

    whole = backward([True] * (4 if is_layer else 3))
    for of_input, of_weight, of_bias in MASKS:
        mask = [of_input, of_input, of_weight, of_bias][: len(whole)]
        part = backward(mask)
        wanted = [
            of_input,
            False,
            of_weight,
            of_bias,
        ]  # without dropout one serves both of the first
        assert_parts_of(whole, part, wanted[: len(whole)])
