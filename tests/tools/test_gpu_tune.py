"""tools/tune.cu over the emulator, with tiny shapes and a clock that ticks once an event.

It runs with ``--exhaustive`` alone: the tool has its own copies of the kernels, which compile for
minutes.
"""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from simt.emulator import build

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.exhaustive

TOOL = ROOT / "tools"
#: The package's sources that CMake links: where one is missing, the program does not link.
SHIPPED = re.findall(r"\$\{root\}/(csrc/\S+\.cu)", (TOOL / "tune/CMakeLists.txt").read_text())
SOURCES = [
    *(TOOL / "tune.cu", *sorted((TOOL / "tune").glob("*.c*"))),
    *(source for pattern in SHIPPED for source in sorted(ROOT.glob(pattern))),
]
#: The headers of tests/tools/emulated come before the emulator's, and include them.
FLAGS = [f"-I{Path(__file__).parent / 'emulated'}", f"-I{TOOL}", f"-I{ROOT / 'csrc'}"]
COLUMNS = (
    "op,direction,dtype,rows,cols,width,elements,threads,row_threads,blocks,partitions,segment,"
    "fixed,is_incumbent,median_us,copy_us,share_of_copy,bytes,difference,error"
)
Row = dict[str, str]


def linked(name: str, sources: Sequence[Path]) -> Path:
    return build.link(name, [(source, FLAGS) for source in sources], [])


@pytest.fixture(scope="module")
def program() -> Path:
    return linked("tune", SOURCES)


@pytest.fixture
def tune(program: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*arguments: str, program: Path = program) -> subprocess.CompletedProcess[str]:
        command = [str(program), *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)

    return run


def rows_of(path: Path) -> list[Row]:
    text = path.read_text()
    assert text.splitlines()[0] == COLUMNS
    return list(csv.DictReader(text.splitlines()))


