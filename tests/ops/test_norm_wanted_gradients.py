"""Any of a norm's gradients may be left out, and the others stay the same: for rows of any length,
in stacks, with and without parameters."""

from itertools import product

import pytest
import torch
from norm_kinds import KINDS, kind_of
from oracle import same_bits

import fusedops  # noqa: F401 (registers the operators)

ops = torch.ops.fusedops

#: One column, rows that are computed in groups, rows that are not, and a row that threads share.
LENGTHS = [1, 12, 300, 70001]
#: The dtypes of a branch and a residual.
TERMS = [
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float32),
    (torch.float32, torch.bfloat16),
    (torch.float64, torch.bfloat16),
]
MASKS = list(product([True, False], repeat=3))


def rows_of(cols):
    """More rows than are interleaved, where any are."""
    return 40 if cols < 100 else 2


def gradients(op, grad, x, kept, parameters, mask):
    settings = [1e-5] if op in ("std_norm", "l2_norm") else []
    backward, mask = getattr(ops, f"{op}_backward"), mask[: 1 + len(parameters)]
    return backward(grad, x, x.shape[-1:], *kept, *parameters, mask, *settings)


def assert_parts_of(whole, part, mask):
    for wanted, one, all_of_it in zip(mask, part, whole, strict=False):
        assert one.dtype == all_of_it.dtype
        assert same_bits(one, all_of_it) if wanted else one.numel() == 0


@pytest.mark.parametrize("op", [f"{kind}_norm" for kind in KINDS])
@pytest.mark.parametrize("cols", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("given", ["both", "weight", "bias", "none"])
def test_any_of_the_gradients_may_be_left_out(op, cols, dtype, given):
    x, grad = torch.randn(2, rows_of(cols), cols).to(dtype)
    w, b = torch.randn(2, cols).to(dtype)
    parameters = (
        w if given in ("both", "weight") else None,
        b if given in ("both", "bias") else None,
    )[: 1 + kind_of(op).has_mean]
    _, *kept = getattr(ops, op)(x, [cols], *parameters, 1e-5)
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


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("dtypes", TERMS, ids=str)
@pytest.mark.parametrize("cols", LENGTHS)
def test_any_of_the_gradients_after_a_residual_may_be_left_out(kind, p, dtypes, cols):
    x, residual = (torch.randn(rows_of(cols), cols).to(dtype) for dtype in dtypes)
    parameters = list(torch.randn(1 + KINDS[kind].has_mean, cols))
    _, total, *kept = getattr(ops, f"add_{kind}_norm")(x, residual, [cols], *parameters, 1e-5)
    given = (*torch.randn(2, *x.shape).to(total.dtype), total, [cols], *kept, *parameters)
    options = {"p": p, "seed": torch.tensor(5) if p else None}
    options |= {"input_dtype": dtypes[0], "residual_dtype": dtypes[1]}
    backward, count = getattr(ops, f"add_{kind}_norm_backward"), 2 + len(parameters)
    whole = backward(*given, [True] * count, **options)
    for mask in product([True, False], repeat=count):
        # Without dropout one gradient serves both terms of one dtype.
        is_shared = p == 0 and len(set(dtypes)) == 1
        wanted = (mask[0] or mask[1], False, *mask[2:]) if is_shared else mask
        assert_parts_of(whole, backward(*given, list(mask), **options), wanted)
