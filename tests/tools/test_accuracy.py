"""`python -m tests.accuracy`: a row for every result and dtype, and no verdict."""

from pathlib import Path

from oracle import DTYPES
from processes import run_python

WITH_FEW_ROWS = "from tests import accuracy; accuracy.ROWS = 4; accuracy.main()"


def test_the_report_has_our_error_and_eagers_beside_the_bound():
    done = run_python("-c", WITH_FEW_ROWS, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "| result | dtype | fusedops | eager | bound |" in lines
    rows = [line.split(" | ") for line in lines if line.endswith(") |")]
    assert len(rows) == len({tuple(row[:2]) for row in rows}) == 15 * len(DTYPES)
    ours, bound = ([float(row[at].split()[0]) for row in rows] for at in (2, 4))
    assert all(error <= most for error, most in zip(ours, bound, strict=True))
