#!/usr/bin/env python3
"""Writes the measurements of tools/tune.cu into cuda/launch/plans.def, as a diff.

    python tools/pick_policy.py tune.csv            # the difference
    python tools/pick_policy.py tune.csv --write    # writes it

The measurements compare launch plans of CUDA kernels. A share is the speed of a kernel as a
fraction of the speed of a copy. For each pass, kind of vectors and row length, the plan wins whose
shares have the greatest geometric mean over numbers of rows and operators. (The worst share would
not do, since it is always that of the fewest rows.) But the incumbent, which is the plan in the
package, stays if its mean is within 2 % of the best. Neighbouring lengths with the same plan become
one line. Lengths without a measurement stay as they are. After the difference the tool prints what
blocks of fewer threads would change in the backward pass of norms.
"""

from __future__ import annotations

import argparse
import csv
import difflib
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean

PLANS = Path(__file__).parents[1] / "csrc" / "cuda" / "launch" / "plans.def"
#: The incumbent stays unless another plan is 2 % faster, because medians of two runs differ by as
#: much.
KEPT = 0.98
INTEGERS = (
    "rows", "cols", "width", "elements", "threads", "row_threads", "blocks", "partitions",
    "segment", "fixed", "is_incumbent",
)  # fmt: skip
COLUMNS = ("op", "direction", "dtype", *INTEGERS, "share_of_copy", "error")
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
#: The passes for which threads_text() shows blocks of fewer threads. A partition is the rows whose
#: gradients of weight and bias one block adds up; with smaller blocks there are more partitions.
THREADS_SHOWN = ("kNormBackward", "kAddNormBackward")

#: What plans are compared on: operator, direction, bytes of an element, number of rows.
Question = tuple[str, str, int, int]
#: The lines of plans.def that are chosen together: a pass, and kWide16, kWide32 or kUnaligned.
Group = tuple[str, str]


class BadTable(Exception):
    """The CSV or cuda/launch/plans.def is not as this tool needs it; the message says where."""


@dataclass(frozen=True)
class Plan:
    elements: int
    row_threads: int
    threads: int
    blocks: int
    partitions: int
    segment: int
    fixed: int  # equal to row_threads if the kernel is compiled for that number, else 0

    @property
    def is_listed(self) -> bool:
        """Whether a row stays in registers. plans.def lists row lengths only for such plans."""
        return self.elements > 0 and self.segment == 0


@dataclass(frozen=True)
class Case:
    op: str
    direction: str
    item_bytes: int
    rows: int
    cols: int
    width: int
    plan: Plan
    is_incumbent: bool
    share: float | None  # the kernel's speed as a fraction of a copy's; None if the launch failed

    @property
    def is_wide(self) -> bool:
        return self.width * self.item_bytes == VECTOR_BYTES

    @property
    def group(self) -> Group:
        if self.op in MASKED and not self.is_wide:
            return "kAnyMasked", "kUnaligned"
        vectors = f"kWide{8 * self.item_bytes}" if self.is_wide else "kUnaligned"
        return PASSES[self.op] + self.direction.capitalize(), vectors

    @property
    def question(self) -> Question:
        return self.op, self.direction, self.item_bytes, self.rows

    @property
    def shape(self) -> tuple[int, int, Question]:
        return self.cols, self.width, self.question


# --- reading ------------------------------------------------------------------------------------


def read_cases(path: Path) -> list[Case]:
    """Returns the rows of tune's CSV."""
    with path.open(newline="") as file:
        reader = csv.DictReader(file, strict=True)
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise BadTable(f"{path}: no column {', '.join(missing)}")
        return [case_of(row, f"{path}:{reader.line_num}") for row in reader]


def case_of(row: dict[str, str], place: str) -> Case:
    """Returns the case in a row of the CSV. Raises BadTable, which names the row's place in the
    file, if tune cannot have written the row."""
    if None in row or None in row.values():
        raise BadTable(f"{place}: the line has too few or too many fields; was tune interrupted?")
    if row["op"] not in KNOWN:
        raise BadTable(f"{place}: op is {row['op']!r}, wanted one of {', '.join(KNOWN)}")
    if row["direction"] not in ("forward", "backward") or row["dtype"] not in ITEM_BYTES:
        raise BadTable(f"{place}: {row['direction']!r} of {row['dtype']!r} is not measured by tune")
    try:
        number = {name: int(row[name]) for name in INTEGERS}
        share = None if row["error"] else float(row["share_of_copy"])
    except ValueError as error:
        raise BadTable(f"{place}: {error}") from None
    plan = Plan(**{name: number[name] for name in Plan.__annotations__})
    return Case(
        row["op"], row["direction"], ITEM_BYTES[row["dtype"]], number["rows"], number["cols"],
        number["width"], plan, number["is_incumbent"] == 1, share,
    )  # fmt: skip


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


