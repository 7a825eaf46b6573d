"""Sites that pay are replaced, others left with the reason: by a table, or by rule of thumb."""

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_becomes
from decomposed import rms_norm_decomposed

import fusedops
from fusedops.graph.policy.decision import BECOMES_SDPA

pytestmark = pytest.mark.usefixtures("profitable")


def _softmax(x):
    return x.softmax(-1)


def test_a_site_that_is_measured_to_be_slower_is_left(table, rewrite_dynamo):
    table("softmax", inductor=1, ours=2)
    rewritten = rewrite_dynamo(_softmax, torch.randn(64, 64))
    assert rewritten.reasons == ["Inductor is measured to be faster: 1 ms against 2 ms"]
    one_element = rewrite_dynamo(lambda x: x.softmax(0), torch.randn(()))
    assert one_element.replaced == {}


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_nearest_size_decides_that_of_the_capture_where_sizes_are_dynamic(
    table, rewrite_dynamo, dynamic
):
    table("softmax", inductor=1, ours=2, rows_and_cols=(8, 8))
    table("softmax", inductor=2, ours=1, rows_and_cols=(1024, 1024))
    for shape, replaced in (((512, 700), {"softmax": 1}), ((20, 4), {})):
        assert rewrite_dynamo(_softmax, torch.randn(shape), dynamic=dynamic).replaced == replaced


def test_a_call_takes_as_long_at_every_size(table, rewrite_dynamo):
    table("softmax", inductor=20e-3, ours=21e-3, rows_and_cols=(8, 128))
    table("softmax", inductor=36e-3, ours=29e-3, rows_and_cols=(128, 128))
    shorter = rewrite_dynamo(_softmax, torch.randn(64, 16))
    assert shorter.reasons == ["Inductor is measured to be faster: 0 us against 1 us"]
    (site,) = rewrite_dynamo(_softmax, torch.randn(64, 128)).report.sites
    assert (site.figures.inductor_ms, site.figures.ours_ms) == pytest.approx((8e-3, 5e-3))


@pytest.mark.parametrize(("ours", "time"), [(0.98, "980 us"), (1, "1 ms")])
def test_a_gain_within_the_spread_of_measurements_does_not_count(ours, time, table, rewrite_dynamo):
    table("softmax", inductor=1, ours=ours)
    rewritten = rewrite_dynamo(_softmax, torch.randn(64, 64))
    assert rewritten.reasons == [
        f"within measurement error: Inductor is measured at 1 ms against {time}"
    ]


def test_a_pointwise_neighbour_costs_the_pass_that_inductor_would_have_saved(table, rewrite_dynamo):
    table("softmax", inductor=2, ours=1.5)
    x = torch.randn(64, 64)
    alone = rewrite_dynamo(lambda x: x.softmax(-1) @ x, x)
    between = rewrite_dynamo(lambda x: x.tanh().softmax(-1).tanh(), x)
    assert alone.replaced == {"softmax": 1} and between.replaced == {}
    (site,) = between.report.sites
    assert site.figures.passes_ms == pytest.approx(4)  # two are written, and read


@pytest.mark.parametrize(
    ("move", "passes"),
    [
        (lambda y: y.view(8, 8, 64).transpose(0, 1).contiguous().view(64, 64), 2),
        (lambda y: y.view(8, 8, 64).transpose(0, 1).reshape(64, 64), 2),
        (lambda y: y.roll(1, 0), 2),
        (lambda y: y.view(8, 512).contiguous().view(64, 64), 0),
    ],
)
def test_a_copy_in_another_order_is_a_pointwise_neighbour(move, passes, table, rewrite_dynamo):
    table("softmax", inductor=4, ours=1)
    rewritten = rewrite_dynamo(lambda x: move(x.softmax(-1)) @ x.T, torch.randn(64, 64))
    assert rewritten.report.sites[0].figures.passes_ms == pytest.approx(passes)


def test_a_copy_that_gives_eagers_strides_costs_its_bytes(table, rewrite_dynamo):
    table("rms_norm", inductor=4, ours=1)
    x = torch.randn(64, 64)
    reports = [rewrite_dynamo(rms_norm_decomposed, given).report for given in (x, x.t())]
    assert [report.sites[0].figures.passes_ms for report in reports] == pytest.approx([0, 2])
    assert all(report.replaced for report in reports)


def test_a_site_that_pays_only_without_its_copy_is_left(table, rewrite_dynamo):
    table("rms_norm", inductor=2, ours=1)
    x = torch.randn(64, 64)
    assert rewrite_dynamo(rms_norm_decomposed, x).reasons == []
    rewritten = rewrite_dynamo(rms_norm_decomposed, x.t())
    assert rewritten.reasons == ["Inductor is measured to be faster: 2 ms against 3 ms"]