@pytest.fixture(scope="module")
def smoke_table(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of up to 100 KB: all kinds of kernels, but not the longest rows."""
    table = tmp_path_factory.mktemp("tune") / "smoke.csv"
    command = [str(program), "--smoke", "--largest", "100000", "--csv", str(table)]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    return table


@pytest.fixture(scope="module")
def smoke(smoke_table: Path) -> list[Row]:
    return rows_of(smoke_table)


def test_every_kernel_agrees_with_the_one_that_the_tables_choose(smoke):
    assert [row for row in smoke if row["error"]] == []
    assert all(float(row["share_of_copy"]) == 1 for row in smoke)  # both take one tick


def test_every_operator_is_measured_in_both_dtypes(smoke):
    names = {(row["op"], row["direction"], row["dtype"]) for row in smoke}
    assert len(names) == 2 * 23


def test_candidates_vary_elements_threads_clusters_partitions_and_segments(smoke):
    def values(column: str, op: str, direction: str, candidate: str = "0") -> set[str]:
        return {
            row[column]
            for row in smoke
            if (row["op"], row["direction"], row["is_incumbent"]) == (op, direction, candidate)
        }

    assert {"4", "8", "16", "32", "64"} <= values("elements", "softmax", "forward")
    assert {"8", "16", "32", "64"} <= values("elements", "causal_softmax", "forward")
    assert {"8", "16"} <= values("elements", "padded_softmax", "backward")
    for op in ("softmax", "layer_norm", "padded_softmax"):
        assert {"0", "32"} <= values("fixed", op, "forward")
    assert {"128", "256"} <= values("threads", "softmax", "forward")
    assert {"2048", "4096", "8192", "16384"} <= values("segment", "layer_norm", "forward")
    assert values("partitions", "layer_norm", "backward")
    assert values("blocks", "layer_norm", "backward") > {"1"}
    assert values("blocks", "softmax", "forward", "1") > {"1"}


def test_a_soft_cap_is_measured_by_its_own_kernels_which_hold_less_than_causal_ones(smoke):
    def elements(op: str) -> set[tuple[str, str]]:
        shape = op, "bfloat16", "4096"
        plans = (row for row in smoke if (row["op"], row["dtype"], row["cols"]) == shape)
        return {(row["elements"], row["is_incumbent"]) for row in plans}

    assert elements("capped_softmax") == {("16", "1")}
    assert ("32", "1") in elements("causal_softmax")


def test_a_question_has_one_incumbent_and_no_plan_twice(smoke):
    shape = ("op", "direction", "dtype", "rows", "cols")
    plan = ("width", "elements", "threads", "row_threads", "blocks", "partitions", "segment",
            "fixed")  # fmt: skip
    cases = [tuple(row[name] for name in shape + plan) for row in smoke]
    assert len(set(cases)) == len(cases)
    incumbents = [tuple(row[name] for name in shape) for row in smoke if row["is_incumbent"] == "1"]
    assert len(set(incumbents)) == len(incumbents)
    assert set(incumbents) == {case[: len(shape)] for case in cases}


def test_its_table_is_read_by_pick_policy(smoke_table):
    command = [sys.executable, str(TOOL / "pick_policy.py"), str(smoke_table)]
    done = subprocess.run(command, capture_output=True, text=True)
    # Every share is the same, so that every incumbent stays.
    assert done.returncode == 0 and done.stderr == "" and "100 % of a copy" in done.stdout


def test_it_stops_within_its_time_with_what_it_reached(tune, tmp_path):
    done = tune("--seconds", "3", "--largest", "20000", "--csv", "out.csv")
    rows = rows_of(tmp_path / "out.csv")
    assert done.returncode == 0 and f"{len(rows)} cases, 0 of them failed" in done.stdout
    first = rows[0]
    assert (first["op"], first["cols"], first["is_incumbent"]) == ("layer_norm", "4096", "1")
    assert float(first["median_us"]) == 1000 and int(first["bytes"]) == 2 * 2 * 2 * 4096


def test_the_list_begins_with_the_incumbents_of_the_main_shapes(tune):
    lines = tune("--list").stdout.splitlines()
    assert COLUMNS.startswith(lines[0])
    rows = list(csv.DictReader(lines))
    assert all(row["is_incumbent"] == "1" for row in rows[:100])
    assert {row["cols"] for row in rows} >= {"32", "49", "577", "50257", "128256", str(4 << 20)}
    sizes = [int(row["rows"]) * int(row["cols"]) * (2 + 2 * ("32" in row["dtype"])) for row in rows]
    assert min(sizes) < 1 << 20 and max(sizes) == 2 << 30


LAUNCH = "launch_candidate<SoftmaxForwardRegisters"
#: The softmax writes nothing, and its logarithm fails to launch.
PLANTED = f"is_log(q) ? Status{{719}} : q.rows > 0 ? device::kSuccess : {LAUNCH}"


def test_a_candidate_that_is_wrong_or_fails_has_an_error_and_no_time(tune, tmp_path):
    softmax = TOOL / "tune" / "softmax.cu"
    assert softmax.read_text().count(LAUNCH) == 1
    # Objects are kept by the paths of their sources.
    source = build.CACHE / "planted_tune" / "softmax.cu"
    source.parent.mkdir(exist_ok=True)
    source.write_text(softmax.read_text().replace(LAUNCH, PLANTED))
    planted = linked("planted_tune", [source if path == softmax else path for path in SOURCES])
    done = tune("--smoke", "--largest", "400", "--csv", "out.csv", program=planted)
    assert done.returncode == 1
    wrong = [row for row in rows_of(tmp_path / "out.csv") if row["error"] or not row["median_us"]]
    assert all(row["is_incumbent"] == "0" and not row["share_of_copy"] for row in wrong)
    errors = {(row["op"], row["error"].split(": ")[0]) for row in wrong}
    assert errors == {
        ("softmax", "differs from the incumbent"),
        ("log_softmax", "CUDA error 719"),
    }


@pytest.mark.parametrize(
    "arguments, problem",
    [
        (["--seconds", "soon"], "--seconds: got 'soon', wanted a number above 0"),
        (["--largest"], "--largest: got '', wanted a number above 0"),
        (["--csv"], "--csv: wanted a file"),
        (["--bogus"], "unrecognized argument: --bogus"),
        (["--csv", "nowhere/out.csv"], "nowhere/out.csv: No such file or directory"),
    ],
)
def test_a_bad_argument_is_named(tune, arguments, problem):
    done = tune(*arguments)
    assert done.returncode in (1, 2) and problem in done.stderr
