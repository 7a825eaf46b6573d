"""Decomposed softmax and log_softmax, through logsumexp, and with maximum and sum in all their
spellings: each is one op, with eager's values, gradients, dtype and strides at every entry."""

import pytest
import torch
from agreement import assert_agrees


def _exp(x):
    return torch.exp(x - x.amax(-1, keepdim=True))


def _quotient(exp, divisor):
    def form(x):
        e = exp(x)
        return e / divisor(e)

    return form


def _sum(e):
    return e.sum(-1, keepdim=True)


def _log_of_shifted(x):
    shifted = x - x.amax(-1, keepdim=True)
    return shifted - shifted.exp().sum(-1, keepdim=True).log()


def _maximum_added_again(x):
    m = x.max(-1, keepdim=True)[0]
    return x - (m + torch.log(torch.exp(x - m).sum(-1, keepdim=True)))


def _of_a_vector(x):
    x = x[0, 0]
    return x - torch.logsumexp(x, 0)


def _times_reciprocal(x):
    e = _exp(x)
    return e * _sum(e).reciprocal()


def _times_inverse(x):
    e = _exp(x)
    return (1 / _sum(e)) * e


SOFTMAX = {
    "logsumexp": lambda x: torch.exp(x - torch.logsumexp(x, -1, keepdim=True)),
    "logsumexp, unsqueezed": lambda x: (x - x.logsumexp(dim=-1).unsqueeze(-1)).exp(),
    "detached maximum": _quotient(
        lambda x: torch.exp(x - x.max(-1, keepdim=True)[0].detach()), _sum
    ),
    "maximum of the detached": _quotient(
        lambda x: torch.exp(x - x.detach().amax(-1, keepdim=True)), _sum
    ),
    "unsqueezed": _quotient(
        lambda x: torch.exp(x - x.amax(-1).unsqueeze(-1)), lambda e: e.sum(-1)[..., None]
    ),
    "eps below the rounding of the sum": _quotient(_exp, lambda e: _sum(e) + 1e-17),
    "limit below the sum": _quotient(_exp, lambda e: _sum(e).clamp(min=1e-6)),
    "reciprocal": _times_reciprocal,
    "1 / sum": _times_inverse,
    "special": lambda x: torch.special.softmax(x, -1),
    "dtype": lambda x: torch.softmax(x, -1, dtype=torch.float64),
}
LOG_SOFTMAX = {
    "logsumexp": lambda x: x - torch.logsumexp(x, dim=1, keepdim=True),
    "special logsumexp": lambda x: x - torch.special.logsumexp(x, -1)[..., None],
    "log of the sum": _log_of_shifted,
    "maximum added again": _maximum_added_again,
}
FORMS = {f"softmax: {name}": form for name, form in SOFTMAX.items()}
FORMS |= {f"log_softmax: {name}": form for name, form in LOG_SOFTMAX.items()}


@pytest.fixture
def x():
    return torch.randn(3, 5, 6, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("name", FORMS)
def test_every_spelling_is_one_op_that_agrees_with_eager(rewrite, x, name):
    form = FORMS[name]
    rewritten = rewrite(form, x.detach())
    assert rewritten.replaced == {name.split(":")[0]: 1} and rewritten.reasons == []
    assert_agrees(rewritten.call, form, [x])


@pytest.mark.parametrize("entry", ["dynamo", "symbolic_trace"])  # export selects the vector twice
def test_the_log_softmax_of_a_vector_needs_no_dimension_kept(entries, entry, x):
    rewritten = entries[entry](_of_a_vector, x.detach())
    assert rewritten.replaced == {"log_softmax": 1}
    assert_agrees(rewritten.call, _of_a_vector, [x])


def test_masks_before_the_logsumexp_are_fused(rewrite, x):
    def form(x):
        s = (x * 0.5).masked_fill(x > 1, -1e9)
        return (s - s.logsumexp(-1, keepdim=True)).exp()

    rewritten = rewrite(form, x.detach())
    assert rewritten.replaced == {"masked_softmax": 1}
    torch.testing.assert_close(rewritten.call(x.detach()), form(x.detach()))


def test_each_call_may_write_in_place(rewrite_dynamo, x):
    def form(x):
        e = torch.sin(x)
        e = e.sub_(e.amax(-1, keepdim=True)).exp_()
        return e.div_(e.sum(-1, keepdim=True))

    rewritten = rewrite_dynamo(form, x.detach())
    assert rewritten.replaced == {"softmax": 1}
    torch.testing.assert_close(rewritten.call(x.detach()), form(x.detach()))


NO_MAXIMUM = "exp without the maximum subtracted overflows where softmax does not"
OTHER_MAXIMUM = "what is subtracted before exp is not known to be the maximum of its rows"
STAYS = {
    "log of the sum of exp": (lambda x: x - x.exp().sum(-1, keepdim=True).log(), NO_MAXIMUM),
    "eps in the sum": (
        _quotient(_exp, lambda e: _sum(e) + 1e-3),
        "what is added to the sum of the exponentials is not lost in its rounding",
    ),
    "one more in the limit": (
        _quotient(_exp, lambda e: _sum(e).clamp(min=2)),
        "what is added to the sum of the exponentials is not lost in its rounding",
    ),
    "maximum of all rows": (_quotient(lambda x: torch.exp(x - x.max()), _sum), OTHER_MAXIMUM),
    "constant": (_quotient(lambda x: torch.exp(x - 3), _sum), OTHER_MAXIMUM),
}


@pytest.mark.parametrize("name", STAYS)
def test_a_chain_that_differs_from_the_op_is_left_with_its_reason(rewrite, x, name):
    form, reason = STAYS[name]
    rewritten = rewrite(form, x.detach())
    assert rewritten.replaced == {} and rewritten.reasons == [reason]
    torch.testing.assert_close(rewritten.call(x.detach()), form(x.detach()))


def test_a_logsumexp_that_is_returned_is_kept_and_the_softmax_too(rewrite, x):
    def form(x):
        total = torch.logsumexp(x, -1, keepdim=True)
        return torch.exp(x - total), total

    rewritten = rewrite(form, x.detach())
    assert rewritten.replaced == {}
    assert rewritten.reasons == ["something else uses an intermediate result"]


def test_a_logsumexp_along_the_wrong_dimension_is_no_softmax(rewrite):
    x = torch.randn(5, 5)
    assert rewrite(lambda x: torch.exp(x - torch.logsumexp(x, -1)), x).replaced == {}
