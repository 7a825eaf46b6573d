"""Quotients of exponentials that have a sink beside their sum, a maximum that is guarded against
-inf, or columns that are hidden after exp: each is one masked_softmax, with eager's values,
gradients, dtype and strides, also where whole rows are hidden."""

import math

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_becomes, rewritten_alike
from test_rewrite_softmax_decomposed import ADDED, NO_MAXIMUM
from test_rewrite_softmax_decomposed import OTHER_MAXIMUM as OTHER

from fusedops import reference

ROWS, COLS = 4, 6


@pytest.fixture
def scores():
    return torch.randn(2, 3, ROWS, COLS, dtype=torch.float64, requires_grad=True)


@pytest.fixture
def keep():
    """A row that sees nothing, one that sees a column, and some that see more."""
    visible = torch.randn(2, 1, ROWS, COLS) > 0
    visible[0, 0, 0] = False
    visible[0, 0, 1] = torch.arange(COLS) == 2
    visible[1, :, :, 0] = True
    return visible


def _maximum(s):
    return s.amax(-1, keepdim=True)


def _total(e):
    return e.sum(-1, keepdim=True)


# --- sinks ----------------------------------------------------------------------------------------


def _with_maximum(s):
    m = _maximum(s)
    e = torch.exp(s - m)
    return e / (torch.exp(-m) + _total(e))


def _with_zero_in_the_maximum(s):
    m = _maximum(s).clamp(min=0)
    e = torch.exp(s - m)
    return e / (_total(e) + torch.exp(-m))


def _with_relu(s):
    m = torch.relu(s.max(-1, keepdim=True).values)
    e = (s - m).exp()
    return e * (_total(e) + (-m).exp()).reciprocal()


def _after_scale_and_mask(s):
    s = (s * 0.5).masked_fill(torch.ones(ROWS, COLS).triu(1).bool(), -math.inf)
    return _with_maximum(s)


@pytest.mark.parametrize(
    "form", [_with_maximum, _with_zero_in_the_maximum, _with_relu, _after_scale_and_mask]
)
def test_one_more_in_the_sum_is_a_sink_of_0(rewrite, scores, form):
    assert_becomes(rewrite, form, [scores], {"masked_softmax": 1})


def test_a_sink_is_added_for_the_largest_and_the_least_scores_too(rewrite_dynamo):
    s = torch.tensor([[-300.0, -280.0], [80.0, 0.0], [300.0, 299.0], [-1.0, -2.0]])
    ours = rewrite_dynamo(_with_maximum, s).call(s)
    exact = reference.masked_softmax(s, sinks=torch.zeros(4))
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-12)


def _learned(s, sinks):
    sink = sinks.reshape(1, -1, 1, 1)
    m = torch.maximum(_maximum(s), sink)
    e = torch.exp(s - m)
    return e / (_total(e) + torch.exp(sink - m))


def _learned_expanded(s, sinks):
    sink = sinks[None, :, None, None].expand(2, 3, ROWS, 1)
    m = _maximum(s)
    e = torch.exp(s - m)
    return e / (torch.exp(sink - m) + _total(e))


@pytest.mark.parametrize("form", [_learned, _learned_expanded])
def test_a_learned_sink_has_its_gradient(rewrite, scores, form):
    sinks = torch.randn(3, dtype=torch.float64, requires_grad=True)
    rewritten = rewritten_alike(rewrite, form, [scores, sinks])
    assert rewritten.replaced == {"masked_softmax_sinks": 1} and rewritten.reasons == []


def _number(s, sink):
    m = _maximum(s)
    e = torch.exp(s - m)
    return e / (_total(e) + torch.exp(sink - m))


def _number_in_the_maximum(s, sink):
    m = torch.maximum(_maximum(s), torch.full_like(s[..., :1], 0.1))
    e = torch.exp(s - m)
    return e / (_total(e) + torch.exp(0.1 - m))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", [_number, _number_in_the_maximum])
def test_a_number_may_be_a_sink(rewrite_dynamo, scores, form, dtype):
    def with_number(s):
        return form(s, 1.5)

    assert_becomes(rewrite_dynamo, with_number, [scores.to(dtype)], {"masked_softmax": 1})