def test_a_site_without_elements_compiles_and_is_reported(table, caplog):
    table("layer_norm", inductor=2, ours=1)

    def model(x):
        return F.layer_norm(x, (64,))

    x = torch.randn(0, 64, dtype=torch.float64)
    with torch.no_grad(), caplog.at_level("INFO", logger="fusedops"):
        result = torch.compile(model, backend="fusedops")(x.float())
    assert "fusedops: 1 of 1 sites replaced\n" in caplog.text
    torch.testing.assert_close(result.double(), model(x))


def test_without_a_measurement_a_copy_does_not_pay(no_table, rewrite_dynamo):
    x = torch.randn(512, 512)
    assert rewrite_dynamo(rms_norm_decomposed, x).reasons == []
    rewritten = rewrite_dynamo(rms_norm_decomposed, x.t())
    assert rewritten.reasons == [
        "eager's strides take a copy, and no measurement says that this pays"
    ]


@pytest.mark.parametrize(("p", "training"), [(0.0, True), (0.1, False)])
def test_a_dropout_that_drops_nothing_costs_no_pass(p, training, table, rewrite_dynamo):
    table("softmax", inductor=2, ours=1.5)
    x = torch.randn(64, 64)
    rewritten = rewrite_dynamo(lambda x: F.dropout(x.softmax(-1), p, training) @ x, x)
    assert rewritten.replaced == {"softmax": 1}
    assert rewritten.report.sites[0].figures.passes_ms == 0


def test_a_mask_that_inductor_would_have_computed_on_its_way_is_written_and_read(
    table, rewrite_dynamo
):
    table("masked_softmax[additive]", inductor=2, ours=1)
    x, hidden = torch.randn(4, 64, 64), torch.zeros(64, 64)
    given = rewrite_dynamo(lambda x, hidden: (x + hidden).softmax(-1), x, hidden)
    made = rewrite_dynamo(lambda x, hidden: (x + hidden * -1e4).softmax(-1), x, hidden)
    assert [r.report.sites[0].figures.passes_ms for r in (given, made)] == pytest.approx([0, 2])


def test_in_training_both_passes_count(table, rewrite_dynamo):
    table("softmax", inductor=1, ours=2)
    table("softmax", inductor=5, ours=4, mode="training")
    x = torch.randn(64, 64)
    assert rewrite_dynamo(_softmax, x).replaced == {}
    assert rewrite_dynamo(_softmax, x.requires_grad_()).replaced == {"softmax": 1}
    with torch.no_grad():
        assert rewrite_dynamo(_softmax, x).replaced == {}


def _causal(x, sink):
    future = torch.ones(64, 64, dtype=torch.bool).triu(1)
    return x.masked_fill(future, -torch.inf).softmax(-1)


def _causal_beside_a_sink(x, sink):
    visible = torch.ones(64, 64, dtype=torch.bool).tril()
    scores = x.masked_fill(~visible, -1e30)
    return torch.cat([scores, sink.expand(64, 1)], -1).softmax(-1)[..., :-1] @ x


@pytest.mark.parametrize(
    "model, mode, op",
    [
        (_causal, "inference", "masked_softmax"),
        (_causal_beside_a_sink, "training", "masked_softmax_sinks"),
    ],
)
def test_causal_scores_are_judged_by_times_of_causal_ones(table, rewrite_dynamo, model, mode, op):
    is_trained = mode == "training"
    x, sink = (torch.randn(n, n, requires_grad=is_trained) for n in (64, 1))
    table("masked_softmax[additive]", inductor=1, ours=2, mode=mode)
    assert rewrite_dynamo(model, x, sink).replaced == {}
    table("masked_softmax[causal]", inductor=2, ours=1, mode=mode)
    assert rewrite_dynamo(model, x, sink).replaced == {op: 1}


ADDED_LATER = {
    "l2_norm": lambda x: F.normalize(x, dim=-1),
    "spatial_layer_norm": lambda x: (
        (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, correction=0) + 1e-6).sqrt()
    ),
    "spatial_rms_norm": lambda x: x * (x.pow(2).mean(1, keepdim=True) + 1e-6).rsqrt(),
}


@pytest.mark.parametrize("norm", ADDED_LATER)
def test_norms_that_were_added_later_are_judged_by_the_nearest_rows(norm, table, rewrite_dynamo):
    x = torch.randn(1, 64, 64)
    table(norm, inductor=1, ours=2)
    assert rewrite_dynamo(ADDED_LATER[norm], x).replaced == {}
    table(norm, inductor=3, ours=1)
    assert rewrite_dynamo(ADDED_LATER[norm], x).replaced == {norm: 1}


