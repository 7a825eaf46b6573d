"""masked_softmax against float64 and against what eager gives for hidden and special values."""

import math
from itertools import product

import bounds
import pytest
import torch
from oracle import DTYPES, assert_same_on_threads, same_bits

import fusedops
from fusedops import reference

INF, NAN = float("inf"), float("nan")
LOWEST = torch.finfo(torch.float32).min


def eager(x, mask=None, scale=1.0, diagonal=None, mask_value=-INF, bias=None):
    """A masked softmax as models compose it, in the input's dtype."""
    scores = x * scale
    if bias is not None:
        scores = scores + bias
    hidden = torch.zeros(x.shape, dtype=torch.bool)
    if diagonal is not None:
        hidden = torch.ones(x.shape, dtype=torch.bool).triu(diagonal + 1)
    if mask is not None and mask.dtype == torch.bool:
        hidden = hidden | ~mask
    elif mask is not None:
        scores = scores + mask
    return torch.softmax(scores.masked_fill(hidden, mask_value), -1)


def bound(x, **operands):
    return bounds.softmax(bounds.masked_scores(x, **operands), x.dtype)


def bools(*shape):
    """A mask that shows two columns of three, and always the first of a row."""
    visible = torch.rand(shape) < 2 / 3
    visible[..., 0] = True
    return visible


def quarters(*shape):
    """Normal numbers whose sums and products with powers of two are exact in every dtype."""
    return (torch.randn(shape) * 12).round() / 4


OPERANDS = {
    "scale": lambda x: {"scale": 0.125},
    "additive mask": lambda x: {
        "scale": 0.25,
        "mask": quarters(len(x), 1, 1, x.shape[-1]).to(x),
    },
    "padding": lambda x: {"mask": bools(len(x), 1, 1, x.shape[-1])},
    "mask of every element": lambda x: {"mask": bools(*x.shape), "scale": 2.0},
    "alibi": lambda x: {"bias": quarters(1, 3, 1, x.shape[-1]).to(x), "diagonal": 0},
    "swin": lambda x: {
        "bias": quarters(1, 3, *x.shape[-2:]).to(x),
        "mask": quarters(len(x), 1, *x.shape[-2:]).to(x),
    },
    "bias and padding": lambda x: {
        "bias": quarters(x.shape[-1]).to(x),
        "mask": bools(len(x), 1, 1, x.shape[-1]),
        "mask_value": -1e4,
    },
    "causal": lambda x: {"diagonal": 0, "scale": 0.5},
    "causal to the right": lambda x: {"diagonal": x.shape[-1] - x.shape[-2]},
    "one value a row": lambda x: {"bias": quarters(len(x), 1, x.shape[-2], 1).to(x)},
}


def ours(x, mask=None, scale=1.0, diagonal=None, mask_value=-INF, bias=None):
    causal = diagonal is not None
    op = torch.ops.fusedops.masked_softmax
    return op(x, mask, scale, causal, mask_value, bias, None, diagonal or 0)


