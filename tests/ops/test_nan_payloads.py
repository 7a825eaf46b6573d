"""A NaN of any payload comes out as a NaN where eager gives one: no conversion, maximum or rounding
turns one into a number."""

from itertools import product

import pytest
import torch
from oracle import DTYPES

import fusedops

ops = torch.ops.fusedops

#: Quiet and signalling NaNs of either sign; rounding carries furthest in payloads of ones alone.
PAYLOADS = {
    torch.float32: (torch.int32, [0x7FC00000, 0x7FFFFFFF, 0x7F800001, 0x7FBFFFFF, 0x7FFF8000]),
    torch.bfloat16: (torch.int16, [0x7FC0, 0x7FFF, 0x7F81, 0x7FBF]),
    torch.float16: (torch.int16, [0x7E00, 0x7FFF, 0x7C01, 0x7DFF]),
    torch.float64: (
        torch.int64,
        [0x7FF8000000000000, 0x7FFFFFFFFFFFFFFF, 0x7FF0000000000001, 0x7FF00000FFFFFFFF],
    ),
}
#: A row that ends in part of a tile, for every instruction set and dtype.
COLS = 75
PLACES = [0, 1, 16, 33, 63, 64, COLS - 2, COLS - 1]
#: Operands of 16-bit rows may be float32; operators convert any other dtype.
MIXED = [(rows, other) for rows, other in product(DTYPES.values(), repeat=2)]
MIXED_IDS = [f"{rows}-{other}" for rows, other in product(DTYPES, repeat=2)]


def nans(dtype):
    integer, payloads = PAYLOADS[dtype]
    positive = torch.tensor(payloads, dtype=integer)
    lowest = torch.tensor(torch.iinfo(integer).min, dtype=integer)
    return torch.cat([positive, positive | lowest]).view(dtype)


def with_nans(dtype):
    """A row with one NaN for each payload and place, and two rows without any."""
    values = nans(dtype)
    assert values.isnan().all()
    rows = torch.randn(len(values) * len(PLACES) + 2, COLS).to(dtype)
    for row, (value, place) in enumerate(product(values, PLACES), 1):
        rows[row, place] = value
    return rows


def same_nans(actual, eager):
    return torch.equal(actual.isnan(), eager.isnan())


@pytest.mark.parametrize("dtype, other", MIXED, ids=MIXED_IDS)
@pytest.mark.parametrize("operand", ["mask", "bias"])
def test_a_nan_that_is_added_to_scores_makes_its_row_nan(dtype, other, operand):
    added = with_nans(other)
    x = torch.randn(added.shape).to(dtype)
    eager = torch.softmax(x.double() + added.double(), -1)
    assert eager.isnan().all(-1).sum() == len(added) - 2
    assert same_nans(fusedops.masked_softmax(x, **{operand: added}), eager)
    dropped = fusedops.masked_softmax_dropout(x, **{operand: added}, p=0.5)
    assert dropped[1:-1].isnan().any(-1).all() and not dropped[[0, -1]].isnan().any()


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("dim", [0, 1])
def test_a_nan_among_the_scores_makes_its_softmax_nan(dtype, dim):
    x = with_nans(dtype)
    x = x.t().contiguous() if dim == 0 else x
    for to in {dtype, torch.float64 if dtype == torch.float64 else torch.float32}:
        eager = torch.softmax(x.to(to), dim)
        assert same_nans(fusedops.softmax(x, dim, dtype=to), eager)
        assert same_nans(fusedops.log_softmax(x, dim, dtype=to), eager)
    of_last = x if dim == 1 else x.t()
    assert same_nans(fusedops.masked_softmax(of_last.contiguous()), torch.softmax(of_last, -1))
    _, sum = fusedops.softmax_stats(x, dim)
    assert same_nans(sum, torch.softmax(x, dim).sum(dim, keepdim=True))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_dropout_of_a_nan_is_a_nan_whether_it_is_kept_or_not(dtype):
    x = with_nans(dtype)
    assert same_nans(fusedops.dropout(x), x)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_a_nan_in_given_statistics_makes_its_row_nan(dtype):
    of = torch.float64 if dtype == torch.float64 else torch.float32
    given, ones = nans(of)[:, None], torch.ones(len(nans(of)), 1, dtype=of)
    x = torch.randn(len(given), COLS).to(dtype)
    assert fusedops.softmax_apply(x, given, ones, 1).isnan().all()
    assert fusedops.softmax_apply(x, ones, given, 1).isnan().all()
    for mean, rstd in ((given, ones), (ones, given)):
        grads = ops.layer_norm_backward(x, x, [COLS], mean, rstd, None, None, [True] * 3)
        assert grads[0].isnan().all() and grads[1].isnan().all()


