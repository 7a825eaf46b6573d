"""A run without ``--exhaustive`` has each value of each parameter, and names slow tests."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import exhaustive
import pytest

PRODUCT = list(product(range(2), range(3), range(4), range(5)))


def test_a_cover_holds_every_value_in_as_many_combinations_as_the_longest_list():
    candidates = [frozenset(enumerate(values)) for values in PRODUCT]
    chosen = exhaustive.cover(candidates)
    assert frozenset().union(*(candidates[i] for i in chosen)) == frozenset().union(*candidates)
    assert len(chosen) == 5


@pytest.fixture
def run(pytester):
    """Runs a test's source, with options."""
    # Any test counts as slow.
    pytester.makeconftest(Path(exhaustive.__file__).read_text().replace("SLOW = 10", "SLOW = 0"))

    def run(source: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile("import pytest\n" + source)
        return pytester.runpytest("-p", "no:cacheprovider", "-W", "ignore", *options)

    return run


@pytest.mark.parametrize(
    "parameters, names, expected",
    [
        ("@pytest.mark.parametrize('a', range(9))", "a", [9, 9]),
        (
            "@pytest.mark.parametrize('a', range(3))\n@pytest.mark.parametrize('b', range(5))",
            "a, b",
            [5, 15],
        ),
        # One list, of cases somebody chose: all of them.
        (
            "@pytest.mark.parametrize('a, b, c', [(1, 1, 1), (1, 2, 2), (2, 1, 2), (1, 1, 2)])",
            "a, b, c",
            [4, 4],
        ),
        (
            "@pytest.mark.parametrize('a', (1, pytest.param(2, marks=pytest.mark.exhaustive)))",
            "a",
            [1, 2],
        ),
    ],
    ids=["one list", "two lists", "a list of cases", "marked"],
)
def test_products_shrink_and_lists_of_cases_do_not(run, parameters, names, expected):
    source = f"{parameters}\ndef test_it({names}): pass\n"
    counts = [run(source, *options).parseoutcomes()["passed"] for options in ([], ["--exhaustive"])]
    assert counts == expected


@pytest.mark.parametrize(
    "mark, reason", [("@pytest.mark.slow('it waits')", "it waits"), ("", "NO REASON")]
)
def test_a_slow_test_is_listed_with_its_reason(run, mark, reason):
    run(f"{mark}\ndef test_it(): pass\n").stdout.re_match_lines([rf".*::test_it: {reason}"])
