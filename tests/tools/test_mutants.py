"""`make mutants` plants small faults at the places it names, and says which test noticed each."""

from __future__ import annotations

import ast
import re

import pytest

from tests.mutants import __main__ as mutants
from tests.mutants import plan, reach, tree
from tests.mutants.faults import Fault, faults_of


def changes(path: str, line: str) -> set[str]:
    """What becomes of one line of a source."""
    text = f"{line}\n"
    return {fault.apply(text).strip() for fault in faults_of(path, text)}


def test_faults_of_python_are_small_and_leave_the_rest():
    assert changes("a.py", "x = a < b + c") == {"x = (a <= b + c)", "x = a < (b - c)"}
    assert changes("a.py", "x = y.to(z, copy=True) if c else d") == {
        "x = y.to(z, copy=(False)) if c else d",
        "x = (y) if c else d",
        "x = (y.to(z)) if c else d",
        "x = (y.to(z, copy=True))",
        "x = (d)",
    }
    assert changes("a.py", "if a is None: return") == {
        "if (a is not None): return",
        "if (False and a is None): return",
    }
    assert changes("a.py", "x = torch.where(c, a, torch.float32)") == {
        "x = (a)",
        "x = torch.where(c, a, (torch.float64))",
    }


def test_faults_of_cpp_are_small_and_leave_the_rest():
    assert changes("a.h", "  x = a < b ? p + 1 : std::max(p, q);") == {
        "x = a <= b ? p + 1 : std::max(p, q);",
        "x = a < b || true ? p + 1 : std::max(p, q);",
        "x = a < b && false ? p + 1 : std::max(p, q);",
        "x = a < b ? p - 1 : std::max(p, q);",
        "x = a < b ? p + 0 : std::max(p, q);",
        "x = a < b ? p + 1 : std::min(p, q);",
    }
    assert changes("a.cu", "x = a < b ? b : a;") == {
        "x = a < b || true ? b : a;",
        "x = a < b && false ? b : a;",
    }
    assert changes("a.cu", "if (f(a)) return;") == {
        "if (false && (f(a))) return;",
        "if (f(a)) ;",
    }


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("a.py", "def f(x: Literal[1] = None) -> Literal[2]: 'from 0 to 1'"),
        ("a.py", "raise ValueError(f'{a + 1} is not in [0, 1]' + b)"),
        ("a.py", "x = 'rows: ' + name"),
        ("a.py", "x = zip(a, b, strict=True)"),
        ("a.h", "// a < b + 1"),
        ("a.h", "#include <cmath>"),
        ("a.h", "static_assert(a < 1 && b == 2);"),
        ("a.h", "template <class T, int kWidth = 1>"),
        ("a.h", "Vec<float, 4> x{a, b};"),
        ("a.h", 'fail("got 1 - 0, wanted a < b", *pointer);'),
        ("a.h", "kPrefetchedBytes = 1;"),
    ],
)
def test_what_decides_no_result_gets_no_fault(path, line):
    assert changes(path, line) == set()


@pytest.mark.parametrize("path", ["fusedops/graph/policy/decision.py", "csrc/cuda/softmax/rows.h"])
def test_faults_change_the_lines_that_they_name(path):
    text = (plan.ROOT / path).read_text()
    for fault in faults_of(path, text):
        changed = fault.apply(text)
        assert changed.splitlines()[: fault.line - 1] == text.splitlines()[: fault.line - 1]
        assert changed.splitlines()[fault.line - 1] != text.splitlines()[fault.line - 1]
        if path.endswith(".py") and fault.kind == "guard":
            ast.parse(changed)


def test_every_source_with_faults_has_tests_and_every_pattern_fits_some_source():
    paths = plan.sources()
    drawn = {path for path in paths if plan.stratum_of(path)}
    assert all(plan.tests_of(path) for path in drawn)
    for beginning in [*plan.LEFT_OUT, *plan.TESTS]:
        assert any(re.match(beginning, path) for path in paths), beginning


def test_tests_that_are_named_after_a_source_come_first():
    assert "masked_softmax" in plan.tests_of("csrc/cpu/masked_softmax/rows.h")[0]
    assert "simt_norm" in plan.tests_of("csrc/cuda/norm/launch.cu")[0]
    assert "add_norm" in plan.tests_of("fusedops/graph/rules/add_norm.py")[0]


