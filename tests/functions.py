"""Functions of two rows of four columns, each with PyTorch's expression of it."""

import torch
from torch.nn import functional as F

import fusedops
from fusedops import reference

torch.manual_seed(0)
X = torch.randn(3, 2, 4, dtype=torch.float64)
RESIDUAL, WEIGHT, BIAS = (torch.randn(s, dtype=torch.float64) for s in ((2, 4), (4,), (4,)))
MASK = torch.tensor([[True, True, False, True], [True, False, True, True]])
SEED, CLASSES = torch.tensor(5), torch.tensor([3, 0])
LOSSES = {"softcap": 2.0, "label_smoothing": 0.1}
RMS_EPS = torch.finfo(torch.float64).eps


def softmax_in_two_steps(x):
    return fusedops.softmax_apply(x, *fusedops.softmax_stats(x, -1), -1)


def logsumexp(x):
    max, sum = fusedops.softmax_stats(x, -1)
    return max + sum.log()


def std_norm(x):
    centered = x - x.mean(-1, keepdim=True)
    return centered / (x.std(-1, keepdim=True) + 1e-6) * WEIGHT + BIAS


def kept(x):
    """The multiplier of dropout with this seed."""
    ones = torch.ones(x.shape, dtype=x.dtype)
    zeros = torch.zeros_like(ones)
    return fusedops.add_rms_norm(ones, zeros, [4], p=0.5, seed=SEED)[1]


WINDOW = torch.ones(2, 4).tril(1).triu(0)


def kept_of_scores(x):
    """The multiplier of dropout of scores with this seed."""
    dropped = fusedops.masked_softmax_dropout(torch.zeros(x.shape, dtype=x.dtype), seed=SEED)
    return (dropped != 0) * 2


def masked(x):
    return (0.5 * x + BIAS).masked_fill(~MASK, -torch.inf).softmax(-1)


def masked_dropout(x):
    return masked(x) * kept_of_scores(x)


def gemma(x):
    return 2 * torch.tanh(x / 2)


def channels(norm):
    """A norm over dimension 0."""
    return lambda x: norm(x.t()).t()


def both(results):
    return torch.stack(results)


def added(x):
    return x * kept(x) + RESIDUAL


