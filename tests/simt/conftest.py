"""The plain build and the sanitized runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from . import families
from .cases.rows import Arrays
from .emulator import build
from .emulator.library import SCHEDULES, Config, Emulator
from .families import AnyCase
from .judge import same_bits
from .sanitized import run_sanitized

_FOLDER = Path(__file__).parent


@pytest.fixture(scope="session")
def plain() -> Emulator:
    return Emulator(build.emulator_library("plain"))


@pytest.fixture
def emulator(plain: Emulator) -> Iterator[Emulator]:
    plain.configure(Config())
    yield plain
    plain.configure(Config())


@pytest.fixture
def in_any_order(emulator: Emulator, request: pytest.FixtureRequest) -> Callable[..., Arrays]:
    """Runs a case in the default order of threads and blocks, and in others: in all with
    ``--exhaustive``, otherwise in one that differs in every setting. Returns its outputs, of which
    no order, and none of the further configurations, may change a bit."""
    exhaustive = request.config.getoption("exhaustive")
    names = ("lifo", "random", "random_7f") if exhaustive else ("random_7f",)

    def run(case: AnyCase, given: Arrays | None = None, *further: Config) -> Arrays:
        emulator.configure(Config())
        first = families.run(emulator, case, given)
        for config in (*(SCHEDULES[name] for name in names), *further):
            emulator.configure(config)
            assert same_bits(families.run(emulator, case, given), first), case
        emulator.configure(Config())
        return first

    return run


@dataclass
class SanitizedRun:
    cases: list[AnyCase]
    outcome: Future[tuple[list[Arrays], set[str]]]


#: The schedule of each build.
SANITIZED = {"asan": "random_7f", "tsan": "fifo"}


@pytest.fixture(scope="session")
def sanitized(plain: Emulator) -> Iterator[dict[str, SanitizedRun]]:
    """Both runs, in the background of other tests. ThreadSanitizer runs each kernel once, and
    AddressSanitizer every length that changes a launch."""
    with ThreadPoolExecutor(1) as background:
        runs = {}
        for name, schedule in SANITIZED.items():
            choose = families.sanitized_cases if name == "asan" else families.racing_cases
            chosen = choose(plain)
            outcome = background.submit(run_sanitized, name, chosen, schedule)
            runs[name] = SanitizedRun(chosen, outcome)
        yield runs


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the sanitized runs first: they are the longest tests, each in a process of its own
    beside which the other workers of pytest-xdist go on. This folder's other tests follow, so that
    the last tests, when some workers have nothing left to do, are short."""
    items.sort(key=lambda item: _FOLDER not in item.path.parents)
    items.sort(key=lambda item: "sanitized" not in getattr(item, "fixturenames", ()))
