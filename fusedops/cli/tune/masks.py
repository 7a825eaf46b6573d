"""Defines the masked softmax whose mask Inductor computes in its kernel, as `tune` measures it.

Models of Hugging Face compute the mask from positions and from the padding of the batch. Inductor
repeats that for every score, in each pass over a row, rather than read a mask from memory. Our op
needs no mask, because the rewriter finds its bounds.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import fusedops
from fusedops.cli.bench.attention import SCALE
from fusedops.cli.bench.cases import Case, Layout, Operator


def _softmax(x: Tensor, attention_mask: Tensor) -> Tensor:
    """Returns the causal softmax of scores [batch, heads, queries, keys]. `attention_mask` [batch,
    keys] is 0 at padding."""
    batch, _, queries, keys = x.shape
    query = torch.arange(queries, device=x.device)[:, None]
    key = torch.arange(keys, device=x.device)
    which = torch.arange(batch, device=x.device)[:, None, None, None]
    visible = (key <= query) & attention_mask.bool()[which, key]
    lowest = torch.finfo(x.dtype).min
    mask = torch.where(visible, torch.zeros((), dtype=x.dtype, device=x.device), lowest)
    return F.softmax(x * SCALE + mask, dim=-1)


def _no_padding(case: Case) -> tuple[Tensor]:
    batch, _, _, keys = case.shape
    return (torch.ones(batch, keys, dtype=torch.int64, device=case.device),)


MASKS = {
    "masked_softmax[computed]": Operator(
        eager=_softmax,
        fused=lambda x, attention_mask: fusedops.masked_softmax(x, causal=True, scale=SCALE),
        layout=Layout.SCORES,
        operands=_no_padding,
    )
}
