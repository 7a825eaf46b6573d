"""Decomposed softmax and log_softmax, through logsumexp, and with maximum and sum in all their
spellings: each is one op, with eager's values, gradients, dtype and strides at every entry. One
that does not subtract the maximum is another function."""

import math

import bounds
import pytest
import torch
from agreement import assert_becomes, assert_one_graph, rewritten_alike


def _exp(x):
    return torch.exp(x - x.amax(-1, keepdim=True))


def _quotient(exp, divisor):
    def form(x):
        e = exp(x)
        return e / divisor(e)

    return form


def _sum(e):
    return e.sum(-1, keepdim=True)


amax = _quotient(_exp, _sum)


def max_with_indices(x):
    e = (x - x.max(-1, keepdim=True)[0]).exp()
    return e / torch.sum(e, -1, True)


def over_the_first_dim(x):
    e = torch.exp(torch.sub(x, torch.amax(x, 0, True)))
    return torch.div(e, e.sum((0,), keepdim=True))


def everything_twice(x):
    shifted = x - torch.amax(x, dim=1, keepdim=True)
    return torch.exp(shifted) / torch.exp(shifted).sum(1, keepdim=True)


def of_a_vector(x):
    x = x[0, 0]
    e = torch.exp(x - x.max())
    return e / e.sum()


def in_place(x):
    y = torch.sin(x)
    y -= y.amax(-1, keepdim=True)
    y = y.exp()
    y /= y.sum(-1, keepdim=True)
    return y


def each_call_in_place(x):
    e = torch.sin(x)
    e = e.sub_(e.amax(-1, keepdim=True)).exp_()
    return e.div_(e.sum(-1, keepdim=True))


def _log_of_shifted(x):
    shifted = x - x.amax(-1, keepdim=True)
    return shifted - shifted.exp().sum(-1, keepdim=True).log()


def _maximum_added_again(x):
    m = x.max(-1, keepdim=True)[0]
    return x - (m + torch.log(torch.exp(x - m).sum(-1, keepdim=True)))


def _times_reciprocal(x):
    e = _exp(x)
    return e * _sum(e).reciprocal()


def _times_inverse(x):
    e = _exp(x)
    return (1 / _sum(e)) * e


PLAIN = {
    "softmax: amax": amax,
    "softmax: max with indices": max_with_indices,
    "softmax: over the first dim": over_the_first_dim,
    "softmax: everything twice": everything_twice,
    "softmax: of a vector": of_a_vector,
    "softmax: exp of log_softmax": lambda x: torch.log_softmax(x, -1).exp(),
}
SPELLINGS = PLAIN | {
    "softmax: logsumexp, unsqueezed": lambda x: (x - x.logsumexp(dim=-1).unsqueeze(-1)).exp(),
    "softmax: detached maximum": _quotient(
        lambda x: torch.exp(x - x.max(-1, keepdim=True)[0].detach()), _sum
    ),
    "softmax: maximum of the detached": _quotient(
        lambda x: torch.exp(x - x.detach().amax(-1, keepdim=True)), _sum
    ),
    "softmax: unsqueezed": _quotient(
        lambda x: torch.exp(x - x.amax(-1).unsqueeze(-1)), lambda e: e.sum(-1)[..., None]
    ),
    "softmax: eps below the rounding of the sum": _quotient(_exp, lambda e: _sum(e) + 1e-17),
    "softmax: limit below the sum": _quotient(_exp, lambda e: _sum(e).clamp(min=1e-6)),
    "softmax: reciprocal": _times_reciprocal,
    "softmax: 1 / sum": _times_inverse,
    "softmax: in place": in_place,
    "softmax: each call in place": each_call_in_place,
    "softmax: special": lambda x: torch.special.softmax(x, -1),
    "softmax: dtype": lambda x: torch.softmax(x, -1, dtype=torch.float64),
    "log_softmax: special logsumexp": lambda x: x - torch.special.logsumexp(x, -1)[..., None],
    "log_softmax: log of the sum": _log_of_shifted,
    "log_softmax: maximum added again": _maximum_added_again,
    "masked_softmax: masks before the logsumexp": lambda x: (
        lambda s: (s - s.logsumexp(-1, keepdim=True)).exp()
    )((x * 0.5).masked_fill(x > 1, -1e9)),
}


