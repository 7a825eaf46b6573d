"""Branches for tests of parallel_stack, and what their results are compared with."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

#: Seconds, more than any branch here takes. A wait of that length would never end.
TIMEOUT = 30


def in_turn(functions, inputs, dim=0):
    """What parallel_stack is defined to return."""
    return torch.stack(
        [f(*x) if isinstance(x, tuple) else f(x) for f, x in zip(functions, inputs, strict=True)],
        dim,
    )


def same(actual, expected):
    assert actual.requires_grad == expected.requires_grad
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True, check_stride=True)


def meeting(parties=2):
    """A function that returns only while ``parties`` calls of it run at the same time."""
    barrier = threading.Barrier(parties)

    def function(x):
        barrier.wait(TIMEOUT)
        return x.sin()

    return function


def in_new_thread(function):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def fail(error, before=lambda x: None):
    """A function that raises the error, after a call of another one."""

    def branch(x):
        before(x)
        raise error

    return branch
