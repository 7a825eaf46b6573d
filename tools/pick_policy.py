#!/usr/bin/env python3
"""Writes the measurements of tools/tune.cu into cuda/launch/plans.def, as a diff.

    python tools/pick_policy.py tune.csv            # the difference
    python tools/pick_policy.py tune.csv --write    # writes it

The measurements compare launch plans of CUDA kernels. A share is the speed of a kernel as a
fraction of the speed of a copy. For each pass, kind of vectors and row length, the plan wins whose
shares have the greatest geometric mean over numbers of rows and operators. (The worst share would
not do, since it is always that of the fewest rows.) But the incumbent, which is the plan in the
package, stays if its mean is within 2 % of the best. Neighbouring lengths with the same plan become
one line. Lengths without a measurement stay as they are.
"""

from __future__ import annotations

import argparse
import csv
import difflib
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

PLANS = Path(__file__).parents[1] / "csrc" / "cuda" / "launch" / "plans.def"
#: The incumbent stays unless another plan is 2 % faster, because medians of two runs differ by as
#: much.
KEPT = 0.98
#: The columns of a plan. `fixed` is equal to row_threads if the kernel is compiled for that number,
#: else 0.
PLAN = ["elements", "row_threads", "threads", "blocks", "partitions", "segment", "fixed"]
#: What plans are compared on. With the columns and the width it is one shape.
QUESTION = ["op", "direction", "dtype", "rows"]
SHAPE = ["cols", "width", *QUESTION]
INTEGERS = ["rows", "cols", "width", *PLAN, "is_incumbent"]
COLUMNS = ["op", "direction", "dtype", *INTEGERS, "share_of_copy", "error"]
ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
VECTOR_BYTES = 16  # the size of a full vector, which is the largest access of a GPU thread
#: How many threads a block with several short rows has, unless a candidate varies this.
BLOCK_THREADS = 128

SOFTMAX = ("softmax", "log_softmax")
MASKED = ("padded_softmax", "causal_softmax")
NORMS = ("layer_norm", "rms_norm", "std_norm")
ADD_NORMS = ("add_layer_norm", "add_rms_norm")
#: Operators that decide no plan, because plans.def has no plans for them alone. Scores with a soft
#: cap share their plans with scores of any mix of mask, bias and so on, most of which tune does not
#: measure.
UNPLANNED = ("softmax_statistics", "softmax_apply", "spatial_softmax", "capped_softmax")
KNOWN = (*SOFTMAX, *MASKED, *NORMS, *ADD_NORMS, *UNPLANNED)
#: Operator -> the name of its pass in plans.def, without "Forward" or "Backward".
PASSES = {
    **dict.fromkeys(SOFTMAX, "kSoftmax"), **dict.fromkeys(MASKED, "kMasked"),
    **dict.fromkeys(NORMS, "kNorm"), **dict.fromkeys(ADD_NORMS, "kAddNorm"),
}  # fmt: skip
#: Constant of plans.def that holds for all row lengths -> the column of the CSV that varies it.
CONSTANTS = {"kRowBlockThreads": "threads", "kSegmentCols": "segment"}

#: The lines of plans.def that are chosen together: a pass, and kWide16, kWide32 or kUnaligned.
Group = tuple[str, str]


class BadTable(Exception):
    """The CSV or cuda/launch/plans.def is not as this tool needs it; the message says where."""


# --- reading ------------------------------------------------------------------------------------


