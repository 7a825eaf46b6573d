"""Decomposed LayerNorm: its graph, its dtypes, and what only looks like it. Its spellings are in
norm_forms.py."""

import bounds
import pytest
import torch
from agreement import assert_becomes, assert_one_graph
from decomposed import layer_norm_decomposed
from norm_forms import EPS, N, draw
from norm_forms import mean as _mean


def test_the_backward_pass_is_our_op_too(backward_ops):
    leaves = [tensor.requires_grad_() for tensor in draw()]
    assert backward_ops(layer_norm_decomposed, *leaves) == {"layer_norm_backward": 1}


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
    rewritten = rewrite_dynamo(model, draw()[0], dynamic=True)
    assert rewritten.replaced == {"layer_norm": 1}
    assert_one_graph(rewritten, model, [draw(2)[:1], draw(N)[:1]])


def test_a_residual_of_symbolic_size_behind_the_norm_adds_no_guard(rewrite_dynamo):
    def model(x):
        return layer_norm_decomposed(x) + x

    rewritten = rewrite_dynamo(model, torch.randn(3, N), dynamic=True)
    assert rewritten.reasons == ["the length of its rows is not known at compile time"]
    assert_one_graph(rewritten, model, [[torch.randn(batch, N)] for batch in (4, N, 5)])


@pytest.mark.parametrize("entry", ["dynamo", "export"])  # symbolic_trace stores it, as a buffer
def test_eps_may_be_a_tensor_made_of_a_number(entries, entry):
    def model(x, w, b):
        return (x - _mean(x)) / torch.sqrt((x - _mean(x)).pow(2).mean(-1, True) + torch.tensor(0.5))

    assert_becomes(entries[entry], model, draw(), {"layer_norm": 1})


@pytest.mark.parametrize("entry", ["dynamo", "export"])
def test_weight_and_bias_may_be_applied_in_place(entries, entry):
    def model(x, w, b):
        return layer_norm_decomposed(x).mul_(w).add_(b)

    rewritten = assert_becomes(entries[entry], model, draw(), {"layer_norm": 1})
    assert "mul_" not in rewritten.code


# --- dtypes ---------------------------------------------------------------------------------------


IN_16_BITS = {
    "round trip": lambda x, w, b: layer_norm_decomposed(x.float(), w, b).to(x.dtype),
    "round trip before the weight": lambda x, w, b: (
        w * layer_norm_decomposed(x.float()).to(x.dtype) + b
    ),
    "in 16 bits": layer_norm_decomposed,
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("model", IN_16_BITS.values(), ids=IN_16_BITS)
def test_in_16_bits_the_result_is_rounded_once(rewrite, model, dtype):
    arguments = draw(16, dtype)
    rewritten = rewrite(model, *arguments)
    assert rewritten.replaced == {"layer_norm": 1} and " to = " not in rewritten.code
    ours = rewritten.call(*arguments)
    assert ours.dtype == dtype
    bounds.assert_within(ours, bounds.norm("layer_norm", *arguments, EPS))


def test_a_float32_weight_beside_16_bits_gives_float32(rewrite):
    def model(x, w, b):
        return layer_norm_decomposed(x.float(), w, b)

    x, w, b = draw(dtype=torch.float32)
    assert model(x.bfloat16(), w, b).dtype == torch.float32
    assert_becomes(rewrite, model, [x.bfloat16(), w, b], {"layer_norm": 1})


def test_what_is_computed_in_float64_is_not_computed_in_less(rewrite):
    def model(x, w, b):
        return layer_norm_decomposed(x.double(), w.double(), b.double()).float()

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
    "scaled eps": lambda x, w, b: (
        (x - _mean(x)) / torch.sqrt(torch.add(_variance(x), 1.0, alpha=2))
    ),
    "eps of the input": lambda x, w, b: (x - _mean(x)) / torch.sqrt(_variance(x) + x.abs().amax()),
    "written between": _written_between,
}


@pytest.mark.parametrize("model", OTHERS.values(), ids=OTHERS)
def test_chains_that_are_no_layer_norm_stay_as_they_are(rewrite, model):
    assert_becomes(rewrite, model, draw(N), {})


def test_a_norm_whose_intermediate_result_is_returned_is_left_with_that_reason(rewrite):
    def model(x, w, b):
        mean = _mean(x)
        return (x - mean) * torch.rsqrt(_variance(x) + EPS), mean

    reason = "something else uses an intermediate result"
    assert_becomes(rewrite, model, draw(), {}, [reason])


@pytest.mark.parametrize("shape", [(5, N), (1,), ()])
def test_a_weight_of_another_shape_stays_outside(rewrite, shape):
    x, _, b = draw()
    inputs = x, torch.randn(shape, dtype=torch.float64), b
    rewritten = assert_becomes(rewrite, layer_norm_decomposed, inputs, {"layer_norm": 1})
    assert "mul" in rewritten.code