@pytest.mark.parametrize("entry, options", [("dynamo", {"dynamic": True}), ("symbolic_trace", {})])
def test_a_number_that_is_an_input_may_be_a_sink(entries, entry, options, scores):
    rewritten = entries[entry](_number, scores.detach(), 1.5, **options)
    for sink in (1.5, 2.5):
        torch.testing.assert_close(rewritten.call(scores, sink), _number(scores, sink))


def test_a_number_that_the_graph_computes_is_no_maximum(rewrite_dynamo, scores):
    def form(s, number):
        e = torch.exp(s - number * 2)
        return e / _total(e)

    rewritten = rewrite_dynamo(form, scores.detach(), 1.5, dynamic=True)
    assert rewritten.reasons == [OTHER]
    torch.testing.assert_close(rewritten.call(scores, 1.5), form(scores, 1.5))


# --- rows of -inf ---------------------------------------------------------------------------------


def _guarded(guard, divisor=_total):
    def form(s, keep):
        s = s.masked_fill(~keep, -math.inf)
        e = torch.exp(s - guard(_maximum(s)))
        return e / divisor(e)

    return form


def _finite_or_zero(m):
    return torch.where(torch.isfinite(m), m, torch.zeros_like(m))


GUARDED = {
    "where": _guarded(_finite_or_zero),
    "where, reversed": _guarded(lambda m: torch.where(m == -math.inf, 0.0, m)),
    "masked_fill": _guarded(lambda m: m.masked_fill(m.isinf(), 0)),
    "masked_fill, negated": _guarded(lambda m: m.masked_fill(~torch.isfinite(m), 0.0)),
    "nan_to_num": _guarded(lambda m: m.nan_to_num(neginf=0.0)),
    "nan_to_num, by position": _guarded(lambda m: torch.nan_to_num(m, 0.0, None, 0.0)),
    "nan_to_num, by the lowest number": _guarded(torch.nan_to_num),
    "lowest number": _guarded(lambda m: m.clamp(min=torch.finfo(torch.float64).min)),
    "zeros, by a limit": _guarded(_finite_or_zero, lambda e: _total(e).clamp(min=1e-20)),
    "zeros, by an eps": _guarded(
        lambda m: m.masked_fill(m == -math.inf, 0), lambda e: _total(e) + 1e-20
    ),
    "_safe_softmax": lambda s, keep: torch.ops.aten._safe_softmax(
        s.masked_fill(~keep, -math.inf), -1
    ),
}


@pytest.mark.parametrize("name", GUARDED)
def test_a_guard_against_rows_of_infinities_keeps_what_becomes_of_them(rewrite, scores, keep, name):
    assert_becomes(rewrite, GUARDED[name], [scores, keep], {"masked_softmax": 1})
    hidden = GUARDED[name](scores, keep)[0, :, 0]
    assert hidden.eq(0).all() if "zero" in name or "safe" in name else hidden.isnan().all()


NO_GUARDS = {
    "two limits": lambda m: m.clamp(torch.finfo(torch.float64).min, 0.5),
    "the reverse": lambda m: torch.where(torch.isfinite(m), 0.0, m),
    "a test for NaN, which -inf is not": lambda m: torch.where(m.isnan(), 0.0, m),
    "an infinity": lambda m: torch.where(torch.isfinite(m), m, -math.inf),
    "nan_to_num by an infinity": lambda m: m.nan_to_num(neginf=-math.inf),
    "nan_to_num of inf alone": lambda m: torch.nan_to_num(m, 0.0, 0.0, -math.inf),
    "another tensor's": lambda m: torch.where(torch.isfinite(m + 1), m, 0.0),
    "another number": lambda m: m.masked_fill(m == 0.5, 0.0),
}


@pytest.mark.parametrize("name", NO_GUARDS)
def test_what_looks_like_a_guard_is_not_taken_for_one(rewrite_dynamo, scores, keep, name):
    form = _guarded(NO_GUARDS[name], lambda e: _total(e).clamp(min=1e-20))
    assert_becomes(rewrite_dynamo, form, [scores, keep], {}, [OTHER])


def test_a_hidden_row_beside_a_sink_is_zeros_where_eagers_maximum_has_no_guard(rewrite_dynamo):
    s = torch.tensor([[0.0, 1.0], [-math.inf, -math.inf]])
    assert _with_maximum(s)[1].isnan().all()
    assert rewrite_dynamo(_with_maximum, s).call(s)[1].eq(0).all()


