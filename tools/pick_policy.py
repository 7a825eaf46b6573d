#!/usr/bin/env python3
"""Turns the measurements of tools/tune.cu into the tables of cuda/launch/plan.h, as a diff.

    python tools/pick_policy.py tune.csv            # the difference
    python tools/pick_policy.py tune.csv --write    # writes it

For every table and row length the plan with the best worst share of a copy over row counts and
operators wins, but the incumbent stays within 2 % of it. Neighbouring lengths with the same plan
become one regime. Tables without a measurement stay as they are. Below the difference stands what
blocks of fewer threads would change in the backward pass of norms.
"""

from __future__ import annotations

import argparse
import ast
import csv
import difflib
import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

PLANS = Path(__file__).parents[1] / "csrc" / "cuda" / "launch" / "plan.h"
#: What a plan must gain, since medians of two runs differ by as much.
KEPT = 0.98
INTEGERS = (
    "rows", "cols", "width", "elements", "threads", "row_threads", "blocks", "partitions",
    "segment", "fixed", "is_incumbent",
)  # fmt: skip
COLUMNS = ("op", "direction", "dtype", *INTEGERS, "share_of_copy", "error")
ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
VECTOR_BYTES, SECTOR_BYTES = 16, 32
#: The threads of a block of short rows, where a candidate does not vary them.
BLOCK_THREADS = 128
WIDE_TABLES = {2: 0, 4: 1}
NARROW_TABLE = 2
WIDE, NARROW = "wide", "narrow"

SOFTMAX = ("softmax", "log_softmax")
MASKED = ("padded_softmax", "causal_softmax")
NORMS = ("layer_norm", "rms_norm", "std_norm")
ADD_NORMS = ("add_layer_norm", "add_rms_norm")
#: Operators that decide no table: none has their plan, or a soft cap shares it with scores of any
#: parts, which are not measured.
UNPLANNED = ("softmax_statistics", "softmax_apply", "spatial_softmax", "capped_softmax")
KNOWN = (*SOFTMAX, *MASKED, *NORMS, *ADD_NORMS, *UNPLANNED)
FORWARD, BACKWARD = ("forward",), ("backward",)
#: The operators, directions and vectors of each table.
REGIMES = {
    "kSoftmaxRegimes": (SOFTMAX, FORWARD, (WIDE, NARROW)),
    "kSoftmaxBackwardRegimes": (SOFTMAX, BACKWARD, (WIDE, NARROW)),
    "kMaskedSoftmaxRegimes": (MASKED, FORWARD, (WIDE,)),
    "kMaskedSoftmaxBackwardRegimes": (MASKED, BACKWARD, (WIDE,)),
    "kAnyMaskedSoftmaxRegimes": (MASKED, FORWARD + BACKWARD, (NARROW,)),
    "kNormRegimes": (NORMS, FORWARD, (WIDE, NARROW)),
    "kNormAddRegimes": (ADD_NORMS, FORWARD, (WIDE, NARROW)),
    "kNormBackwardRegimes": (NORMS, BACKWARD, (WIDE, NARROW)),
    "kNormAddBackwardRegimes": (ADD_NORMS, BACKWARD, (WIDE, NARROW)),
}
#: The clusters of vectors, and of operators, directions and dtype sizes: what has its elements has
#: its sizes.
CLUSTERS = {
    "kClustersOf64": (WIDE, ((SOFTMAX, "forward", (2,)), (NORMS, "forward", (2,)))),
    "kClustersOf32": (WIDE, ((SOFTMAX, "forward", (4,)),)),
    "kClustersOf16": (
        WIDE,
        (
            (SOFTMAX, "backward", (2, 4)),
            (NORMS, "forward", (4,)),
            (ADD_NORMS, "forward", (2, 4)),
        ),
    ),
    "kNarrowClusters": (
        NARROW,
        ((SOFTMAX, "forward", (2, 4)), (SOFTMAX, "backward", (2, 4))),
    ),
    "kNarrowNormClusters": (NARROW, ((NORMS, "forward", (2, 4)),)),
    "kNarrowNormBackwardClusters": (NARROW, ((NORMS, "backward", (2, 4)),)),
    "kNormBackwardClusters": (
        WIDE,
        ((NORMS, "backward", (2, 4)), (ADD_NORMS, "backward", (2,))),
    ),
    "kFloatNormAddBackwardClusters": (WIDE, ((ADD_NORMS, "backward", (4,)),)),
    "kMaskedClusters": (WIDE, ((MASKED, "forward", (2,)), (MASKED, "backward", (2,)))),
    "kFloatMaskedClusters": (WIDE, ((MASKED, "forward", (4,)), (MASKED, "backward", (4,)))),
}
MOST_CLUSTERS = 3
#: Numbers that hold for all lengths, the column that varies them, and their directions.
CONSTANTS = {
    "kNormBackwardBlocks": ("partitions", ("backward",)),
    "kRowBlockThreads": ("threads", ("forward", "backward")),
    "kSegmentCols": ("segment", ("forward", "backward")),
}
#: The regimes whose blocks may have fewer threads, with more partitions, and how their tables are
#: told apart.
THREADS_SHOWN = ("kNormBackwardRegimes", "kNormAddBackwardRegimes")
TABLES = ("16 bits", "32 bits", "narrow")


