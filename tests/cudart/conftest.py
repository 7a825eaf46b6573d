"""Libraries on the stand-in for the CUDA runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from .library import Cuda


@pytest.fixture
def new(tmp_path) -> Iterator[Callable[[], Cuda]]:
    """Makes libraries that have run nothing yet."""
    made = []

    def make() -> Cuda:
        made.append(Cuda(tmp_path))
        return made[-1]

    yield make
    for cuda in made:
        cuda.close()


@pytest.fixture
def cuda(new) -> Cuda:
    return new()