@pytest.mark.parametrize("guard", [_finite_or_zero, torch.nan_to_num])
def test_a_row_with_inf_is_nan_where_eagers_guard_replaces_its_maximum(rewrite_dynamo, guard):
    s, keep = torch.tensor([[0.0, math.inf]]), torch.ones(1, 2, dtype=torch.bool)
    assert _guarded(guard)(s, keep).isnan().tolist() == [[False, True]]
    assert rewrite_dynamo(_guarded(guard), s, keep).call(s, keep).isnan().all()


def _limited(s, keep):
    e = torch.exp(s - _finite_or_zero(_maximum(s)))
    return e / _total(e).clamp(min=1e-20)


def _safe(s, keep):
    return torch.ops.aten._safe_softmax(s, -1)


def _safe_with_numbers(s, keep):
    return _safe(s * 0.5 + torch.where(keep, s, -math.inf), keep)


def _safe_with_a_lowest_number(s, keep):
    return _safe(s + torch.where(keep, 0.0, -1e9), keep)


def _zeroed_where_all_are_infinite(s, keep):
    masked = s.masked_fill(~keep, -math.inf)
    return masked.softmax(-1).masked_fill((masked == -math.inf).all(-1, True), 0)


def _as_export_decomposes_it(s, keep):
    masked = s + torch.where(keep, s, -math.inf)
    p = masked.softmax(-1)
    visible = torch.any(torch.logical_not(masked == -math.inf), -1, keepdim=True)
    return torch.where(torch.logical_not(visible), torch.zeros_like(p), p)


#: Forms that become zeros after the softmax, so that eager's gradients of such rows are NaN.
ZEROED = [_zeroed_where_all_are_infinite, _as_export_decomposes_it]
SAFE = [_limited, _safe, _safe_with_numbers, _safe_with_a_lowest_number]


@pytest.mark.parametrize("form", [*SAFE, *ZEROED])
def test_rows_of_infinities_are_zeros_whatever_makes_them(rewrite, keep, form):
    s = torch.randn(2, 1, ROWS, COLS, dtype=torch.float64)
    s[1, 0, 0] = -math.inf
    s.requires_grad_(form in SAFE)
    rewritten = assert_becomes(rewrite, form, [s, keep], {"masked_softmax": 1})
    y = rewritten.call(s.requires_grad_(), keep)
    assert y[1, 0, 0].eq(0).all()
    (gradient,) = torch.autograd.grad(y.square().sum(), s)
    assert gradient[1, 0, 0].eq(0).all()


ZEROES = (
    "gives zeros, not NaN, where a whole row is -inf; only masked_softmax does so, over the last "
    "dimension, and where hidden columns are -inf too"
)


def _zeroed_where_any_is_infinite(s, keep):
    masked = s.masked_fill(~keep, -math.inf)
    return masked.softmax(-1).masked_fill((masked == -math.inf).any(-1, True), 0)


def _zeroed_by_another_dimension(s, keep):
    masked = s.masked_fill(~keep, -math.inf)
    return masked.softmax(-1).masked_fill((masked == -math.inf).all(-2, True), 0)


@pytest.mark.parametrize("form", [_zeroed_where_any_is_infinite, _zeroed_by_another_dimension])
def test_rows_that_are_zeroed_for_another_reason_are_not_the_ops(rewrite_dynamo, form):
    s, keep = torch.randn(2, 1, ROWS, COLS), torch.rand(2, 1, ROWS, COLS) > 0.1
    assert_becomes(rewrite_dynamo, form, [s, keep], {"softmax": 1})


NOT_SAFE = {
    "a number": lambda s, keep: _safe(s.masked_fill(~keep, -1e9), keep),
    "another dimension": lambda s, keep: torch.ops.aten._safe_softmax(s, -2),
}


@pytest.mark.parametrize("form", NOT_SAFE.values(), ids=NOT_SAFE)
def test_a_hidden_row_that_no_op_turns_into_zeros_is_left(rewrite, scores, keep, form):
    assert_becomes(rewrite, form, [scores, keep], {}, [ZEROES])


# --- columns that are hidden before and after the softmax -----------------------------------------


def _espnet(s, keep):
    p = s.masked_fill(keep.eq(0), torch.finfo(torch.float64).min).softmax(-1)
    return F.dropout(p.masked_fill(keep.eq(0), 0.0), 1e-30)


def _by_where(s, keep):
    p = torch.where(keep, s * 0.5, -1e4).softmax(-1)
    return F.dropout(torch.where(keep, p, 0.0), 1e-30)


