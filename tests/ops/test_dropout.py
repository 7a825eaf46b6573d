"""dropout: the product with the random multiplier that other operators draw, and its gradient."""

import pytest
import torch
from oracle import DTYPES, assert_same_on_threads, same_bits

import fusedops
from fusedops import reference

op = torch.ops.fusedops.dropout
SEED = torch.tensor(2**40 + 17)


def multiplier(p, rows, cols, seed=SEED):
    """In float64: 1 / (1 - p) for an element that is kept, else 0."""
    return (reference.philox(int(seed), rows, cols) >= round(p * 2**32)).double() / (1 - p)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cols", [1, 3, 31, 64, 129, 5001, 70001])
@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, -(2**63)])
def test_a_result_has_the_bits_of_the_product_with_the_rounded_multiplier(dtype, cols, seed):
    """A 16-bit product is rounded to float32, and then to its dtype, as in eager."""
    x, seed = torch.randn(3, cols).to(dtype), torch.tensor(seed)
    wide = torch.promote_types(dtype, torch.float32)
    exact = x.to(wide).double() * multiplier(0.37, 3, cols, seed).to(wide).double()
    assert same_bits(fusedops.dropout(x, 0.37, seed=seed), exact.to(wide).to(dtype))


def test_a_mask_is_that_of_the_same_rows_in_any_shape_and_in_other_operators():
    ones = torch.ones(5, 6, 40)
    y = fusedops.dropout(ones, 0.3, seed=SEED)
    assert same_bits(y.view(30, 40), fusedops.dropout(ones.view(30, 40), 0.3, seed=SEED))
    softmax = fusedops.masked_softmax_dropout(ones, p=0.3, seed=SEED)
    assert torch.equal(y != 0, softmax != 0)
    _, sum = fusedops.add_rms_norm(ones, torch.zeros_like(ones), [40], p=0.3, seed=SEED)
    assert same_bits(y, sum)


def test_p_of_zero_and_one_are_exact():
    x = torch.randn(5, 300)
    x[0, :4] = torch.tensor([torch.inf, -torch.inf, torch.nan, -0.0])
    assert fusedops.dropout(x, 0.0) is x and fusedops.dropout(x, training=False) is x
    assert same_bits(op(x, 0.0, SEED), x)
    torch.testing.assert_close(
        fusedops.dropout(x, 1.0), torch.nn.functional.dropout(x, 1.0), equal_nan=True
    )


def test_an_infinity_that_is_dropped_is_nan_as_in_eager():
    x = torch.full((4, 100), torch.inf)
    expected = x.double() * multiplier(0.5, 4, 100)
    assert expected.isnan().any() and expected.isinf().any()
    torch.testing.assert_close(
        fusedops.dropout(x, seed=SEED).double(), expected, rtol=0, atol=0, equal_nan=True
    )


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_a_gradient_is_dropout_of_the_gradient(dtype):
    x = torch.randn(4, 90).to(dtype).requires_grad_()
    y = fusedops.dropout(x, 0.3, seed=SEED)
    rows = torch.randn(8, 90).to(dtype)
    for grad in (rows[:4], rows[::2], rows[:1].expand(4, -1), rows[:4, :1].expand(-1, 90)):
        (found,) = torch.autograd.grad(y, x, grad, retain_graph=True)
        assert same_bits(found, fusedops.dropout(grad, 0.3, seed=SEED))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_a_relu_before_it_has_the_values_and_the_gradient_of_two_calls(dtype):
    x = torch.randn(4, 90).to(dtype)
    x[0], x[1, :9] = -torch.inf, torch.nan
    x.requires_grad_()
    for p in (0.0, 0.3, 1.0):
        ours, apart = op(x, p, SEED, relu=True), op(x.relu(), p, SEED)
        assert torch.equal(ours.isnan(), apart.isnan())
        torch.testing.assert_close(ours, apart, rtol=0, atol=0, equal_nan=True)
        grad = torch.randn_like(x)
        (found,), (expected,) = (torch.autograd.grad(y, x, grad) for y in (ours, apart))
        numbers = ~apart.isnan()
        torch.testing.assert_close(found[numbers], expected[numbers])


@pytest.mark.parametrize("relu", [False, True])
def test_the_seed_or_with_a_relu_the_result_is_all_that_is_kept(relu):
    x, kept = torch.randn(4, 64, requires_grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = op(x, 0.5, SEED, relu)
    (tensor,) = kept
    assert tensor.data_ptr() == (y if relu else SEED).data_ptr()


@pytest.mark.parametrize("compiled", [False, True])
def test_manual_seed_repeats_a_training_step_and_every_call_draws_anew(compiled):
    def loss(x):
        return fusedops.dropout(x, 0.25).pow(2).sum()

    run = torch.compile(loss, fullgraph=True) if compiled else loss
    x = torch.randn(8, 64, requires_grad=True)
    torch.manual_seed(5)
    first, second = (torch.autograd.grad(run(x), x)[0] for _ in range(2))
    torch.manual_seed(5)
    assert same_bits(first, torch.autograd.grad(run(x), x)[0])
    assert not torch.equal(first == 0, second == 0)


def test_a_scalar_is_a_row_of_one_element():
    x = torch.tensor(3.0)
    results = [fusedops.dropout(x, seed=torch.tensor(seed)) for seed in range(20)]
    words = [multiplier(0.5, 1, 1, seed).item() for seed in range(20)]
    assert [y.item() for y in results] == [3 * word for word in words] and {0.0, 2.0} == {*words}
    seeds = torch.arange(20)
    mapped = torch.vmap(lambda seed: fusedops.dropout(x, seed=seed))(seeds)
    assert same_bits(mapped, torch.stack(results))


@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0), (2, 0, 4), (2**30, 0, 2**30)])
def test_no_elements_give_no_elements(shape):
    x = torch.empty(shape, requires_grad=True)
    y = fusedops.dropout(x)
    assert y.shape == shape and torch.autograd.grad(y.sum(), x)[0].shape == shape


def test_threads_that_share_a_row_draw_the_words_of_one_thread():
    x = torch.randn(2, 70001)
    assert_same_on_threads(lambda: [fusedops.dropout(x, seed=SEED)])
