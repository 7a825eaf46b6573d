"""A row has the same bits alone and in any batch, for any number of threads, at every call.

So it has through out=, in place, in a stack, and with or without a derivative formula.
"""

import contextlib
import dataclasses

import drawn
import fuzzing
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fusedops

#: Functions of rows along the last dimension. A scale is no power of 2, so that it matters whether
#: its product is rounded before the next step.
BY_ROWS = {
    "softmax": lambda x, w: [fusedops.softmax(x, -1)],
    "log_softmax": lambda x, w: [fusedops.log_softmax(x, -1)],
    "softmax_": lambda x, w: [fusedops.softmax_(x.clone(), -1)],
    "softmax_stats": lambda x, w: fusedops.softmax_stats(x, -1),
    "masked_softmax": lambda x, w: [fusedops.masked_softmax(x, w > 0, scale=0.3)],
    "added_softmax": lambda x, w: [fusedops.masked_softmax(x, w, scale=0.3)],
    "capped_softmax": lambda x, w: [fusedops.masked_softmax(x, w > 0, scale=3.0, softcap=2.0)],
    "biased_softmax": lambda x, w: [fusedops.masked_softmax(x, w, bias=w, scale=0.3)],
    "bounded_softmax": lambda x, w: [
        fusedops.masked_softmax(x, start=torch.tensor(len(w) // 3), sinks=0.5, masked_rows="zero")
    ],
    "layer_norm": lambda x, w: [fusedops.layer_norm(x, w.shape, w, w)],
    "std_norm": lambda x, w: [fusedops.std_norm(x, w.shape, w, w)],
    "rms_norm": lambda x, w: [fusedops.rms_norm(x, w.shape, w)],
    "llama_norm": lambda x, w: [fusedops.rms_norm(x, w.shape, w, variant="llama")],
    "add_layer_norm": lambda x, w: fusedops.add_layer_norm(x, x, w.shape, w, w),
    "add_rms_norm": lambda x, w: fusedops.add_rms_norm(x, x, w.shape, w),
    "cross_entropy": lambda x, w: [_losses(x, label_smoothing=0.1)[..., None]],
    "gradient of cross_entropy": lambda x, w: _gradients(_losses(x), x),
    "gradient of softmax": lambda x, w: _gradients(fusedops.softmax(x, -1), x),
    "gradient of log_softmax": lambda x, w: _gradients(fusedops.log_softmax(x, -1), x),
    "gradient of masked_softmax": lambda x, w: _gradients(
        fusedops.masked_softmax(x, w, scale=0.3), x
    ),
    "gradient of layer_norm": lambda x, w: _gradients(fusedops.layer_norm(x, w.shape, w), x),
    "gradient of std_norm": lambda x, w: _gradients(fusedops.std_norm(x, w.shape, w), x),
    "gradient of rms_norm": lambda x, w: _gradients(fusedops.rms_norm(x, w.shape, w), x),
    "gradient of add_layer_norm": lambda x, w: _gradients(
        sum(fusedops.add_layer_norm(x, x * 2, w.shape, w)), x
    ),
    "gradient of add_rms_norm": lambda x, w: _gradients(
        sum(fusedops.add_rms_norm(x, x * 2, w.shape, w)), x
    ),
}
OF_LEAVES = tuple(name for name in BY_ROWS if name.startswith("gradient"))
SOFTMAXES = ("softmax", "log_softmax")


def _losses(x, **options):
    target = torch.tensor(x.shape[-1] // 2).expand(x.shape[:-1])
    return fusedops.cross_entropy(x, target, dim=-1, reduction="none", **options)


def _gradients(result, *leaves):
    return torch.autograd.grad(result, leaves, result.detach().sin())


def _run(name, x, w):
    """The function of rows; its results keep the rows of x."""
    x = x.detach().requires_grad_(name in OF_LEAVES)
    return [result.detach() for result in BY_ROWS[name](x, w)]


def _weight(given, columns):
    return drawn.Drawn(given.dtype, (columns,), seed=given.seed ^ 7).tensor()


def assert_same_bits(actual, expected, what=""):
    """Equal in every bit, except for the bits of a NaN, which are unspecified."""
    assert actual.dtype == expected.dtype and actual.shape == expected.shape, what
    integers = drawn.INTEGERS[actual.dtype]
    one, other = (
        t.masked_fill(t.isnan(), 0).contiguous().view(integers) for t in (actual, expected)
    )
    same = (one == other) & (actual.isnan() == expected.isnan())
    assert same.all(), f"{what}: {(~same).sum()} of {same.numel()} differ, {actual} {expected}"


@contextlib.contextmanager
def threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


#: Rows that threads share, beside those of any length.
OF_ANY_LENGTH = drawn.shapes() | drawn.shapes(drawn.LONG) | drawn.shapes((65_537, 70_001))


@pytest.mark.parametrize("op", BY_ROWS)
@settings(max_examples=fuzzing.examples(100))
@given(drawn.tensors(shape=OF_ANY_LENGTH), st.integers(0, 2**16))
def test_a_row_alone_has_the_bits_that_it_has_in_a_batch(op, given, which):
    x = given.tensor()
    x = x.unsqueeze(0) if x.dim() == 1 else x
    w = _weight(given, x.shape[-1])
    row = which % max(1, x[..., 0].numel())
    in_batch = [result.reshape(-1, result.shape[-1])[row] for result in _run(op, x, w)]
    rows = x.reshape(-1, x.shape[-1])
    for alone in (rows[row], rows[row : row + 1], rows[row].expand(3, -1), rows[row:]):
        for result, expected in zip(_run(op, alone, w), in_batch, strict=True):
            assert_same_bits(result.reshape(-1, result.shape[-1])[0], expected, alone.shape)


@given(st.sampled_from(SOFTMAXES), drawn.tensors(), drawn.DIMS, st.integers(0, 2**16))
def test_a_row_over_any_dimension_has_the_bits_that_it_has_alone(op, given, dim, which):
    x, function = given.tensor(), getattr(fusedops, op)
    dim = dim % x.dim()
    rows = x.movedim(dim, -1).reshape(-1, x.shape[dim])
    results = function(x, dim).movedim(dim, -1).reshape(rows.shape)
    index = which % max(1, len(rows))
    for alone in (rows[index], rows[index : index + 1]):
        assert_same_bits(function(alone, -1).reshape(-1), results[index], "as a row")
    column = rows[index].unsqueeze(-1)
    assert_same_bits(function(column, 0)[:, 0], results[index], "as a column")
    assert_same_bits(function(column.repeat(1, 2), 0)[:, 1], results[index], "as two columns")


#: Enough elements for every thread: rows of one element, long rows that threads share, and three
#: dimensions.
LARGE = st.sampled_from(
    (
        (200_000, 1),
        (30_000, 3),
        (9_000, 16),
        (700, 129),
        (65, 2_000),
        (3, 40_000),
        (2, 65_537),
        (1, 150_001),
        (3, 100, 300),
        (40, 5, 700),
    )
)


@pytest.mark.parametrize("op", BY_ROWS)
@settings(max_examples=fuzzing.examples(25))
@given(
    drawn.tensors(shape=LARGE, layouts=("contiguous", "columns", "rows")),
    st.integers(2, 3),
)
def test_threads_and_repetitions_do_not_change_a_bit(op, given, count):
    x = given.tensor()
    w = _weight(given, x.shape[-1])
    with threads(1):
        expected = _run(op, x, w)
    for number in (count, count, 1):
        with threads(number):
            results = _run(op, x, w)
        for result, wanted in zip(results, expected, strict=True):
            assert_same_bits(result, wanted, f"{number} threads")


NORMS = {
    "layer_norm": lambda x, w, b: fusedops.layer_norm(x, w.shape, w, b),
    "std_norm": lambda x, w, b: fusedops.std_norm(x, w.shape, w, b),
    "rms_norm": lambda x, w, b: fusedops.rms_norm(x, w.shape, w),
    "add_layer_norm": lambda x, w, b: fusedops.add_layer_norm(x, x.detach(), w.shape, w, b)[0],
    "add_rms_norm": lambda x, w, b: fusedops.add_rms_norm(x, x.detach(), w.shape, w)[0],
    "stack_layer_norm": lambda x, w, b: fusedops.stack_layer_norm([x, x], w.shape, [w, w], [b, b]),
}


@pytest.mark.parametrize("op", NORMS)
@settings(max_examples=fuzzing.examples(25))
@given(
    drawn.tensors(shape=LARGE, layouts=("contiguous",), specials=()),
    st.integers(2, 3),
)
def test_threads_do_not_change_a_bit_of_a_parameters_gradient(op, given, count):
    x = given.tensor()
    w, b = (_weight(given, x.shape[-1]).requires_grad_() for _ in range(2))
    gradients = []
    for number in (1, count):
        with threads(number):
            leaves = [x.detach().requires_grad_(), w] + [b] * ("rms" not in op)
            gradients.append(_gradients(NORMS[op](leaves[0], w, b), *leaves))
    for one, other in zip(*gradients, strict=True):
        assert_same_bits(one, other, f"{count} threads")


@given(
    st.sampled_from((*SOFTMAXES, "masked_softmax")),
    drawn.tensors(),
    st.sampled_from(drawn.LAYOUTS[:5]),
)
def test_out_and_in_place_have_the_bits_of_the_function(op, given, layout):
    x, function = given.tensor(), getattr(fusedops, op)
    arguments = () if op == "masked_softmax" else (-1,)
    expected = function(x, *arguments)
    out = dataclasses.replace(given, seed=given.seed ^ 1, layout=layout).tensor()
    assert function(x, *arguments, out=out) is out
    assert_same_bits(out, expected, "out=")
    own = x.clone(memory_format=torch.preserve_format)
    assert_same_bits(function(own, *arguments, out=own), expected, "out=input")
    if op == "softmax":
        copy = x.clone(memory_format=torch.preserve_format)
        assert fusedops.softmax_(copy, -1) is copy
        assert_same_bits(copy, expected, "softmax_")
    for leaf in (x.detach().requires_grad_(), x.detach().as_subclass(torch.nn.Buffer)):
        assert_same_bits(function(leaf, *arguments).detach().as_subclass(torch.Tensor), expected)


@given(
    st.sampled_from(("stack_softmax", "stack_log_softmax", "stack_layer_norm")),
    drawn.tensors(shape=drawn.shapes().filter(lambda shape: len(shape) < 4)),
    st.lists(st.sampled_from(drawn.LAYOUTS), min_size=1, max_size=4),
    st.integers(0, 3),
)
def test_a_stack_has_the_bits_and_gradients_of_its_singles(op, given, layouts, stack_dim):
    stack_dim = stack_dim % (len(given.shape) + 1)
    inputs = [
        dataclasses.replace(given, seed=given.seed ^ n, layout=layout).tensor().requires_grad_()
        for n, layout in enumerate(layouts)
    ]
    if op == "stack_layer_norm":
        shape = given.shape[-1:]
        w = [_weight(given, *shape).mul_(n + 1).requires_grad_() for n in range(len(inputs))]
        stack = fusedops.stack_layer_norm(inputs, shape, w, w, stack_dim=stack_dim)
        singles = [fusedops.layer_norm(x, shape, v, v) for x, v in zip(inputs, w, strict=True)]
        leaves = [*inputs, *w]
    else:
        stack = getattr(fusedops, op)(inputs, -1, stack_dim)
        singles = [getattr(fusedops, op.removeprefix("stack_"))(x, -1) for x in inputs]
        leaves = inputs
    expected = torch.stack(singles, stack_dim)
    assert_same_bits(stack.detach(), expected.detach(), "the stack")
    ours, theirs = _gradients(stack, *leaves), _gradients(expected, *leaves)
    for leaf, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        assert_same_bits(one, other, f"the gradient of leaf {leaf}")
