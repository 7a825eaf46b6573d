"""Defines attention without a mask, as `tune` measures it: Inductor runs it as
scaled_dot_product_attention, and fusedops as two matrix products with a softmax between them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import fusedops
from fusedops.cli.bench.attention import SCALE
from fusedops.cli.bench.cases import Case, Layout, Operator
from fusedops.graph.policy import costs

#: The features of a head.
FEATURES = 64


def _eager(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.softmax(query @ key.mT * SCALE, dim=-1) @ value


def _fused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return fusedops.masked_softmax(query @ key.mT, scale=SCALE) @ value


def _key_and_value(case: Case) -> tuple[Tensor, Tensor]:
    key, value = torch.randn(2, *case.shape, dtype=case.dtype, device=case.device)
    return key, value


ATTENTION = {
    costs.ATTENTION: Operator(
        eager=_eager,
        fused=_fused,
        layout=Layout.HEADS,
        operands=_key_and_value,
        differentiated=3,
    )
}
