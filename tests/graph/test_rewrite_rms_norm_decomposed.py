"""Decomposed RMSNorm, as in Llama, T5 and Gemma, in every dtype they run in and at every entry."""

import pytest
import torch
from agreement import assert_becomes, assert_same_gradients
from torch import nn

from fusedops import reference


class Llama(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.randn(64)), eps

    def forward(self, x):
        h = x.to(torch.float32)
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * h.to(x.dtype)


class T5(Llama):
    narrow = True

    def forward(self, x):
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        h = x * torch.rsqrt(variance + self.eps)
        if self.narrow:  # T5 asks for the weight's dtype, which symbolic_trace cannot
            h = h.to(self.weight.dtype)
        return self.weight * h


class Gemma(Llama):
    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (h * (1.0 + self.weight.float())).type_as(x)


class Squared(Llama):
    """The mean of x * x, over the last dimension by its number; products the other way round."""

    def forward(self, x):
        scale = torch.rsqrt(self.eps + torch.mean(x * x, dim=x.dim() - 1, keepdim=True))
        return torch.mul(torch.mul(scale, x), self.weight)


class Plain(Llama):
    def forward(self, x):
        return x * torch.rsqrt(x.square().mean((-1,), keepdim=True) + self.eps)


MODELS = [Llama, T5, Gemma, Squared, Plain]
SPELLING = {Llama: "llama", T5: "t5", Gemma: "gemma", Squared: "torch", Plain: "torch"}


def _reference(model, x):
    weight = None if isinstance(model, Plain) else model.weight.double()
    spelling = SPELLING[type(model)]
    y = reference.rms_norm(x.double(), (64,), None, model.eps)
    return y if weight is None else y * (weight + 1 if spelling == "gemma" else weight)


@pytest.mark.parametrize("model", MODELS)
def test_every_spelling_is_one_op(rewrite, model):
    model, x = model(), torch.randn(3, 5, 64)
    rewritten = rewrite(model, x)
    assert rewritten.replaced == {"rms_norm": 1} and rewritten.reasons == []
    assert not any(name in rewritten.code for name in ("rsqrt", "pow", "mul", " to = "))
    error = (rewritten.call(x).double() - _reference(model, x)).abs().max()
    assert error <= (model(x).double() - _reference(model, x)).abs().max() + 1e-6


@pytest.mark.parametrize("model", [Llama, T5, Gemma])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_16_bits_each_norm_rounds_where_its_model_does(rewrite, model, dtype):
    model, x = model().to(dtype), torch.randn(3, 5, 64, dtype=dtype)
    rewritten = rewrite(model, x)
    assert rewritten.replaced == {"rms_norm": 1}
    assert not any(name in rewritten.code for name in ("rsqrt", "pow", "mul"))
    ours, eager = rewritten.call(x), model(x)
    assert ours.dtype == eager.dtype
    # The statistics differ in their last float32 bit at most: one rounding in hundreds flips.
    assert (ours != eager).double().mean() < 0.02
    torch.testing.assert_close(ours, eager)


def test_a_float32_weight_of_t5_beside_bfloat16_gives_float32(rewrite):
    model, x = T5(), torch.randn(3, 64, dtype=torch.bfloat16)
    model.narrow = False
    assert_becomes(rewrite, model, [x], {"rms_norm": 1}, rtol=1e-5, atol=1e-5)


def test_a_float32_weight_after_rounding_is_multiplied_as_before(rewrite):
    model, x = Llama(), torch.randn(3, 64, dtype=torch.bfloat16)
    rewritten = assert_becomes(rewrite, model, [x], {"rms_norm": 1}, rtol=1e-2, atol=1e-2)
    assert "mul" in rewritten.code and "rsqrt" not in rewritten.code
    assert model(x).dtype == torch.float32


class BeforeBFloat16(Llama):
    def forward(self, x):
        return super().forward(x).to(torch.bfloat16) * 2


def test_a_result_that_is_cast_for_what_follows_is_replaced_up_to_the_cast(rewrite):
    model, x = BeforeBFloat16(), torch.randn(3, 64)
    assert_becomes(rewrite, model, [x], {"rms_norm": 1})


def test_a_tensor_whose_dtype_alone_is_read_is_no_part_of_a_norm(entries):
    """As in Llama 4's norm of queries, which have the dtype of what they were computed from."""

    def model(x):
        y = (x * 2).type_as(x)
        z = y.float()
        z = z * torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + 1e-6)
        return z.type_as(y)

    x = torch.randn(3, 8)
    assert_becomes(entries["dynamo"], model, [x], {"rms_norm": 1})


def test_arithmetic_in_16_bits_is_left(rewrite):
    x = torch.randn(3, 64, dtype=torch.bfloat16)
    reason = "it is computed in torch.bfloat16, which rounds at every step"
    assert_becomes(rewrite, Plain(), [x], {}, [reason])


@pytest.mark.parametrize("model", MODELS)
def test_gradients_are_eagers(rewrite_dynamo, model):
    model, x = model().double(), torch.randn(3, 64, dtype=torch.float64, requires_grad=True)
    if type(model) not in (Squared, Plain):  # these compute in float32 whatever they are given
        model, x = model.float(), x.detach().float().requires_grad_()
    rewritten = rewrite_dynamo(model, x)
    assert rewritten.replaced == {"rms_norm": 1}
    leaves = [x] if isinstance(model, Plain) else [x, model.weight]
    assert_same_gradients(rewritten.call, model, [x], leaves, rtol=1e-5, atol=1e-5)


def test_eps_as_a_graph_input_is_found(rewrite_dynamo):
    model, x = Llama(), torch.randn(3, 64)
    assert rewrite_dynamo(model, x, dynamic=True).replaced == {"rms_norm": 1}


def test_a_mean_over_several_last_dimensions(rewrite):
    def model(x):
        return x * torch.rsqrt(x.pow(2).mean((-2, -1), keepdim=True) + 1e-6)

    x = torch.randn(2, 4, 8)
    assert_becomes(rewrite, model, [x], {"rms_norm": 1}, rtol=1e-5, atol=1e-5)


def _scale(mean_square):
    return torch.rsqrt(mean_square + 1e-6)


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
    rewritten = rewrite(LOOK_ALIKES[name], x)
    assert rewritten.replaced == {}
    torch.testing.assert_close(rewritten.call(x), LOOK_ALIKES[name](x))


def test_intermediate_results_are_kept_for_their_other_readers(rewrite):
    def model(x):
        h = x.float()
        y = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        return y.to(x.dtype) + h.sum()

    x = torch.randn(4, 8, dtype=torch.bfloat16)
    assert_becomes(rewrite, model, [x], {"rms_norm": 1})


def test_a_norm_becomes_one_call(rewrite):
    rewritten = rewrite(Plain(), torch.randn(2, 64))
    assert rewritten.calls == ["rms_norm(x, normalized_shape=[64], eps=1e-06)"]
    assert rewritten.results == ["rms_norm[0]"]


def test_a_norm_of_16_bits_rounds_before_its_weight(entries):
    rewritten = entries["export"](Llama().bfloat16(), torch.randn(2, 64, dtype=torch.bfloat16))
    assert rewritten.calls == [
        "rms_norm(x, normalized_shape=[64], weight=p_weight, eps=1e-06, rounds_normalized=True)"
    ]
    assert rewritten.results == ["rms_norm[0]"]