def read_cases(path: Path) -> pd.DataFrame:
    """Returns the table that tune has written, with the group of each case, or None for operators
    without plans, and its share, which is NaN if the launch failed. Raises BadTable, which names a
    line, if tune cannot have written it."""
    with path.open(newline="") as file:
        lines = csv.DictReader(file, restkey="more", strict=True)
        cases = pd.DataFrame(list(lines), columns=[*(lines.fieldnames or ()), "more"])
    if missing := [name for name in COLUMNS if name not in cases]:
        raise BadTable(f"{path}: no column {', '.join(missing)}")
    cases[INTEGERS] = cases[INTEGERS].apply(pd.to_numeric, errors="coerce")
    cases["share"] = pd.to_numeric(cases.share_of_copy.where(cases.error == ""), errors="coerce")
    is_known = cases.op.isin(KNOWN) & cases["dtype"].isin(list(ITEM_BYTES))
    is_known &= cases.direction.isin(["forward", "backward"]) & cases.error.notna()
    is_known &= cases[INTEGERS].notna().all(axis=1) & cases.more.isna()
    is_known &= (cases.error != "") | cases.share.notna()
    if not is_known.all():
        number = (~is_known).idxmax() + 2
        line = path.read_text().splitlines()[number - 1]
        raise BadTable(f"{path}:{number}: tune has not written this line, or not its end: {line}")
    cases[INTEGERS] = cases[INTEGERS].astype(int)
    cases["is_incumbent"] = cases.is_incumbent == 1
    cases["group"] = pd.Series(map(group_of, cases.itertuples()), dtype=object)
    return cases


def group_of(case: Any) -> Group | None:
    if case.op in UNPLANNED:
        return None
    item_bytes = ITEM_BYTES[case.dtype]
    is_wide = case.width * item_bytes == VECTOR_BYTES
    if case.op in MASKED and not is_wide:
        return "kAnyMasked", "kUnaligned"
    vectors = f"kWide{8 * item_bytes}" if is_wide else "kUnaligned"
    return PASSES[case.op] + case.direction.capitalize(), vectors


@dataclass(frozen=True)
class Line:
    """A line of plans.def for rows that stay in the registers of a block or of a cluster."""

    macro: str
    pass_: str
    vectors: str
    cols: int
    elements: int
    last: int  # for REGISTERS the fixed number of threads or 0, for CLUSTER the number of blocks
    remark: str = ""

    @property
    def group(self) -> Group:
        return self.pass_, "kUnaligned" if self.vectors == "kSingle" else self.vectors

    @property
    def entry(self) -> tuple[str, int, int]:
        return self.macro, self.elements, self.last

    @property
    def most(self) -> int:
        """The length of the longest row that the line's kernel takes. A kernel with a fixed number
        of threads has such a limit; for others this is a number above all lengths."""
        is_fixed = self.macro == "REGISTERS" and self.last > 0
        return self.elements * self.last if is_fixed else 1 << 62

    def __str__(self) -> str:
        numbers = f"{self.cols}, {self.elements}, {self.last}"
        return f"{self.macro}({self.pass_}, {self.vectors}, {numbers}){self.remark}"


LINE = re.compile(r"(REGISTERS|CLUSTER)\((k\w+), (k\w+), (\d+), (\d+), (\d+)\)(.*)")


def line_of(text: str) -> Line | None:
    match = LINE.fullmatch(text)
    return Line(*match.groups()[:3], *map(int, match.groups()[3:6]), match[7]) if match else None


# --- choosing -----------------------------------------------------------------------------------


class Choice(NamedTuple):
    """The mean share of each plan for one row length, the incumbent, and the plan that is chosen.
    Plans are tuples of the columns PLAN."""

    mean: pd.Series
    incumbent: tuple[int, ...]
    chosen: tuple[int, ...]

    def remark(self) -> str:
        share = f"{100 * self.mean[self.chosen]:.0f} % of a copy"
        if self.chosen == self.incumbent:
            return share
        return f"{share}, {100 * self.mean[self.incumbent]:.0f} % before"


def choose(cases: pd.DataFrame) -> Choice | None:
    """Returns the plan that the cases of one row length choose; None if no incumbent was measured.

    Plans are compared on the questions for which candidates, which are plans other than the
    incumbent, were measured. A plan is left out unless it was measured on all of these.
    """
    last = cases.drop_duplicates([*PLAN, *QUESTION], keep="last")
    shares = last.pivot(index=PLAN, columns=QUESTION, values="share")
    candidates = last[~last.is_incumbent]
    asked = candidates if len(candidates) else last
    asked_shares = shares[pd.MultiIndex.from_frame(asked[QUESTION].drop_duplicates())].dropna()
    mean = np.exp(np.log(asked_shares).mean(axis=1))
    kept = mean[mean.index.isin(pd.MultiIndex.from_frame(cases[cases.is_incumbent][PLAN]))]
    if kept.empty:
        return None
    incumbent, best = kept.idxmax(), mean.idxmax()
    is_kept = mean[incumbent] >= KEPT * mean[best]
    return Choice(mean, incumbent, incumbent if is_kept else best)


