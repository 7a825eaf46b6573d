"""The matrix of torches and Pythons reports every cell, and fails where one does."""

from __future__ import annotations

import sys

import pytest

from tests import matrix

SAYS = "import sys; print(sys.argv[1]); sys.exit(int(sys.argv[2]))"


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs the matrix with other commands in place of the real ones, which install gigabytes, and
    returns the exit status and the rows of the table."""

    def run_with(steps):
        wheel = tmp_path / "fusedops.whl"
        wheel.touch()
        monkeypatch.setattr(matrix, "FOLDER", tmp_path)
        monkeypatch.setattr(matrix, "steps", steps)
        monkeypatch.setattr(
            sys, "argv", ["matrix", str(wheel), "--python", "3.11", "--torch", "2.10.0", "2.15.0"]
        )
        status = matrix.main()
        return status, capsys.readouterr().out.splitlines()[-2:]

    return run_with


def say(text, status=0):
    return [sys.executable, "-c", SAYS, text, str(status)]


def test_a_row_shows_the_last_line_of_a_cells_output(run):
    status, rows = run(lambda cell, *_: {"check": say("checked"), "tests": say("9 passed")})
    assert status == 0
    assert [row.split(" | ")[1:3] for row in rows] == [
        ["2.10.0", "9 passed"],
        ["2.15.0", "9 passed"],
    ]


def test_the_first_step_that_fails_ends_its_cell_and_no_other(run):
    def steps(cell, *_):
        failing = int(cell.torch == "2.10.0")
        return {"check": say("1 check failed", failing), "tests": say("9 passed")}

    status, rows = run(steps)
    assert status == 1
    assert "FAILED at check: 1 check failed" in rows[0] and "9 passed" in rows[1]


def test_a_python_that_is_not_there_fails_its_cells(run):
    status, rows = run(lambda *_: {"environment": [matrix.interpreter("2.99")]})
    assert status == 1
    assert all("FAILED at environment: there is no python2.99" in row for row in rows)


def test_the_tests_that_it_names_exist():
    assert all((matrix.ROOT / name).is_file() for name in matrix.TESTS)