#: Operator, direction, bytes of an element, rows.
Question = tuple[str, str, int, int]
#: What a regime says beside its longest row; None where no block holds the row.
Entry = tuple[int, ...] | None


class BadTable(Exception):
    """The CSV or cuda/launch/plan.h is not as this tool needs it; the message says where."""


@dataclass(frozen=True)
class Plan:
    elements: int
    row_threads: int
    threads: int
    blocks: int
    partitions: int
    segment: int
    fixed: int  # row_threads, where the kernel is compiled for that number

    @property
    def is_in_registers(self) -> bool:
        return self.elements > 0 and self.blocks == 1 and self.segment == 0


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
    share: float | None  # of a copy's speed; None where the launch failed

    @property
    def vectors(self) -> str:
        return WIDE if self.width * self.item_bytes == VECTOR_BYTES else NARROW

    @property
    def table(self) -> int:
        return WIDE_TABLES[self.item_bytes] if self.vectors == WIDE else NARROW_TABLE

    @property
    def question(self) -> Question:
        return self.op, self.direction, self.item_bytes, self.rows

    @property
    def shape(self) -> tuple[int, int, Question]:
        return self.cols, self.width, self.question


# --- reading ------------------------------------------------------------------------------------


def read_cases(path: Path) -> list[Case]:
    """The rows of tune's CSV."""
    with path.open(newline="") as file:
        reader = csv.DictReader(file, strict=True)
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise BadTable(f"{path}: no column {', '.join(missing)}")
        return [case_of(row, f"{path}:{reader.line_num}") for row in reader]


def case_of(row: dict[str, str], place: str) -> Case:
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


@dataclass
class Table:
    """A table of regimes in cuda/launch/plan.h, for one dtype size and width."""

    regimes: list[list[int]]  # max_cols, elements and, where the regime fixes them, threads

    def at(self, cols: int) -> Entry:
        return next((tuple(r[1:]) for r in self.regimes if cols <= r[0]), None)


def regimes_in(text: str) -> dict[str, tuple[str, list[Table]]]:
    """By name, the definition of each table of regimes, and what it holds. Kernels may share the
    table of a vector width, which has a name then."""

    def without_comments(body: str) -> str:
        return re.sub(r"//[^\n]*", "", body)

    tables_of = r"inline constexpr RegimeTable (\w+) = (\{.*?\});"
    shared = dict(re.findall(tables_of, without_comments(text), re.DOTALL))
    found = {}
    for match in re.finditer(r"inline constexpr Regimes (\w+) = (\{.*?\});", text, re.DOTALL):
        body = re.sub(r"\bk\w+", lambda name: shared[name[0]], without_comments(match[2]))
        body = body.replace("{", "[").replace("}", "]")
        tables = ast.literal_eval(body)
        found[match[1]] = (match[0], [Table([list(r) for r in table]) for table in tables])
    return found


