"""Opaque calls are decomposed, so that their softmaxes and norms can be replaced; or left, with a
reason."""

import functools

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_becomes, assert_one_graph, assert_same_gradients, rewritten_alike
from torch import nn
from torch.torch_version import TorchVersion

import fusedops

# --- F.multi_head_attention_forward ---------------------------------------------------------------


def _key_padding(x):
    mask = torch.zeros(x.shape[0], x.shape[1], dtype=torch.bool)
    mask[:, -1] = True
    return {"key_padding_mask": mask}


def _causal(x):
    return {"attn_mask": torch.ones(5, 5, dtype=torch.bool).triu(1)}


def _biased(x):
    return {"attn_mask": torch.linspace(-1, 1, 25, dtype=x.dtype).view(5, 5)}


#: What may be given besides the inputs, and the op that the softmax becomes.
MASKS = {
    "none": (lambda x: {}, "softmax"),
    "key padding": (_key_padding, "masked_softmax"),
    "causal": (_causal, "masked_softmax"),
    "bias": (_biased, "masked_softmax"),
    "both": (lambda x: _causal(x) | _key_padding(x), "masked_softmax"),
}


class Attention(nn.Module):
    def __init__(self, mask, average=True, dropout=0.0):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout, batch_first=True)
        self.mask, self.average = mask, average

    def forward(self, x, y):
        given = MASKS[self.mask][0](y)
        return self.attention(x, y, y, average_attn_weights=self.average, **given)


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("mask", MASKS)
def test_attention_that_returns_its_weights_is_seen_through(
    rewrite_dynamo, mask, training, average
):
    model = Attention(mask, average).double().train(training)
    x, y = (torch.randn(3, 5, 8, dtype=torch.float64, requires_grad=True) for _ in range(2))
    ops = {MASKS[mask][1]: 1}
    rewritten = assert_becomes(rewrite_dynamo, model, [x, y], ops)
    assert "multi_head_attention_forward" not in rewritten.code
    leaves = [x, y, *model.parameters()]
    assert_same_gradients(rewritten.call, model, [x, y], leaves, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("used", [lambda results: results, lambda results: results[:1]])
def test_attention_whose_results_are_used_as_a_tuple_is_left_alone(entries, used):
    def model(x, weight):
        in_proj, out_proj = weight.expand(3, 8, 8).flatten(0, 1), weight
        projections = in_proj, None, None, None, False, 0.1, out_proj, None
        return used(F.multi_head_attention_forward(x, x, x, 8, 2, *projections))

    inputs = torch.randn(5, 3, 8), torch.randn(8, 8)
    rewritten = entries["symbolic_trace"](model, *inputs)
    assert rewritten.replaced == {} and "softmax" not in rewritten.code


@pytest.mark.parametrize("mask", ["none", "key padding", "both"])
def test_attention_is_compiled_once_for_all_batch_sizes(rewrite_dynamo, mask):
    def inputs(batch):
        return [torch.randn(batch, 5, 8, dtype=torch.float64) for _ in range(2)]

    model = Attention(mask).double().eval()
    rewritten = rewrite_dynamo(model, *inputs(4), dynamic=True)
    assert_one_graph(rewritten, model, [inputs(batch) for batch in (2, 3, 8)])
    assert rewritten.replaced == {MASKS[mask][1]: 1}


def test_the_dropout_of_attention_is_the_ops(rewrite_dynamo):
    model = Attention("key padding", average=False, dropout=0.5)
    rewritten = rewrite_dynamo(model, *torch.randn(2, 3, 5, 8))
    assert rewritten.replaced == {"masked_softmax_dropout": 1}
    weights = rewritten.call(*torch.randn(2, 64, 5, 8))[1]
    assert abs((weights[..., :-1] == 0).double().mean() - 0.5) < 0.05  # 2560 draws: 0.01


def test_a_row_without_keys_is_nan_as_in_eager(rewrite_dynamo):
    attention = nn.MultiheadAttention(8, 2, batch_first=True).double().eval()

    def model(x, mask):
        return attention(x, x, x, key_padding_mask=mask)

    x, mask = torch.randn(2, 5, 8, dtype=torch.float64), torch.zeros(2, 5, dtype=torch.bool)
    mask[0] = True
    ops = {"masked_softmax": 1}
    assert_becomes(rewrite_dynamo, model, [x, mask], ops)
    assert model(x, mask)[1][0].isnan().all()


def test_attention_under_autocast_keeps_eagers_dtype_and_values(rewrite_dynamo):
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()

    def model(x):
        with torch.autocast("cpu", torch.bfloat16):
            return attention(x, x, x)

    x = torch.randn(2, 5, 8)
    rewritten_alike(rewrite_dynamo, model, [x], rtol=2e-2, atol=2e-2)


# --- F.scaled_dot_product_attention with dropout --------------------------------------------------

#: Some dropout, which drops nothing that can be seen.
HARDLY = 1e-30


def _sdpa(query, key, values, mask=None, p=HARDLY, **options):
    return F.scaled_dot_product_attention(query, key, values, mask, p, **options)


def _heads(*heads, dtype=torch.float64):
    shapes = [(2, count, 6, 8) for count in heads]
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def _visible():
    visible = torch.rand(2, 1, 6, 6) < 0.6
    visible[0, 0, 0] = False  # a query that sees no key
    return visible


SDPA = {
    "plain": lambda query, key, values, mask: _sdpa(query, key, values),
    "causal": lambda query, key, values, mask: _sdpa(query, key, values, is_causal=True),
    "masked": lambda query, key, values, mask: _sdpa(query, key, values, mask),
    "numbers": lambda query, key, values, mask: _sdpa(
        query, key, values, torch.where(mask, query[..., :6], -torch.inf)
    ),
    "scaled": lambda query, key, values, mask: _sdpa(query, key, values, scale=-0.3),
}


@pytest.mark.parametrize("form", SDPA.values(), ids=SDPA)
def test_sdpa_with_dropout_is_seen_through(rewrite, form):
    inputs = [*_heads(4, 4, 4), _visible()]
    rewritten = assert_becomes(rewrite, form, inputs, {"masked_softmax_dropout": 1})
    assert "scaled_dot_product" not in rewritten.code
    assert_same_gradients(rewritten.call, form, inputs, inputs[:3], rtol=1e-9, atol=1e-12)


def test_sdpa_of_fewer_keys_than_queries_is_seen_through(rewrite_dynamo):
    def grouped(query, key, values):
        return _sdpa(query, key, values, is_causal=True, enable_gqa=True)

    for heads in [(4, 2, 2), (4, 2, 1), (4, 1, 4)]:
        assert_becomes(rewrite_dynamo, grouped, _heads(*heads), {"masked_softmax_dropout": 1})


def _under_autocast(*inputs):
    with torch.autocast("cpu", torch.bfloat16):
        return _sdpa(*inputs)


@pytest.mark.parametrize("is_masked", [False, True], ids=["plain", "numbers"])
@pytest.mark.parametrize("is_autocast", [False, True], ids=["bfloat16", "autocast"])
def test_sdpa_with_dropout_computes_16_bit_scores_in_float32(
    rewrite_dynamo, is_autocast, is_masked
):
    inputs = [(8 * tensor.detach()).bfloat16() for tensor in _heads(4, 4, 4)]
    inputs += [torch.randn(6, 6).bfloat16()] if is_masked else []
    exact = _sdpa(*(tensor.double() for tensor in inputs))
    form = _under_autocast if is_autocast else _sdpa
    inputs = [tensor.float() for tensor in inputs] if is_autocast else inputs
    rewritten, eager = rewrite_dynamo(form, *inputs), form(*inputs)
    assert rewritten.replaced == {"masked_softmax_dropout": 1}
    ours = rewritten.call(*inputs)
    assert ours.dtype == eager.dtype == torch.bfloat16
    assert (ours - exact).abs().max() <= 1.01 * (eager - exact).abs().max()


def test_sdpa_with_dropout_is_compiled_once_for_all_batch_sizes(rewrite_dynamo):
    def inputs(batch):
        return [torch.randn(batch, 4, 6, 8, dtype=torch.float64) for _ in range(3)]

    def causal(query, key, values):
        return F.scaled_dot_product_attention(query, key, values, None, 1e-30, is_causal=True)

    rewritten = rewrite_dynamo(causal, *inputs(5), dynamic=True)
    assert_one_graph(rewritten, causal, [inputs(batch) for batch in (2, 3, 8)])
    assert rewritten.replaced == {"masked_softmax_dropout": 1}


KEYS = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
ENCODER_MASKS = {
    "none": {},
    "key padding": {"src_key_padding_mask": KEYS},
    "nothing left": {"src_key_padding_mask": KEYS | True},
    "causal": {"src_mask": torch.ones(5, 5, dtype=torch.bool).triu(1)},
    "both": {
        "src_mask": torch.ones(5, 5, dtype=torch.bool).triu(1),
        "src_key_padding_mask": KEYS,
    },
}


@pytest.mark.parametrize("mask", ["none", "key padding", "causal", "both"])
def test_a_layer_in_training_has_every_dropout_in_an_op(rewrite_dynamo, mask):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
    model = functools.partial(layer, **ENCODER_MASKS[mask])
    replaced = rewrite_dynamo(model, torch.randn(2, 5, 8)).replaced
    assert replaced == {"masked_softmax_dropout": 1, "add_layer_norm": 2, "dropout": 1}


def test_sdpa_without_dropout_is_left_as_it_runs(rewrite):
    inputs = [tensor.detach() for tensor in _heads(4, 4, 4)]
    (left,) = rewrite(lambda q, k, v: _sdpa(q, k, v, p=0.0), *inputs).report.sites
    assert (left.op, left.reason) == ("scaled_dot_product_attention", "already runs as SDPA")


# --- torch._transformer_encoder_layer_fwd ---------------------------------------------------------


@pytest.mark.parametrize("mask", ENCODER_MASKS)
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_the_fused_encoder_layer_of_inference_is_seen_through(
    rewrite_dynamo, mask, norm_first, activation
):
    layer = nn.TransformerEncoderLayer(
        8, 2, 16, activation=activation, norm_first=norm_first, batch_first=True
    )
    layer, x = layer.double().eval(), torch.randn(2, 5, 8, dtype=torch.float64)

    def model(x):
        return layer(x, **ENCODER_MASKS[mask])

    ops = {"layer_norm": 1, "add_layer_norm": 1} if norm_first else {"add_layer_norm": 2}
    ops |= {} if mask == "none" else {"masked_softmax": 1}
    reasons = ["already runs as SDPA"] if mask == "none" else []
    with torch.no_grad():
        assert_becomes(rewrite_dynamo, model, [x], ops, reasons)
        assert model(x).isnan().all() == (mask == "nothing left")


@pytest.mark.skipif(
    TorchVersion(torch.__version__) < TorchVersion("2.13"),
    reason="Dynamo before torch 2.13 leaves an encoder layer with symbolic sizes to eager",
)
def test_the_encoder_layer_is_compiled_once_for_all_batch_sizes(rewrite_dynamo):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).double().eval()
    with torch.no_grad():
        rewritten = rewrite_dynamo(layer, torch.randn(4, 5, 8, dtype=torch.float64), dynamic=True)
        shapes = (2, 5, 8), (3, 7, 8), (8, 8, 8)
        inputs = [[torch.randn(shape, dtype=torch.float64)] for shape in shapes]
        assert_one_graph(rewritten, layer, inputs)
    assert rewritten.replaced == {"add_layer_norm": 2}


