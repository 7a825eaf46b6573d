"""The operators of the cross entropy against the formulas of csrc/args.h, in 80 bits."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from oracle import DTYPES, assert_same_on_threads, same_bits

ops = torch.ops.fusedops
INF, NAN = float("inf"), float("nan")
#: Gradients up to this may be 0.
FLUSHED = 1e-30

#: Groups of short rows, whole ones and others, rows of one segment and of several, and long rows.
SHAPES = [(5, 1), (70, 10), (70, 33), (17, 128), (9, 200), (9, 300), (3, 4096), (3, 5000)]
SHAPES += [(2, 70_001)]


class Options(NamedTuple):
    """What both passes take beside tensors, in the order of the operators."""

    ignore_index: int | None = -100
    label_smoothing: float = 0.0
    scale: float = 1.0
    softcap: float | None = None


PLAIN = Options()
OPTIONS = {
    "plain": PLAIN,
    "smoothing": Options(label_smoothing=0.1),
    "scale": Options(scale=-0.3),
    "soft cap": Options(scale=2.0, softcap=5.0),
    "all": Options(label_smoothing=0.3, scale=0.5, softcap=30.0),
}


class Exact(NamedTuple):
    losses: np.ndarray
    lse: np.ndarray
    gradient: np.ndarray
    logits: np.ndarray


def wide(tensor):
    return tensor.double().numpy().astype(np.longdouble)


def exactly(x, target, options=PLAIN, grad_losses=None, grad_lse=None):
    """Rows whose class is outside of the columns have none."""
    rows, cols = x.shape
    _, smoothing, scale, cap = options
    bounded = np.tanh(wide(x) * scale / cap) if cap else None
    logits = bounded * cap if cap else wide(x) * scale
    is_class = np.arange(cols) == target.numpy()[:, None]
    largest = logits.max(-1)
    of_class = largest.copy()
    of_class[is_class.any(-1)] = logits[is_class]
    powers = np.exp(logits - largest[:, None])
    others = np.where(is_class, 0, powers).sum(-1)
    lse = largest + np.log(powers.sum(-1))
    is_confident = of_class == largest  # the loss is then no difference
    nll = np.where(is_confident, np.log1p(others * np.exp(largest - of_class)), lse - of_class)
    losses = (1 - smoothing) * nll + smoothing * (lse - logits.mean(-1))
    zeros = np.zeros(rows, np.longdouble)
    g = (zeros if grad_losses is None else wide(grad_losses))[:, None]
    g_lse = (zeros if grad_lse is None else wide(grad_lse))[:, None]
    p = np.exp(logits - lse[:, None])
    without_one_hot = np.where(is_class, np.expm1(-nll)[:, None], p)
    smoothed = without_one_hot + smoothing * (is_class - 1 / np.longdouble(cols))
    gradient = g * smoothed + g_lse * p
    gradient *= scale * (1 - np.square(bounded)) if cap else scale
    return Exact(losses, lse, gradient, logits)


def forward(x, target, options=PLAIN, reads_ignored=False):
    """The losses, and what the backward reads."""
    return ops._cross_entropy(x, target, *options, reads_ignored)


def backward(x, target, saved, grad_losses, grad_lse=None, options=PLAIN):
    """The gradient, whose bits are the same in place."""
    arguments = (target, *saved, grad_losses, grad_lse, *options)
    gradient = ops._cross_entropy_backward(x, *arguments)
    in_place = x.clone()
    ops.cross_entropy_backward_(in_place, *arguments)
    assert same_bits(in_place, gradient)
    return gradient


def whole_lse(saved):
    return wide(saved[1]) + wide(saved[2])


def relative(actual, exact):
    return (np.abs(wide(actual) - exact) / np.abs(exact)).max()


def unit_of(dtype):
    return torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps / 2


def statistics_of(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("options", OPTIONS)
def test_values_are_within_their_bounds(shape, dtype, options):
    """A sum of exponentials is off by 16 units at most: 2 of each exponential, one for each unit of
    its argument that counts, and some of the additions. A tanh is off by 3."""
    options = OPTIONS[options]
    rows, cols = shape
    x = (torch.randn(rows, cols) * 3).to(dtype)
    target = torch.randint(0, cols, (rows,))
    grads = torch.randn(2, rows).to(statistics_of(dtype))
    exact = exactly(x, target, options, *grads)
    saved = forward(x, target, options)
    unit = unit_of(dtype)
    of_logits = 4 * unit * np.abs(exact.logits).max() * (options != PLAIN)
    most = 16 * unit * np.abs(exact.losses) + 2 * of_logits
    assert (np.abs(wide(saved[0]) - exact.losses) <= most).all()
    of_lse = (
        16 * unit + of_logits + (np.abs(exact.lse).max() * unit if dtype == torch.float64 else 0)
    )
    assert (np.abs(whole_lse(saved) - exact.lse) <= of_lse).all()
    gradient = backward(x, target, saved, *grads, options)
    distance = exact.logits - exact.lse[:, None]
    of_exponential = of_lse + of_logits + (2 * unit if dtype.itemsize > 2 else 7e-6)
    is_class = np.arange(cols) == target.numpy()[:, None]
    terms = np.exp(distance) + is_class + options.label_smoothing / cols
    most = np.exp(distance) * (of_exponential + unit * np.abs(distance))
    most += terms * unit * (16 if options.softcap else 4)
    most *= np.abs(wide(grads)).sum(0)[:, None] * abs(options.scale)
    info = torch.finfo(dtype)
    most += np.maximum(np.abs(exact.gradient), info.smallest_normal) * info.eps / 2
    assert (np.abs(wide(gradient) - exact.gradient) <= most + FLUSHED).all()


@pytest.mark.parametrize("logit", [10.0, 30.0, 40.0])
@pytest.mark.parametrize("cols, place", [(10, 3), (128, 127), (5000, 4096), (70_001, 70_000)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_confident_rows_keep_their_digits(dtype, cols, place, logit):
    x = torch.randn(4, cols).to(dtype)
    x[:, place] = logit
    target, ones = torch.full((4,), place), torch.ones(4)
    exact = exactly(x, target, grad_losses=ones)
    saved = forward(x, target)
    assert relative(saved[0], exact.losses) <= 1e-6
    of_class = backward(x, target, saved, ones)[:, place]
    assert relative(of_class, exact.gradient[:, place]) <= max(1e-6, torch.finfo(dtype).eps)


@pytest.mark.parametrize("offset, step", [(1000, 2**-14), (-1_000_000, 2**-4)])
def test_a_common_offset_costs_no_digits(offset, step):
    """The logits are multiples of the float's step beside the offset."""
    x = (torch.randn(8, 3000) * 3 / step).round() * step
    target, ones = torch.randint(0, 3000, (8,)), torch.ones(8)
    options = Options(label_smoothing=0.1)
    saved, moved = forward(x, target, options), forward(x + offset, target, options)
    torch.testing.assert_close(moved[0], saved[0], rtol=5e-7, atol=0)
    exact = exactly(x + offset, target, options, ones)
    assert relative(moved[0], exact.losses) <= 1e-6
    assert np.abs(whole_lse(moved) - exact.lse).max() <= 1e-6
    gradient = backward(x + offset, target, moved, ones, None, options)
    assert np.abs(wide(gradient) - exact.gradient).max() <= 1e-6 * np.abs(exact.gradient).max()


