"""A pytest plugin that chooses which combinations of parameters run.

Without ``--exhaustive`` (``make test-all``) a test with three or more parameters runs with every
pair of values that its whole product has, in few of the product's combinations. Tests marked
``exhaustive`` are left out: they take many minutes, or repeat for more schedules or counts what
others show.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import combinations

import pytest

Pairs = frozenset[tuple[Hashable, Hashable]]


def pytest_addoption(parser: pytest.Parser) -> None:
    help = "run whole products of parameters, op tests with 1, 2 and 3 threads, and marked tests"
    parser.addoption("--exhaustive", action="store_true", help=help)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("exhaustive"):
        return
    wanted = {id(item) for item in _pairwise(items) if not item.get_closest_marker("exhaustive")}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in wanted])
    items[:] = [item for item in items if id(item) in wanted]


def _pairwise(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    by_function = defaultdict(list)
    for item in items:
        by_function[item.nodeid.partition("[")[0]].append(item)
    chosen = []
    for group in by_function.values():
        chosen += [group[i] for i in pairwise_cover([_pairs_of(item) for item in group])]
    return chosen


def _pairs_of(item: pytest.Item) -> Pairs:
    """The values of each two parameters of a test, or the value of a single one. Values that lie in
    one list together count as one parameter."""
    given = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    lists = [_names(mark.args[0]) for mark in item.iter_markers("parametrize")]
    lists += [(name,) for name in given if not any(name in names for names in lists)]
    # A value is one object in all combinations.
    values = [(names, tuple(id(given[name]) for name in names)) for names in lists]
    return frozenset(
        combinations(values, 2) if len(values) > 1 else zip(values, values, strict=True)
    )


def _names(argnames: str | Sequence[str]) -> tuple[str, ...]:
    if isinstance(argnames, str):
        return tuple(name.strip() for name in argnames.split(",") if name.strip())
    return tuple(argnames)


def pairwise_cover(candidates: Sequence[Pairs]) -> list[int]:
    """The indices of candidates that together hold every pair. Each is the one with most pairs that
    none before it has, the first of equals."""
    missing = set().union(*candidates)
    left = dict(enumerate(candidates))
    chosen = []
    while missing or not chosen:
        best = max(left, key=lambda i: len(left[i] & missing))
        missing -= left.pop(best)
        chosen.append(best)
    return sorted(chosen)
