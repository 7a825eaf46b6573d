"""`python -m tests.parts`: what `make test` leaves out, in parts that run on their own.

Each part takes less than half an hour on two cores. With ``--since`` only those run whose sources
the commits since then touched, the most changed lines first, as long as their usual times fit into
``--minutes``. A table of what ran and what was left out is printed last.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PYTEST = (sys.executable, "-m", "pytest", "-q")
#: The op tests divide rows among threads themselves; the CPU time of two workers fills two cores.
WORKERS = ("-n", "2", "--dist", "worksteal")


class Part(NamedTuple):
    """One part: what it shows, its usual minutes on two cores, the sources that it is about, its
    commands, whether its inputs differ from run to run, and programs that a machine may lack."""

    shows: str
    minutes: int
    sources: tuple[str, ...]
    commands: tuple[tuple[str, ...], ...]
    is_random: bool = False
    programs: tuple[str, ...] = ()


def _tests(*arguments: str) -> tuple[str, ...]:
    return (*PYTEST, *WORKERS, "--exhaustive", *arguments)


#: Tests of whole models, and those that compile and run all kernels once more.
_MODELS = tuple(
    f"tests/graph/test_{name}.py"
    for name in ("rewrite_census", "rewrite_autocast", "rewrite_transformers", "replace_modules")
)
_SANITIZED = "tests/simt/test_simt_sanitizers.py"
_ANY_OPERATOR = ("csrc/ops", "csrc/args", "fusedops/ops", "fusedops/reference")
_OPERATORS_ON_CPU = (*_ANY_OPERATOR, "csrc/cpu", "fusedops/functional")
_KERNELS_ON_CUDA = ("csrc/cuda", "csrc/args")
_INSTRUCTIONS = (sys.executable, "-m", "nox", "-s", "instructions", "--", *WORKERS)
_BUILD = ("CMakeLists", "cmake", "setup.py", "pyproject")

PARTS = {
    "ops": Part(
        "operators: whole products of parameters, on one, two and three threads",
        12,
        (*_OPERATORS_ON_CPU, "fusedops/nn", "fusedops/parallel", "fusedops/_arguments"),
        (
            _tests("tests/ops", "tests/transforms", "tests/parallel", "tests/properties"),
            _tests("tests/bad_input", "tests/test_ways.py", "tests/test_import_layers.py"),
        ),
    ),
    "graph": Part(
        "the rewriter: whole products of forms, dtypes and captures",
        9,
        ("fusedops/graph", "fusedops/backend", "fusedops/export", "fusedops/config"),
        (_tests("tests/graph", *(f"--ignore={path}" for path in _MODELS)),),
    ),
    "models": Part(
        "every model of the zoo, compiled, exported and under autocast",
        6,
        (
            "fusedops/graph",
            "fusedops/replacement",
            "tools/bench/zoo",
            "fusedops/integrations",
        ),
        (_tests(*_MODELS, "tests/integrations"),),
    ),
    "deploy": Part(
        "C++ and AOTInductor programs, the C interface, ONNX, builds and their faults",
        4,
        (*_BUILD, "csrc/c_api", "csrc/python", "fusedops/integrations/onnx", "fusedops/export"),
        (_tests("tests/deploy"),),
    ),
    "cli": Part(
        "the commands, the pages' examples, the tools and the example programs",
        5,
        ("fusedops/cli", "tools", "examples", "docs", "README"),
        (_tests("tests/cli", "tests/tools", "tests/examples"),),
    ),
    "distributed": Part(
        "DTensors and data parallelism on one, two and four processes",
        4,
        ("fusedops/integrations/dtensor", "fusedops/ops"),
        ((*PYTEST, "--exhaustive", "tests/distributed", "tests/graph/test_rewrite_ddp.py"),),
    ),
    "simt": Part(
        "CUDA kernels on the emulator: all lengths that change a launch, all schedules",
        5,
        (*_KERNELS_ON_CUDA, "tests/simt"),
        (_tests("tests/simt", f"--ignore={_SANITIZED}"),),
    ),
    "simt-sanitized": Part(
        "CUDA kernels on the emulator under Address-, UndefinedBehavior- and ThreadSanitizer",
        5,
        (*_KERNELS_ON_CUDA, "tests/simt/emulator"),
        ((*PYTEST, "--exhaustive", _SANITIZED),),
    ),
    "cuda": Part(
        "the machine code of all architectures: registers, spills, instructions, accesses",
        13,
        (*_KERNELS_ON_CUDA, *_BUILD),
        (("make", ".venv/.built-all"), _tests("tests/tools", "tests/cudart", "-m", "nvcc")),
    ),
    "isas": Part(
        "operators and rewritten graphs with lower instruction sets of the kernels and of eager",
        30,
        ("csrc/cpu",),
        (("make", ".venv/.built-isas"), _INSTRUCTIONS),
    ),
    "aarch64": Part(
        "the CPU kernels for ARM under qemu: bounds, bits, flags, instructions; the libraries",
        5,
        ("csrc/cpu", "csrc/args", "tests/aarch64", *_BUILD),
        (
            (sys.executable, "-m", "tests.aarch64.build"),
            _tests("tests/aarch64", "tests/deploy/test_build.py"),
        ),
        programs=("aarch64-linux-gnu-g++-12", "qemu-aarch64-static"),
    ),
    "sanitize": Part(
        "the CPU library under Address-, UndefinedBehavior- and ThreadSanitizer",
        11,
        ("csrc/cpu", "csrc/c_api", "csrc/ops"),
        ((sys.executable, "-m", "tests.sanitize"),),
    ),
    "fuzz": Part(
        "properties and random graphs, others in every run",
        10,
        (*_OPERATORS_ON_CPU, "fusedops/graph"),
        (("make", "fuzz", "FUZZ_SECONDS=480"),),
        is_random=True,
    ),
    "large": Part(
        "tensors of more than 2^31 elements; needs 18 GB of memory",
        3,
        _OPERATORS_ON_CPU,
        ((*PYTEST, "-m", "large"),),
    ),
}


class Outcome(NamedTuple):
    """What became of a part: ``state`` is one of those below."""

    part: str
    state: str
    said: str


PASSED, FAILED, LATE, LEFT_OUT = "passed", "FAILED", "LATE", "left out"


def touched_lines(since: str) -> dict[str, int]:
    """The changed lines of every file that the commits since a date touched."""
    command = ["git", "log", f"--since={since}", "--numstat", "--format="]
    lines = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    changed: dict[str, int] = {}
    for line in lines.splitlines():
        added, removed, path = line.split("\t")
        if added != "-":  # a binary file
            changed[path] = changed.get(path, 0) + int(added) + int(removed)
    return changed


def by_relevance(changed: dict[str, int]) -> list[str]:
    """The parts by the changed lines of their sources, most first, without those that have none."""
    weights = {
        name: sum(lines for path, lines in changed.items() if path.startswith(part.sources))
        for name, part in PARTS.items()
    }
    return sorted((name for name in PARTS if weights[name]), key=weights.__getitem__, reverse=True)


def run(name: str) -> Outcome:
    """Runs a part's commands. One that takes half as long again as usual is ended."""
    if missing := [each for each in PARTS[name].programs if not shutil.which(each)]:
        return Outcome(name, LEFT_OUT, f"needs {', '.join(missing)}")
    part, start = PARTS[name], time.monotonic()
    state, failed = PASSED, []
    for command in part.commands:
        print(f"--- {name}: {' '.join(command)}", flush=True)
        left = 1.5 * 60 * part.minutes - (time.monotonic() - start)
        try:
            code = subprocess.run(command, cwd=ROOT, timeout=max(left, 1)).returncode
        except subprocess.TimeoutExpired:
            state = state if failed else LATE
            failed.append(f"{' '.join(command[1:])} took half as long again as usual")
            break
        if code:
            state = FAILED
            failed.append(f"{' '.join(command[1:])}: {code}")
    seconds = time.monotonic() - start
    return Outcome(name, state, f"{seconds:5.0f} s  {'; '.join(failed)}".rstrip())


