"""A call that finds no memory raises, leaves its tensors as they are, and harms no later call."""

from __future__ import annotations

import pytest
from exhaustive import beyond
from processes import run_python

from fusedops.ops.registration import libraries

PREAMBLE = f"""
import ctypes, resource, sys
import torch, fusedops
ops, C_LIBRARY = torch.ops.fusedops, {str(libraries.LIB_DIR / "libfusedops_c.so")!r}

def with_little_memory(mib, call):
    \"\"\"What call() raises, with so much address space left.\"\"\"
    pages = int(open("/proc/self/statm").read().split()[0])
    limit = pages * resource.getpagesize() + (mib << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    try:
        return call()
    except (MemoryError, RuntimeError) as error:
        return error
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""

#: Each row wants 64 MiB of scratch memory: there is enough for one of two threads.
MASKED = """
x = torch.randn(2, 1 << 24)
before = x.clone()
torch.set_num_threads({threads})
torch.ones(1 << 20).exp_()  # the threads are there before memory is short
error = with_little_memory({mib}, lambda: ops.masked_softmax_(x, None, 1.0, False, None))
# torch 2.15 passes std::bad_alloc on as a RuntimeError with that name.
assert type(error) is MemoryError or "bad_alloc" in str(error), repr(error)
assert torch.equal(x, before), "a part of x has been overwritten"
ops.masked_softmax_(x, None, 1.0, False, None)
assert torch.allclose(x.sum(-1), torch.ones(2))
"""

LONG_NORM = """
x = torch.randn(3, 1 << 22, requires_grad=True)
torch.set_num_threads({threads})
torch.ones(1 << 20).exp_()
error = with_little_memory(16, lambda: fusedops.layer_norm(x, x.shape[-1:]))
assert isinstance(error, (MemoryError, RuntimeError)), repr(error)
y = fusedops.layer_norm(x, x.shape[-1:])
assert y.mean().abs() < 1e-4
"""

C_INTERFACE = """
library = ctypes.CDLL(C_LIBRARY)
library.fusedops_last_error.restype = ctypes.c_char_p
x = torch.randn(2, 1 << 24)
before = x.clone()
def call():
    return library.fusedops_attn_softmax(
        ctypes.c_void_p(x.data_ptr()), None, 1, 1, 2, 1 << 24, False, None)
warm = torch.randn(64, 4096)
library.fusedops_attn_softmax(ctypes.c_void_p(warm.data_ptr()), None, 1, 1, 64, 4096, False, None)
status = with_little_memory(100, call)
assert status == 6, status
assert b"no memory is left" in library.fusedops_last_error()
assert torch.equal(x, before), "a part of x has been overwritten"
assert call() == 0 and torch.allclose(x.sum(-1), torch.ones(2))
"""


def run(program: str) -> None:
    done = run_python("-c", PREAMBLE + program, OMP_NUM_THREADS="2")
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("threads", beyond([2], [1, 2]))
def test_an_op_in_place_that_finds_no_scratch_memory_leaves_its_input(threads):
    run(MASKED.format(threads=threads, mib=50 if threads == 1 else 100))


def test_a_long_norm_that_finds_no_memory_raises_and_the_next_call_is_right():
    run(LONG_NORM.format(threads=2))


def test_the_c_interface_says_that_memory_is_short_and_leaves_its_input():
    run(C_INTERFACE)
