"""Programs that misuse the libraries, for the sanitizers to report."""

from __future__ import annotations

from processes import run_python

from fusedops.ops.registration import libraries

ISAS = ("default", "avx2", "avx512")

PREAMBLE = """
import ctypes, threading, torch, fusedops
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
def floats(count):
    memory = libc.malloc(ctypes.c_size_t(4 * count))
    (ctypes.c_float * count).from_address(memory)[:] = [1.0] * count
    return ctypes.c_void_p(memory)
"""
C_LIBRARY = f"library = ctypes.CDLL({str(libraries.LIB_DIR / 'libfusedops_c.so')!r})\n"


def report(code: str, **variables: str) -> str:
    """The output of a program that a sanitizer's report ends."""
    done = run_python("-c", PREAMBLE + code, **variables)
    assert done.returncode != 0, done.stdout + done.stderr
    return done.stderr
