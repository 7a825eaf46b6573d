"""Kernels of two threads write their results into the same memory, which is reported.

Run by `python -m tests.sanitize` alone; no other build would report it.
"""

from __future__ import annotations

import pytest

from .misuse import C_LIBRARY, ISAS, report


@pytest.mark.parametrize("isa", ISAS)
def test_two_threads_that_write_one_array_are_reported(isa):
    text = report(
        C_LIBRARY
        + """
given = [floats(4 * 4096) for _ in range(6)]
def call():
    for _ in range(50):
        library.fusedops_layernorm(*given, 4, 4096, ctypes.c_float(1e-5), None)
threads = [threading.Thread(target=call) for _ in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
""",
        FUSEDOPS_CPU_ISA=isa,
    )
    assert "ThreadSanitizer: data race" in text and "c_api/c_api.cpp" in text


def test_two_threads_that_write_one_tensor_are_reported():
    text = report("""
out, inputs = torch.empty(64, 16384), [torch.randn(64, 16384) for _ in range(2)]
def call(x):
    for _ in range(20):
        torch.ops.fusedops.softmax_out(x, -1, out)
threads = [threading.Thread(target=call, args=(x,)) for x in inputs]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
""")
    assert "ThreadSanitizer: data race" in text and "cpu/softmax/launch.cpp" in text
