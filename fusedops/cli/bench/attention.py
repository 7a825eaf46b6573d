"""Defines the benchmarks of softmaxes over attention scores [batch, heads, queries, keys], which
are the calls between the two matrix products of attention.

In an operator, `eager` is the series of calls that models make, with masks that were computed
before, and `fused` is one call of fusedops. Times include Python and autograd. The forward pass
runs without gradients, and the backward pass (`Gradient`) from the tensors that a forward pass
saved.

A causal kernel need not read the hidden half of the scores, but it writes all of its result.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

import fusedops
from fusedops.cli.bench.cases import BACKWARD, FORWARD, Case, Layout, Operator
from fusedops.cli.bench.cases import DROPOUT as DROPOUT

SCALE = 1 / math.sqrt(64)  # 64 features in each head, as in BERT
MASKED = -math.inf

SOFTCAP = 50.0  # the soft cap of Gemma 2

#: How much memory a causal softmax has to read and write, in units of one tensor of scores. Forward
#: it reads half of the scores and writes its result. Backward it reads half of the gradient and
#: half of the result, and writes the gradient of the scores.
HALF_READ = {FORWARD: 1 / 2 + 1, BACKWARD: 1 / 2 + 1 / 2 + 1}


def _visible_keys(case: Case) -> Tensor:
    """Returns the mask of a padded batch, [batch, 1, 1, keys], which is True at the keys of each
    sentence. The first sentence has all keys, the last one half of them."""
    batch, _, _, keys = case.shape
    lengths = torch.linspace(keys, max(1, keys // 2), batch, device=case.device).long()
    return (torch.arange(keys, device=case.device) < lengths[:, None])[:, None, None, :]


def _visible_at_random(case: Case, hidden: float) -> Tensor:
    """Returns a mask [batch, 1, queries, keys] that hides keys at random, each with probability
    `hidden`. The first key is always visible."""
    batch, _, queries, keys = case.shape
    generator = torch.Generator(case.device).manual_seed(3)
    visible = torch.rand(batch, 1, queries, keys, generator=generator, device=case.device) >= hidden
    visible[..., 0] = True
    return visible


def _padded(case: Case, hidden: float) -> Tensor:
    """Returns a mask [1, 1, 1, keys] that hides the last keys. `hidden` is the part of all keys
    that are hidden, from 0 to 1."""
    keys = case.shape[-1]
    return (torch.arange(keys, device=case.device) < keys - int(hidden * keys))[None, None, None]


def _additive_mask(case: Case) -> Tensor:
    """Returns BERT's mask [batch, 1, 1, keys]: the dtype's lowest number on padding, else 0."""
    hidden = ~_visible_keys(case)
    return hidden.to(case.dtype) * torch.finfo(case.dtype).min


def _future(case: Case) -> Tensor:
    """Returns a mask [queries, keys], True where the key comes after the query."""
    return torch.ones(case.shape[-2:], device=case.device, dtype=torch.bool).triu(diagonal=1)


def _alibi(case: Case) -> Tensor:
    """Returns ALiBi, a bias of slope * (key - query): Press et al., "Train Short, Test Long"."""
    _, heads, queries, keys = case.shape
    slopes = torch.exp2(-8 * torch.arange(1, heads + 1, device=case.device) / heads)
    key = torch.arange(keys, device=case.device)
    query = torch.arange(queries, device=case.device)
    return (slopes[:, None, None] * (key - query[:, None])).to(case.dtype)[None]


def _causal_softmax(x: Tensor, future: Tensor) -> Tensor:
    return F.softmax(x.masked_fill(future, MASKED), dim=-1)


ADDITIVE = Operator(
    eager=lambda x, mask: F.softmax(x * SCALE + mask, dim=-1),
    fused=lambda x, mask: fusedops.masked_softmax(x, mask, scale=SCALE),
    layout=Layout.SCORES,
    operands=lambda case: (_additive_mask(case),),
)

PADDING = Operator(
    eager=lambda x, visible: F.softmax(x.masked_fill(~visible, MASKED), dim=-1),
    fused=lambda x, visible: fusedops.masked_softmax(x, visible),
    layout=Layout.SCORES,
    operands=lambda case: (_visible_keys(case),),
)

TENTH_HIDDEN = replace(PADDING, operands=lambda case: (_visible_at_random(case, 0.1),))
HALF_HIDDEN = replace(PADDING, operands=lambda case: (_visible_at_random(case, 0.5),))
HALF_PADDED = replace(PADDING, operands=lambda case: (_padded(case, 0.5),))


def _filled(x: Tensor, visible: Tensor, value: float | None = None) -> tuple[Tensor]:
    """Returns the scores with hidden ones replaced by `value`, by default the dtype's lowest
    number."""
    return (x.masked_fill(~visible, torch.finfo(x.dtype).min if value is None else value),)


# This operator is a plain softmax, and `split` masks its scores before the measurement.
FILLED = Operator(
    eager=lambda x: F.softmax(x, dim=-1),
    fused=lambda x: fusedops.softmax(x, dim=-1),
    layout=Layout.SCORES,
    split=lambda x, visible: _filled(x, visible, MASKED),
)
TENTH_FILLED = replace(FILLED, operands=TENTH_HIDDEN.operands)
HALF_FILLED = replace(FILLED, operands=HALF_PADDED.operands, split=_filled)

CAUSAL = Operator(
    eager=_causal_softmax,
    fused=lambda x, future: fusedops.masked_softmax(x, causal=True),
    layout=Layout.SCORES,
    operands=lambda case: (_future(case),),
    moved=HALF_READ,
)

CAUSAL_WITH_BIAS = replace(
    CAUSAL,
    eager=lambda x, bias, future: F.softmax((x + bias).masked_fill(future, MASKED), dim=-1),
    fused=lambda x, bias, future: fusedops.masked_softmax(x, causal=True, bias=bias),
    operands=lambda case: (_alibi(case), _future(case)),
)

CAUSAL_WITH_SOFTCAP = replace(
    CAUSAL,
    eager=lambda x, future: _causal_softmax(torch.tanh(x / SOFTCAP) * SOFTCAP, future),
    fused=lambda x, future: fusedops.masked_softmax(x, causal=True, softcap=SOFTCAP),
    # The derivative of the cap also reads half of the scores, so three halves are read.
    moved=HALF_READ | {BACKWARD: 3 / 2 + 1},
)

CAUSAL_WITH_DROPOUT = replace(
    CAUSAL,
    eager=lambda x, future: F.dropout(_causal_softmax(x, future), DROPOUT),
    fused=lambda x, future: fusedops.masked_softmax_dropout(x, p=DROPOUT, causal=True),
    survivors=_causal_softmax,
)

ATTENTION: dict[str, Operator] = {
    "masked_softmax[additive]": ADDITIVE,
    "masked_softmax[padding]": PADDING,
    "masked_softmax[tenth hidden]": TENTH_HIDDEN,
    "masked_softmax[half hidden]": HALF_HIDDEN,
    "masked_softmax[half padded]": HALF_PADDED,
    "filled_softmax[tenth hidden]": TENTH_FILLED,
    "filled_softmax[half padded]": HALF_FILLED,
    "masked_softmax[causal]": CAUSAL,
    "masked_softmax[causal+bias]": CAUSAL_WITH_BIAS,
    "masked_softmax[causal+softcap]": CAUSAL_WITH_SOFTCAP,
    "softmax_dropout[causal]": CAUSAL_WITH_DROPOUT,
}