#: This package's function of one slice of X, and PyTorch's.
FUNCTIONS = {
    "softmax": (lambda x: fusedops.softmax(x, -1), lambda x: x.softmax(-1)),
    "softmax over rows": (lambda x: fusedops.softmax(x, 0), lambda x: x.softmax(0)),
    "softmax of all": (
        lambda x: fusedops.softmax(x, None),
        lambda x: x.reshape(-1).softmax(0).view(x.shape),
    ),
    "log_softmax": (lambda x: fusedops.log_softmax(x, -1), lambda x: x.log_softmax(-1)),
    "softmax_": (lambda x: fusedops.softmax_(x * 1, -1), lambda x: x.softmax(-1)),
    "softmax_stats": (logsumexp, lambda x: x.logsumexp(-1, keepdim=True)),
    "softmax_apply": (softmax_in_two_steps, lambda x: x.softmax(-1)),
    "merge_softmax_stats": (
        lambda x: fusedops.merge_softmax_stats([fusedops.softmax_stats(x, -1)] * 2)[1],
        lambda x: 2 * (x - x.detach().amax(-1, keepdim=True)).exp().sum(-1, keepdim=True),
    ),
    "cross_entropy": (
        lambda x: fusedops.cross_entropy(x, CLASSES, reduction="none", label_smoothing=0.1),
        lambda x: F.cross_entropy(x, CLASSES, reduction="none", label_smoothing=0.1),
    ),
    "cross_entropy, soft cap and lse": (
        lambda x: both(
            fusedops.cross_entropy(x, CLASSES, reduction="none", **LOSSES, return_lse=True)
        ),
        lambda x: both(reference.cross_entropy(x, CLASSES, **LOSSES)),
    ),
    "masked_softmax": (
        lambda x: fusedops.masked_softmax(x, MASK, scale=0.5, bias=BIAS),
        masked,
    ),
    "masked_softmax, causal": (
        lambda x: fusedops.masked_softmax(x, causal="bottom_right"),
        lambda x: x.masked_fill(torch.ones(2, 4).tril(2) == 0, -torch.inf).softmax(-1),
    ),
    "masked_softmax, of the mask": (
        lambda x: fusedops.masked_softmax(RESIDUAL, x),
        lambda x: (RESIDUAL + x).softmax(-1),
    ),
    "masked_softmax, of the bias": (
        lambda x: fusedops.masked_softmax(RESIDUAL, bias=x[:1]),
        lambda x: (RESIDUAL + x[:1]).softmax(-1),
    ),
    "masked_softmax, window and soft cap": (
        lambda x: fusedops.masked_softmax(x, window=(0, 1), softcap=2.0),
        lambda x: gemma(x).masked_fill(WINDOW == 0, -torch.inf).softmax(-1),
    ),
    "masked_softmax, start and rows of nothing": (
        lambda x: fusedops.masked_softmax(x, start=torch.tensor([2, 4]), masked_rows="zero"),
        lambda x: torch.cat([x.new_zeros(2), x[0, 2:].softmax(-1), x.new_zeros(4)]).view(2, 4),
    ),
    "masked_softmax, a finite mask_value": (
        lambda x: fusedops.masked_softmax(x, MASK, mask_value=-1.5, bias=x),
        lambda x: (x * 2).masked_fill(~MASK, -1.5).softmax(-1),
    ),
    "masked_softmax, of the sinks": (
        lambda x: fusedops.masked_softmax(x, sinks=x[:, 0]),
        lambda x: torch.cat([x, x[:, :1]], -1).softmax(-1)[:, :-1],
    ),
    "masked_softmax_dropout, of the sinks": (
        lambda x: fusedops.masked_softmax_dropout(x, seed=SEED, sinks=x[:, 0]),
        lambda x: torch.cat([x, x[:, :1]], -1).softmax(-1)[:, :-1] * kept_of_scores(x),
    ),
    "masked_softmax_dropout": (
        lambda x: fusedops.masked_softmax_dropout(x, MASK, scale=0.5, bias=BIAS, seed=SEED),
        masked_dropout,
    ),
    "dropout": (lambda x: fusedops.dropout(x, seed=SEED), lambda x: x * kept(x)),
    "dropout, of a relu": (
        lambda x: torch.ops.fusedops.dropout(x, 0.5, SEED, relu=True),
        lambda x: x.relu() * kept(x),
    ),
    "layer_norm": (
        lambda x: fusedops.layer_norm(x, [4], WEIGHT, BIAS),
        lambda x: reference.layer_norm(x, [4], WEIGHT, BIAS),
    ),
    "layer_norm, of the weight": (
        lambda x: fusedops.layer_norm(RESIDUAL, [2, 4], x, x),
        lambda x: reference.layer_norm(RESIDUAL, [2, 4], x, x),
    ),
    "std_norm": (lambda x: fusedops.std_norm(x, [4], WEIGHT, BIAS), std_norm),
    "rms_norm": (
        lambda x: fusedops.rms_norm(x, [4], WEIGHT),
        lambda x: F.rms_norm(x, [4], WEIGHT, RMS_EPS),
    ),
    "rms_norm, gemma": (
        lambda x: fusedops.rms_norm(x, [4], WEIGHT, variant="gemma"),
        lambda x: F.rms_norm(x, [4], 1 + WEIGHT, RMS_EPS),
    ),
    "rms_norm, llama and a weight of another dtype": (
        lambda x: fusedops.rms_norm(x, [4], x[0].float(), variant="llama"),
        lambda x: F.rms_norm(x, [4], None, RMS_EPS) * x[0].float(),
    ),
    "l2_norm": (
        lambda x: fusedops.l2_norm(x, [4], WEIGHT),
        lambda x: F.normalize(x, dim=-1) * WEIGHT,
    ),
    "l2_norm, a row below eps": (
        lambda x: fusedops.l2_norm(torch.stack([x[0], x[1] * 0.01]), [4], eps=0.1),
        lambda x: torch.stack([F.normalize(x[0], dim=-1), x[1] * 0.1]),
    ),
    "spatial_layer_norm": (
        lambda x: fusedops.spatial_layer_norm(x, 0, WEIGHT[:2], BIAS[:2], 0.1),
        channels(lambda x: reference.layer_norm(x, [2], WEIGHT[:2], BIAS[:2], 0.1)),
    ),
    "spatial_layer_norm, of the weight": (
        lambda x: fusedops.spatial_layer_norm(RESIDUAL, 1, x[0], x[1]),
        lambda x: reference.layer_norm(RESIDUAL, [4], x[0], x[1], 1e-6),
    ),
    "spatial_rms_norm": (
        lambda x: fusedops.spatial_rms_norm(x, 0, WEIGHT[:2], 0.1),
        channels(lambda x: F.rms_norm(x, [2], WEIGHT[:2], 0.1)),
    ),
    "rms_norm, t5": (
        lambda x: fusedops.rms_norm(x, [2, 4], x * 2, variant="t5"),
        lambda x: F.rms_norm(x, [2, 4], x * 2, RMS_EPS),
    ),
    "add_layer_norm": (
        lambda x: both(fusedops.add_layer_norm(x, RESIDUAL, [4], WEIGHT, BIAS)),
        lambda x: both((reference.layer_norm(x + RESIDUAL, [4], WEIGHT, BIAS), x + RESIDUAL)),
    ),
    "add_layer_norm, dropout": (
        lambda x: fusedops.add_layer_norm(x, RESIDUAL, [4], p=0.5, seed=SEED, return_sum=False),
        lambda x: reference.layer_norm(added(x), [4]),
    ),
    "add_rms_norm": (
        lambda x: both(fusedops.add_rms_norm(x, x * 2, [4], WEIGHT)),
        lambda x: both((F.rms_norm(x * 3, [4], WEIGHT, RMS_EPS), x * 3)),
    ),
    "add_rms_norm, a residual of another dtype": (
        lambda x: both(fusedops.add_rms_norm(x, RESIDUAL.float(), [4], WEIGHT)),
        lambda x: both(
            (F.rms_norm(x + RESIDUAL.float(), [4], WEIGHT, RMS_EPS), x + RESIDUAL.float())
        ),
    ),
    "stack_softmax": (
        lambda x: fusedops.stack_softmax([x, RESIDUAL], -1, 1),
        lambda x: torch.stack([x.softmax(-1), RESIDUAL.softmax(-1)], 1),
    ),
    "stack_log_softmax": (
        lambda x: fusedops.stack_log_softmax([x, x * 2], -1),
        lambda x: torch.stack([x.log_softmax(-1), (x * 2).log_softmax(-1)]),
    ),
    "stack_layer_norm": (
        lambda x: fusedops.stack_layer_norm([x, RESIDUAL], [4], [WEIGHT] * 2),
        lambda x: torch.stack([reference.layer_norm(v, [4], WEIGHT) for v in (x, RESIDUAL)]),
    ),
}