def test_an_op_that_no_table_has_is_judged_by_the_rule_of_thumb(table, rewrite_dynamo):
    table("layer_norm", inductor=2, ours=1)
    left = rewrite_dynamo(_softmax, torch.randn(16, 16))
    assert left.reasons == ["too small to pay: 256 elements"]


def test_where_the_larger_rewrite_does_not_pay_the_smaller_one_may(table, rewrite_dynamo):
    table("add_layer_norm", inductor=1, ours=2)
    table("layer_norm", inductor=4, ours=1)
    rewritten = rewrite_dynamo(
        lambda x, r: F.layer_norm(x @ x + r, (64,)) @ x, torch.randn(64, 64), torch.randn(64, 64)
    )
    assert rewritten.replaced == {"layer_norm": 1}


def test_the_random_numbers_of_a_dropout_cost_inductor_what_a_softmax_with_one_takes_more(
    table, rewrite_dynamo
):
    def form(x, r):
        return F.layer_norm(F.dropout(x @ x, 0.1) + r, (64,)) @ x

    def site():
        return rewrite_dynamo(form, x, torch.randn(64, 64)).report.sites[0]

    x = torch.randn(64, 64)
    table("add_layer_norm", inductor=4, ours=1)
    assert site().figures.inductor_ms == pytest.approx(4)
    table("softmax_dropout[causal]", inductor=5, ours=1, mode="training")
    assert site().figures.inductor_ms == pytest.approx(4)
    table("masked_softmax[causal]", inductor=3, ours=1, mode="training")
    assert site().figures.inductor_ms == pytest.approx(6)


def test_a_mask_that_inductor_computes_in_its_kernel_has_times_of_its_own(table, rewrite_dynamo):
    def of_positions(x):
        position = torch.arange(64)
        future = position > position[:, None]
        return (x + torch.where(future, torch.finfo(x.dtype).min, 0.0)).softmax(-1)

    def of_memory(x):
        return (x + FUTURE).softmax(-1)

    FUTURE = torch.full((64, 64), torch.finfo(torch.float32).min).triu(1)
    table("masked_softmax[additive]", inductor=2, ours=1.5)
    table("masked_softmax[causal]", inductor=3, ours=1)
    table("masked_softmax[computed]", inductor=8, ours=9)
    for form, times in ((of_positions, (8, 1)), (of_memory, (2, 1.5))):
        figures = rewrite_dynamo(form, torch.randn(64, 64)).report.sites[0].figures
        assert (figures.inductor_ms, figures.fusedops_ms) == times


@pytest.mark.parametrize("causal, times", [(True, (5, 1.5)), (False, (7, 4))])
def test_a_dropout_is_added_to_what_the_masked_softmax_takes(table, rewrite_dynamo, causal, times):
    """Half of a causal softmax is hidden and needs no random numbers."""

    def form(x, mask):
        future = torch.ones(64, 64).triu(1).bool()
        scores = x.masked_fill(future, -torch.inf) if causal else x + mask
        return F.dropout(scores.softmax(-1), 0.5)

    table("masked_softmax[additive]", inductor=4, ours=3, mode="training")
    table("masked_softmax[causal]", inductor=2, ours=1, mode="training")
    table("softmax_dropout[causal]", inductor=5, ours=1.5, mode="training")
    x = torch.randn(64, 64, requires_grad=True)
    figures = rewrite_dynamo(form, x, torch.zeros(64)).report.sites[0].figures
    assert (figures.inductor_ms, figures.fusedops_ms) == times


def test_a_softmax_that_is_reduced_is_left_to_inductor(rewrite_dynamo):
    def entropy(x):
        log_p = x.log_softmax(-1)
        return -(log_p.exp() * log_p).sum(-1)

    x = torch.randn(512, 1024)
    rewritten = rewrite_dynamo(entropy, x)
    reason = "its result is only gathered or reduced: Inductor never materialises it"
    assert rewritten.replaced == {} and rewritten.reasons == [reason]
    with fusedops.config.patch(fuse="always"):
        assert rewrite_dynamo(entropy, x).replaced == {"log_softmax": 1}


def _logits_and_loss(h, w, target):
    logits = h @ w.T
    return logits, F.cross_entropy(logits, target)


def _differentiated_logits(h, w, target):
    logits, loss = _logits_and_loss(h, w, target)
    return loss + logits.square().mean()


def _loss_and_hits(h, w, target):
    logits, loss = _logits_and_loss(h, w, target)
    return loss, (logits.argmax(-1) == target).sum(), logits.topk(3).indices


