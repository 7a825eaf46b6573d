"""A pytest plugin that chooses which combinations of parameters run, and names slow tests.

Without ``--exhaustive`` (``make test-all``) a test runs each value of each of its parameters at
least once, in as few combinations as its longest list has values. Values that only count together
stand in one list, whose every entry runs. Tests marked ``exhaustive`` are left out: they take
minutes, or repeat for more schedules or counts what others show.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import pytest

Values = frozenset[Hashable]

#: A test that takes longer, in seconds, is marked ``slow`` with the reason why it may.
SLOW = 10


def pytest_addoption(parser: pytest.Parser) -> None:
    help = "run whole products of parameters, op tests with 1, 2 and 3 threads, and marked tests"
    parser.addoption("--exhaustive", action="store_true", help=help)


def beyond(few: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """The values of a parameter, of which only a few run without ``--exhaustive``."""
    few = list(few)
    return [v if v in few else pytest.param(v, marks=pytest.mark.exhaustive) for v in values]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("exhaustive"):
        return
    candidates = [item for item in items if not item.get_closest_marker("exhaustive")]
    wanted = {id(item) for item in _each_value_once(candidates)}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in wanted])
    items[:] = [item for item in items if id(item) in wanted]


def _each_value_once(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    by_function = defaultdict(list)
    for item in items:
        by_function[item.nodeid.partition("[")[0]].append(item)
    chosen = []
    for group in by_function.values():
        chosen += [group[i] for i in cover([_values_of(item) for item in group])]
    return chosen


def _values_of(item: pytest.Item) -> Values:
    """The values of a test's parameters. Those that lie in one list together count as one value."""
    given = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    lists = [_names(mark.args[0]) for mark in item.iter_markers("parametrize")]
    lists += [(name,) for name in given if not any(name in names for names in lists)]
    # A value is one object in all combinations.
    return frozenset((names, tuple(id(given[name]) for name in names)) for names in lists)


def _names(argnames: str | Sequence[str]) -> tuple[str, ...]:
    if isinstance(argnames, str):
        return tuple(name.strip() for name in argnames.split(",") if name.strip())
    return tuple(argnames)


def cover(candidates: Sequence[Values]) -> list[int]:
    """The indices of candidates that together hold every value. Each is the one with most values
    that none before it has, the first of equals."""
    missing = set().union(*candidates)
    left = dict(enumerate(candidates))
    chosen = []
    while missing or not chosen:
        best = max(left, key=lambda i: len(left[i] & missing))
        missing -= left.pop(best)
        chosen.append(best)
    return sorted(chosen)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Records why a slow test is slow, for the summary."""
    report = yield
    if report.when == "call" and (marker := item.get_closest_marker("slow")):
        report.why_slow = marker.args[0]
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Lists the tests above SLOW seconds with their reasons."""
    slow = [
        f"{report.duration:5.1f} s  {report.nodeid}: {getattr(report, 'why_slow', 'NO REASON')}"
        for report in terminalreporter.getreports("passed")
        if report.when == "call" and report.duration > SLOW
    ]
    if slow and not config.getoption("exhaustive"):
        terminalreporter.section(f"tests above {SLOW} s")
        terminalreporter.write_line("\n".join(sorted(slow, reverse=True)))
