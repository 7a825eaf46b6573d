"""A decomposed softmax becomes one op if it subtracts the maximum; else it is another function."""

import math

import bounds
import pytest
import torch
from expecttest import assert_expected_inline


def amax(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


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


def exp_of_log_softmax(x):
    return torch.log_softmax(x, -1).exp()


FORMS = [
    amax,
    max_with_indices,
    over_the_first_dim,
    everything_twice,
    of_a_vector,
    exp_of_log_softmax,
]
every_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)


@pytest.fixture
def x():
    return torch.randn(3, 5, 6, dtype=torch.float64, requires_grad=True)


@every_form
def test_every_form_is_one_op_with_eagers_values(rewrite, x, form):
    rewritten = rewrite(form, x.detach())
    assert rewritten.replaced == {"softmax": 1} and rewritten.reasons == []
    assert not any(name in rewritten.code for name in ("exp", "sum", "sub", "max("))
    torch.testing.assert_close(rewritten.call(x.detach()), form(x.detach()), rtol=1e-12, atol=0)


@every_form
def test_every_form_has_eagers_gradient_at_all_sizes(rewrite_dynamo, x, form):
    rewritten = rewrite_dynamo(form, x, dynamic=True)
    for shape in ((3, 5, 6), (5, 5, 6), (6, 3, 4)):
        x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        ours, eager = (torch.autograd.grad(f(x).sin().sum(), x) for f in (rewritten.call, form))
        torch.testing.assert_close(ours, eager, rtol=1e-10, atol=1e-14)
    assert rewritten.replaced == {"softmax": 1} and len(rewritten.graphs) == 1


def test_the_backward_pass_is_our_op_too(backward_ops, x):
    assert backward_ops(amax, x) == {"softmax_backward": 1}


@pytest.mark.parametrize("entry", ["dynamo", "export"])  # symbolic_trace has no names of fields
def test_the_values_of_max_may_be_read_by_name(entries, entry, x):
    def model(x):
        e = torch.exp(x - x.max(dim=-1, keepdim=True).values)
        return e / e.sum(dim=-1, keepdim=True)

    rewritten = entries[entry](model, x.detach())
    assert rewritten.replaced == {"softmax": 1}
    torch.testing.assert_close(rewritten.call(x.detach()), model(x.detach()), rtol=1e-12, atol=0)


def test_a_decomposed_softmax_may_work_in_place(rewrite, x):
    def model(x):
        y = torch.sin(x)
        y -= y.amax(-1, keepdim=True)
        y = y.exp()
        y /= y.sum(-1, keepdim=True)
        return y

    rewritten = rewrite(model, x.detach())
    assert rewritten.replaced == {"softmax": 1}
    torch.testing.assert_close(rewritten.call(x.detach()), model(x.detach()), rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_softmax_computed_in_float32_is_rounded_once(rewrite, x, dtype):
    def model(x):
        return amax(x.float()).to(x.dtype)

    x = x.detach().to(dtype)
    rewritten = rewrite(model, x)
    assert rewritten.replaced == {"softmax": 1} and " to = " not in rewritten.code
    ours = rewritten.call(x)
    assert ours.dtype == dtype
    bounds.assert_within(ours, bounds.softmax(x))


def test_a_softmax_computed_in_float64_is_not_computed_in_less(rewrite, x):
    def model(x):
        return amax(x.double()).float()

    x = x.detach().float()
    rewritten = rewrite(model, x)
    assert rewritten.replaced == {"softmax": 1}
    assert torch.equal(rewritten.call(x), model(x))


@every_form
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinities_give_what_eager_gives(rewrite_dynamo, x, form, value):
    x = x.detach()
    x[0, 0, 0] = x[0, 1, 2] = value
    x[1, 2], x[:, 1, 3] = value, value
    rewritten = rewrite_dynamo(form, x)
    torch.testing.assert_close(rewritten.call(x), form(x), rtol=1e-12, atol=0, equal_nan=True)


def test_a_softmax_without_the_maximum_is_left_with_its_reason(rewrite, x):
    def model(x):
        e = torch.exp(x)
        return e / e.sum(-1, keepdim=True)

    x = torch.full((2, 4), 800.0, dtype=torch.float64)
    rewritten = rewrite(model, x)
    reason = "exp without the maximum subtracted overflows where softmax does not"
    assert rewritten.replaced == {} and rewritten.reasons == [reason]
    assert rewritten.call(x).isnan().all()


def _maximum_of_another_dim(x):
    e = torch.exp(x - x.amax(1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def _maximum_of_another_tensor(x):
    e = torch.exp(x - x.cos().amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def _sum_of_another_tensor(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.cos().sum(-1, keepdim=True)


def _sum_of_two_dims(x):
    e = torch.exp(x - x.amax((-2, -1), keepdim=True))
    return e / e.sum((-2, -1), keepdim=True)


def _of_all_elements(x):
    e = torch.exp(x - x.max())
    return e / e.sum()


def _summed_in_float64(x):
    x = x.float()
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True, dtype=torch.float64)


def _maximum_returned(x):
    maximum = x.amax(-1, keepdim=True)
    e = torch.exp(x - maximum)
    return e / e.sum(-1, keepdim=True), maximum


def _indices_returned(x):
    maximum = x.max(-1, keepdim=True)
    e = torch.exp(x - maximum[0])
    return e / e.sum(-1, keepdim=True), maximum[1]


def _exponentials_returned(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True), e


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


OTHERS = [
    _maximum_of_another_dim,
    _maximum_of_another_tensor,
    _sum_of_another_tensor,
    _sum_of_two_dims,
    _of_all_elements,
    _summed_in_float64,
    _maximum_returned,
    _indices_returned,
    _exponentials_returned,
    _dims_dropped,
    _written_between,
]


@pytest.mark.parametrize("model", OTHERS, ids=lambda model: model.__name__)
def test_chains_that_are_no_softmax_stay_as_they_are(rewrite, x, model):
    x = x.detach()
    rewritten = rewrite(model, x)
    assert rewritten.replaced == {}
    torch.testing.assert_close(rewritten.call(x), model(x), rtol=1e-12, atol=0)


def test_the_dynamo_graph_after_the_rewrite(rewrite_dynamo, x):
    assert_expected_inline(
        rewrite_dynamo(max_with_indices, x).code,
        """\
softmax_default = fusedops.softmax.default(l_x_, 2, None)
clone_default = aten.clone.default(softmax_default)
return (clone_default,)""",
    )


def test_the_exported_graph_after_the_rewrite(entries, x):
    assert_expected_inline(
        entries["export"](max_with_indices, x.detach()).code,
        """\
softmax_default = fusedops.softmax.default(args_0, 2, None)
return (softmax_default,)""",
    )


def test_the_traced_graph_after_the_rewrite(entries, x):
    assert_expected_inline(
        entries["symbolic_trace"](max_with_indices, x.detach()).code,
        """\
softmax_default = fusedops.softmax.default(x, 2, None)
return softmax_default""",
    )
