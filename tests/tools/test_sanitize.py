"""`make sanitize` runs tests that exist, on builds that name their sanitizer."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import output

from tests.sanitize import __main__ as sanitize
from tests.sanitize import build

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("sanitizer", sanitize.TESTS)
def test_every_test_for_a_sanitizer_exists(sanitizer):
    assert sanitizer in build.RUNTIMES
    for path in sanitize.TESTS[sanitizer]:
        assert (ROOT / path).is_file()


def test_the_tests_of_operators_run_under_address_sanitizer():
    assert len(sanitize.TESTS["address"]) > 25


def test_the_makefile_calls_it():
    assert "-m tests.sanitize" in output("make", "-C", ROOT, "--dry-run", "sanitize")


def test_counts_are_pytests_own(tmp_path):
    record = tmp_path / "results.xml"
    record.write_text(
        '<testsuites><testsuite tests="7" failures="1" errors="1" skipped="2"/></testsuites>'
    )
    assert sanitize.read_counts(record) == sanitize.Counts(tests=7, failed=2, skipped=2)
