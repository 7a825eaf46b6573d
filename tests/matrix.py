"""`python -m tests.matrix WHEEL`: one wheel under the oldest, this and the newest torch and Python.

Each cell has a virtual environment of its own in build/matrix, which is removed afterwards, as a
torch with CUDA takes 7 GB. It installs the wheel without its sources, and runs `python -m fusedops
check` and a short part of the tests: operators, transforms, compiling, training, exporting,
AOTInductor, DTensors. A table is printed last; the output of each cell is in build/matrix.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "matrix"
PYTHONS = ("3.11", "3.13")
TORCHES = ("2.10.0", "2.13.0", "2.15.0")
#: What the tests below import, and setuptools, which torch.compile needs from Python 3.12 on.
PACKAGES = ("numpy", "pytest", "expecttest", "hypothesis", "setuptools")
TESTS = (
    "tests/ops/test_l2_norm.py",
    "tests/ops/test_nn.py",
    "tests/ops/test_small_calls.py",
    "tests/graph/test_rewrite_backend.py",
    "tests/graph/test_rewrite_export.py",
    "tests/deploy/test_autoload.py",
    "tests/deploy/test_package.py",
    "tests/distributed/test_distributed.py",
    "tests/transforms/test_nested.py",
    "tests/transforms/test_tracing.py",
)
#: What the tests read of the checkout.
FOLDERS = ("tests", "docs", "examples")


class Cell(NamedTuple):
    """A Python and a torch."""

    python: str
    torch: str

    def __str__(self) -> str:
        return f"python{self.python}-torch{self.torch}"


class Outcome(NamedTuple):
    """What became of a cell: the first step that failed, or None."""

    cell: Cell
    failed: str | None
    last_line: str
    seconds: float


def interpreter(version: str) -> str:
    """A Python of that version: on PATH, or one of pyenv's. Raises FileNotFoundError."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [f"python{version}", *map(str, pyenv.glob(f"{version}.*/bin/python"))]
    for name in candidates:  # a shim of pyenv's is on PATH even where it starts nothing
        if (
            shutil.which(name)
            and subprocess.run([name, "-c", ""], capture_output=True).returncode == 0
        ):
            return name
    raise FileNotFoundError(f"there is no python{version} on PATH or among pyenv's")


def steps(cell: Cell, venv: Path, wheel: Path) -> dict[str, list[str]]:
    """The commands of a cell, by name."""
    python = str(venv / "bin" / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    return {
        "environment": [interpreter(cell.python), "-m", "venv", "--clear", str(venv)],
        "torch": [*pip, f"torch=={cell.torch}", *PACKAGES],
        "wheel": [*pip, "--no-deps", str(wheel)],
        "check": [python, "-m", "fusedops", "check"],
        "tests": [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS],
    }


def run_cell(cell: Cell, wheel: Path, checkout: Path) -> Outcome:
    """Runs the steps up to the first that fails, in a folder with the tests but not the sources."""
    start, venv, log = time.monotonic(), FOLDER / str(cell), FOLDER / f"{cell}.log"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # Code that another torch compiled is not taken.
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(venv / "inductor")
    failed = None
    try:
        with log.open("w") as output:
            for name, command in steps(cell, venv, wheel).items():
                print(f"{cell}: {name}", flush=True)
                done = subprocess.run(
                    command, cwd=checkout, env=environment, stdout=output, stderr=subprocess.STDOUT
                )
                if done.returncode != 0:
                    failed = name
                    break
        lines = log.read_text().splitlines()
        return Outcome(cell, failed, lines[-1] if lines else "", time.monotonic() - start)
    except FileNotFoundError as error:  # no such Python
        return Outcome(cell, "environment", str(error), time.monotonic() - start)
    finally:
        shutil.rmtree(venv, ignore_errors=True)


def copy_tests() -> Path:
    """A folder with the tests and what they read, without the sources, which Python would import
    in place of the wheel's package."""
    checkout = FOLDER / "checkout"
    shutil.rmtree(checkout, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "build")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, checkout / folder, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", checkout)
    return checkout


def as_table(outcomes: list[Outcome]) -> str:
    """A line for each cell, as a table of the documentation."""
    rows = ["| Python | torch | outcome | seconds |", "| --- | --- | --- | --- |"]
    for cell, failed, last_line, seconds in outcomes:
        outcome = f"FAILED at {failed}: {last_line}" if failed else last_line
        rows.append(f"| {cell.python} | {cell.torch} | {outcome} | {seconds:.0f} |")
    return "\n".join(rows)


def main() -> int:
    """Exit status: 1 where a cell failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("wheel", type=Path, help="of `make wheel`")
    parser.add_argument("--python", nargs="+", default=PYTHONS, metavar="VERSION")
    parser.add_argument("--torch", nargs="+", default=TORCHES, metavar="VERSION")
    args = parser.parse_args()
    if not args.wheel.is_file():
        parser.error(f"wheel: got {str(args.wheel)!r}, wanted an existing file")
    checkout, wheel = copy_tests(), args.wheel.resolve()
    cells = [Cell(*cell) for cell in product(args.python, args.torch)]
    outcomes = [run_cell(cell, wheel, checkout) for cell in cells]
    print(as_table(outcomes))
    return int(any(outcome.failed for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
