"""Decomposed norms of rows: RMSNorm as in Llama, T5 and Gemma, LayerNorm as in BERT, in the dtypes
they run in. The spellings of both are in norm_forms.py."""

import bounds
import pytest
import torch
from agreement import assert_becomes, assert_one_graph
from decomposed import layer_norm_decomposed
from norm_forms import EPS, LayerNorm, N, draw, mean
from transformers.models.llama.modeling_llama import LlamaRMSNorm


def llama(x, w):
    h = x.to(torch.float32)
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS)
    return w * h.to(x.dtype)


def t5_of_any_weight(x, w):
    variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
    return w * (x * torch.rsqrt(variance + EPS))


def t5(x, w):
    variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
    return w * (x * torch.rsqrt(variance + EPS)).to(w.dtype)


def gemma(x, w):
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS)
    return (h * (1.0 + w.float())).type_as(x)


every_model = pytest.mark.parametrize("model", [llama, t5, gemma], ids=lambda m: m.__name__)


def test_the_backward_pass_is_our_op_too(backward_ops):
    leaves = draw(requires_grad=True)
    assert backward_ops(layer_norm_decomposed, *leaves) == {"layer_norm_backward": 1}


@pytest.mark.parametrize(
    "model, op", [(LayerNorm(-1, N), "layer_norm"), (LlamaRMSNorm(N), "rms_norm")], ids=str
)
def test_eps_as_a_graph_input_is_found(rewrite_dynamo, model, op):
    rewritten = rewrite_dynamo(model, draw()[0], dynamic=True)
    assert rewritten.replaced == {op: 1}
    assert_one_graph(rewritten, model, [draw(2)[:1], draw(N)[:1]], rtol=1e-5, atol=1e-5)


def test_a_residual_of_symbolic_size_behind_the_norm_adds_no_guard(rewrite_dynamo):
    def model(x):
        return layer_norm_decomposed(x) + x

    rewritten = rewrite_dynamo(model, torch.randn(3, N), dynamic=True)
    assert rewritten.reasons == ["the length of its rows is not known at compile time"]
    assert_one_graph(rewritten, model, [[torch.randn(batch, N)] for batch in (4, N, 5)])


def _with_eps_as_a_tensor(x, w, b):  # symbolic_trace stores it, as a buffer
    return (x - mean(x)) / torch.sqrt((x - mean(x)).pow(2).mean(-1, True) + torch.tensor(0.5))


def _with_parameters_in_place(x, w, b):
    return layer_norm_decomposed(x).mul_(w).add_(b)


@pytest.mark.parametrize("entry", ["dynamo", "export"])
@pytest.mark.parametrize("model", [_with_eps_as_a_tensor, _with_parameters_in_place])
def test_eps_may_be_a_tensor_and_parameters_applied_in_place(entries, entry, model):
    rewritten = assert_becomes(entries[entry], model, draw(), {"layer_norm": 1})
    assert "mul_" not in rewritten.code


@every_model
def test_every_model_has_one_op_with_eagers_values_and_gradients(rewrite, model):
    inputs = draw(3, torch.float32, requires_grad=True)[:2]
    rewritten = assert_becomes(rewrite, model, inputs, {"rms_norm": 1}, rtol=1e-5, atol=1e-5)
    assert set(rewritten.results) == {"rms_norm[0]"}


# --- dtypes ---------------------------------------------------------------------------------------


@every_model
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_16_bits_each_norm_rounds_where_its_model_does(rewrite, model, dtype):
    inputs = draw(16, dtype)[:2]
    rewritten = assert_becomes(rewrite, model, inputs, {"rms_norm": 1})
    assert rewritten.results == ["rms_norm[0]"]
    # The statistics differ in their last float32 bit at most: one rounding in hundreds flips.
    assert (rewritten.call(*inputs) != model(*inputs)).double().mean() < 0.02


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


def _layer_norm_in_float32(x, w):
    return layer_norm_decomposed(x.float(), w, w)


@pytest.mark.parametrize(
    "model, op",
    [(_layer_norm_in_float32, "layer_norm"), (t5_of_any_weight, "rms_norm"), (llama, "rms_norm")],
)
def test_a_float32_weight_beside_16_bits_gives_float32(rewrite, model, op):
    x, w, _ = draw(dtype=torch.float32)
    inputs, tolerance = [x.bfloat16(), w], 1e-2 if model is llama else 1e-5
    rewritten = assert_becomes(rewrite, model, inputs, {op: 1}, rtol=tolerance, atol=tolerance)
    assert model(*inputs).dtype == torch.float32
    # It is multiplied as before where the model rounds before that.
    assert ("mul" in rewritten.code) == (model is llama)


def test_what_is_computed_in_float64_is_not_computed_in_less(rewrite):
    def model(x, w, b):
        return layer_norm_decomposed(x.double(), w.double(), b.double()).float()

    arguments = draw(16, torch.float32)
    rewritten = rewrite(model, *arguments)
    assert rewritten.replaced == {"layer_norm": 1}
    # Two float64 results that differ in their last bits round to one float32, but for ties.
    assert (rewritten.call(*arguments) != model(*arguments)).double().mean() < 0.01


def test_a_result_that_is_cast_for_what_follows_is_replaced_up_to_the_cast(rewrite):
    def model(x, w):
        return llama(x, w).to(torch.bfloat16) * 2

    assert_becomes(rewrite, model, draw(3, torch.float32)[:2], {"rms_norm": 1})


def test_a_tensor_whose_dtype_alone_is_read_is_no_part_of_a_norm(entries):
    """As in Llama 4's norm of queries, which have the dtype of what they were computed from."""

    def model(x):
        y = (x * 2).type_as(x)
        z = y.float()
        z = z * torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + EPS)
        return z.type_as(y)

    assert_becomes(entries["dynamo"], model, [torch.randn(3, 8)], {"rms_norm": 1})


def test_arithmetic_in_16_bits_is_left(rewrite):
    def model(x):
        return x * torch.rsqrt(x.square().mean((-1,), keepdim=True) + EPS)

    reason = "it is computed in torch.bfloat16, which rounds at every step"
    assert_becomes(rewrite, model, [torch.randn(3, 64, dtype=torch.bfloat16)], {}, [reason])


def test_intermediate_results_are_kept_for_their_other_readers(rewrite):
    def model(x):
        h = x.float()
        y = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS)
        return y.to(x.dtype) + h.sum()

    x = torch.randn(4, 8, dtype=torch.bfloat16)
    assert_becomes(rewrite, model, [x], {"rms_norm": 1})


@pytest.mark.parametrize("shape", [(5, N), (1,), ()])
def test_a_weight_of_another_shape_stays_outside(rewrite, shape):
    x, _, b = draw()
    inputs = x, torch.randn(shape, dtype=torch.float64), b
    rewritten = assert_becomes(rewrite, layer_norm_decomposed, inputs, {"layer_norm": 1})
    assert "mul" in rewritten.code