@pytest.mark.parametrize("cols", [70, 5000])
def test_logits_may_be_as_large_as_a_float(cols):
    """log2(e) times the last one is infinite, and from 3e9 on its rounding is above 127."""
    x = torch.zeros(16, cols)
    x[:, :64] = torch.logspace(9, 38.45, 16)[:, None]
    losses, lse, _ = forward(x, torch.arange(16) % 4 + 66)
    assert losses.tolist() == lse.tolist() == x[:, 0].tolist()


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cols", [7, 70, 5000, 70_001])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_logits_that_are_equal_cancel_whatever_their_size(dtype, cols, smoothing):
    """So they are where a mask with the lowest number of the dtype hides all classes of a row."""
    largest = torch.finfo(dtype).max
    x = torch.tensor([1e3, -6e4, largest / 2, -largest], dtype=dtype)[:, None].repeat(1, cols)
    options, target = Options(label_smoothing=smoothing), torch.tensor([0, 1, 5, cols - 1])
    saved = forward(x, target, options)
    assert relative(saved[0], np.log(np.longdouble(cols))) <= 16 * unit_of(dtype)
    gradient = backward(x, target, saved, torch.ones_like(saved[0]), None, options)
    one_hot = np.arange(cols) == target.numpy()[:, None]
    exact = (1 - smoothing) * (1 / np.longdouble(cols) - one_hot)
    info = torch.finfo(dtype)
    most = np.abs(exact) * (1e-4 if dtype.itemsize == 2 else 32 * unit_of(dtype))
    most += np.maximum(np.abs(exact), info.smallest_normal) * info.eps / 2
    assert (np.abs(wide(gradient) - exact) <= most).all()


