"""The process that hostile calls are made in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hostile_calls import Child


@pytest.fixture(scope="session")
def child() -> Iterator[Child]:
    child = Child()
    yield child
    child.close()
