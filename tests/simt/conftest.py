"""The plain build and the sanitized runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from . import build, families
from .cases import Arrays
from .emulator import Config, Emulator
from .families import AnyCase
from .sanitized import run_sanitized


@pytest.fixture(scope="session")
def plain() -> Emulator:
    return Emulator(build.emulator_library("plain"))


@pytest.fixture
def emulator(plain: Emulator) -> Iterator[Emulator]:
    plain.configure(Config())
    yield plain
    plain.configure(Config())


@dataclass
class SanitizedRun:
    cases: list[AnyCase]
    outcome: Future[tuple[list[Arrays], set[str]]]


#: By build: what runs, and in which schedule.
SANITIZED: dict[str, tuple[Callable[[Emulator], list[AnyCase]], str]] = {
    "asan": (families.sanitized_cases, "random_7f"),
    "tsan": (families.racing_cases, "fifo"),
}


@pytest.fixture(scope="session")
def sanitized(plain: Emulator) -> Iterator[dict[str, SanitizedRun]]:
    """Both runs, half a minute each, one after the other beside whatever else is tested."""
    with ThreadPoolExecutor(1) as background:
        runs = {}
        for name, (choose, schedule) in SANITIZED.items():
            chosen = choose(plain)
            outcome = background.submit(run_sanitized, name, chosen, schedule)
            runs[name] = SanitizedRun(chosen, outcome)
        yield runs


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The sanitized runs first: they are the longest tests, and each is a process of its own that
    the other workers of pytest-xdist run beside."""
    items.sort(key=lambda item: "sanitized" not in getattr(item, "fixturenames", ()))
