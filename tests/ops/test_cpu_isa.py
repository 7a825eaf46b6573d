"""The best instruction set of this machine is chosen, and a variable lowers the choice. The tests
of results run with each in `nox -s instructions`.
"""

import os
import subprocess
import sys

import torch

from fusedops.ops import _library
from fusedops.ops._library import build_info

#: From fewer instructions to more.
ISAS = ("default", "avx2", "avx512")


def python(isa: str, code: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"FUSEDOPS_CPU_ISA": isa}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_the_variable_sets_what_runs_and_never_more_than_the_machine_and_the_build_have():
    code = "import fusedops; print(fusedops.ops._library.cpu_isa())"
    built = build_info()["cpu_isas"]
    best = ISAS.index(python("", code).stdout.strip())
    for rank, isa in enumerate(ISAS):
        usable = [lower for lower in ISAS[: min(rank, best) + 1] if lower in built]
        result = python(isa, code)
        if usable:
            assert result.stdout.strip() == usable[-1]
        else:
            assert f"This build has kernels for {', '.join(built)}" in result.stderr


def test_another_value_is_an_error_that_lists_the_right_ones():
    result = python("sse9", "import torch, fusedops; fusedops.softmax(torch.zeros(3), 0)")
    assert result.returncode != 0
    assert "FUSEDOPS_CPU_ISA is 'sse9', wanted avx512, avx2 or default" in result.stderr


def test_the_best_available_instruction_set_is_chosen():
    if "FUSEDOPS_CPU_ISA" not in os.environ:
        best = {"AVX512": "avx512", "AVX2": "avx2"}.get(torch.backends.cpu.get_cpu_capability())
        assert _library.cpu_isa() == (best or "default")