@pytest.mark.parametrize("kind", OPERANDS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("queries, keys", [(40, 40), (33, 129), (3, 1000), (2, 9001)])
def test_errors_are_within_their_bound_and_typical(kind, dtype, queries, keys):
    torch.manual_seed(keys)
    batch = max(2, 200_000 // (3 * queries * keys))
    x = quarters(batch, 3, queries, keys).to(dtype)
    operands = OPERANDS[kind](x)
    bounds.assert_typical(ours(x, **operands), bound(x, **operands))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("scale", [0.3, 1 / math.sqrt(96), -1.7, 0.0])
def test_errors_are_typical_with_any_scale(dtype, scale):
    x, bias = (torch.randn(4, 50, 300) * 3).to(dtype), torch.randn(50, 300).to(dtype)
    operands = {"scale": scale, "bias": bias}
    bounds.assert_typical(ours(x, **operands), bound(x, **operands))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("mask_value", [-INF, "lowest", -1e4, -1e9, 0.0, 3.0])
@pytest.mark.parametrize("diagonal", [None, 0, -2, 60])
def test_hidden_columns_count_as_in_eager(dtype, mask_value, diagonal):
    """Rows that are hidden whole are NaN for a mask value of -inf, and uniform for a finite one."""
    if mask_value == "lowest":
        mask_value = max(torch.finfo(dtype).min, LOWEST)
    if dtype == torch.float16:
        mask_value = mask_value if mask_value == -INF else max(mask_value, -65504.0)
    x = (torch.randn(2, 5, 70) * 2).to(dtype)
    mask = bools(2, 5, 70)
    mask[0, 1] = False
    mask[1, :, 40:] = False
    operands = {"mask": mask, "mask_value": mask_value, "diagonal": diagonal}
    expected, actual = eager(x, **operands), ours(x, **operands)
    assert torch.equal(actual.isnan(), expected.isnan())
    bounds.assert_within(actual, bound(x, **operands))


SPECIAL = {
    "NaN": [1.0, NAN, 2.0, -INF, 0.0],
    "+inf": [1.0, INF, 2.0, -INF, 0.0],
    "all -inf": [-INF] * 5,
    "3e38": [3e38, -3e38, 0.0, 0.0, 0.0],
    "lowest": [LOWEST] * 5,
    "thousands": [1000.0, 1001.0, 1002.0, 1000.0, 1001.0],
}


@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize("mask_value", [-INF, LOWEST, -1e9])
@pytest.mark.parametrize("diagonal", [None, -1, 0, 2, 4])
@pytest.mark.parametrize("padding", [0, 40, 5000])
def test_special_scores_come_out_as_in_eager(name, mask_value, diagonal, padding):
    row = torch.tensor(SPECIAL[name] + [0.5] * padding)
    x = torch.stack([row, torch.zeros_like(row), row.roll(2)])
    operands = {"diagonal": diagonal, "mask_value": mask_value}
    expected, actual = eager(x, **operands), ours(x, **operands)
    assert torch.equal(actual.isnan(), expected.isnan())
    bounds.assert_within(actual, bound(x, **operands))


@pytest.mark.parametrize("mask_value", [-INF, -1e9])
def test_scores_that_a_bool_mask_hides_may_be_anything(mask_value):
    x = torch.randn(4, 50)
    mask = bools(4, 50)
    expected = fusedops.masked_softmax(x, mask, mask_value=mask_value)
    for value in (NAN, INF, -INF, 3e38):
        changed = torch.where(mask, x, value)
        assert same_bits(fusedops.masked_softmax(changed, mask, mask_value=mask_value), expected)


def test_additive_masks_of_the_lowest_value_hide_and_leave_hidden_rows_uniform():
    x = torch.randn(2, 8)
    mask = torch.tensor([[0.0] * 4 + [LOWEST] * 4, [LOWEST] * 8])
    y = fusedops.masked_softmax(x, mask)
    torch.testing.assert_close(y, torch.softmax(x + mask, -1))
    assert y[0, 4:].tolist() == [0] * 4 and y[1].tolist() == [0.125] * 8


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("mask_value", [-INF, -1e4])
def test_rows_without_anything_visible_are_zeros_on_request(dtype, mask_value):
    x = torch.randn(3, 4, 30).to(dtype)
    x[2, 0] = -INF
    x[2, 1, 3] = x[2, 2, 0] = NAN  # the second is visible
    mask = bools(3, 4, 30)
    mask[0, 1] = False
    options = {"mask_value": mask_value, "causal": True}
    as_eager = fusedops.masked_softmax(x, mask, **options)
    y = fusedops.masked_softmax(x, mask, **options, masked_rows="zero")
    nothing = ((x == -INF) | ~(mask & torch.ones(4, 30).tril().bool())).all(-1)
    assert nothing.sum() >= 2 and (y[nothing] == 0).all()
    assert same_bits(y[~nothing], as_eager[~nothing])
    assert y[2, 3].isnan().any() == x[2, 3].isnan().any()


BROADCASTS = [(), (1,), (9,), (4, 9), (4, 1), (3, 1, 9), (3, 1, 1), (2, 1, 4, 1), (2, 3, 4, 9)]


@pytest.mark.parametrize("shape", BROADCASTS)
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_broadcast_mask_gives_what_the_expanded_mask_gives(shape, dtype, x_dtype):
    x = torch.randn(2, 3, 4, 9).to(x_dtype)
    mask = torch.rand(shape) < 0.7 if dtype == torch.bool else torch.randn(shape).to(dtype)
    expanded = mask.expand(x.shape).contiguous()
    assert same_bits(fusedops.masked_softmax(x, mask), fusedops.masked_softmax(x, expanded))
    if dtype != torch.bool:
        actual = fusedops.masked_softmax(x, bias=mask, causal=True)
        assert same_bits(actual, fusedops.masked_softmax(x, bias=expanded, causal=True))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("hidden", [-INF, -3.3e38, -1e4, -8192.0])
@pytest.mark.parametrize("keys", [40, 129, 500, 5000])
def test_a_shared_padding_mask_gives_the_bits_of_one_for_each_row(dtype, hidden, keys):
    """The columns that it hides are skipped, unless one has a score that may count."""
    ranges = [(0, keys), (0, keys - 1), (0, keys // 2), (3, keys), (keys // 2, keys - 7), (0, 0)]
    for (begin, end), scale in product(ranges, (1.0, -0.5)):
        x = torch.randn(2, 16, keys).to(dtype)
        mask = torch.full((2, 1, keys), hidden).to(dtype)
        mask[..., begin:end] = 0
        for score in (0.0, 8080.0, 9e3, -3e4, INF, -INF, NAN):
            x[1, 5, -1] = x[0, 9, 0] = score
            shared = fusedops.masked_softmax(x, mask, scale=scale)
            each = fusedops.masked_softmax(x, mask.expand(x.shape).contiguous(), scale=scale)
            assert same_bits(shared, each)


def test_masks_that_broadcast_over_every_other_dimension_are_right():
    x = torch.randn(2, 3, 2, 3, 2, 3, 8)
    mask = bools(2, 1, 2, 1, 2, 1, 8)
    bias = torch.randn(3, 1, 3, 1, 3, 1)
    torch.testing.assert_close(
        fusedops.masked_softmax(x, mask, bias=bias).double(),
        reference.masked_softmax(x, mask, bias=bias),
        rtol=1e-5,
        atol=1e-7,
    )


def test_masks_may_have_any_strides():
    x = torch.randn(2, 3, 16, 7)
    for mask in (
        torch.randn(2, 3, 7, 16).transpose(2, 3),
        torch.randn(3, 2, 16, 7).transpose(0, 1),
        torch.randn(22).unfold(0, 7, 1),
        torch.randn(2, 1, 1, 14)[..., ::2],
        torch.randn(29)[1:29].view(4, 7)[:1],
    ):
        for name in ("mask", "bias"):
            actual = fusedops.masked_softmax(x, **{name: mask})
            assert same_bits(actual, fusedops.masked_softmax(x, **{name: mask.contiguous()}))


@pytest.mark.parametrize("queries, keys", [(6, 6), (3, 8), (8, 3), (1, 9), (9, 1)])
@pytest.mark.parametrize("causal", ["top_left", "bottom_right"])
def test_causality_aligns_to_either_corner(queries, keys, causal):
    x = torch.randn(2, queries, keys)
    diagonal = keys - queries if causal == "bottom_right" else 0
    expected = reference.masked_softmax(x, diagonal=diagonal).float()
    torch.testing.assert_close(fusedops.masked_softmax(x, causal=causal), expected, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cols", [5, 64, 100, 129, 700, 5000])
def test_a_bool_mask_gives_the_bits_of_minus_infinity_added(dtype, cols):
    """The bool mask leaves out what the addition computes."""
    torch.manual_seed(cols)
    x = (torch.randn(60, cols) * 3).to(dtype)
    end = torch.randint(1, cols + 1, (60, 1))
    for mask in (
        torch.arange(cols) < end,
        (torch.arange(cols) < end) & bools(60, cols),
        torch.arange(cols) >= cols - end,
        bools(cols),
        torch.arange(cols) < end[0],
    ):
        added = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, -INF)
        assert same_bits(fusedops.masked_softmax(x, mask), fusedops.masked_softmax(x, added))


def test_scores_that_causality_hides_are_not_read():
    x = torch.randn(3, 400, 400)
    expected = fusedops.masked_softmax(x, causal=True)
    hidden = torch.ones(400, 400, dtype=torch.bool).triu(1)
    for value in (NAN, INF):
        assert same_bits(
            fusedops.masked_softmax(x.masked_fill(hidden, value), causal=True), expected
        )


@pytest.mark.parametrize("source", [torch.bfloat16, torch.float16, torch.int32, torch.float32])
@pytest.mark.parametrize("target", [torch.float32, torch.float64, torch.bfloat16])
def test_dtype_argument_converts_before_anything_is_computed(source, target):
    x = (torch.randn(2, 20, 333) * 4).to(source)
    y = fusedops.masked_softmax(x, scale=0.3, causal=True, dtype=target)
    wide = x.to(target)
    assert y.dtype == target
    bounds.assert_typical(y, bound(wide, scale=0.3, diagonal=0))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_a_row_alone_and_in_a_batch_has_equal_bits(dtype):
    """Whether the product with the scale is rounded before the sum depends on no loop."""
    for keys, has_mask in product([1, 33, 63, 512, 1000, 5000], [False, True]):
        x = (20 * torch.randn(37, keys)).to(dtype)
        bias = torch.randn(keys).to(dtype)
        masks = bools(37, keys) if has_mask else None
        batch = fusedops.masked_softmax(x, masks, bias=bias, scale=0.3)
        for row in (0, 5, 11, 30, 36):
            one = slice(row, row + 1)
            own = None if masks is None else masks[one]
            alone = fusedops.masked_softmax(x[one], own, bias=bias, scale=0.3)
            assert same_bits(batch[one], alone)


def test_the_number_of_threads_changes_no_bit():
    x, mask = torch.randn(6, 100, 300), bools(6, 1, 300)
    assert_same_on_threads(lambda: [fusedops.masked_softmax(x, mask, causal=True)])


LAYOUTS = {
    "row slice": lambda x: x[..., 3:70],
    "misaligned": lambda x: x.flatten()[1 : 1 + 8 * 45].view(2, 4, 45),
    "fewer queries": lambda x: x[:, :3],
    "transposed": lambda x: x.transpose(1, 2),
    "expanded": lambda x: x[:1].expand(3, -1, -1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_layout_of_the_scores(layout, dtype):
    x = LAYOUTS[layout](torch.randn(2, 8, 90).to(dtype))
    mask = bools(x.shape[-1])
    y = fusedops.masked_softmax(x, mask, causal=True)
    assert y.is_contiguous()
    expected = fusedops.masked_softmax(x.contiguous(), mask, causal=True)
    torch.testing.assert_close(y, expected)


@pytest.mark.parametrize("shape", [(0, 4, 5), (2, 0, 5), (2, 4, 0), (0,)])
def test_empty_scores(shape):
    x = torch.randn(shape)
    causal = len(shape) > 1
    for y in (
        fusedops.masked_softmax(x, causal=causal),
        fusedops.masked_softmax_dropout(x, causal=causal),
    ):
        assert y.shape == shape


def test_options_have_the_spelled_out_defaults():
    x = torch.randn(2, 3, 5)
    torch.testing.assert_close(fusedops.masked_softmax(x), torch.softmax(x, -1))
    explicit = fusedops.masked_softmax(
        x, None, scale=1.0, causal=False, mask_value=-math.inf, masked_rows="nan"
    )
    assert same_bits(fusedops.masked_softmax(x), explicit)


def test_no_mask_value_is_minus_infinity():
    x, mask, ops = torch.randn(3, 5), torch.rand(3, 5) < 0.5, torch.ops.fusedops
    dropout = 0.5, torch.tensor(3)
    for op, more in ((ops._masked_softmax, ()), (ops._masked_softmax_dropout, dropout)):
        assert same_bits(*(op(x, mask, 1.0, True, value, *more) for value in (None, -INF)))