SPECIAL = {
    "all hidden": lambda x: x.fill_(-INF),
    "most hidden": lambda x: x[:, 1:].fill_(-INF),
    "class hidden": lambda x: x[:, 0].fill_(-INF),
    "head hidden": lambda x: x[:, 1:-1].fill_(-INF),
    "infinite": lambda x: x[:, -1].fill_(INF),
    "two infinite": lambda x: x[:, [1, -2]].fill_(INF),
    "class infinite": lambda x: x[:, 0].fill_(INF),
    "NaN": lambda x: x[:, -1].fill_(NAN),
    "class NaN": lambda x: x[:, 0].fill_(NAN),
    "NaN and infinite": lambda x: (x[:, 3].fill_(NAN), x[:, -1].fill_(INF)),
    "both infinite": lambda x: (x[:, 3].fill_(-INF), x[:, -1].fill_(INF)),
}


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cols", [12, 400, 5000, 70_001])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_special_values_come_out_as_in_eager_mode(kind, dtype, cols, smoothing):
    x, target = torch.randn(2, cols).to(dtype), torch.zeros(2, dtype=torch.int64)
    SPECIAL[kind](x)
    losses, lse, lse_error = forward(x, target, Options(label_smoothing=smoothing))
    eager = torch.nn.functional.cross_entropy(
        x.double(), target, reduction="none", label_smoothing=smoothing
    )
    torch.testing.assert_close(losses.double(), eager, equal_nan=True, rtol=1e-6, atol=1e-30)
    exact = torch.logsumexp(x.double(), -1)
    torch.testing.assert_close(lse.double(), exact, equal_nan=True, rtol=1e-6, atol=1e-7)
    assert (lse_error[~lse.isfinite()] == 0).all()
    gradient = backward(x, target, (losses, lse, lse_error), torch.ones_like(losses))
    assert gradient[:, 0].isnan().equal(losses.isnan())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("cols", [300, 4097, 9000, 70_001])