def usual_cases(cases: pd.DataFrame) -> pd.DataFrame:
    """Returns the cases, with 0 in place of their number of partitions, which depends on the number
    of rows. Candidates that vary the partitions, or the threads of a block with several rows, are
    left out, because no line of plans.def has these numbers. Incumbents come last, so that choose()
    takes their shares, not those of candidates with other partitions."""
    varies = cases.threads > cases.row_threads.clip(lower=BLOCK_THREADS)
    varies |= (cases.partitions > 0) & (cases.blocks == 1)
    usual = cases[cases.is_incumbent | ~varies].assign(partitions=0)
    return usual.sort_values("is_incumbent", kind="stable")


def is_of_another_pass(cases: pd.DataFrame, lines: Sequence[Line]) -> bool:
    """Returns whether an incumbent ran a kernel of another pass than that of `lines`. Its kernel is
    then compiled for a fixed number of threads that no REGISTERS line has. There are such kernels
    for plain masked softmaxes of short unaligned rows, which have a pass of their own beside the
    pass for any scores."""
    fixed = {line.last for line in lines if line.macro == "REGISTERS"}
    return not set(cases.fixed[cases.is_incumbent]) <= {0, *fixed}


def line_for(lines: Iterable[Line], cols: int) -> Line | None:
    return next((line for line in lines if cols <= line.cols), None)


def chosen_line(choice: Choice, cols: int, lines: Sequence[Line]) -> Line | None:
    """Returns the line of plans.def for a measured row length. If the chosen plan differs from the
    incumbent, and plans.def lists such plans, which keep a row in registers, the line describes the
    chosen plan. Otherwise it is the line that covers the length now, cut to this length and with a
    new remark, or None if no line does."""
    plan, now = dict(zip(PLAN, choice.chosen, strict=True)), line_for(lines, cols)
    is_listed = plan["elements"] > 0 and plan["segment"] == 0
    if choice.chosen == choice.incumbent or not is_listed:
        return now and replace(now, cols=cols, remark=f"  // {cols}: {choice.remark()}")
    first = lines[0]
    is_cluster = plan["blocks"] > 1
    single = "kSingle" if first.vectors == "kUnaligned" else first.vectors
    return Line(
        "CLUSTER" if is_cluster else "REGISTERS",
        first.pass_,
        single if is_cluster else first.vectors,
        cols,
        plan["elements"],
        plan["blocks" if is_cluster else "fixed"],
        f"  // {cols}: {choice.remark()}",
    )


