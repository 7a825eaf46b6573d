"""`python -m tests.accuracy`: a row for every result and dtype, and no verdict."""

import subprocess
import sys
from pathlib import Path

from oracle import DTYPES

ROOT = Path(__file__).parents[2]
WITH_FEW_ROWS = "from tests import accuracy; accuracy.ROWS = 4; accuracy.main()"


def test_the_report_has_our_error_and_eagers_beside_the_bound():
    command = [sys.executable, "-c", WITH_FEW_ROWS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert "| result | dtype | fusedops | eager | bound |" in lines
    rows = [line.split(" | ") for line in lines if line.endswith(") |")]
    assert len(rows) == len({tuple(row[:2]) for row in rows}) == 15 * len(DTYPES)
    ours, bound = ([float(row[at].split()[0]) for row in rows] for at in (2, 4))
    assert all(error <= most for error, most in zip(ours, bound, strict=True))
