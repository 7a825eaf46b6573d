"""Kernels get tensors that are shorter than they claim: each access past the end is reported.

Run by `python -m tests.sanitize` alone; no other build would report it.
"""

from __future__ import annotations

import pytest
from processes import output

from fusedops.ops.registration import libraries

from .misuse import C_LIBRARY, ISAS, report


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("cols", [17, 257])
def test_a_kernel_of_torchs_library_that_writes_past_a_tensor_is_reported(isa, cols):
    text = report(
        f"""
x, out = torch.randn(4, {cols}), torch.empty(4, {cols})
out.untyped_storage().resize_(out.nbytes - 4)
torch.ops.fusedops.softmax_out(x, -1, out)
""",
        FUSEDOPS_CPU_ISA=isa,
    )
    assert (
        "heap-buffer-overflow" in text
        and "WRITE of size" in text
        and "cpu/threads/torch.cpp" in text
    )


@pytest.mark.parametrize("isa", ISAS)
def test_a_kernel_of_the_c_library_that_writes_past_an_array_is_reported(isa):
    call = "library.fusedops_layernorm(floats(33), *(floats(34) for _ in range(5)), 2, 17, None)"
    call = call.replace("2, 17, None", "2, 17, ctypes.c_float(1e-5), None")
    text = report(C_LIBRARY + call, FUSEDOPS_CPU_ISA=isa)
    assert "heap-buffer-overflow" in text and "WRITE of size" in text and "c_api/c_api.cpp" in text


def test_a_kernel_that_reads_past_a_tensor_is_reported():
    text = report("""
x = torch.randn(4, 17)
x.untyped_storage().resize_(x.nbytes - 4)
torch.ops.fusedops._softmax(x, -1)
""")
    assert "heap-buffer-overflow" in text and "READ of size" in text


def test_undefined_behaviour_is_watched_for():
    symbols = output("nm", "-D", "--undefined-only", libraries.CPU_LIBRARY)
    assert "__ubsan_handle_add_overflow_abort" in symbols
    assert "__ubsan_handle_pointer_overflow_abort" in symbols