@dataclass
class Choice:
    """The mean share of each plan for one row length, and which plan is chosen."""

    mean: dict[Plan, float]
    incumbent: Plan
    chosen: Plan

    def remark(self) -> str:
        share = f"{100 * self.mean[self.chosen]:.0f} % of a copy"
        if self.chosen == self.incumbent:
            return share
        return f"{share}, {100 * self.mean[self.incumbent]:.0f} % before"


def choose(cases: Sequence[Case]) -> Choice | None:
    """Returns the plan that the cases of one row length choose; None if no incumbent was measured.

    Plans are compared on the questions for which candidates, which are plans other than the
    incumbent, were measured. A plan is left out unless it was measured on all of these.
    """
    shares: dict[Plan, dict[Question, float | None]] = defaultdict(dict)
    for case in cases:
        shares[case.plan][case.question] = case.share
    incumbents = {case.plan for case in cases if case.is_incumbent}
    asked = {case.question for case in cases if not case.is_incumbent}
    asked = asked or {case.question for case in cases}
    mean = {
        plan: geometric_mean(share for question in asked if (share := of[question]) is not None)
        for plan, of in shares.items()
        if all(of.get(question) is not None for question in asked)
    }
    kept = [plan for plan in incumbents if plan in mean]
    if not kept:
        return None
    incumbent = max(kept, key=mean.__getitem__)
    best = max(mean, key=mean.__getitem__)
    is_kept = mean[incumbent] >= KEPT * mean[best]
    return Choice(mean, incumbent, incumbent if is_kept else best)


def usual_cases(cases: Iterable[Case]) -> Iterator[Case]:
    """Yields the cases, with 0 in place of their number of partitions, which depends on the number
    of rows. Candidates that vary the partitions, or the threads of a block with several rows, are
    left out, because no line of plans.def has these numbers."""
    for case in cases:
        usual = max(BLOCK_THREADS, case.plan.row_threads)
        varies = case.plan.threads > usual or (case.plan.partitions > 0 and case.plan.blocks == 1)
        if case.is_incumbent or not varies:
            yield replace(case, plan=replace(case.plan, partitions=0))


def is_of_another_pass(cases: Iterable[Case], lines: Sequence[Line]) -> bool:
    """Returns whether an incumbent ran a kernel of another pass than that of `lines`. Its kernel is
    then compiled for a fixed number of threads that no REGISTERS line has. There are such kernels
    for plain masked softmaxes of short unaligned rows, which have a pass of their own beside the
    pass for any scores."""
    fixed = {line.last for line in lines if line.macro == "REGISTERS"}
    return any(case.is_incumbent and case.plan.fixed not in {0, *fixed} for case in cases)


def line_for(lines: Iterable[Line], cols: int) -> Line | None:
    return next((line for line in lines if cols <= line.cols), None)


def chosen_line(choice: Choice, cols: int, lines: Sequence[Line]) -> Line | None:
    """Returns the line of plans.def for a measured row length. If the chosen plan differs from the
    incumbent, and plans.def lists such plans (`is_listed`), the line describes the chosen plan.
    Otherwise it is the line that covers the length now, cut to this length and with a new remark,
    or None if no line does."""
    plan, now = choice.chosen, line_for(lines, cols)
    if choice.chosen == choice.incumbent or not plan.is_listed:
        return now and replace(now, cols=cols, remark=f"  // {cols}: {choice.remark()}")
    first = lines[0]
    is_cluster = plan.blocks > 1
    single = "kSingle" if first.vectors == "kUnaligned" else first.vectors
    return Line(
        "CLUSTER" if is_cluster else "REGISTERS",
        first.pass_,
        single if is_cluster else first.vectors,
        cols,
        plan.elements,
        plan.blocks if is_cluster else plan.fixed,
        f"  // {cols}: {choice.remark()}",
    )


def updated_lines(lines: Sequence[Line], cases: Iterable[Case]) -> list[Line]:
    """Returns the new lines of a group, given its present `lines` and the cases that were measured
    for it. Each row length that the cases decide gets the plan that they choose, and the other
    lengths keep theirs."""
    by_cols = defaultdict(list)
    for case in usual_cases(cases):
        by_cols[case.cols].append(case)
    points = {line.cols: line for line in reversed(lines)}
    measured = set()
    for cols, group in sorted(by_cols.items()):
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
        measured.add(line.cols)
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