def updated_lines(lines: Sequence[Line], cases: pd.DataFrame) -> list[Line]:
    """Returns the new lines of a group, given its present `lines` and the cases that were measured
    for it. Each row length that the cases decide gets the plan that they choose, and the other
    lengths keep theirs."""
    by_cols = dict(list(usual_cases(cases).groupby("cols")))
    points = {line.cols: line for line in reversed(lines)}
    for cols, group in by_cols.items():
        choice = None if is_of_another_pass(group, lines) else choose(group)
        line = chosen_line(choice, cols, lines) if choice else None
        if line is None:
            continue
        before = line_for(lines, cols)
        if before and before.macro != line.macro and cols // 2 not in points:
            # Rows of up to half the length keep their plan.
            points[cols // 2] = replace(before, cols=cols // 2, remark="")
        # The plan also holds for longer rows, up to the next power of two if that is not measured.
        rounded = 1 << (cols - 1).bit_length()
        if rounded not in by_cols:
            points.pop(rounded, None)
            line = replace(line, cols=min(rounded, line.most))
        points[line.cols] = line
    return with_blocks_alone(merged([points[cols] for cols in sorted(points)]), lines)


def merged(points: Sequence[Line]) -> list[Line]:
    """Returns the lines with neighbours of the same plan merged into one. The remark of a merged
    line is that of its slowest length."""

    def share(line: Line) -> int:
        return int(line.remark.split(": ")[1].split()[0]) if ": " in line.remark else 1000

    found: list[Line] = []
    for point in points:
        if found and found[-1].entry == point.entry:
            slowest = min(found.pop(), point, key=share)
            point = replace(point, remark=slowest.remark)
        found.append(point)
    return found


def with_blocks_alone(found: Sequence[Line], lines: Sequence[Line]) -> list[Line]:
    """Returns the lines `found`. If clusters are among them, the lines in `lines` that use single
    blocks for longer rows are added, because devices without clusters need them."""
    has_clusters = any(line.macro == "CLUSTER" for line in found)
    longest = max((line.cols for line in found if line.macro == "REGISTERS"), default=0)
    alone = [line for line in lines if line.macro == "REGISTERS" and line.cols > longest]
    return [*found, *alone] if has_clusters else list(found)


def best_constant(cases: pd.DataFrame, column: str, now: int) -> tuple[int, float] | None:
    """Returns the best value of `column` and its worst ratio to the incumbent's share. The best
    value is the one whose worst ratio is the largest. Returns None if no case varies only this
    column, whose value in the package is `now`."""
    incumbents = cases[cases.is_incumbent].drop_duplicates(SHAPE, keep="last")
    same = [*SHAPE, *(name for name in PLAN if name != column)]
    beside = cases.merge(incumbents[[*same, column, "share"]], on=same, suffixes=("", "_now"))
    beside = beside[
        ~beside.is_incumbent & (beside[f"{column}_now"] == now) & (beside.share_now > 0)
    ]
    if beside.empty:
        return None
    worst = (beside.share.fillna(0) / beside.share_now).groupby(beside[column]).min()
    return worst.idxmax(), worst.max()


def updated_plans(text: str, cases: pd.DataFrame) -> str:
    """Returns the text of cuda/launch/plans.def with the changes that the cases decide."""
    groups: dict[Group, list[Line]] = defaultdict(list)
    for line in filter(None, map(line_of, text.splitlines())):
        groups[line.group].append(line)
    if not groups:
        raise BadTable("cuda/launch/plans.def has no line REGISTERS(...)")
    measured = dict(list(cases.groupby("group")))
    for group in groups.keys() & measured.keys():
        # The lines of a group are consecutive in the file.
        before = "".join(f"{line}\n" for line in groups[group])
        after = "".join(f"{line}\n" for line in updated_lines(groups[group], measured[group]))
        text = text.replace(before, after)
    for name, column in CONSTANTS.items():
        match = re.search(rf"CONSTANT\({name}, (\d+)\)", text)
        found = best_constant(cases, column, int(match[1])) if match else None
        if match and found and found[1] * KEPT > 1:
            text = text.replace(match[0], f"CONSTANT({name}, {found[0]})")
    return text


def difference(before: str, after: str, path: Path) -> str:
    lines = difflib.unified_diff(
        before.splitlines(True), after.splitlines(True), f"a/{path.name}", f"b/{path.name}"
    )
    return "".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="pick_policy.py", description=__doc__.splitlines()[0])
    parser.add_argument("csv", type=Path, help="the measurements of tools/tune.cu")
    parser.add_argument("--plans", type=Path, default=PLANS, help="cuda/launch/plans.def")
    parser.add_argument("--write", action="store_true", help="writes the list")
    options = parser.parse_args(arguments)
    try:
        before, cases = options.plans.read_text(), read_cases(options.csv)
        after = updated_plans(before, cases)
        if options.write:
            options.plans.write_text(after)
    except OSError as error:
        return say(f"{error.filename}: {error.strerror}")
    except (BadTable, csv.Error, UnicodeDecodeError) as error:
        return say(str(error))
    print(difference(before, after, options.plans), end="")
    return 0


def say(problem: str) -> int:
    print(f"pick_policy: {problem}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