def constant_in(text: str, name: str) -> int | None:
    match = re.search(rf"\b{name} = (\d+)\b", text)
    return int(match[1]) if match else None


# --- choosing -----------------------------------------------------------------------------------


@dataclass
class Choice:
    """What was measured of the plans for one row length, and which of them is chosen."""

    worst: dict[Plan, float]
    incumbent: Plan
    chosen: Plan

    def remark(self) -> str:
        share = f"{100 * self.worst[self.chosen]:.0f} % of a copy"
        if self.chosen == self.incumbent:
            return share
        return f"{share}, {100 * self.worst[self.incumbent]:.0f} % before"


def choose(cases: Sequence[Case]) -> Choice | None:
    """The best plan of cases of one length; None without an incumbent that was measured.

    Plans are compared where all of them were measured, on the questions that have candidates.
    """
    shares: dict[Plan, dict[Question, float | None]] = defaultdict(dict)
    for case in cases:
        shares[case.plan][case.question] = case.share
    incumbents = {case.plan for case in cases if case.is_incumbent}
    asked = {case.question for case in cases if not case.is_incumbent}
    asked = asked or {case.question for case in cases}
    worst = {
        plan: min(share for question in asked if (share := of[question]) is not None)
        for plan, of in shares.items()
        if all(of.get(question) is not None for question in asked)
    }
    kept = [plan for plan in incumbents if plan in worst]
    if not kept:
        return None
    incumbent = max(kept, key=worst.__getitem__)
    best = max(worst, key=worst.__getitem__)
    is_kept = worst[incumbent] >= KEPT * worst[best]
    return Choice(worst, incumbent, incumbent if is_kept else best)


