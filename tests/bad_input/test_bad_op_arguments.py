"""Every operator with each of its arguments made wrong in turn, as its schema says.

Wanted is a typed error that names the operator and the argument, in the words of the fake kernel,
with nothing written; or the right result.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from op_bad_calls import OPS, rows

PROGRAM = Path(__file__).parents[1] / "op_bad_calls.py"


def outcomes_from(first: int) -> tuple[dict[int, str], int]:
    """What one process finds wrong, by row, and the number of the next row."""
    command = [sys.executable, str(PROGRAM), str(first)]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # the tensors are small
    result = subprocess.run(command, capture_output=True, text=True, env=one_thread)
    found, last = {}, first - 1
    for line in result.stdout.splitlines():
        row = json.loads(line)
        last = row["index"]
        found[last] = row.get("wrong", f"the process died with {result.returncode}")
    assert last >= first, result.stderr
    return found, last + 1


@pytest.fixture(scope="module")
def outcomes() -> dict[int, str]:
    """What is wrong with each row. Where a call crashes its process, another goes on behind it."""
    found, at = {}, 0
    while at < len(rows()):
        part, at = outcomes_from(at)
        found |= part
    return found


@pytest.mark.parametrize("op", OPS)
def test_a_bad_call_is_refused_by_name_or_gives_the_right_result(op, outcomes):
    judged = [(row, outcomes[index]) for index, row in enumerate(rows()) if row.op == op]
    assert len(judged) > 20
    wrong = [f"{row.argument} <- {row.value}: {why}" for row, why in judged if why]
    assert not wrong, "\n".join(wrong)


def test_the_table_covers_every_argument_of_every_op():
    assert len(rows()) > 5000
    assert len({(row.op, row.argument, row.value) for row in rows()}) == len(rows())
