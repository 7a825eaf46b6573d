"""Every kernel under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer.

They run with ``--exhaustive`` alone, because to compile and run all kernels under them takes ten
minutes. ThreadSanitizer sees every kernel once, with rows that several warps share;
AddressSanitizer, a tenth as slow, sees every length that changes a launch. The emulator runs one
thread at a time; what ThreadSanitizer reports is not that two threads met but that nothing orders
their accesses.
"""

from __future__ import annotations

import pytest

from . import families, inventory
from .conftest import SanitizedRun
from .emulator import build
from .judge import Judge

pytestmark = pytest.mark.exhaustive


def check(build_name: str, run: SanitizedRun) -> None:
    """The sanitizer reported nothing, every kernel ran, and the results are right."""
    results, executed = run.outcome.result()
    instantiated = inventory.instantiated_kernels(build.emulator_library(build_name))
    assert executed == instantiated, inventory.coverage_table(executed, instantiated)
    judge = Judge()
    for case, outputs in zip(run.cases, results, strict=True):
        judge.add(case, families.inputs(case), outputs)


def test_no_kernel_reads_or_writes_where_it_may_not_nor_relies_on_undefined_behaviour(sanitized):
    check("asan", sanitized["asan"])


def test_no_kernel_has_a_data_race(sanitized):
    check("tsan", sanitized["tsan"])
