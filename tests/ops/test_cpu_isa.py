"""Every instruction set of this machine gives right results, whatever code eager runs; a variable
lowers the choice. `python -m tests.environments` runs all of the tests that are sampled
here."""

import os
import subprocess
import sys

import pytest
import torch

from fusedops.ops import _library
from tests import environments

#: Tests of what depends on the instruction set: values, tails, lanes, scaling.
SAMPLED = [
    path
    for path in environments.TESTS
    if any(
        name in path
        for name in ("softmax", "norm", "bounds", "nan_payloads", "denormals", "layout", "narrow")
    )
]


def python(isa: str, code: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"FUSEDOPS_CPU_ISA": isa}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def lower_isas() -> list[str]:
    isas = environments.ISAS
    return (
        list(isas[: isas.index(_library.cpu_isa())]) if "FUSEDOPS_CPU_ISA" not in os.environ else []
    )


@pytest.mark.parametrize("isa", lower_isas())
def test_the_value_tests_pass_with_a_lower_instruction_set(isa):
    options = ["-q", "-x", "-n0", "-p", "tests.environments", "--share", "40"]
    # What Inductor compiles costs more than all of them.
    options += ["-k", "not compile and not gradcheck"]
    result = environments.run(isa, [*options, *SAMPLED], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-2000:]


def test_every_test_for_the_environments_exists():
    for path in environments.TESTS:
        assert (environments.ROOT / path).exists(), path


def test_a_machine_runs_the_environments_that_it_has_instructions_for():
    assert environments.available("default") == ["default"]
    assert environments.available("avx2") == ["default", "avx2", "avx2-beside-compatible"]
    assert environments.available("avx512") == list(environments.ENVIRONMENTS)


def test_the_variable_sets_what_runs_and_never_more_than_the_machine_has():
    code = "import fusedops; print(fusedops.ops._library.cpu_isa())"
    best = environments.ISAS.index(python("", code).stdout.strip())
    for rank, isa in enumerate(environments.ISAS):
        assert python(isa, code).stdout.strip() == environments.ISAS[min(rank, best)]


def test_another_value_is_an_error_that_lists_the_right_ones():
    result = python("sse9", "import torch, fusedops; fusedops.softmax(torch.zeros(3), 0)")
    assert result.returncode != 0
    assert "FUSEDOPS_CPU_ISA is 'sse9', wanted avx512, avx2 or default" in result.stderr


def test_the_best_available_instruction_set_is_chosen():
    if "FUSEDOPS_CPU_ISA" not in os.environ:
        best = {"AVX512": "avx512", "AVX2": "avx2"}.get(torch.backends.cpu.get_cpu_capability())
        assert _library.cpu_isa() == (best or "default")
