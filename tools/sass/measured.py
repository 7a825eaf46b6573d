"""Predictions beside measurements: how far off the model is."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import ReportError
from .launches import Case
from .model import Prediction
from .predict import DTYPES, OPS

NAMES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32",
         "float": "float32"}  # fmt: skip
QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class Measured:
    """A case that was timed with the plan that the package picks."""

    case: Case
    us: float
    share: float  # of the speed of a copy of the same size


def read_measured(path: Path) -> list[Measured]:
    """The rows of a CSV with op, direction, dtype, rows, cols, median_us and copy_us or share.
    Operators and dtypes that the model does not know are left out. Of several plans for a case the
    fastest counts. Raises ReportError if the file is missing or damaged."""
    best: dict[Case, Measured] = {}
    try:
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                one = measured_row(row)
                if one is not None and (one.case not in best or one.us < best[one.case].us):
                    best[one.case] = one
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ReportError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    return list(best.values())


def measured_row(row: dict[str, str]) -> Measured | None:
    is_backward = row["direction"].startswith("b")
    op = row["op"] + "_backward" * (is_backward and not row["op"].endswith("_backward"))
    dtype = NAMES.get(row["dtype"], row["dtype"])
    if op not in OPS or dtype not in (*DTYPES, "float16") or not row["median_us"]:
        return None
    us = float(row["median_us"])
    share = float(row["copy_us"]) / us if row.get("copy_us") else float(row["share"])
    return Measured(Case(op, dtype, int(row["rows"]), int(row["cols"])), us, share)


def comparison_lines(
    measured: Sequence[Measured], predicted: Sequence[Prediction]
) -> Iterator[str]:
    """A line for each case, and the quantiles of the error of each operator and of all."""
    yield "op  dtype  rows x cols  predicted  measured  error, in points of the speed of a copy"
    errors: dict[str, list[float]] = {}
    for one, row in zip(measured, predicted, strict=True):
        error = 100 * (row.share - one.share)
        errors.setdefault(row.op, []).append(error)
        yield (
            f"{row.op}  {row.dtype}  {row.rows} x {row.cols}  {row.share:.0%}  {one.share:.0%}  "
            f"{error:+.0f}  {row.limiter}"
        )
    for op, of_op in sorted(errors.items()):
        yield f"{op}: {quantile_text(of_op)}"
    everything = [error for of_op in errors.values() for error in of_op]
    yield f"all: {quantile_text(everything)}"


def quantile_text(errors: Sequence[float]) -> str:
    if not errors:
        return "no case"
    cuts = quantiles(errors)
    return f"{len(errors)} cases, error " + ", ".join(
        f"{q:.0%}: {cut:+.1f}" for q, cut in zip(QUANTILES, cuts, strict=True)
    )


def quantiles(values: Sequence[float]) -> list[float]:
    if len(values) == 1:
        return [values[0]] * len(QUANTILES)
    cuts = statistics.quantiles(values, n=10, method="inclusive")
    return [cuts[round(q * 10) - 1] for q in QUANTILES]
