"""The random numbers of masked_softmax_dropout: which they are, and that a seed repeats them."""

import pytest
import torch
from oracle import DTYPES, same_bits
from torch.utils.checkpoint import checkpoint

import fusedops
from fusedops import reference

op = torch.ops.fusedops.masked_softmax_dropout


def test_the_reference_is_philox_as_published():
    """The first of Random123's known answers for seven rounds."""
    assert reference.philox(0, 1, 4).tolist() == [[0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]]


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("keys", [1, 3, 31, 64, 100, 129, 5001])
@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_an_element_is_kept_where_its_random_word_says_so(dtype, keys, seed):
    p, rows = 0.37, 11
    x = torch.randn(rows, keys).to(dtype)
    output, probabilities = op(x, None, 1.0, False, 0.0, p, torch.tensor(seed))
    kept = reference.philox(seed, rows, keys) >= round(p * 2**32)
    assert same_bits(probabilities, fusedops.masked_softmax(x))
    assert (output[~kept] == 0).all()
    expected = probabilities[kept].double() / (1 - p)
    tolerance = torch.finfo(dtype).eps
    torch.testing.assert_close(output[kept].double(), expected, rtol=tolerance, atol=tolerance)


def test_rows_beyond_the_first_tensor_dimension_are_numbered_on():
    x, seed = torch.zeros(2, 3, 5, 40), torch.tensor(7)
    y = fusedops.masked_softmax_dropout(x, p=0.5, seed=seed)
    assert same_bits(
        y.view(30, 40), fusedops.masked_softmax_dropout(x.view(30, 40), p=0.5, seed=seed)
    )


def test_p_of_zero_and_one_are_exact():
    x = torch.randn(5, 300)
    assert same_bits(fusedops.masked_softmax_dropout(x, p=0.0), fusedops.masked_softmax(x))
    assert (fusedops.masked_softmax_dropout(x, p=1.0) == 0).all()
    leaf = x.clone().requires_grad_()
    fusedops.masked_softmax_dropout(leaf, p=1.0).sum().backward()
    assert (leaf.grad == 0).all()


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_of_zeros_is_p(p):
    n = 2**20
    y = fusedops.masked_softmax_dropout(torch.zeros(64, n // 64), p=p, seed=torch.tensor(3))
    deviation = abs((y == 0).double().mean().item() - p)
    assert deviation < 5 * (p * (1 - p) / n) ** 0.5


def test_evaluation_drops_nothing():
    x = torch.randn(4, 20)
    y = fusedops.masked_softmax_dropout(x, p=0.9, training=False, causal=True)
    assert same_bits(y, fusedops.masked_softmax(x, causal=True))


def test_manual_seed_repeats_and_every_call_draws_anew():
    x = torch.zeros(8, 64)
    torch.manual_seed(5)
    first, second = (fusedops.masked_softmax_dropout(x) for _ in range(2))
    torch.manual_seed(5)
    assert same_bits(first, fusedops.masked_softmax_dropout(x))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing_recomputes_the_same(use_reentrant):
    x = torch.randn(6, 50, requires_grad=True)
    torch.manual_seed(0)
    y = fusedops.masked_softmax_dropout(x, p=0.3)
    (expected,) = torch.autograd.grad(y.pow(2).sum(), x)
    torch.manual_seed(0)
    checkpointed = checkpoint(
        lambda x: fusedops.masked_softmax_dropout(x, p=0.3).pow(2), x, use_reentrant=use_reentrant
    )
    checkpointed.sum().backward()
    assert same_bits(x.grad, expected)


def test_only_probabilities_and_seed_are_kept_for_the_backward():
    x = torch.randn(4, 64, 64, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        fusedops.masked_softmax_dropout(x, p=0.3, causal=True)
    assert sum(t.numel() for t in kept) == x.numel() + 1


def test_masks_hide_under_dropout():
    x, mask = torch.randn(2, 6, 40), torch.rand(2, 1, 40) < 0.5
    seed = torch.tensor(9)
    y = fusedops.masked_softmax_dropout(x, mask, p=0.2, seed=seed, causal=True, masked_rows="zero")
    undropped = fusedops.masked_softmax(x, mask, causal=True, masked_rows="zero")
    kept = reference.philox(9, 12, 40).view(2, 6, 40) >= round(0.2 * 2**32)
    torch.testing.assert_close(y, undropped * kept / 0.8)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_dropout_repeats_under_manual_seed_and_trains(dynamic):
    @torch.compile(fullgraph=True, dynamic=dynamic)
    def loss(x):
        return fusedops.masked_softmax_dropout(x, p=0.25, causal=True).pow(2).sum()

    x = torch.randn(3, 16, 16, requires_grad=True)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(torch.autograd.grad(loss(x), x)[0])
    assert same_bits(results[0], results[1]) and not torch.equal(results[0], results[2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_forward_mode_scales_in_the_dtype_of_the_scores(dtype):
    """Not in torch's default dtype, which a quotient of bools has."""
    x, seed = torch.randn(4, 8, dtype=dtype), torch.tensor(3)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        output, _ = torch.func.jvp(
            lambda x: fusedops.masked_softmax_dropout(x, p=0.3, seed=seed), (x,), (x,)
        )
    finally:
        torch.set_default_dtype(default)
    expected = fusedops.masked_softmax_dropout(x, p=0.3, seed=seed)
    torch.testing.assert_close(output, expected, rtol=4 * torch.finfo(dtype).eps, atol=0)