def incumbents_of(cases: Iterable[Case]) -> dict[tuple[int, int, Question], Case]:
    return {case.shape: case for case in cases if case.is_incumbent}


def changes(plan: Plan, incumbent: Plan) -> set[str]:
    """Returns the numbers in which a plan differs from the incumbent."""
    names = Plan.__annotations__
    return {name for name in names if getattr(plan, name) != getattr(incumbent, name)}


def best_constant(cases: Sequence[Case], column: str, now: int) -> tuple[int, float] | None:
    """Returns the best value of `column` and its worst ratio to the incumbent's share. The best
    value is the one whose worst ratio is the largest. Returns None if no case varies only this
    column, whose value in the package is `now`."""
    incumbents = incumbents_of(cases)
    ratios = defaultdict(list)
    for case in cases:
        incumbent = incumbents.get(case.shape)
        if case.is_incumbent or incumbent is None or not incumbent.share:
            continue
        is_alone = changes(case.plan, incumbent.plan) <= {column}
        if is_alone and getattr(incumbent.plan, column) == now:
            ratios[getattr(case.plan, column)].append((case.share or 0.0) / incumbent.share)
    if not ratios:
        return None
    best = max(ratios, key=lambda value: min(ratios[value]))
    return best, min(ratios[best])


def updated_plans(text: str, cases: Sequence[Case]) -> str:
    """Returns the text of cuda/launch/plans.def with the changes that the cases decide."""
    groups: dict[Group, list[Line]] = defaultdict(list)
    for line in filter(None, map(line_of, text.splitlines())):
        groups[line.group].append(line)
    if not groups:
        raise BadTable("cuda/launch/plans.def has no line REGISTERS(...)")
    for group, lines in groups.items():
        own = [case for case in cases if case.op in PASSES and case.group == group]
        if own:
            # The lines of a group are consecutive in the file.
            before, after = ("".join(f"{line}\n" for line in some)
                             for some in (lines, updated_lines(lines, own)))  # fmt: skip
            text = text.replace(before, after)
    for name, column in CONSTANTS.items():
        match = re.search(rf"CONSTANT\({name}, (\d+)\)", text)
        found = best_constant(cases, column, int(match[1])) if match else None
        if match and found and found[1] * KEPT > 1:
            text = text.replace(match[0], f"CONSTANT({name}, {found[0]})")
    return text


# --- what is shown, and stays -------------------------------------------------------------------


def threads_alone(cases: Sequence[Case]) -> list[Case]:
    """Returns the incumbents, and the cases that differ from them only in the threads of a block
    and in the number of partitions that results. All numbers but the threads are removed from their
    plans, so that choose() compares cases by their threads."""
    incumbents = incumbents_of(cases)
    kept = []
    for case in cases:
        incumbent = incumbents.get(case.shape)
        changed = changes(case.plan, incumbent.plan) if incumbent else set()
        if case.is_incumbent or ("threads" in changed and changed <= {"threads", "partitions"}):
            kept.append(replace(case, plan=Plan(0, 0, case.plan.threads, 1, 0, 0, 0)))
    return kept


def threads_text(cases: Sequence[Case]) -> str:
    """Returns a line for each row length at which blocks of fewer threads were measured in the
    backward pass of norms. These numbers are only shown, and not written to plans.def, because the
    kernels are compiled for kNormBackwardThreads."""
    by_length = defaultdict(list)
    shown = [case for case in cases if case.op in PASSES and case.group[0] in THREADS_SHOWN]
    for case in threads_alone(shown):
        by_length[(*case.group, case.cols)].append(case)
    lines = []
    for (name, vectors, cols), group in sorted(by_length.items()):
        choice = choose(group)
        if choice is None or len(choice.mean) == 1:
            continue
        shares = [
            f"{plan.threads}{' (now)' if plan == choice.incumbent else ''}: {100 * share:.0f} %"
            for plan, share in sorted(choice.mean.items(), key=lambda item: -item[0].threads)
        ]
        lines.append(f"# {name}, {vectors}, {cols} columns: {', '.join(shares)}\n")
    title = "# The share of a copy by the threads of a block, which stay as they are:\n"
    return "".join([title, *lines]) if lines else ""


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
    print(difference(before, after, options.plans) + threads_text(cases), end="")
    return 0


def say(problem: str) -> int:
    print(f"pick_policy: {problem}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
