"""Very long rows, and very many short ones, give the results of a part that repeats."""

import pytest
import torch
from oracle import assert_same_on_threads, same_bits

import fusedops

ops = torch.ops.fusedops

LONGEST = 1 << 27
PART = 1 << 16
MANY = 10_000_000
BLOCK = 10_000


def gradient(function, x, grad):
    leaf = x.detach().requires_grad_()
    y = function(leaf)
    return y.detach(), torch.autograd.grad(y, leaf, grad)[0]


@pytest.mark.parametrize("op", ["softmax", "log_softmax", "masked_softmax"])
def test_a_softmax_of_2_to_the_27_elements_is_that_of_a_part_that_repeats(op):
    part, grad = torch.randn(2, PART).to(torch.bfloat16)
    grad[PART // 2 :] = -grad[: PART // 2].flip(0)
    repeats = LONGEST // PART
    softmax = getattr(fusedops, op)
    function = softmax if op == "masked_softmax" else lambda x: softmax(x, -1)
    y, to_input = gradient(function, part.repeat(repeats), grad.repeat(repeats))
    exact = part.double().requires_grad_()
    of_part = torch.log_softmax(exact, -1) - torch.tensor(float(repeats)).log()
    of_part = of_part if op == "log_softmax" else of_part.exp()
    assert all(same_bits(t.view(repeats, -1)[-1], t[:PART]) for t in (y, to_input))
    torch.testing.assert_close(y[:PART].double(), of_part.detach(), rtol=2**-7, atol=1e-30)
    # The sum along the row is that of every part, and its weight that of one.
    (of_log,) = torch.autograd.grad(torch.log_softmax(exact, -1), exact, grad.double())
    if op == "log_softmax":
        torch.testing.assert_close(to_input[:PART].double(), of_log, rtol=2**-6, atol=2**-7)
    else:
        p = of_part.detach()
        expected = p * (grad.double() - (p * repeats * grad.double()).sum())
        torch.testing.assert_close(to_input[:PART].double(), expected, rtol=2**-5, atol=1e-10)


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm", "std_norm"])
def test_a_norm_of_2_to_the_27_elements_is_that_of_a_part_that_repeats(op):
    part, grad = torch.randn(2, PART).to(torch.bfloat16)
    repeats = LONGEST // PART
    norm = getattr(fusedops, op)
    whole = part.repeat(repeats), grad.repeat(repeats)
    long = gradient(lambda x: norm(x, [LONGEST], eps=1e-5), *whole)
    short = gradient(lambda x: norm(x, [PART], eps=1e-5), part, grad)
    for actual, expected in zip(long, short, strict=True):
        assert same_bits(actual.view(repeats, -1)[-1], actual[:PART])
        torch.testing.assert_close(actual[:PART], expected, rtol=2**-6, atol=2**-6)


def many(cols):
    return torch.randn(BLOCK, cols).repeat(MANY // BLOCK, 1)


def assert_repeats(results, of_block):
    """Each result begins and ends with the result of the block alone."""
    for whole, block in zip(results, of_block, strict=True):
        assert same_bits(whole[:BLOCK], block) and same_bits(whole[-BLOCK:], block)


@pytest.mark.parametrize("cols", [1, 2, 3])
def test_ten_million_rows_have_the_bits_of_few(cols):
    x, grad = many(cols), many(cols)
    shape = [cols]
    functions = [
        lambda x: fusedops.softmax(x, -1),
        lambda x: fusedops.log_softmax(x, -1),
        lambda x: fusedops.masked_softmax(x, scale=0.5),
        lambda x: fusedops.layer_norm(x, shape),
        lambda x: fusedops.rms_norm(x, shape),
        lambda x: fusedops.add_layer_norm(x, x, shape)[0],
    ]
    for function in functions:
        results = gradient(function, x, grad)
        assert_repeats(results, gradient(function, x[:BLOCK], grad[:BLOCK]))
    assert_repeats(fusedops.softmax_stats(x, -1), fusedops.softmax_stats(x[:BLOCK], -1))


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize("rows", [2, 3])
def test_ten_million_rows_of_a_spatial_softmax_have_the_bits_of_few(op, rows):
    x, grad = (torch.randn(rows, BLOCK).repeat(1, MANY // BLOCK) for _ in range(2))
    few = [t[:, :BLOCK].contiguous() for t in (x, grad)]
    softmax = getattr(fusedops, op)
    results = gradient(lambda x: softmax(x, 0), x, grad)
    block = gradient(lambda x: softmax(x, 0), *few)
    assert_repeats([t.t() for t in results], [t.t() for t in block])


@pytest.mark.parametrize("cols", [1, 2, 3])
def test_sums_over_ten_million_rows_are_right_and_the_same_on_any_number_of_threads(cols):
    x, grad = many(cols), many(cols)
    _, mean, rstd = ops.layer_norm(x, [cols], None, None, 1e-5)

    def sums():
        _, *statistics = ops.layer_norm(x, [cols], None, None, 1e-5)
        given = (grad, x, [cols], *statistics, None, None, [False, True, True])
        return ops.layer_norm_backward(*given)[1:]

    assert_same_on_threads(sums, counts=(1, 2))
    block, repeats = slice(0, BLOCK), MANY // BLOCK
    normal = (x[block].double() - mean[block]) * rstd[block]
    for actual, terms in zip(sums(), (grad[block] * normal, grad[block].double()), strict=True):
        torch.testing.assert_close(
            actual.double(), terms.sum(0) * repeats, rtol=0, atol=1e-4 * terms.abs().sum().item()
        )
