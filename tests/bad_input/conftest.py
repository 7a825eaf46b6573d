"""The process in which bad calls are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from bad_calls import Child


@pytest.fixture(scope="session")
def child() -> Iterator[Child]:
    child = Child()
    yield child
    child.close()


@pytest.fixture
def judge(child: Child) -> Callable[..., None]:
    """Fails unless all rows of a table are right."""
    return child.judge
