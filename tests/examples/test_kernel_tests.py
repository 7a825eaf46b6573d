"""examples/kernel_tests: the functions that are timed agree, on the shapes of llmsys_s25_hw3."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "kernel_tests"))
import comparison

TESTS = [
    importlib.import_module(name).TEST
    for name in ("softmax_fw", "softmax_bw", "layernorm_fw", "layernorm_bw")
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("test", TESTS, ids=lambda test: test.name)
def test_every_provider_agrees_with_the_primitives(test):
    inputs = next(comparison.cases(test, "cpu", 1))
    # A tenth of what llmsys_s25_hw3 allows.
    strict = replace(test, atol=test.atol / 10, rtol=test.rtol / 10)
    assert comparison.check(strict, test.calls(inputs)) > 0


@pytest.mark.parametrize("test", TESTS, ids=lambda test: test.name)
def test_a_provider_that_is_wrong_is_named(test):
    inputs = next(comparison.cases(test, "cpu", 1))
    calls = {name: lambda: test.eager(*inputs) for name in (*comparison.BASELINES, comparison.OURS)}
    calls[comparison.OURS] = lambda: torch.utils._pytree.tree_map(
        lambda result: result + 0.1, test.eager(*inputs)
    )
    with pytest.raises(AssertionError, match=f"{test.name}: fusedops differs"):
        comparison.check(test, calls)
