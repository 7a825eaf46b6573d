"""A pytest plugin: how many random examples a property gets, for how long, and their counts.

Every test with ``hypothesis.given`` belongs to it. Two profiles, as ``--hypothesis-profile``:

- ``ci``, the default: 100 examples of each property, the same ones at every run.
- ``fuzz``, of ``make fuzz``: ``FUSEDOPS_FUZZ_EXAMPLES`` (10,000) of each, others at every run. With
  ``FUZZ_SECONDS`` each property gets an equal share of that time and ends, passed, when it is over.
  A failure prints a ``@reproduce_failure`` line, which repeats it.

A property that wants another number says ``@settings(max_examples=fuzzing.examples(60))``, which
is scaled with the profile.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

_CI_EXAMPLES = 100

_COMMON = dict(
    database=None,
    deadline=None,
    # A fixture of the test functions holds nothing that an example changes.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.register_profile("ci", max_examples=_CI_EXAMPLES, derandomize=True, **_COMMON)
settings.register_profile(
    "fuzz",
    max_examples=int(os.environ.get("FUSEDOPS_FUZZ_EXAMPLES", 10_000)),
    print_blob=True,
    **_COMMON,
)
settings.load_profile("ci")


def examples(of_500: int) -> int:
    """The number of examples of a property that gets ``of_500`` where others get 500."""
    return max(1, of_500 * settings.default.max_examples // 500)


#: The name under which a test's report carries its number of examples.
COUNT = "fuzzing: examples"


class _TimeIsOver(pytest.skip.Exception):
    """Ends a property: Hypothesis passes a skip on, whatever it is doing."""


class _Examples:
    """Counts the examples of a property, and ends it when its time is over."""

    def __init__(self, seconds: float) -> None:
        self.count = 0
        self._end = time.monotonic() + seconds
        self._failing = False

    def counted(self, test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def one_example(*args: Any, **kwargs: Any) -> None:
            # A failure is shrunk, however long that takes.
            if not self._failing and time.monotonic() > self._end:
                raise _TimeIsOver("the time of this property is over")
            self.count += 1
            try:
                test(*args, **kwargs)
            except Exception:
                self._failing = True
                raise

        return one_example


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    if not is_hypothesis_test(pyfuncitem.obj):
        return (yield)
    run = _Examples(_seconds_of_each(pyfuncitem.session))
    handle = pyfuncitem.obj.hypothesis
    property_ = handle.inner_test
    handle.inner_test = run.counted(property_)
    try:
        return (yield)
    except _TimeIsOver:
        return True
    finally:
        handle.inner_test = property_
        pyfuncitem.user_properties.append((COUNT, run.count))


def _seconds_of_each(session: pytest.Session) -> float:
    seconds = float(os.environ.get("FUZZ_SECONDS") or "inf")
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    properties = sum(is_hypothesis_test(getattr(item, "obj", None)) for item in session.items)
    return seconds * workers / properties


_START, _SUMMARY = pytest.StashKey[float](), pytest.StashKey[str]()


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_START] = time.monotonic()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    passed, failed = (terminalreporter.getreports(outcome) for outcome in ("passed", "failed"))
    counts = [dict(report.user_properties).get(COUNT) for report in [*passed, *failed]]
    counts = [count for count in counts if count is not None]
    failures = sum(COUNT in dict(report.user_properties) for report in failed)
    seconds = time.monotonic() - config.stash[_START]
    if counts:
        config.stash[_SUMMARY] = (
            f"{sum(counts):,} random examples of {len(counts)} properties: "
            f"{failures} properties failed, in {seconds:.0f} seconds"
        )


def pytest_unconfigure(config: pytest.Config) -> None:
    """Prints the counts last, below pytest's own."""
    if _SUMMARY in config.stash:
        print(config.stash[_SUMMARY])
