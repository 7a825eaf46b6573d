"""The result of a row does not depend on the order in which its blocks run.

Beside it the usual shortcut, a normaliser that blocks add to atomically: its bits do.
"""

from __future__ import annotations

import ctypes
from itertools import product

import numpy as np
import pytest

from . import families
from .cases.norm import NormCase
from .cases.rows import Case
from .emulator import build
from .emulator.library import SCHEDULES, Config, Order
from .judge import same_bits

#: Ten segments.
COLS = 40_008


def schedules(count: int) -> list[Config]:
    """Ascending and descending order, and so many random orders of blocks that run concurrently."""
    orders = (Config(Order.RANDOM, Order.RANDOM, i, concurrent_blocks=True) for i in range(count))
    return [*SCHEDULES.values(), *orders]


def test_a_sum_by_atomics_depends_on_the_order_of_blocks(record_property):
    library = ctypes.CDLL(str(build.atomics_library()))
    values = (np.random.default_rng(0).standard_normal(COLS) * 3).astype(np.float32)
    output = np.empty_like(values)
    pointer, largest = ctypes.POINTER(ctypes.c_float), ctypes.c_float(values.max())
    found, sizes = set(), set()
    orders = schedules(100)
    for config in orders:
        status = library.softmax_by_atomics(
            ctypes.byref(config),
            values.ctypes.data_as(pointer),
            output.ctypes.data_as(pointer),
            COLS,
            largest,
        )
        assert status == 0
        found.add(output.tobytes())
        sizes.add(float(output.sum(dtype=np.float64)))
    distinct = f"{len(found)} results in {len(orders)} orders of 10 blocks\n"
    record_property("a softmax that sums by atomics", distinct)
    assert len(found) > 2
    assert max(abs(size - 1) for size in sizes) < 1e-6  # only the last bits differ


CASES = [
    *(
        Case(f"softmax_{way}", "float32", "float32", 1, COLS, 4, log=log)
        for way, log in product(("forward", "backward"), (False, True))
    ),
    *(
        NormCase(f"norm_{way}", "float32", 1, COLS, 4, kind=kind, wanted=(True, False, False))
        for way, kind in product(("forward", "backward"), ("layer", "rms"))
    ),
]


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case.op}-{getattr(case, 'kind', case.dtype)}"
)
def test_our_rows_are_equal_in_every_bit_over_many_orders(emulator, request, case):
    given = families.inputs(case)
    results = []
    for config in schedules(100 if request.config.getoption("exhaustive") else 10):
        emulator.configure(config)
        results.append(families.run(emulator, case, given))
    assert all(same_bits(results[0], result) for result in results)
