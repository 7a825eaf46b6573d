"""Lists the limits that the counts of the shapes should keep. The report says which are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .shapes import Shape


@dataclass(frozen=True)
class Limit:
    """A limit. For each shape to which it applies, the value should be at most `most`."""

    text: str
    applies: Callable[[Shape], bool]
    value: Callable[[Shape], float]
    most: float


def is_forward(row: Shape) -> bool:
    return not row.op.endswith("_backward")


def is_16_bits(row: Shape) -> bool:
    return row.dtype == "bfloat16"


def is_power(row: Shape, least: int = 1024, most: int = 32768) -> bool:
    """Returns whether the number of columns is a power of two from `least` to `most`."""
    return least <= row.cols <= most and row.cols & (row.cols - 1) == 0


LIMITS = [
    Limit(
        "issue of 16-bit forward kernels without masks, 1K to 32K",
        lambda row: (
            is_forward(row) and is_16_bits(row) and is_power(row) and "masked" not in row.op
        ),
        lambda row: row.issue,
        0.65,
    ),
    Limit(
        "issue of 16-bit masked forward kernels, 1K to 32K",
        lambda row: is_forward(row) and is_16_bits(row) and is_power(row) and "masked" in row.op,
        lambda row: row.issue,
        0.75,
    ),
    Limit(
        "bytes of norm backward in tensors, 16 bits, up to 65,536 columns, 8K rows and more",
        lambda row: (
            row.op in ("layer_norm_backward", "rms_norm_backward")
            and is_16_bits(row)
            and is_power(row, most=65536)
            and row.rows >= 8192
        ),
        lambda row: row.bytes_u,
        3.2,
    ),
]
# A causal row of 2048 columns should take at most 0.6 times the instructions of a row whose columns
# are all visible.
CAUSAL_COLS, CAUSAL_MOST = 2048, 0.6


def limit_lines(rows: Sequence[Shape]) -> Iterator[str]:
    """Yields a line for each limit, which says whether it is met, how many shapes exceed it, and
    which shape is the worst."""
    for limit in LIMITS:
        of = [row for row in rows if limit.applies(row)]
        over = [row for row in of if limit.value(row) > limit.most]
        worst = max(of, key=limit.value, default=None)
        if worst is None:
            continue
        yield (
            f"{'not met' if over else 'met'}: {limit.text}: at most {limit.most}; "
            f"{len(over)} of {len(of)} above, the worst {limit.value(worst):.2f} "
            f"({worst.op}, {worst.rows} x {worst.cols})"
        )
    if (ratio := causal_ratio(rows)) is not None:
        yield (
            f"{'met' if ratio <= CAUSAL_MOST else 'not met'}: instructions of causal rows of "
            f"{CAUSAL_COLS} in 16 bits, beside dense ones: at most {CAUSAL_MOST}; {ratio:.2f}"
        )


def causal_ratio(rows: Sequence[Shape]) -> float | None:
    """Returns the worst ratio of the instructions of causal rows to those of rows whose columns are
    all visible; None if `rows` does not have both."""
    of = [row for row in rows if row.cols == CAUSAL_COLS and is_16_bits(row)]
    dense = {row.rows: row.instructions for row in of if row.op == "masked_softmax"}
    causal = {row.rows: row.instructions for row in of if row.op == "masked_softmax_causal"}
    return max((causal[rows] / dense[rows] for rows in causal.keys() & dense.keys()), default=None)