def test_a_pattern_without_tests_is_an_error(monkeypatch):
    monkeypatch.setattr(plan, "TESTS", {"": "no_such_folder"})
    with pytest.raises(LookupError, match="no_such_folder"):
        plan.tests_of("fusedops/nn.py")


def test_a_seed_draws_the_same_faults():
    paths = ["fusedops/nn.py", "csrc/cpu/norm/launch.cpp"]
    assert plan.queues(1, paths) == plan.queues(1, paths) != plan.queues(2, paths)
    assert plan.counts(60, 1) == plan.counts(60, 1)
    assert plan.counts(60, 1).total() == 60


def test_a_line_keeps_its_place_in_the_queue_when_another_changes():
    before, after = "a = -b\nc = -b\nc = -b\n", "a = b - d\n\nc = -b\nc = -b\n"
    (_, *same), (_, *still) = (plan.with_places(1, "x.py", text) for text in (before, after))
    assert [place for place, _ in same] == [place for place, _ in still]
    assert same[0][0] != same[1][0]


class Reached:
    """What coverage.py tells of a file."""

    def contexts_by_lineno(self, path):
        run = ["tests/b.py::test_f[a|b]|run", "tests/a.py::test_g|run"]
        return {1: [""], 3: [*run, "tests/c.py::test_h|setup"]}


@pytest.mark.parametrize("line", [3, 5])
def test_the_tests_that_run_a_line_are_known_by_the_first_line_of_the_statement(line):
    names = reach.names_at(Fault("fusedops/nn.py", line, "sign", 0, "-a", "(a)"), Reached())
    tests = reach.tests_at(names, ["tests/c.py", "tests/b.py"])
    assert tests == ["tests/c.py", "tests/b.py::test_f[a|b]", "tests/a.py::test_g"]


def test_a_line_that_runs_at_import_has_no_tests_of_its_own():
    names = reach.names_at(Fault("fusedops/nn.py", 2, "sign", 0, "-a", "(a)"), Reached())
    assert names == [""] and reach.tests_at(names, []) == []


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A checkout of one function and its test."""
    (tmp_path / "half.py").write_text("def half(x):\n    return x / 2 + 0 * x\n")
    (tmp_path / "test_half.py").write_text(
        "from half import half\n\n\ndef test_half():\n    assert half(4) == 2\n"
    )
    (tmp_path / "conftest.py").write_text("import half\n")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr(tree, "LIBRARIES", ["-c", ""])
    monkeypatch.setattr(tree, "EMULATOR", ["-c", ""])
    return tree.Tree(0, tmp_path)


def test_a_fault_is_caught_by_the_test_that_fails_or_survives(toy):
    text = (toy.root / "half.py").read_text()
    survives, caught = (
        next(fault for fault in faults_of("half.py", text) if fault.after == after)
        for after in ("(x / 2 - 0 * x)", "(x * 2)")
    )
    assert toy.try_out(caught, [[], ["test_half.py::test_half"]]) == "test_half.py::test_half"
    assert toy.try_out(caught, [["test_half.py::test_gone"]]) == "test_half.py::test_half"
    assert toy.try_out(survives, [["test_half.py"]]) == tree.SURVIVED


def test_a_fault_that_ends_the_import_of_the_package_is_caught(toy):
    fault = Fault("half.py", 1, "", 0, "def", "raise")
    assert toy.try_out(fault, [["test_half.py"]]) == "a package that tests cannot import"


@pytest.mark.parametrize(("caught", "status"), [(19, 0), (18, 1)])
def test_less_than_95_percent_fail(caught, status, capsys):
    fault = Fault("fusedops/nn.py", 7, "sign", 0, "-a", "(a)")
    verdicts = ["a crash"] * caught + [tree.SURVIVED] * (20 - caught)
    ran = [mutants.Mutant(f"ops:{i}", fault, verdict) for i, verdict in enumerate(verdicts)]
    assert mutants.report(ran, NothingFails()) == status
    assert "ops:19 fusedops/nn.py:7 (sign) -a -> (a)" in capsys.readouterr().out


class NothingFails:
    def failing(self, tests):
        return []


def test_known_faults_without_effect_are_of_lines_that_exist_and_are_not_drawn():
    for path, lines in plan.EQUIVALENT.items():
        text = (plan.ROOT / path).read_text()
        assert set(lines) <= {fault.changed_line(text) for fault in faults_of(path, text)}
        (drawn,) = filter(None, plan.queues(1, [path]).values())
        assert not set(lines) & {fault.changed_line(text) for fault in drawn}
