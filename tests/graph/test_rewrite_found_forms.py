"""Norms and softmaxes as they are written by hand in packages of other authors: what becomes an op
agrees with eager in values, gradients, dtype and strides; the rest stays, for the reason named.

docs/rewriting_forms.md lists them with the files in which they were found.
"""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_agrees

N, EPS = 8, 1e-5
TABLE = Path(__file__).parents[2] / "docs" / "rewriting_forms.md"


def layer_norm_without_bias(x, g):
    variance = torch.var(x, dim=-1, unbiased=False, keepdim=True)
    mean = torch.mean(x, dim=-1, keepdim=True)
    return (x - mean) * (variance + EPS).rsqrt() * g


def layer_norm_of_the_residue(x, g):
    dims = tuple(-(i + 1) for i in range(1))
    u = x.mean(dims, keepdim=True)
    centred = x - u
    variances = (centred * centred).mean(dims, keepdim=True)
    return (g * (centred / torch.sqrt(variances + EPS))) + g


def layer_norm_in_float32(x, g):
    return F.layer_norm(x.to(torch.float32), (N,), g, g, EPS).to(x.dtype)


def layer_norm_named(x, g):
    return F.layer_norm(x, (N,), weight=g, bias=g)


def rms_norm_by_normalize(x, g):
    return F.normalize(x, dim=-1) * N**0.5 * g


def rms_norm_by_normalize_plus_one(x, g):
    return F.normalize(x, dim=-1) * N**0.5 * (g + 1.0)


def rms_norm_without_weight(x, g):
    return F.normalize(x, dim=-1) * N**0.5


def rms_norm_of_heads(x, g):
    heads = g.expand(2, 1, N)
    return F.normalize(x.unflatten(0, (3, 2))[0][:, :2], dim=-1) * heads * N**0.5


def rms_norm_then_weight(x, g):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * g


def rms_norm_of_a_mean(x, g):
    mean_square = torch.mean(x * x, dim=-1, keepdim=True)
    return x * torch.rsqrt(mean_square + EPS) * (1 + g)


def rms_norm_with_deviation(x, g):
    norm = x.norm(2, dim=-1, keepdim=True)
    return g * (x / (norm * N ** (-1.0 / 2) + EPS))


def scale_norm_clamped(x, g):
    n = torch.norm(x, dim=-1, keepdim=True).clamp(min=EPS)
    return x / n * g[:1]


def scale_norm_by_normalize(x, g):
    return F.normalize(x, dim=-1) * N**0.5 * g[:1]


def unit_rows(x, g):
    return F.normalize(x, p=2, dim=-1)


def unit_rows_of_groups(x, g):
    return F.normalize(x.unflatten(-1, (2, 4)), dim=-1).flatten(-2)


def unit_matrices(x, g):
    return x / x.norm(dim=(-1, -2), keepdim=True).clamp(min=1e-7)


def coordinates(x, g):
    norm = x.norm(dim=-1, keepdim=True)
    return x / norm.clamp(min=1e-8) * g[0]


def unit_rows_plus_eps(x, g):
    return x / (x.norm(dim=-1, keepdim=True) + EPS)


def unit_rows_by_where(x, g):
    norm = x.norm(dim=-1)
    return x / torch.where(norm > EPS, norm, EPS)[..., None]


def norm_within_limits(x, g):
    norm = x.norm(dim=-1, keepdim=True)
    return x * (norm.clamp(max=1.0) / norm)


def probabilities_by_normalize(x, g):
    return F.normalize(x, p=1, dim=-1)


def whitened(x, g):
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
    return (x - mean) * variance.clamp(min=EPS).rsqrt()


def annotated(x, g):
    mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
    return g * (x - mean) / (std + EPS) + g


def biased_deviation(x, g):
    mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True, unbiased=False)
    return g * (x - mean) / (std + EPS) + g


def softmax_by_logsumexp(x, g):
    return torch.exp(x - torch.logsumexp(x, dim=1, keepdim=True))


