"""`make sanitize` runs tests that exist, on builds that name their sanitizer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.sanitize import __main__ as sanitize
from tests.sanitize import build

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("sanitizer", sanitize.TESTS)
def test_every_test_for_a_sanitizer_exists(sanitizer):
    assert sanitizer in build.RUNTIMES
    for path in sanitize.TESTS[sanitizer]:
        assert (ROOT / path).is_file()


def test_every_test_of_an_operator_runs_under_address_sanitizer():
    of_operators = ("softmax", "_norm", "short_rows", "stack_ops", "concurrent_rows")
    of_operators += ("ops_threads", "ops_fork")
    wanted = {
        f"tests/ops/{path.name}"
        for path in (ROOT / "tests" / "ops").glob("test_*.py")
        if any(name in path.name for name in of_operators)
    }
    assert wanted <= set(sanitize.TESTS["address"])


def test_the_makefile_calls_it():
    plan = subprocess.run(
        ["make", "--dry-run", "sanitize"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "-m tests.sanitize" in plan.stdout


def test_counts_are_pytests_own(tmp_path):
    record = tmp_path / "results.xml"
    record.write_text(
        '<testsuites><testsuite tests="7" failures="1" errors="1" skipped="2"/></testsuites>'
    )
    assert sanitize.read_counts(record) == sanitize.Counts(tests=7, failed=2, skipped=2)