@pytest.mark.parametrize("source", [torch.bfloat16, torch.float16])
def test_a_nan_in_a_float32_gradient_makes_a_16_bit_row_nan(source):
    grad = with_nans(torch.float32)
    y = torch.softmax(torch.randn(grad.shape), -1)
    for op in (ops.softmax_backward, ops.log_softmax_backward):
        last, first = op(grad, y, -1, source), op(grad.t(), y.t(), 0, source)
        eager = (grad * y).sum(-1, keepdim=True).expand(grad.shape)
        assert same_nans(last, eager) and same_nans(first.t(), eager)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_a_nan_in_a_gradient_makes_its_row_and_its_column_nan(dtype):
    grad = with_nans(dtype)
    x = torch.randn(grad.shape).to(dtype)
    w = torch.randn(2, COLS).to(dtype)
    rows = grad.isnan().any(-1, keepdim=True).expand(grad.shape)
    columns = grad.isnan().any(0)
    for op in (ops.layer_norm, ops.std_norm):
        eps = [1e-5] if op is ops.std_norm else []
        _, mean, rstd = op(x, [COLS], *w, 1e-5)
        backward = getattr(ops, f"{op.__name__}_backward")
        found = backward(grad, x, [COLS], mean, rstd, *w, [True] * 3, *eps)
        assert torch.equal(found[0].isnan(), rows)
        assert torch.equal(found[1].isnan(), columns) and torch.equal(found[2].isnan(), columns)


@pytest.mark.parametrize("dtype, other", MIXED, ids=MIXED_IDS)
def test_a_nan_in_a_parameter_makes_its_column_nan(dtype, other):
    x = torch.randn(9, COLS).to(dtype)
    for value, place in product(nans(other), PLACES):
        parameter = torch.ones(COLS, dtype=other)
        parameter[place] = value
        ones = torch.ones_like(parameter)
        expected = parameter.isnan().expand(x.shape)
        both = ((parameter, ones), (ones, parameter))
        for norm, given in product((fusedops.layer_norm, fusedops.std_norm), both):
            assert torch.equal(norm(x, [COLS], *given).isnan(), expected)
        for norm in (fusedops.rms_norm, fusedops.l2_norm):
            assert torch.equal(norm(x, [COLS], parameter).isnan(), expected)
        _, mean, rstd = ops.layer_norm(x, [COLS], parameter, ones, 1e-5)
        mask = [True, False, False]
        grad = ops.layer_norm_backward(x, x, [COLS], mean, rstd, parameter, ones, mask)[0]
        assert grad.isnan().all()


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_a_nan_in_the_input_of_a_norm_makes_its_row_nan(dtype):
    x = with_nans(dtype)
    rows = x.isnan().any(-1, keepdim=True).expand(x.shape)
    for norm in (fusedops.layer_norm, fusedops.rms_norm, fusedops.std_norm, fusedops.l2_norm):
        assert torch.equal(norm(x, [COLS]).isnan(), rows)
    one = torch.ones_like(x)
    for add in (fusedops.add_layer_norm, fusedops.add_rms_norm):
        for given in ((x, one), (one, x)):
            normalised, sum = add(*given, [COLS])
            assert torch.equal(normalised.isnan(), rows) and same_nans(sum, x)
