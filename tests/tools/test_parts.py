"""`python -m tests.parts` leaves no test out, and runs first what the commits are about."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests import parts

TESTS = Path(__file__).parents[1]


def fake_part(minutes, source, *codes):
    commands = tuple((sys.executable, "-c", f"raise SystemExit({code})") for code in codes)
    return parts.Part("", minutes, (source,), commands)


@pytest.fixture
def three_parts(monkeypatch):
    those = {"a": fake_part(1, "a/", 0), "b": fake_part(9, "b/", 3, 0), "c": fake_part(1, "c/", 0)}
    monkeypatch.setattr(parts, "PARTS", those)


def test_every_test_that_needs_no_gpu_is_in_a_part():
    named = [word for part in parts.PARTS.values() for command in part.commands for word in command]
    named = tuple(word for word in named if word.startswith("tests/"))
    for path in TESTS.rglob("test_*.py"):
        is_in_a_part = str(path.relative_to(TESTS.parent)).startswith(named)
        assert is_in_a_part != (path.parent.name == "cuda"), path


def test_the_tests_that_the_sessions_of_nox_name_exist():
    names = re.findall(r'"(tests/.+?)"', (TESTS.parent / "noxfile.py").read_text())
    assert len(names) > 10
    assert [name for name in names if not (TESTS.parent / name).exists()] == []


def test_every_source_of_a_part_exists():
    for part in parts.PARTS.values():
        assert part.minutes <= 30
        for prefix in part.sources:
            assert list(TESTS.parent.glob(f"{prefix}*")), prefix


def test_parts_with_most_changed_lines_come_first_while_they_fit(three_parts, monkeypatch):
    monkeypatch.setattr(parts, "touched_lines", lambda since: {"a/x": 5, "b/y": 90, "a/z": 2})
    for minutes, ran in ((10, ["b", "a"]), (8, ["a"]), (0.5, [])):
        outcomes = parts.run_touched("1.day", minutes)
        assert [outcome.part for outcome in outcomes] == ["b", "a", "c"]
        assert [o.part for o in outcomes if o.state != parts.LEFT_OUT] == ran


def test_a_part_that_fails_is_named_and_the_others_run(three_parts, capfd):
    assert parts.main([]) == 1
    states = [line.split()[1] for line in capfd.readouterr().out.splitlines()[-3:]]
    assert states == ["passed", "FAILED", "passed"]
    assert parts.main(["a", "c"]) == 0


def test_neither_slowness_nor_random_inputs_keep_a_change_out(three_parts, monkeypatch):
    monkeypatch.setattr(parts, "touched_lines", lambda since: {"a/x": 1, "b/y": 1})
    assert parts.main(["--since", "1.day"]) == 1
    parts.PARTS["b"] = parts.PARTS["b"]._replace(is_random=True)
    assert parts.main(["--since", "1.day"]) == 0 and parts.main(["b"]) == 1
    sleeps = (sys.executable, "-c", "import time; time.sleep(60)")
    parts.PARTS["b"] = parts.Part("", 0, ("b/",), (sleeps,))
    assert parts.main(["--since", "1.day"]) == 0 and parts.main(["b"]) == 1


def test_a_part_whose_programs_are_missing_is_left_out_and_keeps_no_change_out(
    three_parts, monkeypatch, capsys
):
    monkeypatch.setattr(parts, "touched_lines", lambda since: {"a/x": 1})
    parts.PARTS["a"] = parts.PARTS["a"]._replace(programs=(sys.executable, "no-such-program"))
    assert parts.main(["--since", "1.day"]) == 0 and parts.main(["a"]) == 1
    assert capsys.readouterr().out.count("left out needs no-such-program\n") == 2


def test_an_unknown_part_is_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        parts.main(["nothing"])
    assert "no part nothing, wanted ops" in capsys.readouterr().err


def test_the_lines_that_commits_touch_are_those_of_git():
    changed = parts.touched_lines("50.years")
    assert changed["Makefile"] > 100 and all(isinstance(lines, int) for lines in changed.values())