# --- F.softmin, F.gumbel_softmax ------------------------------------------------------------------


@pytest.mark.parametrize("dim", [0, 1, -1, None])
def test_softmin_is_softmax_of_the_negated_input(rewrite, dim):
    def model(x):
        return F.softmin(x, dim=dim)

    x = torch.randn(3, 5, 4, dtype=torch.float64)
    assert_becomes(rewrite, model, [x], {"softmax": 1})


@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("tau", [1.0, 0.5])
def test_gumbel_softmax_draws_eagers_noise(rewrite, hard, tau):
    def model(x):
        return F.gumbel_softmax(x, tau, hard)

    x = torch.randn(3, 5, 4, dtype=torch.float64)
    assert_becomes(rewrite, model, [x], {"masked_softmax": 1}, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("model", [F.softmin, F.gumbel_softmax], ids=lambda f: f.__name__)
def test_they_are_compiled_once_and_differentiable_at_all_sizes(rewrite_dynamo, model):
    def of_rows(x):
        return model(x, dim=-1)

    rewritten = rewrite_dynamo(of_rows, torch.randn(4, 6, requires_grad=True), dynamic=True)
    shapes = (2, 3), (5, 6), (6, 4)
    assert_one_graph(
        rewritten, of_rows, [[torch.randn(shape, requires_grad=True)] for shape in shapes]
    )
    assert sum(rewritten.replaced.values()) == 1


TRANSFORMS = {
    "vmap": lambda x: torch.func.vmap(lambda row: F.softmin(row, 0))(x),
    "grad": lambda x: torch.func.grad(lambda x: F.softmin(x, -1).pow(2).sum())(x),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_inside_a_transform_nothing_is_decomposed(rewrite_dynamo, transform):
    model, x = TRANSFORMS[transform], torch.randn(4, 8)
    reason = "softmax of a negated input, one opaque call at this level"
    assert_becomes(rewrite_dynamo, model, [x], {}, [reason])


# --- all ------------------------------------------------------------------------------------------


def test_a_call_is_not_decomposed_where_nothing_in_it_is_replaced(rewrite_dynamo):
    with fusedops.config.patch(fuse="never"):
        rewritten = rewrite_dynamo(lambda x: F.softmin(x, -1), torch.randn(2, 4))
    assert rewritten.replaced == {} and "softmin" in rewritten.code


def test_compiled_with_inductor_the_ops_run(ops_run):
    model = Attention("key padding").eval()
    x, y = torch.randn(2, 3, 5, 8)
    compiled = torch.compile(model, backend="fusedops")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, y), model(x, y), rtol=1e-5, atol=1e-6)
        assert ops_run(compiled, x, y) == {"masked_softmax": 1}


# --- what is left ---------------------------------------------------------------------------------


def test_multi_head_attention_without_weights_is_left_as_it_runs(rewrite_dynamo):
    attention = nn.MultiheadAttention(8, 2)

    def model(x):
        return attention(x, x, x, need_weights=False)[0]

    (left,) = rewrite_dynamo(model, torch.randn(3, 2, 8)).report.sites
    assert (left.op, left.reason) == ("multi_head_attention_forward", "already runs as SDPA")


def test_a_softmax_beside_an_opaque_call_is_replaced(rewrite):
    def loss(x):
        return F.cross_entropy(x, x.softmax(-1))

    x = torch.rand(2, 4)
    rewritten = rewritten_alike(rewrite, loss, [x])
    assert rewritten.replaced == {"softmax": 1} and rewritten.calls == ["softmax(x, dim=-1)"]
    assert rewritten.results[0].replace("_loss", "") == "cross_entropy(x, softmax)"
