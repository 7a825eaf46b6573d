"""Every instruction set that this machine has computes right; a variable lowers the choice."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fusedops.ops import _library

TESTS = Path(__file__).parent
RANK = ["default", "avx2", "avx512"]
# What differs from one instruction set to another: values, tails, lanes, scalings.
FILES = [
    "test_softmax_values.py",
    "test_softmax_grad.py",
    "test_softmax_dims.py",
    "test_softmax_lanes.py",
    "test_softmax_inplace.py",
    "test_softmax_dropout.py",
    "test_masked_softmax_values.py",
    "test_masked_softmax_grad.py",
    "test_layer_norm_values.py",
    "test_layer_norm_grad.py",
    "test_rms_norm.py",
    "test_std_norm.py",
    "test_add_norm.py",
    "test_norm_range.py",
    "test_norm_wanted_gradients.py",
    "test_nan_payloads.py",
    "test_ops_layout.py",
    "test_ops_determinism.py",
    "test_cpu_denormals.py",
]


def run(isa: str, *arguments: str) -> subprocess.CompletedProcess:
    # Eager is the measure of error: it gets the same instruction set.
    environment = os.environ | {"FUSEDOPS_CPU_ISA": isa, "ATEN_CPU_CAPABILITY": isa}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, cwd=TESTS
    )


def lower_isas() -> list[str]:
    return RANK[: RANK.index(_library.cpu_isa())] if "FUSEDOPS_CPU_ISA" not in os.environ else []


@pytest.mark.parametrize("isa", lower_isas())
def test_the_value_tests_pass_with_a_lower_instruction_set(isa):
    # What Inductor compiles has an instruction set, and a cache, of its own.
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", "not compiled"]
    result = run(isa, "-m", "pytest", *options, *FILES)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-2000:]


def test_the_variable_sets_what_runs_and_never_more_than_the_machine_has():
    code = "import fusedops; print(fusedops.ops._library.cpu_isa())"
    best = RANK.index(run("", "-c", code).stdout.strip())
    for isa in RANK:
        assert run(isa, "-c", code).stdout.strip() == RANK[min(RANK.index(isa), best)]


def test_another_value_is_an_error_that_lists_the_right_ones():
    result = run("sse9", "-c", "import torch, fusedops; fusedops.softmax(torch.zeros(3), 0)")
    assert result.returncode != 0
    assert "FUSEDOPS_CPU_ISA is 'sse9', wanted avx512, avx2 or default" in result.stderr


def test_the_best_available_instruction_set_is_chosen():
    if "FUSEDOPS_CPU_ISA" not in os.environ:
        best = {"AVX512": "avx512", "AVX2": "avx2"}.get(torch.backends.cpu.get_cpu_capability())
        assert _library.cpu_isa() == (best or "default")
