"""Decomposed LayerNorm, with every spelling of its statistics, its quotient, weight and bias."""

import bounds
import pytest
import torch
from agreement import assert_agrees, assert_becomes

from fusedops import reference

N, EPS = 8, 1e-5


def _mean(x):
    return x.mean(-1, keepdim=True)


#: The variance of x with mean m.
VARIANCES = {
    "pow": lambda x, m: (x - m).pow(2).mean(-1, keepdim=True),
    "**": lambda x, m: torch.mean((x - m) ** 2, -1, True),
    "product": lambda x, m: ((x - m) * (x - m)).mean((-1,), keepdim=True),
    "square": lambda x, m: torch.square(x - m).mean(dim=x.dim() - 1, keepdim=True),
    "unbiased=False": lambda x, m: x.var(-1, unbiased=False, keepdim=True),
    "by position": lambda x, m: torch.var(x, -1, False, True),
    "correction": lambda x, m: torch.var(x, dim=(-1,), correction=0, keepdim=True),
}
#: (x - m) / sqrt(v + EPS), weight w and bias b.
RESULTS = {
    "sqrt": lambda x, m, v, w, b: w * ((x - m) / torch.sqrt(v + EPS)) + b,
    "rsqrt": lambda x, m, v, w, b: (x - m) * torch.rsqrt(EPS + v) * w + b,
    "rsqrt first": lambda x, m, v, w, b: b + w * (torch.rsqrt(v + EPS) * (x - m)),
    "** 0.5": lambda x, m, v, w, b: (x - m) / (v + EPS) ** 0.5 * w + b,
    "** -0.5": lambda x, m, v, w, b: (x - m) * (v + EPS).pow(-0.5) * w + b,
    "1 / sqrt": lambda x, m, v, w, b: (x - m) * (1.0 / torch.sqrt(v + EPS)) * w + b,
    "reciprocal": lambda x, m, v, w, b: (x - m) * (v + EPS).sqrt().reciprocal() * w + b,
    "weight first": lambda x, m, v, w, b: w * (x - m) / torch.sqrt(v + EPS) + b,
    "no bias": lambda x, m, v, w, b: w * ((x - m) / torch.sqrt(v + EPS)),
    "no weight": lambda x, m, v, w, b: (x - m) / torch.sqrt(v + EPS) + b,
    "neither": lambda x, m, v, w, b: (x - m) / torch.sqrt(v + EPS),
}


def _form(variance, result):
    def model(x, w, b):
        m = _mean(x)
        return RESULTS[result](x, m, VARIANCES[variance](x, m), w, b)

    return model


def _var_mean(x, w, b):
    variance, mean = torch.var_mean(x, -1, unbiased=False, keepdim=True)
    return (x - mean) * torch.rsqrt(variance + EPS) * w + b


def _var_mean_with_correction(x, w, b):
    variance, mean = torch.var_mean(x, dim=[-1], correction=0, keepdim=True)
    return (x - mean) / torch.sqrt(variance + EPS) * w + b


def _mean_taken_twice(x, w, b):
    variance = ((x - _mean(x)) ** 2).mean(-1, keepdim=True)
    return w * ((x - _mean(x)) / torch.sqrt(variance + EPS)) + b


FORMS = {f"variance: {name}": _form(name, "sqrt") for name in VARIANCES}
FORMS |= {f"result: {name}": _form("pow", name) for name in RESULTS if name != "sqrt"}
FORMS |= {form.__name__: form for form in (_var_mean, _var_mean_with_correction, _mean_taken_twice)}
every_form = pytest.mark.parametrize("name", FORMS)


@pytest.fixture
def draw():
    """draw(batch=3, dtype=torch.float64): input, weight, bias."""

    def draw(batch=3, dtype=torch.float64):
        return [torch.randn(shape, dtype=dtype) for shape in ((batch, 5, N), (N,), (N,))]

    return draw


def _exact(name, x, w, b):
    w = None if name in ("result: neither", "result: no weight") else w
    b = None if name in ("result: neither", "result: no bias") else b
    return reference.layer_norm(x, (N,), w, b, EPS)


@every_form
def test_every_form_is_one_op_with_the_references_values(rewrite, draw, name):
    arguments = draw()
    rewritten = rewrite(FORMS[name], *arguments)
    assert rewritten.replaced == {"layer_norm": 1} and rewritten.reasons == []
    assert not any(step in rewritten.code for step in ("mean", "var", "sqrt", "sub", "mul", "add"))
    exact = _exact(name, *arguments)
    torch.testing.assert_close(rewritten.call(*arguments), exact, rtol=1e-11, atol=1e-14)


