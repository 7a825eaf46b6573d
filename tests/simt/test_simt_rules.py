"""Code that kernels may not contain does not compile, or is found in their source."""

from __future__ import annotations

import re

import pytest

from . import inventory
from .emulator import build

DEVICE = build.ROOT / "csrc/cuda/block/device.h"
KERNELS = [*build.SHIPPED, *inventory.HEADERS]

REFUSED = {
    "a plain __shared__": ("__shared__ float slots[32];", "FUSEDOPS_SHARED"),
    "a shuffle without a mask": ("__shfl_xor(1.0f, 1);", "'__shfl_xor' was not declared"),
    "a mask of whoever is there": ("__activemask();", "'__activemask' was not declared"),
    "a shuffle of more than 8 bytes": (
        "struct { double a, b; } pair{}; __shfl_xor_sync(~0u, pair, 1);",
        "static assertion failed",
    ),
    "a shuffle over part of a warp": (
        "__shfl_xor_sync(~0u, 1.0f, 1, 16);",
        "cannot convert '16'",
    ),
}


def kernel_with(statement: str) -> str:
    body = f"{{ FUSEDOPS_SHARED(float, own, 32); own[threadIdx.x] = 0; {statement} }}"
    return f'#include "cuda/block/device.h"\nFUSEDOPS_KERNEL(32) kernel() {body}\n'


def test_a_kernel_by_the_rules_compiles():
    assert build.compile_errors(kernel_with("__syncthreads();")) == ""


@pytest.mark.parametrize("rule", REFUSED)
def test_what_kernels_may_not_use_does_not_compile(rule):
    statement, message = REFUSED[rule]
    errors = build.compile_errors(kernel_with(statement)).replace("‘", "'").replace("’", "'")
    assert message in errors


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: "/".join(path.parts[-2:]))
def test_only_device_h_has_assembly_and_cudas_own_spellings(path):
    code = re.sub(r"//.*", "", path.read_text())
    words = set(re.findall(r"\w+", code))
    assert words.isdisjoint({"asm", "__asm__", "__shared__", "__global__", "__shfl_xor_sync"})
    assert not re.search(r"#include <(cuda|cub|cooperative_groups)", code)


def test_device_h_is_where_assembly_is():
    assert "asm" in DEVICE.read_text()