def threads_per_row(cols: int, elements: int, vector_bytes: int) -> int:
    """As the function of that name in cuda/launch/plan.h."""
    wanted = -(-cols // elements)
    if wanted > 32:
        return -(-wanted // 32) * 32
    threads = max(1, SECTOR_BYTES // vector_bytes)
    while threads < wanted:
        threads *= 2
    return threads


def entry_of(plan: Plan, case: Case) -> Entry:
    """Elements of a regime, and threads where they are not those that follow from the length."""
    if not plan.is_in_registers:
        return None
    usual = threads_per_row(case.cols, plan.elements, case.width * case.item_bytes)
    is_usual = plan.row_threads == usual and plan.fixed == 0
    return (plan.elements,) if is_usual else (plan.elements, plan.row_threads)


def holds(entry: Entry, cols: int) -> bool:
    """Whether the threads that an entry fixes hold the row."""
    return entry is None or len(entry) == 1 or entry[0] * entry[1] >= cols


@dataclass
class Point:
    """A row length: the regime's elements and threads there, None beyond registers."""

    cols: int
    entry: Entry
    remark: str = ""
    #: The worst share of a copy with other elements.
    shares: dict[Entry, float] | None = None


def points_of(cases: Iterable[Case], table: Table) -> list[Point]:
    """What is chosen at each measured length; the table's own regimes where none was measured."""
    by_cols = defaultdict(list)
    for case in cases:
        usual = max(BLOCK_THREADS, case.plan.row_threads)
        if case.is_incumbent:
            # Partitions depend on the rows too, and are no part of a regime.
            by_cols[case.cols].append(replace(case, plan=replace(case.plan, partitions=0)))
        elif case.plan.threads <= usual and case.plan.partitions == 0:
            by_cols[case.cols].append(case)
    points = {regime[0]: Point(regime[0], tuple(regime[1:])) for regime in table.regimes}
    for cols, group in by_cols.items():
        choice = None if is_of_another_table(cols, group, table) else choose(group)
        if choice is not None:
            points[cols] = point_of(cols, choice, group[0], table)
    return [points[cols] for cols in sorted(points)]


def is_of_another_table(cols: int, cases: Iterable[Case], table: Table) -> bool:
    """Whether such rows have a kernel, compiled for its threads, that is not of the table: plain
    masked softmaxes of short narrow rows, beside kernels for scores of any parts."""
    return any(
        case.is_incumbent and case.plan.fixed > 0
        and table.at(cols) != (case.plan.elements, case.plan.fixed)
        for case in cases
    )  # fmt: skip


def point_of(cols: int, choice: Choice, case: Case, table: Table) -> Point:
    shares: dict[Entry, float] = {}
    for plan, share in choice.worst.items():
        entry = entry_of(plan, case)
        shares[entry] = max(share, shares.get(entry, 0))
    # Where clusters or segments win, cluster_points() moves the border; this table covers it still.
    is_new = choice.chosen != choice.incumbent and choice.chosen.is_in_registers
    entry = entry_of(choice.chosen, case) if is_new else table.at(cols)
    return Point(cols, entry, choice.remark(), shares)


def merged(points: Sequence[Point], most: int) -> list[list[Point]]:
    """Neighbours with the same entry together, in at most `most` groups, up to the last row that
    stays in registers. Of too many, the group goes that loses least with a neighbour's entry."""
    last = max((i for i, point in enumerate(points) if point.entry), default=-1)
    groups: list[list[Point]] = []
    for point in points[: last + 1]:
        # A length that would rather leave registers between others cannot: the next entry has it.
        entry = point.entry or next(p.entry for p in points[points.index(point) :] if p.entry)
        point = Point(point.cols, entry, point.remark, point.shares)
        if groups and groups[-1][0].entry == entry:
            groups[-1].append(point)
        else:
            groups.append([point])
    while len(groups) > most:
        at, entry = cheapest_change(groups)
        changed = [Point(p.cols, entry, p.remark, p.shares) for p in groups[at]]
        flat = [p for i, group in enumerate(groups) for p in (changed if i == at else group)]
        groups = merged(flat, len(groups))
    return groups


def cheapest_change(groups: Sequence[Sequence[Point]]) -> tuple[int, Entry]:
    """The group to give a neighbour's entry, and that entry."""

    def loss(at: int, entry: Entry) -> float:
        lost = [
            (p.shares or {}).get(p.entry, 1.0) - (p.shares or {}).get(entry, 0.0)
            if holds(entry, p.cols)
            else math.inf
            for p in groups[at]
        ]
        return max(lost)

    changes = [
        (at, groups[other][0].entry)
        for at in range(len(groups))
        for other in (at - 1, at + 1)
        if 0 <= other < len(groups)
    ]
    return min(changes, key=lambda change: loss(*change))


def cluster_choices(cases: Iterable[Case]) -> dict[int, Choice]:
    """By length, the size of a cluster; one block and no cluster are sizes of 1 and 0."""
    best: dict[tuple[int, Plan, Question, bool], Case] = {}
    for case in cases:
        is_held = case.plan.elements > 0 and case.plan.segment == 0
        sized = replace(case, plan=Plan(0, 0, 0, case.plan.blocks if is_held else 0, 0, 0, 0))
        key = (case.cols, sized.plan, case.question, case.is_incumbent)
        if key not in best or (sized.share or 0) > (best[key].share or 0):
            best[key] = sized
    by_cols = defaultdict(list)
    # Incumbents come last: a candidate of their own size does not stand in for them.
    for case in sorted(best.values(), key=lambda case: case.is_incumbent):
        by_cols[case.cols].append(case)
    choices = {cols: choose(group) for cols, group in sorted(by_cols.items())}
    return {cols: choice for cols, choice in choices.items() if choice is not None}


def clusters_text(name: str, definition: str, cases: Iterable[Case]) -> str:
    """The definition of a table of clusters, new where their sizes were measured."""
    choices = cluster_choices(cases)
    if not any(choice.chosen != choice.incumbent for choice in choices.values()):
        return definition
    numbers = [int(number) for number in re.findall(r"-?\d+", definition.split("=", 1)[1])]
    elements, block_cols = numbers[:2]
    points = {
        cols: Point(cols, (blocks,))
        for cols, blocks in zip(numbers[2::2], numbers[3::2], strict=True)
    }
    # One block holds shorter rows, even where those of block_cols go to a cluster.
    points |= {cols: Point(cols, (1,)) for cols in (block_cols // 2, block_cols)}
    for cols, choice in choices.items():
        if choice.chosen.blocks > 0:
            rounded = 1 << (cols - 1).bit_length()  # an odd length speaks for those beside it
            if rounded not in choices:
                points.pop(rounded, None)
            points[cols] = Point(cols, (choice.chosen.blocks,), choice.remark())
    ordered = [points[cols] for cols in sorted(points)]
    one_block = [p.cols for p in ordered if p.entry == (1,)]
    block_cols = max(one_block)
    groups = merged([p for p in ordered if p.cols > block_cols], MOST_CLUSTERS)
    lines = [f"inline constexpr Clusters {name} = {{", f"    {elements}, {block_cols},", "    {"]
    return "\n".join([*lines, *lines_of(groups), "    },", "};"])


def with_clusters(text: str, cases: Sequence[Case]) -> str:
    for name, (vectors, parts) in CLUSTERS.items():
        match = re.search(rf"inline constexpr Clusters {name} = \{{.*?\}};", text, re.DOTALL)
        own = [
            case
            for case in cases
            for ops, direction, sizes in parts
            if case.op in ops and case.direction == direction and case.item_bytes in sizes
        ]
        if match:
            measured = [case for case in own if case.vectors == vectors]
            text = text.replace(match[0], clusters_text(name, match[0], measured))
    return text


# --- writing ------------------------------------------------------------------------------------


def end_of(group: Sequence[Point], following: Sequence[Point]) -> int:
    """max_cols of a regime: the next power of two, for the lengths beside a measured odd one."""
    cols = group[-1].cols
    rounded = 1 << (cols - 1).bit_length()
    return min(rounded, following[0].cols - 1) if following and rounded != cols else rounded


def lines_of(groups: Sequence[Sequence[Point]]) -> list[str]:
    """The lines of a table, with the measurement of the slowest length behind each."""
    lines = []
    for i, group in enumerate(groups):
        following = groups[i + 1] if i + 1 < len(groups) else ()
        regime = (end_of(group, following), *(group[0].entry or ()))
        line = f"        {{{', '.join(map(str, regime))}}},"
        remarks = [f"{point.cols}: {point.remark}" for point in group if point.remark]
        slowest = min(remarks, key=lambda text: int(text.split(": ")[1].split()[0]), default="")
        lines.append(f"{line}  // {slowest}" if slowest else line)
    return lines


def table_lines(table: Table) -> list[str]:
    regimes = ", ".join(f"{{{', '.join(map(str, regime))}}}" for regime in table.regimes)
    return [f"    {{{regimes}}},"]


def cases_of(name: str, cases: Sequence[Case]) -> list[Case]:
    """Those that a table of regimes is for."""
    ops, directions, vectors = REGIMES[name]
    return [
        case
        for case in cases
        if case.op in ops and case.direction in directions and case.vectors in vectors
    ]


def regimes_text(name: str, tables: Sequence[Table], cases: Sequence[Case], most: int) -> str:
    """The definition of a table of regimes, new where there are measurements."""
    own = cases_of(name, cases)
    lines = [f"inline constexpr Regimes {name} = {{"]
    for index, table in enumerate(tables):
        measured = [case for case in own if case.table == index]
        groups = merged(points_of(measured, table), most) if measured else []
        lines += ["    {", *lines_of(groups), "    },"] if groups else table_lines(table)
    return "\n".join([*lines, "};"])


def incumbents_of(cases: Iterable[Case]) -> dict[tuple[int, int, Question], Case]:
    return {case.shape: case for case in cases if case.is_incumbent}


def changes(plan: Plan, incumbent: Plan) -> set[str]:
    """The numbers in which a plan differs from the incumbent."""
    names = Plan.__annotations__
    return {name for name in names if getattr(plan, name) != getattr(incumbent, name)}


def best_constant(cases: Sequence[Case], column: str, now: int) -> tuple[int, float] | None:
    """The value with the best worst share in relation to the incumbent's, and that ratio; None
    where no case varies that number alone."""
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


def with_constants(text: str, cases: Sequence[Case]) -> str:
    for name, (column, directions) in CONSTANTS.items():
        now = constant_in(text, name)
        if now is None:
            continue
        own = [case for case in cases if case.direction in directions]
        found = best_constant(own, column, now)
        if found and found[1] * KEPT > 1:
            text = re.sub(rf"\b({name} = )\d+\b", rf"\g<1>{found[0]}", text, count=1)
    return text


def picked(text: str, cases: Sequence[Case]) -> str:
    """cuda/launch/plan.h with what the cases say."""
    most = constant_in(text, "kMaxRegimes")
    found = regimes_in(text)
    if most is None or not found:
        raise BadTable("cuda/launch/plan.h has no kMaxRegimes, or no table of regimes")
    for name in REGIMES:
        if name not in found:
            continue
        definition, tables = found[name]
        if cases_of(name, cases):
            text = text.replace(definition, regimes_text(name, tables, cases, most))
    return with_constants(with_clusters(text, cases), cases)


# --- what is shown, and stays -------------------------------------------------------------------


def threads_alone(cases: Sequence[Case]) -> list[Case]:
    """The incumbents and what differs from them in the threads of a block, and in the partitions
    that follow from those; with plans of that number alone, so that choose() compares it."""
    incumbents = incumbents_of(cases)
    kept = []
    for case in cases:
        incumbent = incumbents.get(case.shape)
        changed = changes(case.plan, incumbent.plan) if incumbent else set()
        if case.is_incumbent or ("threads" in changed and changed <= {"threads", "partitions"}):
            kept.append(replace(case, plan=Plan(0, 0, case.plan.threads, 1, 0, 0, 0)))
    return kept


def threads_text(cases: Sequence[Case]) -> str:
    """A line for each length at which blocks of fewer threads were measured in the backward pass of
    norms. Nothing is written of it: kNormBackwardThreads is a bound of the kernels too."""
    by_length = defaultdict(list)
    for name in THREADS_SHOWN:
        for case in threads_alone(cases_of(name, cases)):
            by_length[name, case.table, case.cols].append(case)
    lines = []
    for (name, table, cols), group in sorted(by_length.items()):
        choice = choose(group)
        if choice is None or len(choice.worst) == 1:
            continue
        shares = [
            f"{plan.threads}{' (now)' if plan == choice.incumbent else ''}: {100 * share:.0f} %"
            for plan, share in sorted(choice.worst.items(), key=lambda item: -item[0].threads)
        ]
        lines.append(f"# {name}, {TABLES[table]}, {cols} columns: {', '.join(shares)}\n")
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
    parser.add_argument("--plans", type=Path, default=PLANS, help="cuda/launch/plan.h")
    parser.add_argument("--write", action="store_true", help="writes the tables")
    options = parser.parse_args(arguments)
    try:
        before, cases = options.plans.read_text(), read_cases(options.csv)
        after = picked(before, cases)
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
