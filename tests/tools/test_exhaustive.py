"""A run without ``--exhaustive`` leaves out combinations whose every pair others hold."""

from __future__ import annotations

from itertools import combinations, product
from pathlib import Path

import exhaustive
import pytest

PRODUCT = list(product(range(2), range(3), range(4), range(5)))


def pairs(values):
    return frozenset(combinations(enumerate(values), 2))


def test_a_cover_holds_every_pair_of_the_product_in_few_of_its_combinations():
    chosen = exhaustive.pairwise_cover([pairs(values) for values in PRODUCT])
    held = set().union(*(pairs(PRODUCT[i]) for i in chosen))
    assert held == set().union(*map(pairs, PRODUCT))
    assert len(chosen) < len(PRODUCT) / 4


@pytest.fixture
def counts(pytester):
    """The numbers of tests that run without and with the option."""
    pytester.makeconftest(Path(exhaustive.__file__).read_text())

    def run(source: str) -> list[int]:
        pytester.makepyfile("import pytest\n" + source)
        options = ("-p", "no:cacheprovider", "-W", "ignore")
        return [
            pytester.runpytest(*options, *more).parseoutcomes()["passed"]
            for more in ([], ["--exhaustive"])
        ]

    return run


@pytest.mark.parametrize(
    "parameters, expected",
    [
        ("@pytest.mark.parametrize('a', range(9))", [9, 9]),
        (
            "@pytest.mark.parametrize('a', range(3))\n@pytest.mark.parametrize('b', range(3))",
            [9, 9],
        ),
        (
            "@pytest.mark.parametrize('a', (1, 2))\n@pytest.mark.parametrize('b', (1, 2))\n"
            "@pytest.mark.parametrize('c', (1, 2))",
            [4, 8],
        ),
        # One list, of cases somebody chose: all of them.
        (
            "@pytest.mark.parametrize('a, b, c', [(1, 1, 1), (1, 2, 2), (2, 1, 2), (1, 1, 2)])",
            [4, 4],
        ),
        (
            "@pytest.mark.parametrize('a', (1, pytest.param(2, marks=pytest.mark.exhaustive)))",
            [1, 2],
        ),
    ],
    ids=["one list", "two lists", "three lists", "a list of cases", "marked"],
)
def test_products_of_three_lists_shrink_and_lists_of_cases_do_not(counts, parameters, expected):
    names = sorted(
        {name for name in "abc" if f"'{name}" in parameters or f", {name}" in parameters}
    )
    assert counts(f"{parameters}\ndef test_it({', '.join(names)}): pass\n") == expected
