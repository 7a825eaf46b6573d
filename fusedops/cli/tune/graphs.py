"""Lists the graphs that `tune` measures. Each has one op in one mode on rows of one length, and is
compiled once for any number of rows.

Compiling takes far longer than timing. The number of rows is therefore a symbol in the compiled
code, as in code for batches of any size. The graphs on which most models spend their time come
first. If the time budget ends before a graph, the rewriter later uses the nearest sizes in the
table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
import torch._inductor.config as inductor_config

from fusedops.cli.bench.cases import FORWARD, Case, Layout, Operator
from fusedops.cli.bench.operators import OPERATORS
from fusedops.cli.tune.attention import ATTENTION, FEATURES
from fusedops.cli.tune.losses import LOSSES
from fusedops.cli.tune.masks import MASKS
from fusedops.graph.policy.costs import INFERENCE, TRAINING
from fusedops.graph.policy.machine import count_of

#: These ops also count for their variants, which are not measured: the ratio of fusedops' time to
#: Inductor's differs less between variants than between sizes.
SCORES = (
    "masked_softmax[additive]",
    "masked_softmax[causal]",
    "masked_softmax[computed]",
    "softmax_dropout[causal]",
)
MATRICES = ("softmax", "layer_norm", "add_layer_norm", "rms_norm", "add_rms_norm")
SELDOM = ("log_softmax", "std_norm")
#: These ops are measured in training only, because dropout is inactive in inference.
ONLY_TRAINED = {"softmax_dropout[causal]"}

#: An entry has ops, a number of columns, and numbers of rows. The numbers of rows reach from sizes
#: at which a call takes longer than its kernel to sizes beyond a core's caches. For SCORES they are
#: multiples of the columns. 49 columns are the positions in a window of Swin Transformer.
LONG = ((SCORES, 512, (1024, 6144)), (MATRICES, 768, (32, 512, 4096)))
SHORT = ((SCORES, 128, (256, 4096)), (MATRICES, 128, (8, 128, 2048)))
OTHERS = ((SCORES, 49, (98, 6272)), (SELDOM, 768, (32, 512, 4096)), (SCORES, 16, (32,)))
VOCABULARIES = ((tuple(LOSSES), 50257, (256,)), (tuple(LOSSES), 1000, (4096,)))
_HEADS = tuple(ATTENTION)
#: Attention keeps its probabilities for the backward pass, and SDPA does not. Between the passes of
#: a model other layers run, so that they are read from memory: in most of these sizes they are
#: larger than the caches. A graph has one size, because its heads are not the first dimension.
HEADS = (
    (_HEADS, 512, (12288,)),
    (_HEADS, 128, (32768,)),
    (_HEADS, 2048, (4096,)),
    (_HEADS, 128, (2048,)),
)
SIZES = (*LONG, *SHORT, *HEADS, *VOCABULARIES, *OTHERS)
DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Graph:
    """One op, mode, dtype and row length, to be compiled once and timed for each number in
    `rows`."""

    op: str
    mode: str
    dtype: torch.dtype
    rows: tuple[int, ...]
    cols: int
    device: str
    threads: int

    @property
    def operator(self) -> Operator:
        """Returns the op in eager PyTorch and in fusedops, as the benchmark defines it."""
        return (OPERATORS | LOSSES | MASKS | ATTENTION)[self.op]

    def case(self, rows: int) -> Case:
        """Returns the case with this number of rows."""
        operator = self.operator
        shape: tuple[int, ...] = (rows, self.cols)
        if operator.layout is Layout.SCORES:
            shape = (rows // self.cols, 1, self.cols, self.cols)
        elif operator.layout is Layout.HEADS:
            shape = (1, rows // self.cols, self.cols, FEATURES)
        return Case(self.op, operator, FORWARD, self.dtype, shape, self.device)

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.op} {self.mode} {dtype}, rows of {self.cols}, {count_of(self.threads)}"


def all_graphs(device: str, threads: list[int]) -> list[Graph]:
    """Returns all graphs of a table, the most important first."""
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
    """Yields the numbers of rows in groups. Inductor generates the same code for all numbers of a
    group.

    On a GPU each number is a group, because Inductor tunes its code for the number. On a CPU there
    are two groups, because Inductor does not parallelise small sizes.
    """
    if device != "cpu":
        yield from ((count,) for count in rows)
        return
    least = threads * inductor_config.cpp.min_chunk_size if threads > 1 else 0
    small = tuple(count for count in rows if count * cols < least)
    yield from (part for part in (small, rows[len(small) :]) if part)