@pytest.mark.parametrize("form", [_espnet, _by_where])
def test_a_second_mask_that_zeroes_what_the_first_hides_is_part_of_the_op(
    rewrite, scores, keep, form
):
    assert form(scores, keep)[0, :, 0].eq(0).all()
    rewritten = assert_becomes(rewrite, form, [scores, keep], {"masked_softmax_dropout": 1})
    assert all("zero_masked_rows=True" in call for call in rewritten.calls)


def _written_between(s, keep):
    keep = keep.clone()
    p = s.masked_fill(~keep, -1e9).softmax(-1)
    keep[0].logical_not_()
    return p.masked_fill(~keep, 0.0)


OTHER_ZEROS = {
    "a mask that is written between": _written_between,
    "another mask": lambda s, keep: s.masked_fill(~keep, -1e9).softmax(-1).masked_fill(s < 0, 0.0),
    "another number": lambda s, keep: s.masked_fill(~keep, -1e9).softmax(-1).masked_fill(~keep, 1),
    "the reverse": lambda s, keep: torch.where(keep, 0.0, torch.where(keep, s, -1e9).softmax(-1)),
    "one of two masks": lambda s, keep: (
        s.masked_fill(keep[:1], -1e9).masked_fill(~keep, -1e9).softmax(-1).masked_fill(~keep, 0.0)
    ),
}


@pytest.mark.parametrize("form", OTHER_ZEROS.values(), ids=OTHER_ZEROS)
def test_other_fillings_of_the_result_stay(rewrite_dynamo, scores, keep, form):
    rewritten = assert_becomes(rewrite_dynamo, form, [scores, keep], {"masked_softmax": 1})
    assert not any("zero_masked_rows" in call for call in rewritten.calls)


# --- columns that are hidden after exp ------------------------------------------------------------


def _hidden(hide, maximum=lambda s, keep: _maximum(s), divisor=_total):
    def form(s, keep):
        keep = keep | (torch.arange(COLS) == 1)
        e = hide(torch.exp(s - maximum(s, keep)), keep)
        return e / divisor(e)

    return form


def _maximum_of_visible(s, keep):
    return torch.where(keep, s, -math.inf).amax(-1, keepdim=True)


HIDDEN = {
    "times a mask": _hidden(lambda e, keep: e * keep),
    "times a cast mask": _hidden(lambda e, keep: keep.to(e.dtype) * e),
    "masked_fill": _hidden(lambda e, keep: e.masked_fill(~keep, 0)),
    "where": _hidden(lambda e, keep: torch.where(keep, e, 0.0)),
    "where, and in the maximum": _hidden(
        lambda e, keep: torch.where(keep, e, 0.0), _maximum_of_visible, lambda e: _total(e) + 1e-20
    ),
}


@pytest.mark.parametrize("form", HIDDEN.values(), ids=HIDDEN)
def test_columns_that_are_hidden_after_exp_are_a_mask(rewrite, scores, keep, form):
    assert_becomes(rewrite, form, [scores, keep], {"masked_softmax": 1})


def test_a_limit_makes_hidden_rows_zeros_where_the_maximum_is_that_of_the_visible_columns(
    rewrite, scores, keep
):
    def form(s, keep):
        e = torch.where(keep, torch.exp(s - _maximum_of_visible(s, keep)), 0.0)
        return e / _total(e).clamp(min=1e-9)

    assert_becomes(rewrite, form, [scores.detach(), keep], {"masked_softmax": 1})
    assert form(scores, keep)[0, :, 0].eq(0).all()


# --- what stays -----------------------------------------------------------------------------------

NOT_MASKED = "only masked_softmax has sinks and masks, over the last dimension"


def _quotient(s, divisor, dim=-1):
    e = torch.exp(s - s.amax(dim, keepdim=True))
    return e / divisor(e, s.amax(dim, keepdim=True))


def _divided(e, dim=-1, eps=None):
    total = e.sum(dim, keepdim=True)
    return e / (total if eps is None else total + eps)