@pytest.fixture
def x():
    return torch.randn(3, 5, 6, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_is_one_op_that_agrees_with_eager(rewrite, x, name):
    op = name.partition(":")[0]
    rewritten = assert_becomes(rewrite, SPELLINGS[name], [x], {op: 1})
    assert rewritten.results[0] == op  # in training, what may be written is a copy of it


@pytest.mark.parametrize("form", PLAIN.values(), ids=PLAIN)
def test_gradients_are_eagers_at_all_sizes(rewrite_dynamo, x, form):
    rewritten = rewrite_dynamo(form, x, dynamic=True)
    shapes = (3, 5, 6), (5, 5, 6), (6, 3, 4)
    inputs = [[torch.randn(shape, dtype=torch.float64, requires_grad=True)] for shape in shapes]
    assert_one_graph(rewritten, form, inputs)
    assert rewritten.replaced == {"softmax": 1}


def test_the_backward_pass_is_our_op_too(backward_ops, x):
    assert backward_ops(amax, x) == {"softmax_backward": 1}


@pytest.mark.parametrize("entry", ["dynamo", "export"])  # symbolic_trace has no names of fields
def test_the_values_of_max_may_be_read_by_name(entries, entry, x):
    model = _quotient(lambda x: torch.exp(x - x.max(dim=-1, keepdim=True).values), _sum)
    assert_becomes(entries[entry], model, [x.detach()], {"softmax": 1})


@pytest.mark.parametrize("entry", ["dynamo", "symbolic_trace"])  # export selects the vector twice
def test_the_log_softmax_of_a_vector_needs_no_dimension_kept(entries, entry, x):
    def of_a_vector(x):
        x = x[0, 0]
        return x - torch.logsumexp(x, 0)

    assert_becomes(entries[entry], of_a_vector, [x], {"log_softmax": 1})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_softmax_computed_in_float32_is_rounded_once(rewrite, x, dtype):
    x = x.detach().to(dtype)
    rewritten = rewrite(lambda x: amax(x.float()).to(x.dtype), x)
    assert rewritten.replaced == {"softmax": 1} and " to = " not in rewritten.code
    ours = rewritten.call(x)
    assert ours.dtype == dtype
    bounds.assert_within(ours, bounds.softmax(x))


def test_a_softmax_computed_in_float64_is_not_computed_in_less(rewrite, x):
    def model(x):
        return amax(x.double()).float()

    assert_becomes(rewrite, model, [x.detach().float()], {"softmax": 1}, rtol=0, atol=0)


@pytest.mark.parametrize("form", PLAIN.values(), ids=PLAIN)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinities_give_what_eager_gives(rewrite_dynamo, x, form, value):
    x = x.detach()
    x[0, 0, 0] = x[0, 1, 2] = value
    x[1, 2], x[:, 1, 3] = value, value
    assert_becomes(rewrite_dynamo, form, [x], {"softmax": 1})


# --- what stays -----------------------------------------------------------------------------------

NO_MAXIMUM = "exp without the maximum subtracted overflows where softmax does not"
OTHER_MAXIMUM = "what is subtracted before exp is not known to be the maximum of its rows"
ADDED = "what is added to the sum of the exponentials is not lost in its rounding"
SHARED = "something else uses an intermediate result"
#: Chains that differ from the op, and their reasons.
STAYS = {
    "log of the sum of exp": (lambda x: x - x.exp().sum(-1, keepdim=True).log(), NO_MAXIMUM),
    "without the maximum": (_quotient(torch.exp, _sum), NO_MAXIMUM),
    "eps in the sum": (_quotient(_exp, lambda e: _sum(e) + 1e-3), ADDED),
    "one more in the limit": (_quotient(_exp, lambda e: _sum(e).clamp(min=2)), ADDED),
    "maximum of all rows": (_quotient(lambda x: torch.exp(x - x.max()), _sum), OTHER_MAXIMUM),
    "constant": (_quotient(lambda x: torch.exp(x - 3), _sum), OTHER_MAXIMUM),
    "a logsumexp that is returned": (
        lambda x: (lambda total: (torch.exp(x - total), total))(torch.logsumexp(x, -1, True)),
        SHARED,
    ),
}


@pytest.mark.parametrize("form, reason", STAYS.values(), ids=STAYS)
def test_a_chain_that_differs_from_the_op_is_left_with_its_reason(rewrite, x, form, reason):
    assert_becomes(rewrite, form, [x.detach()], {}, [reason])


def _with(returned):
    """A softmax, and what the function gives of its input, maxima, indices and exponentials."""

    def form(x):
        maxima, indices = x.max(-1, keepdim=True)
        e = torch.exp(x - maxima)
        return e / _sum(e), returned(maxima, indices, e)

    return form


def _dims_dropped(x):
    x = x[0, :, :5]
    e = torch.exp(x - x.amax(-1))
    return e / e.sum(-1)


def _written_between(x):
    x = x * 1
    maximum = x.amax(-1, keepdim=True)
    x.mul_(2)
    e = torch.exp(x - maximum)
    return e / e.sum(-1, keepdim=True)


OTHERS = {
    "maximum of another dim": _quotient(lambda x: torch.exp(x - x.amax(1, keepdim=True)), _sum),
    "maximum of another tensor": _quotient(
        lambda x: torch.exp(x - x.cos().amax(-1, keepdim=True)), _sum
    ),
    "sum of another tensor": _quotient(_exp, lambda e: _sum(e.cos())),
    "sum of two dims": _quotient(
        lambda x: torch.exp(x - x.amax((-2, -1), keepdim=True)), lambda e: e.sum((-2, -1), True)
    ),
    "of all elements": _quotient(lambda x: torch.exp(x - x.max()), lambda e: e.sum()),
    "summed in float64": _quotient(
        lambda x: _exp(x.float()), lambda e: e.sum(-1, keepdim=True, dtype=torch.float64)
    ),
    "maximum returned": _with(lambda maxima, indices, e: maxima),
    "indices returned": _with(lambda maxima, indices, e: indices),
    "exponentials returned": _with(lambda maxima, indices, e: e),
    "dims dropped": _dims_dropped,
    "written between": _written_between,
    "logsumexp of the wrong dim": lambda x: torch.exp(x[0, :, :5] - x[0, :, :5].logsumexp(-1)),
}


@pytest.mark.parametrize("model", OTHERS.values(), ids=OTHERS)
def test_chains_that_are_no_softmax_stay_as_they_are(rewrite, x, model):
    assert rewritten_alike(rewrite, model, [x.detach()]).replaced == {}