#: Losses, and why the gradient of the logits needs memory of its own; "" if it does not.
KEPT = {
    "": _loss_and_hits,
    "the logits are returned: compile the step with its loss": _logits_and_loss,
    "the logits are an input of the graph: compile the model with its loss": (
        lambda h, w, target: F.cross_entropy(w.view(16, -1), target[:16])
    ),
    "something else is differentiated with respect to the logits": _differentiated_logits,
    "the loss reads a part of the logits: shift the labels instead, as transformers does": (
        lambda h, w, target: F.cross_entropy((h @ w.T)[:, :1000], target % 1000)
    ),
}


def _rows_and_classes(requires_grad=True):
    w = torch.randn(1024, 64, requires_grad=requires_grad)
    return torch.randn(64, 64), w, torch.randint(1024, (64,))


@pytest.mark.parametrize("reason", KEPT)
def test_in_training_the_logits_are_free_for_their_gradient(no_table, rewrite_dynamo, reason):
    inference = rewrite_dynamo(KEPT[reason], *_rows_and_classes(requires_grad=False))
    assert inference.replaced == {"cross_entropy": 1}
    trained = rewrite_dynamo(KEPT[reason], *_rows_and_classes())
    assert trained.reasons == [reason] * bool(reason)


def test_a_cross_entropy_of_logits_that_are_kept_is_measured_apart(table, rewrite_dynamo):
    _, returned, *_ = KEPT.values()
    table("cross_entropy[kept]", inductor=2, ours=1, mode="training")
    assert rewrite_dynamo(returned, *_rows_and_classes()).replaced == {"cross_entropy": 1}
    table("cross_entropy", inductor=1, ours=2, mode="training")
    assert rewrite_dynamo(KEPT[""], *_rows_and_classes()).replaced == {}


def test_without_a_table_small_tensors_are_left(no_table, rewrite_dynamo):
    assert rewrite_dynamo(_softmax, torch.randn(512, 512)).replaced == {"softmax": 1}
    left = rewrite_dynamo(_softmax, torch.randn(16, 16))
    assert left.reasons == ["too small to pay: 256 elements"]
    fused = rewrite_dynamo(lambda x: x.tanh().softmax(-1).tanh(), torch.randn(512, 512))
    assert "Inductor fuses it with its neighbours" in fused.reasons[0]


def _attention(mask):
    def model(q):
        scores = q @ q.transpose(-2, -1) * 0.125
        return (scores if mask is None else scores + mask).softmax(-1) @ q

    return model


def test_attention_without_a_mask_is_left_to_inductors_sdpa(no_table, rewrite_dynamo):
    q = torch.randn(2, 4, 128, 64)
    plain = rewrite_dynamo(_attention(None), q)
    assert plain.reasons[-1] == BECOMES_SDPA
    masked = rewrite_dynamo(_attention(torch.zeros(128, 128)), q)
    assert masked.replaced == {"masked_softmax": 1}


#: What stands between the scores and the softmax, and whether Inductor's pass knows it.
SCORES = {
    "a product by torch.multiply": (lambda s: torch.multiply(s, 0.125), True),
    "a number divided by them": (lambda s: 2 / s, False),
    "their squares": (lambda s: s * s, False),
}


@pytest.mark.parametrize(("of_product", "is_scaled"), SCORES.values(), ids=SCORES)
def test_only_scores_scaled_by_a_number_become_sdpa(
    of_product, is_scaled, no_table, rewrite_dynamo
):
    q = torch.randn(2, 4, 128, 64)
    rewritten = rewrite_dynamo(lambda q: of_product(q @ q.mT).softmax(-1) @ q, q)
    assert (rewritten.reasons == [BECOMES_SDPA]) == is_scaled


def test_an_input_that_is_named_as_a_product_is_none(no_table, entries):
    def model(matmul, values):
        return matmul.softmax(-1) @ values

    for entry in ("export", "symbolic_trace"):
        rewritten = entries[entry](model, torch.randn(512, 512), torch.randn(512, 8))
        assert rewritten.replaced == {"softmax": 1}


@pytest.mark.parametrize(("tokens", "sites"), [(16, {}), (2048, {"add_layer_norm": 2})])
def test_a_small_encoder_layer_in_inference_is_left_to_pytorch(
    tokens, sites, no_table, rewrite_dynamo
):
    layer = torch.nn.TransformerEncoderLayer(128, 2, 128, batch_first=True).eval()
    with torch.no_grad():
        assert rewrite_dynamo(layer, torch.randn(1, tokens, 128)).replaced == sites


def test_a_rule_can_be_switched_by_itself(rewrite_dynamo):
    def model(x):
        return F.layer_norm(x, (8,)), x.softmax(-1)

    reason = 'config: fuse="always,layer_norm=never"'
    with fusedops.config.patch(fuse="always,layer_norm=never"):
        assert_becomes(rewrite_dynamo, model, [torch.randn(4, 8)], {"softmax": 1}, [reason])