@every_form
def test_every_form_has_eagers_gradients_at_all_batch_sizes(rewrite_dynamo, draw, name):
    model = FORMS[name]
    leaves = [tensor.requires_grad_() for tensor in draw(4)]
    torch._dynamo.mark_dynamic(leaves[0], 0)
    rewritten = rewrite_dynamo(model, *leaves)
    for batch in (4, 3, N):
        leaves = [tensor.requires_grad_() for tensor in draw(batch)]
        assert_agrees(rewritten.call, model, leaves, rtol=1e-9, atol=1e-12)
    assert rewritten.replaced == {"layer_norm": 1} and len(rewritten.graphs) == 1


def test_the_backward_pass_is_our_op_too(backward_ops, draw):
    leaves = [tensor.requires_grad_() for tensor in draw()]
    assert backward_ops(_var_mean, *leaves) == {"layer_norm_backward": 1}


class Module(torch.nn.Module):
    """LayerNorm as google-research/bert and its descendants have it: eps is an attribute."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(N))
        self.bias = torch.nn.Parameter(torch.randn(N))
        self.eps = 1e-12

    def forward(self, x):
        u = x.mean(-1, keepdim=True)
        s = (x - u).pow(2).mean(-1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.eps)
        return self.weight * x + self.bias


def test_eps_as_a_graph_input_is_found(rewrite_dynamo):
    model = Module().double()
    rewritten = rewrite_dynamo(model, torch.randn(4, 5, N, dtype=torch.float64), dynamic=True)
    assert rewritten.replaced == {"layer_norm": 1}
    for shape in ((2, 5, N), (N, 3, N)):
        x = torch.randn(shape, dtype=torch.float64)
        torch.testing.assert_close(rewritten.call(x), model(x), rtol=1e-11, atol=1e-13)
    assert len(rewritten.graphs) == 1


def test_a_residual_of_symbolic_size_behind_the_norm_adds_no_guard(rewrite_dynamo):
    def model(x):
        return _form("pow", "neither")(x, None, None) + x

    rewritten = rewrite_dynamo(model, torch.randn(3, N), dynamic=True)
    assert rewritten.reasons == ["the length of its rows is not known at compile time"]
    for batch in (4, N, 5):
        x = torch.randn(batch, N)
        torch.testing.assert_close(rewritten.call(x), model(x))
    assert len(rewritten.graphs) == 1


@pytest.mark.parametrize("entry", ["dynamo", "export"])  # symbolic_trace stores it, as a buffer
def test_eps_may_be_a_tensor_made_of_a_number(entries, entry, draw):
    def model(x, w, b):
        return (x - _mean(x)) / torch.sqrt(VARIANCES["pow"](x, _mean(x)) + torch.tensor(0.5))

    assert_becomes(entries[entry], model, draw(), {"layer_norm": 1})


def test_several_last_dimensions(rewrite, draw):
    def model(x, w, b):
        dims = (-2, -1)
        variance = x.var(dims, unbiased=False, keepdim=True)
        return (x - x.mean(dims, keepdim=True)) / torch.sqrt(variance + EPS)

    assert_becomes(rewrite, model, draw(), {"layer_norm": 1}, rtol=1e-11, atol=0)


@pytest.mark.parametrize("entry", ["dynamo", "export"])
def test_weight_and_bias_may_be_applied_in_place(entries, entry, draw):
    def model(x, w, b):
        return _form("pow", "neither")(x, w, b).mul_(w).add_(b)

    ops = {"layer_norm": 1}
    rewritten = assert_becomes(entries[entry], model, draw(), ops, rtol=1e-11, atol=0)
    assert "mul_" not in rewritten.code


# --- dtypes ---------------------------------------------------------------------------------------


IN_16_BITS = {
    "round trip": lambda x, w, b: _form("pow", "sqrt")(x.float(), w, b).to(x.dtype),
    "round trip before the weight": lambda x, w, b: (
        w * _form("pow", "neither")(x.float(), w, b).to(x.dtype) + b
    ),
    "in 16 bits": _form("pow", "sqrt"),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("model", IN_16_BITS.values(), ids=IN_16_BITS)
def test_in_16_bits_the_result_is_rounded_once(rewrite, draw, model, dtype):
    arguments = draw(16, dtype)
    rewritten = rewrite(model, *arguments)
    assert rewritten.replaced == {"layer_norm": 1} and " to = " not in rewritten.code
    ours = rewritten.call(*arguments)
    assert ours.dtype == dtype
    bounds.assert_within(ours, bounds.norm("layer_norm", *arguments, EPS))


def test_a_float32_weight_beside_16_bits_gives_float32(rewrite, draw):
    def model(x, w, b):
        return _form("pow", "sqrt")(x.float(), w, b)

    x, w, b = draw(dtype=torch.float32)
    assert model(x.bfloat16(), w, b).dtype == torch.float32
    assert_becomes(rewrite, model, [x.bfloat16(), w, b], {"layer_norm": 1})


def test_what_is_computed_in_float64_is_not_computed_in_less(rewrite, draw):
    def model(x, w, b):
        return _form("pow", "sqrt")(x.double(), w.double(), b.double()).float()

    arguments = draw(16, torch.float32)
    rewritten = rewrite(model, *arguments)
    assert rewritten.replaced == {"layer_norm": 1}
    # Two float64 results that differ in their last bits round to one float32, but for ties.
    assert (rewritten.call(*arguments) != model(*arguments)).double().mean() < 0.01


# --- look-alikes ----------------------------------------------------------------------------------


def _divided(mean, variance, x):
    return (x - mean) / torch.sqrt(variance + EPS)


def _variance(x):
    return x.var(-1, unbiased=False, keepdim=True)


def _written_between(x, w, b):
    x = x * 1
    mean, variance = _mean(x), _variance(x)
    x.mul_(2)
    return _divided(mean, variance, x)


OTHERS = {
    "different dims": lambda x, w, b: _divided(
        _mean(x), x.var((-2, -1), correction=0, keepdim=True), x
    ),
    "dims dropped": lambda x, w, b: _divided(
        x[0, :, :5].mean(-1), x[0, :, :5].var(-1, unbiased=False), x[0, :, :5]
    ),
    "mean of another tensor": lambda x, w, b: _divided(_mean(x.cos()), _variance(x), x),
    "variance of another tensor": lambda x, w, b: _divided(_mean(x), _variance(x.cos()), x),
    "cubed": lambda x, w, b: _divided(_mean(x), _mean((x - _mean(x)).abs().pow(3)), x),
    "mean used too": lambda x, w, b: (lambda mean: _divided(mean, _variance(x), x) + mean)(
        _mean(x)
    ),
    "scaled eps": lambda x, w, b: (
        (x - _mean(x)) / torch.sqrt(torch.add(_variance(x), 1.0, alpha=2))
    ),
    "eps of the input": lambda x, w, b: (x - _mean(x)) / torch.sqrt(_variance(x) + x.abs().amax()),
    "written between": _written_between,
}


@pytest.mark.parametrize("model", OTHERS.values(), ids=OTHERS)
def test_chains_that_are_no_layer_norm_stay_as_they_are(rewrite, draw, model):
    arguments = draw(N)
    rewritten = rewrite(model, *arguments)
    assert rewritten.replaced == {}
    torch.testing.assert_close(rewritten.call(*arguments), model(*arguments), rtol=1e-12, atol=0)


def test_a_norm_whose_intermediate_result_is_returned_is_left_with_that_reason(rewrite, draw):
    def model(x, w, b):
        mean = _mean(x)
        return (x - mean) * torch.rsqrt(_variance(x) + EPS), mean

    reason = "something else uses an intermediate result"
    assert_becomes(rewrite, model, draw(), {}, [reason])


@pytest.mark.parametrize("shape", [(5, N), (1,), ()])
def test_a_weight_of_another_shape_stays_outside(rewrite, draw, shape):
    x, _, b = draw()
    inputs = x, torch.randn(shape, dtype=torch.float64), b
    model, ops = _form("pow", "sqrt"), {"layer_norm": 1}
    rewritten = assert_becomes(rewrite, model, inputs, ops, rtol=1e-11, atol=1e-13)
    assert "mul" in rewritten.code


def test_a_norm_becomes_one_call(rewrite, draw):
    rewritten = rewrite(_var_mean, *draw())
    call = "layer_norm(x, normalized_shape=[8], weight=w, bias=b, eps=1e-05)"
    assert rewritten.calls == [call] and rewritten.results == ["layer_norm[0]"]
    assert rewritten.unused == []
