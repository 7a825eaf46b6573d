"""Decomposed RMSNorm, as in Llama, T5 and Gemma, in every dtype they run in and at every entry."""

import pytest
import torch
from agreement import assert_becomes, rewritten_alike
from transformers.models.llama.modeling_llama import LlamaRMSNorm

EPS = 1e-6


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


def draw(dtype=torch.float32, weight_dtype=None):
    x, w = torch.randn(3, 5, 64), torch.randn(64)
    return [x.to(dtype), w.to(weight_dtype or dtype)]


@every_model
def test_every_model_has_one_op_with_eagers_values_and_gradients(rewrite, model):
    inputs = [tensor.requires_grad_() for tensor in draw()]
    rewritten = assert_becomes(rewrite, model, inputs, {"rms_norm": 1}, rtol=1e-5, atol=1e-5)
    assert set(rewritten.results) == {"rms_norm[0]"}


@every_model
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_16_bits_each_norm_rounds_where_its_model_does(rewrite, model, dtype):
    inputs = draw(dtype)
    rewritten = assert_becomes(rewrite, model, inputs, {"rms_norm": 1})
    assert rewritten.results == ["rms_norm[0]"]
    # The statistics differ in their last float32 bit at most: one rounding in hundreds flips.
    assert (rewritten.call(*inputs) != model(*inputs)).double().mean() < 0.02


def test_a_float32_weight_of_t5_beside_bfloat16_gives_float32(rewrite):
    inputs = draw(torch.bfloat16, torch.float32)
    assert_becomes(rewrite, t5_of_any_weight, inputs, {"rms_norm": 1}, rtol=1e-5, atol=1e-5)


def test_a_float32_weight_after_rounding_is_multiplied_as_before(rewrite):
    inputs = draw(torch.bfloat16, torch.float32)
    rewritten = assert_becomes(rewrite, llama, inputs, {"rms_norm": 1}, rtol=1e-2, atol=1e-2)
    assert "mul" in rewritten.code and "rsqrt" not in rewritten.code
    assert llama(*inputs).dtype == torch.float32


def test_a_result_that_is_cast_for_what_follows_is_replaced_up_to_the_cast(rewrite):
    def model(x, w):
        return llama(x, w).to(torch.bfloat16) * 2

    assert_becomes(rewrite, model, draw(), {"rms_norm": 1})


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


def test_eps_as_a_graph_input_is_found(rewrite_dynamo):
    rewritten = rewrite_dynamo(LlamaRMSNorm(64), torch.randn(3, 64), dynamic=True)
    assert rewritten.replaced == {"rms_norm": 1}


def _scale(mean_square):
    return torch.rsqrt(mean_square + EPS)


def _mean(x, **options):
    return x.mean(-1, keepdim=True, **options)


def _written_between(x):
    x = x * 1
    scale = _scale(_mean(x.pow(2)))
    x.mul_(2)
    return x * scale


def _written_after_the_cast(x):
    x = x * 1
    h = x.float()
    x.mul_(2)
    return (h * _scale(_mean(h.pow(2)))).to(x.dtype) + x


LOOK_ALIKES = {
    "written between": _written_between,
    "written after the cast": _written_after_the_cast,
    "statistics used twice": lambda x: (lambda scale: x * scale + scale)(_scale(_mean(x.pow(2)))),
    "another tensor scaled": lambda x: (x + 1) * _scale(_mean(x.pow(2))),
    "rounded before": lambda x: x * _scale(_mean(x.to(torch.bfloat16).float().pow(2))),
    "scaled eps": lambda x: x * torch.rsqrt(torch.add(_mean(x.pow(2)), 1.0, alpha=2)),
    "summed in double": lambda x: x * _scale(_mean(x.pow(2), dtype=torch.float64)).float(),
    "cubed": lambda x: x * _scale(_mean(x.pow(3).abs())),
}


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_chains_that_are_no_rms_norm_stay_as_they_are(rewrite, name):
    x = torch.randn(4, 8, dtype=torch.bfloat16 if "cast" in name else torch.float32)
    assert rewritten_alike(rewrite, LOOK_ALIKES[name], [x]).replaced == {}


def test_intermediate_results_are_kept_for_their_other_readers(rewrite):
    def model(x):
        h = x.float()
        y = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS)
        return y.to(x.dtype) + h.sum()

    x = torch.randn(4, 8, dtype=torch.bfloat16)
    assert_becomes(rewrite, model, [x], {"rms_norm": 1})
