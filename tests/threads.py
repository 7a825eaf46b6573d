"""A pytest plugin: op tests run with 1, 2 and 3 threads, which divide rows and share long ones.

Each test runs with one of the three counts, chosen by its name, or with ``--exhaustive``
(``make test-all``) with all. Fewer than 32,768 elements are left to one thread anyway.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest
import torch

COUNTS = (1, 2, 3)
#: Tests of kernels that run in this process and leave the number of threads to the caller.
OP_TESTS = (
    "test_add_norm",
    "test_cross_entropy",
    "test_dropout",
    "test_linear_cross_entropy",
    "test_masked_softmax_grad",
    "test_masked_softmax_values",
    "test_nn",
    "test_norm",
    "test_ops_layout",
    "test_softmax_dropout",
    "test_softmax_grad",
    "test_softmax_inplace",
    "test_softmax_stats",
    "test_softmax_values",
    "test_stack_ops",
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "threads" in metafunc.fixturenames and metafunc.config.getoption("exhaustive"):
        if metafunc.module.__name__ in OP_TESTS:
            metafunc.parametrize("threads", COUNTS, indirect=True, ids="{} threads".format)


@pytest.fixture(autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[int | None]:
    """The number of torch's threads during an op test."""
    before = torch.get_num_threads()
    is_op_test = request.module.__name__ in OP_TESTS
    name = request.node.nodeid.rpartition("/")[2]  # the same from whichever folder pytest runs
    count = getattr(request, "param", turn_of(name) if is_op_test else None)
    torch.set_num_threads(count or before)
    yield count
    torch.set_num_threads(before)


def turn_of(name: str) -> int:
    """The number of threads of the op test of that name."""
    return COUNTS[zlib.crc32(name.encode()) % len(COUNTS)]
