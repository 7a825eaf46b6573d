"""Norms and softmaxes as they are written by hand in packages of other authors: what becomes an op
agrees with eager in values, gradients, dtype and strides; the rest stays, for the reason named.

docs/rewriting_forms.md lists them with the files in which they were found.
"""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_becomes

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


def rms_norm_of_heads(x, g):
    heads = g.expand(2, 1, N)
    return F.normalize(x.unflatten(0, (3, 2))[0][:, :2], dim=-1) * heads * N**0.5


def rms_norm_of_a_mean(x, g):
    mean_square = torch.mean(x * x, dim=-1, keepdim=True)
    return x * torch.rsqrt(mean_square + EPS) * (1 + g)


def scale_norm_clamped(x, g):
    n = torch.norm(x, dim=-1, keepdim=True).clamp(min=EPS)
    return x / n * g[:1]


def coordinates(x, g):
    norm = x.norm(dim=-1, keepdim=True)
    return x / norm.clamp(min=1e-8) * g[0]


def unit_rows_by_where(x, g):
    norm = x.norm(dim=-1)
    return x / torch.where(norm > EPS, norm, EPS)[..., None]


def whitened(x, g):
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
    return (x - mean) * variance.clamp(min=EPS).rsqrt()


def annotated(x, g):
    mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
    return g * (x - mean) / (std + EPS) + g


def biased_deviation(x, g):
    mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True, unbiased=False)
    return g * (x - mean) / (std + EPS) + g


def softmax_after_detached_maximum(x, g):
    t = x * 0.5
    t = t - torch.amax(t, dim=-1, keepdim=True).detach()
    return (t * 2).softmax(dim=-1)


#: By the ops that the form becomes, and what it is.
MATCHED = {
    "layer_norm: without bias": layer_norm_without_bias,
    "layer_norm: of the residue": layer_norm_of_the_residue,
    "layer_norm: in float32": lambda x, g: F.layer_norm(x.to(torch.float32), (N,), g, g, EPS).to(
        x.dtype
    ),
    "layer_norm: named": lambda x, g: F.layer_norm(x, (N,), weight=g, bias=g),
    "rms_norm: then weight": lambda x, g: (
        x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * g
    ),
    "rms_norm: of a mean": rms_norm_of_a_mean,
    "std_norm: annotated": annotated,
    "std_norm: biased deviation": biased_deviation,
    "l2_norm: RMSNorm": lambda x, g: F.normalize(x, dim=-1) * N**0.5 * g,
    "l2_norm: RMSNorm plus one": lambda x, g: F.normalize(x, dim=-1) * N**0.5 * (g + 1.0),
    "l2_norm: RMSNorm without weight": lambda x, g: F.normalize(x, dim=-1) * N**0.5,
    "l2_norm: RMSNorm of heads": rms_norm_of_heads,
    "l2_norm: ScaleNorm, clamped": scale_norm_clamped,
    "l2_norm: ScaleNorm": lambda x, g: F.normalize(x, dim=-1) * N**0.5 * g[:1],
    "l2_norm: unit rows": lambda x, g: F.normalize(x, p=2, dim=-1),
    "l2_norm: unit rows of groups": lambda x, g: F.normalize(
        x.unflatten(-1, (2, 4)), dim=-1
    ).flatten(-2),
    "l2_norm: unit rows by where": unit_rows_by_where,
    "l2_norm: unit matrices": lambda x, g: x / x.norm(dim=(-1, -2), keepdim=True).clamp(min=1e-7),
    "l2_norm: coordinates": coordinates,
    "l2_norm: whitened": whitened,
    "softmax: by logsumexp": lambda x, g: torch.exp(x - torch.logsumexp(x, dim=1, keepdim=True)),
    "softmax: in float32": lambda x, g: F.softmax(x, dim=-1, dtype=torch.float32).to(x.dtype),
    "log_softmax: step of Sinkhorn": lambda x, g: x - torch.logsumexp(x, dim=2, keepdim=True),
    "masked_softmax: after a detached maximum": softmax_after_detached_maximum,
    "l2_norm softmax: of normalized scores": lambda x, g: (F.normalize(x, dim=-1) * 8).softmax(
        dim=-1
    ),
}


def rms_norm_with_deviation(x, g):
    norm = x.norm(2, dim=-1, keepdim=True)
    return g * (x / (norm * N ** (-1.0 / 2) + EPS))


def norm_within_limits(x, g):
    norm = x.norm(dim=-1, keepdim=True)
    return x * (norm.clamp(max=1.0) / norm)


def features_of_performer(x, g):
    maximum = torch.amax(x, dim=-1, keepdim=True).detach()
    return 0.5 * (torch.exp(x - maximum) + 1e-4)


OTHER_NORM = "it is divided by another norm than the root of its sum of squares"
OUTSIDE = "eps is added to the root of its mean square, which no op does"
#: The reasons; there is none where the form is no norm and no softmax.
LEFT = {
    "RMSNorm with a deviation": (rms_norm_with_deviation, [OUTSIDE]),
    "unit rows plus eps": (lambda x, g: x / (x.norm(dim=-1, keepdim=True) + EPS), [OUTSIDE]),
    "probabilities by normalize": (lambda x, g: F.normalize(x, p=1, dim=-1), [OTHER_NORM]),
    "norm within limits": (norm_within_limits, []),
    "features of Performer": (features_of_performer, []),
}


@pytest.fixture
def inputs():
    return [torch.randn(size, requires_grad=True) for size in ((6, 5, N), (N,))]


@pytest.mark.parametrize("name", MATCHED)
def test_a_form_that_was_found_becomes_ops_that_agree_with_eager(rewrite, inputs, name):
    ops = dict.fromkeys(name.partition(":")[0].split(), 1)
    assert_becomes(rewrite, MATCHED[name], inputs, ops, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form, reasons", LEFT.values(), ids=LEFT)
def test_a_form_that_no_op_computes_stays_for_its_reason(rewrite, inputs, form, reasons):
    assert_becomes(rewrite, form, inputs, {}, reasons, rtol=1e-6, atol=1e-6)


def test_the_page_lists_as_many_forms_as_are_tested():
    counts = re.search(r"(\d+) forms become\s+operators, (\d+) are left", TABLE.read_text())
    matched, left = counts.groups()
    assert (int(matched), int(left)) == (len(MATCHED), len(LEFT))
