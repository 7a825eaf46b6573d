"""The best instruction set of this machine is chosen, and a variable lowers the choice. The tests
of results run with each in `nox -s instructions`.
"""

import os
import subprocess
from types import SimpleNamespace

import pytest
import torch
from processes import run_python

from fusedops.ops.registration import libraries
from fusedops.ops.registration.libraries import build_info

#: From fewer instructions to more.
ISAS = ("default", "avx2", "avx512")


def python(isa: str, code: str) -> subprocess.CompletedProcess[str]:
    return run_python("-c", code, FUSEDOPS_CPU_ISA=isa)


#: What the library of kernels chooses, or None; it does not need torch.
CHOICE = f"""
import ctypes
choice = ctypes.CDLL("{libraries.CPU_KERNELS}").fusedops_cpu_isa
choice.restype = ctypes.c_char_p
print((choice() or b"None").decode())
"""


def test_the_variable_sets_what_runs_and_never_more_than_the_machine_and_the_build_have():
    built = build_info()["cpu_isas"]
    best = ISAS.index(python("", CHOICE).stdout.strip())
    for rank, isa in enumerate(ISAS):
        usable = ["None", *(lower for lower in ISAS[: min(rank, best) + 1] if lower in built)]
        assert python(isa, CHOICE).stdout.strip() == usable[-1]


#: Prints a hash of results in bfloat16, of rows from denormal to huge with zeros in them.
BITS = """
import hashlib, torch, fusedops
rows = torch.randn(262, 99, generator=torch.Generator().manual_seed(3))
x = torch.ldexp(rows, torch.arange(-134, 128).unsqueeze(1)).bfloat16()
x[:, ::7] = 0
x[-1, 5], x[-2, 64] = float("nan"), float("inf")
x.requires_grad_()
weight = torch.logspace(-30, 5, 99).bfloat16()
results = [
    fusedops.softmax(x, -1), fusedops.log_softmax(x, -1), fusedops.masked_softmax(x, x > 0),
    fusedops.rms_norm(x, (99,), weight, eps=0.0), fusedops.layer_norm(x, (99,), weight, eps=1e-30),
]
for result in results:
    x.grad = None
    result.backward(x.detach())
    for tensor in (result, x.grad):
        print(hashlib.sha256(tensor.detach().view(torch.int16).numpy()).hexdigest())
"""


def test_instructions_for_bfloat16_change_no_bit():
    """They make denormal results 0, where the other instructions for AVX-512 keep them."""
    plain, best = (python(isa, BITS) for isa in ("avx512", ""))
    assert best.returncode == 0, best.stderr
    assert plain.stdout == best.stdout


def test_where_nothing_is_left_to_run_the_error_lists_what_is_built(monkeypatch):
    library = SimpleNamespace(fusedops_cpu_isa=lambda: None)
    monkeypatch.setattr(libraries.ctypes, "CDLL", lambda _: library)
    built = ", ".join(build_info()["cpu_isas"])
    with pytest.raises(ValueError, match=f"This build has kernels for {built}"):
        libraries.cpu_isa()


def test_another_value_is_an_error_that_lists_the_right_ones():
    result = python("sse9", "import torch, fusedops; fusedops.softmax(torch.zeros(3), 0)")
    assert result.returncode != 0
    wanted = "avx512_bf16, avx512, avx2 or default"
    assert f"FUSEDOPS_CPU_ISA is 'sse9', wanted {wanted}" in result.stderr


def test_the_best_available_instruction_set_is_chosen():
    if "FUSEDOPS_CPU_ISA" not in os.environ:
        best = {"AVX512": "avx512", "AVX2": "avx2"}.get(torch.backends.cpu.get_cpu_capability())
        assert libraries.cpu_isa() == (best or "default")
