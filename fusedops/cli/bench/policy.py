"""`bench --policy`: measures the table by which the rewriter decides what pays on a device."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pandas as pd
import torch

from fusedops.cli.bench.cases import BACKWARD, FORWARD, Case, Layout, Shape
from fusedops.cli.bench.operators import OPERATORS
from fusedops.graph import costs

#: One of each family: the shares of time that its variants differ by matter less than the size.
OPS = (
    "softmax",
    "log_softmax",
    "masked_softmax[additive]",
    "softmax_dropout[causal]",
    "layer_norm",
    "std_norm",
    "rms_norm",
    "add_layer_norm",
    "add_rms_norm",
)
#: From where a call costs more than its kernel to what no cache holds.
SHAPES: dict[Layout, list[Shape]] = {
    Layout.MATRIX: [(16, 64), (16, 1024), (256, 256), (4096, 64), (1024, 1024), (4096, 1024)],
    Layout.SCORES: [(1, 2, 16, 16), (2, 4, 64, 64), (2, 12, 128, 128), (2, 12, 512, 512)],
}
DTYPES = (torch.float32, torch.bfloat16)


def policy_cases(device: str) -> Iterator[Case]:
    """Every combination that the table has."""
    for op, direction, dtype in product(OPS, (FORWARD, BACKWARD), DTYPES):
        for shape in SHAPES[OPERATORS[op].layout]:
            yield Case(op, OPERATORS[op], direction, dtype, shape, device)


def to_table(frame: pd.DataFrame) -> pd.DataFrame:
    """The columns and providers that a decision needs."""
    needed = frame.provider.isin([costs.COPY, costs.INDUCTOR, costs.OURS])
    return frame.loc[needed, list(costs.COLUMNS)]