@pytest.mark.parametrize("step", [0.1, 30.0, 1000.0])
def test_logits_far_above_the_first_ones(dtype, cols, step):
    """Segments whose sum overflows are computed again, each with its own maximum."""
    x = torch.randn(3, cols).to(dtype)
    x[0] += torch.arange(cols) // 64 * step
    x[1, 64:] += step
    x[2, :100] -= step
    target, ones = torch.tensor([cols - 1, 70, 0]), torch.ones(3, dtype=statistics_of(dtype))
    exact = exactly(x, target, grad_losses=ones)
    saved = forward(x, target)
    assert np.allclose(wide(saved[0]), exact.losses, rtol=1e-6, atol=1e-30)
    assert np.allclose(whole_lse(saved), exact.lse, rtol=0, atol=1e-6)
    gradient = backward(x, target, saved, ones)
    assert np.abs(wide(gradient) - exact.gradient).max() <= max(1e-6, torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("rows, cols", [(5, 7), (20, 128), (3, 5000), (3, 70_001)])
def test_ignored_rows_are_not_read(dtype, rows, cols):
    x, target = torch.randn(rows, cols).to(dtype), torch.randint(0, cols, (rows,))
    for ignored in (slice(None, None, 2), slice(None)):
        target[ignored] = -100
        hidden = x.clone()
        hidden[ignored] = NAN
        results = forward(hidden, target)
        for result, of_x in zip(results, forward(x, target), strict=True):
            assert (result[ignored] == 0).all()
            assert same_bits(result, of_x)
        gradient = backward(hidden, target, results, torch.ones_like(results[0]))
        assert (gradient[ignored] == 0).all()
        assert gradient.isfinite().all()


def test_ignored_rows_that_are_read_have_an_lse_and_its_gradient():
    x, target = torch.randn(9, 300), torch.full((9,), 7)
    losses, lse, lse_error = forward(x, target, Options(ignore_index=7), reads_ignored=True)
    assert (losses == 0).all()
    assert np.abs(wide(lse) + wide(lse_error) - exactly(x, target).lse).max() <= 1e-6
    grads = torch.randn(2, 9)
    gradient = backward(x, target, (losses, lse, lse_error), *grads, Options(ignore_index=7))
    torch.testing.assert_close(gradient, grads[1, :, None] * torch.softmax(x, -1))
    counted = forward(x, target, Options(ignore_index=None))
    assert (counted[0] > 0).all()


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("rows, cols", [(40, 10), (40, 128), (11, 1000), (3, 5000), (3, 70_001)])
def test_a_row_has_the_same_bits_wherever_it_is(dtype, rows, cols):
    """Alone, in a larger batch, at another alignment, and in runs of rows."""
    x, target = torch.randn(rows, cols).to(dtype), torch.randint(0, cols, (rows,))
    ones = torch.ones(rows, dtype=statistics_of(dtype))

    def results_of(x, target, ones):
        saved = forward(x, target)
        return [*saved, ops._cross_entropy_backward(x, target, *saved, ones, None)]

    together = results_of(x, target, ones)
    for row in (0, rows // 2, rows - 1):
        memory = torch.empty(cols + 1, dtype=dtype)
        memory[1:] = x[row]
        alone = results_of(memory[None, 1:], target[row : row + 1], ones[:1])
        assert all(same_bits(a[0], b[row]) for a, b in zip(alone, together, strict=True))
    padded = torch.empty(2, rows + 1, cols, dtype=dtype)
    padded[:, :-1] = x
    runs = results_of(padded[:, :-1], target.expand(2, rows), ones.expand(2, rows))
    assert all(same_bits(a[i], b) for a, b in zip(runs, together, strict=True) for i in range(2))


@pytest.mark.parametrize("rows, cols", [(300, 128), (1, 128_256), (3, 70_001)])
def test_threads_change_no_bit(rows, cols):
    x, target = torch.randn(rows, cols), torch.randint(0, cols, (rows,))

    def results():
        saved = forward(x, target, Options(label_smoothing=0.1))
        return [*saved, backward(x, target, saved, torch.ones(rows))]

    assert_same_on_threads(results)


@pytest.mark.parametrize("wrong", [-1, 200])
def test_a_target_out_of_range_is_named(wrong):
    x, target = torch.randn(50, 200), torch.zeros(50, dtype=torch.int64)
    target[3] = wrong
    wanted = rf"row 3 is {wrong}, wanted a class in \[0, 200\)"
    with pytest.raises(RuntimeError, match=wanted):
        forward(x, target)


@pytest.mark.parametrize("cols", [200, 70_001])
def test_a_backward_takes_a_class_of_other_columns_for_none(cols):
    x, target = torch.randn(3, cols), torch.tensor([-1, cols, 2**40])
    saved, ones = forward(x, torch.zeros(3, dtype=torch.int64)), torch.ones(3)
    losses = torch.full_like(saved[0], NAN)
    gradient = backward(x, target, (losses, *saved[1:]), ones)
    torch.testing.assert_close(gradient, torch.softmax(x, -1))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_rows_without_a_gradient_are_not_read(dtype):
    x, target = torch.randn(12, 130).to(dtype), torch.randint(0, 130, (12,))
    saved = forward(x, target)
    grads = torch.randn(2, 12).to(saved[0].dtype)
    grads[:, ::3] = 0
    hidden = x.clone()
    hidden[::3] = NAN
    gradient = backward(hidden, target, saved, *grads)
    assert (gradient[::3] == 0).all()
    assert same_bits(gradient[1::3], backward(x, target, saved, *grads)[1::3])


def test_a_nan_of_any_payload_in_a_gradient_comes_out_as_one():
    """Rounded to bfloat16, a NaN of ones alone would become -0."""
    nan = torch.tensor([0x7FFFFFFF, -1], dtype=torch.int32).view(torch.float32)
    x, target = torch.randn(2, 130).bfloat16(), torch.tensor([3, 5])
    losses, lse, lse_error = forward(x, target)
    ones = torch.ones(2)
    assert backward(x, target, (losses, lse, lse_error), nan).isnan().all()
    assert backward(x, target, (losses, nan, lse_error), ones).isnan().all()
    assert backward(x, target, (losses, lse, nan), ones).isnan().all()