def step_of_sinkhorn(x, g):
    return x - torch.logsumexp(x, dim=2, keepdim=True)


def softmax_after_detached_maximum(x, g):
    t = x * 0.5
    t = t - torch.amax(t, dim=-1, keepdim=True).detach()
    return (t * 2).softmax(dim=-1)


def softmax_in_float32(x, g):
    return F.softmax(x, dim=-1, dtype=torch.float32).to(x.dtype)


def features_of_performer(x, g):
    maximum = torch.amax(x, dim=-1, keepdim=True).detach()
    return 0.5 * (torch.exp(x - maximum) + 1e-4)


def softmax_of_normalized_scores(x, g):
    return (F.normalize(x, dim=-1) * 8).softmax(dim=-1)


#: By the function above: the ops that it becomes.
MATCHED = {
    layer_norm_without_bias: {"layer_norm": 1},
    layer_norm_of_the_residue: {"layer_norm": 1},
    layer_norm_in_float32: {"layer_norm": 1},
    layer_norm_named: {"layer_norm": 1},
    rms_norm_by_normalize: {"l2_norm": 1},
    rms_norm_by_normalize_plus_one: {"l2_norm": 1},
    rms_norm_without_weight: {"l2_norm": 1},
    rms_norm_of_heads: {"l2_norm": 1},
    rms_norm_then_weight: {"rms_norm": 1},
    rms_norm_of_a_mean: {"rms_norm": 1},
    scale_norm_clamped: {"l2_norm": 1},
    scale_norm_by_normalize: {"l2_norm": 1},
    unit_rows: {"l2_norm": 1},
    unit_rows_of_groups: {"l2_norm": 1},
    unit_matrices: {"l2_norm": 1},
    coordinates: {"l2_norm": 1},
    annotated: {"std_norm": 1},
    biased_deviation: {"std_norm": 1},
    whitened: {"l2_norm": 1},
    unit_rows_by_where: {"l2_norm": 1},
    softmax_by_logsumexp: {"softmax": 1},
    step_of_sinkhorn: {"log_softmax": 1},
    softmax_after_detached_maximum: {"masked_softmax": 1},
    softmax_in_float32: {"softmax": 1},
    softmax_of_normalized_scores: {"l2_norm": 1, "softmax": 1},
}
OTHER_NORM = "it is divided by another norm than the root of its sum of squares"
OUTSIDE = "eps is added to the root of its mean square, which no op does"
#: The reasons; there is none where the form is no norm and no softmax.
LEFT = {
    rms_norm_with_deviation: [OUTSIDE],
    unit_rows_plus_eps: [OUTSIDE],
    probabilities_by_normalize: [OTHER_NORM],
    norm_within_limits: [],
    features_of_performer: [],
}


@pytest.fixture
def inputs():
    return [torch.randn(size, requires_grad=True) for size in ((6, 5, N), (N,))]


@pytest.mark.parametrize("form", MATCHED, ids=lambda form: form.__name__)
def test_a_form_that_was_found_becomes_ops_that_agree_with_eager(rewrite, inputs, form):
    rewritten = rewrite(form, *(tensor.detach() for tensor in inputs))
    assert rewritten.replaced == MATCHED[form] and rewritten.reasons == []
    assert_agrees(rewritten.call, form, inputs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", LEFT, ids=lambda form: form.__name__)
def test_a_form_that_no_op_computes_stays_for_its_reason(rewrite, inputs, form):
    rewritten = rewrite(form, *(tensor.detach() for tensor in inputs))
    assert rewritten.replaced == {} and rewritten.reasons == LEFT[form]
    assert_agrees(rewritten.call, form, inputs, rtol=1e-6, atol=1e-6)


def test_the_page_lists_as_many_forms_as_are_tested():
    counts = re.search(r"(\d+) forms become\s+operators, (\d+) are left", TABLE.read_text())
    matched, left = counts.groups()
    assert (int(matched), int(left)) == (len(MATCHED), len(LEFT))