def run_touched(since: str, minutes: float) -> list[Outcome]:
    """Runs the parts that commits touched, each if its usual time fits into what is left."""
    end = time.monotonic() + 60 * minutes
    relevant = by_relevance(touched_lines(since))
    outcomes = []
    for name in relevant:
        left, usual = (end - time.monotonic()) / 60, PARTS[name].minutes
        lacks_time = Outcome(name, LEFT_OUT, f"takes {usual} minutes, {left:.0f} are left")
        outcomes.append(run(name) if usual <= left else lacks_time)
    untouched = [name for name in PARTS if name not in relevant]
    return outcomes + [Outcome(name, LEFT_OUT, "no commit touched it") for name in untouched]


def covered() -> Outcome:
    """Reports the coverage of the parts that ran."""
    command = [sys.executable, "-m", "coverage", "report", "--fail-under=95"]
    code = subprocess.run(command, cwd=ROOT).returncode
    return Outcome("coverage", FAILED if code else PASSED, "wanted at least 95 %")


def is_fault_of_change(outcome: Outcome) -> bool:
    """Whether a change may not land for this: a slow machine is no fault of it, and what random
    inputs find is most often older."""
    return outcome.state == FAILED and not PARTS[outcome.part].is_random


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 1 where a part failed, was not finished or left out; with ``--since`` that of
    `is_fault_of_change`."""
    parser = argparse.ArgumentParser(prog="python -m tests.parts", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="all if none is named")
    parser.add_argument("--list", action="store_true", help="say what each part shows")
    parser.add_argument("--since", metavar="DATE", help="parts that commits since then touched")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="for --since")
    parser.add_argument("--coverage", action="store_true", help="measure; below 95 %% is a failure")
    args = parser.parse_args(argv)
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}, wanted {', '.join(PARTS)}")
    if args.list:
        print(
            *(f"{n:14} {part.minutes:2} min  {part.shows}" for n, part in PARTS.items()), sep="\n"
        )
        return 0
    if args.coverage:
        os.environ["PYTEST_ADDOPTS"] = "--cov --cov-append --cov-report="
    if args.since:
        outcomes = run_touched(args.since, args.minutes)
    else:
        outcomes = [run(name) for name in args.parts or PARTS]
    outcomes += [covered()] if args.coverage else []
    for name, state, said in outcomes:
        print(f"{name:14} {state:8} {said}")
    if args.since:
        return int(any(map(is_fault_of_change, outcomes)))
    return int(any(outcome.state != PASSED for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
