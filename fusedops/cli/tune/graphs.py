"""What `tune` measures: one op in one mode on rows of one length, compiled once for any number of
rows.

To compile takes longer than to time, by far. Rows are therefore a symbol of the compiled code, as
they are in code for batches of any size, and what stands first is what most models spend their time
in: whatever there is no time left for goes by its neighbours in the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
import torch._inductor.config as inductor_config

from fusedops.cli.bench.cases import FORWARD, Case, Layout
from fusedops.cli.bench.operators import OPERATORS
from fusedops.graph.policy.costs import INFERENCE, TRAINING

#: One of each family: the shares of time that its variants differ by matter less than the size.
SCORES = ("masked_softmax[additive]", "masked_softmax[causal]", "softmax_dropout[causal]")
MATRICES = ("softmax", "layer_norm", "add_layer_norm", "rms_norm", "add_rms_norm")
SELDOM = ("log_softmax", "std_norm")
#: Dropout drops nothing in inference.
ONLY_TRAINED = {"softmax_dropout[causal]"}

#: By number of columns the numbers of rows: from where a call costs more than its kernel to what no
#: cache of a core holds. Scores have as many rows as columns, a multiple of times; 49 is a window
#: of Swin's.
LONG = ((SCORES, 512, (1024, 6144)), (MATRICES, 768, (32, 512, 4096)))
SHORT = ((SCORES, 128, (256, 4096)), (MATRICES, 128, (8, 128, 2048)))
OTHERS = ((SCORES, 49, (98, 6272)), (SELDOM, 768, (32, 512, 4096)), (SCORES, 16, (32,)))
SIZES = (*LONG, *SHORT, *OTHERS)
DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Graph:
    """An op and its inputs, but for the number of rows: one of `rows`."""

    op: str
    mode: str
    dtype: torch.dtype
    rows: tuple[int, ...]
    cols: int
    device: str
    threads: int

    def case(self, rows: int) -> Case:
        """The inputs of so many rows."""
        operator = OPERATORS[self.op]
        shape: tuple[int, ...] = (rows, self.cols)
        if operator.layout is Layout.SCORES:
            shape = (rows // self.cols, 1, self.cols, self.cols)
        return Case(self.op, operator, FORWARD, self.dtype, shape, self.device)

    @property
    def differentiated(self) -> int | None:
        """How many of the inputs are in training: of scores no mask, of norms the weights too."""
        return 1 if OPERATORS[self.op].layout is Layout.SCORES else None

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{self.op} {self.mode} {dtype}, rows of {self.cols}, {threads}"


def all_graphs(device: str, threads: list[int]) -> list[Graph]:
    """Everything that a table can have, the most important first."""
    graphs = []
    for (ops, cols, rows), count in product(SIZES, threads):
        for op, dtype, mode in product(ops, DTYPES, (INFERENCE, TRAINING)):
            if mode == TRAINING or op not in ONLY_TRAINED:
                parts = _compiled_alike(rows, cols, device, count)
                graphs += [Graph(op, mode, dtype, part, cols, device, count) for part in parts]
    return graphs


def _compiled_alike(
    rows: tuple[int, ...], cols: int, device: str, threads: int
) -> Iterator[tuple[int, ...]]:
    """The numbers of rows for which Inductor would make the same code if it knew them.

    On a GPU each is tuned by itself. On a CPU what is too small for its threads gets none.
    """
    if device != "cpu":
        yield from ((count,) for count in rows)
        return
    least = threads * inductor_config.cpp.min_chunk_size if threads > 1 else 0
    small = tuple(count for count in rows if count * cols < least)
    yield from (part for part in (small, rows[len(small) :]) if part)