STAYS = {
    "without maximum": (lambda s, k: s.exp() / (1 + _total(s.exp())), NO_MAXIMUM),
    "another term": (lambda s, k: _quotient(s, lambda e, m: _total(e) + torch.exp(m)), ADDED),
    "a term of each column": (
        lambda s, k: _quotient(s, lambda e, m: _total(e) + (s - m).exp()),
        None,
    ),
    "two limits of the sum": (
        lambda s, k: _quotient(s, lambda e, m: _total(e).clamp(1e-9, 2.0)),
        None,
    ),
    "the data limit the sum": (
        lambda s, k: _quotient(s, lambda e, m: torch.maximum(_total(e), s.abs().amax())),
        None,
    ),
    "zero in the maximum alone": (
        lambda s, k: _divided(torch.exp(s - _maximum(s).clamp(min=0))),
        OTHER,
    ),
    "a sink of another dimension": (
        lambda s, k: _quotient(s, lambda e, m: e.sum(1, keepdim=True) + torch.exp(-m), dim=1),
        NOT_MASKED,
    ),
    "hidden in another dimension": (
        lambda s, k: _divided((s - s.amax(1, keepdim=True)).exp() * k, dim=1),
        NOT_MASKED,
    ),
    "an eps after hidden columns": (
        lambda s, k: _divided(torch.exp(s - _maximum(s)) * k, eps=1e-9),
        ADDED,
    ),
    "times numbers": (
        lambda s, k: _divided(torch.exp(s - _maximum(s)) * s),
        "its exponentials are multiplied by numbers that are not known to be 0 and 1",
    ),
    "several dimensions": (
        lambda s, k: _quotient(s, lambda e, m: e.sum((2, 3), True), (2, 3)),
        "no op computes a softmax over several dimensions",
    ),
    "logsumexp of several dimensions": (
        lambda s, k: s - torch.logsumexp(s, (2, 3), keepdim=True),
        "no op computes a softmax over several dimensions",
    ),
}


@pytest.mark.parametrize("form, reason", STAYS.values(), ids=STAYS)
def test_what_no_op_computes_is_left_with_its_reason(rewrite, scores, keep, form, reason):
    inputs = scores.detach(), keep | (torch.arange(COLS) == 1)
    assert_becomes(rewrite, form, inputs, {}, [reason] if reason else [])


def _of_two_logics(bitwise, logical):
    """The exponentials of a bitwise result over the sum of those of the logical one."""

    def form(s, i):
        bits, truth = bitwise(i).to(s.dtype), logical(i).to(s.dtype)
        maximum = bits.amax(-1, keepdim=True)
        return torch.exp(bits - maximum) / _total(torch.exp(truth - maximum))

    return form


INTEGERS = {
    "bitwise not over logical_not": _of_two_logics(torch.bitwise_not, torch.logical_not),
    "bitwise and over logical_and": _of_two_logics(lambda i: i & i, lambda i: i.logical_and(i)),
    "bitwise or over logical_or": _of_two_logics(lambda i: i | i, lambda i: i.logical_or(i)),
    "over their sum": lambda s, i: i / (_total(i) + 1),
    "bools over their sum": lambda s, i: (i > 0) / (_total(i > 0) + 1),
    "subtracted": lambda s, i: _divided(torch.exp(s - i[..., :1].clamp(min=0))),
}


@pytest.mark.parametrize("form", INTEGERS.values(), ids=INTEGERS)
def test_quotients_of_integers_are_no_softmax(rewrite, scores, form):
    integers = torch.randint(4, (2, 3, ROWS, COLS))
    rewritten = rewritten_alike(rewrite, form, [scores.detach(), integers])
    assert rewritten.replaced == {}


def test_in_float16_a_sink_beside_large_negative_scores_stays(rewrite_dynamo):
    s = torch.randn(4, 6).half() - 20
    reason = "in float16, the exponential of the sink overflows where the op does not"
    assert_becomes(rewrite_dynamo, _with_maximum, [s], {}, [reason])


def test_a_mask_with_more_dimensions_than_the_scores_stays(rewrite_dynamo, keep):
    def form(s, keep):
        e = torch.exp(s - _maximum(s)) * keep
        return e / _total(e)

    s, keep = torch.randn(ROWS, COLS), keep | (torch.arange(COLS) == 1)
    assert_becomes(rewrite_dynamo, form, [s, keep], {}, [OTHER])


def test_the_sum_may_be_a_norm_of_order_1(rewrite, scores):
    def form(s):
        return F.normalize(torch.exp(s - _maximum(s)), p=1.0, dim=-1)

    assert_becomes(rewrite, form, [scores], {"softmax": 1})
