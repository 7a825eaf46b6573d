"""nvcc's PTX of the CUDA kernels, translated to C++ and executed in place of the source.

The kernels themselves are executed with ``--exhaustive`` alone: to compile the C++ takes a quarter
of an hour.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from . import families, inventory
from .cases import rows as row_cases
from .cases.rows import Case
from .emulator import build, ptx
from .emulator.library import Emulator
from .families import RowsCase
from .judge import Judge

needs_nvcc = pytest.mark.skipif(build.nvcc() is None, reason="no nvcc: there is no PTX to run")

GROUPS = families.groups()


@pytest.fixture(scope="session")
def modules() -> list[Path]:
    return build.ptx_modules()


@pytest.fixture(scope="session")
def compiled(modules: list[Path]) -> Emulator:
    """nvcc's PTX by default flags."""
    return Emulator(build.ptx_library(modules))


@pytest.fixture(scope="session")
def unfused() -> tuple[Emulator, Emulator]:
    """The source and its PTX, both without FMA contraction."""
    library = build.ptx_library(build.ptx_modules(build.COMPARED, build.UNFUSED_PTX))
    return Emulator(build.unfused_library()), Emulator(library)


def cases_of(emulator: Emulator, group: str, elements: int) -> list[RowsCase]:
    return [
        case for base in GROUPS[group] for case in families.boundary_cases(emulator, base, elements)
    ]


def uses_libm(case: RowsCase) -> bool:
    """Whether a case calls exp() or log(): nvcc has its own implementations, which are as exact."""
    if not isinstance(case, Case):
        return False
    forward = case.op == "softmax_forward" and case.other in ("float32", "float64")
    backward = case.op == "softmax_backward" and case.dtype in ("float32", "float64")
    return forward or (backward and case.log)


def ulps_apart(case: Case, first: np.ndarray, second: np.ndarray) -> float:
    """The difference in ulps of the value, or, where terms cancel, of the row's largest value."""
    size = np.abs(first).max(-1, keepdims=True) if case.log else np.abs(first)
    return float((np.abs(first - second) / np.spacing(size)).max())


#: Two exponentials of one ulp each, in the sum and in the quotient, and their roundings.
LIBM_ULPS = 4


@pytest.mark.exhaustive
@needs_nvcc
@pytest.mark.parametrize("group", GROUPS)
def test_nvccs_code_computes_the_bits_of_the_source_but_for_exp_and_log(unfused, group):
    source, compiled = unfused
    for case in cases_of(source, group, elements=1000):
        given = families.inputs(case)
        expected, actual = families.run(source, case, given), families.run(compiled, case, given)
        for name in expected:
            if uses_libm(case):
                assert ulps_apart(case, expected[name], actual[name]) <= LIBM_ULPS, (case, name)
            else:
                assert expected[name].tobytes() == actual[name].tobytes(), (case, name)


@pytest.mark.exhaustive
@needs_nvcc
@pytest.mark.parametrize("group", GROUPS)
def test_errors_of_nvccs_code_are_within_their_bounds(compiled, group):
    judge = Judge()
    for case in cases_of(compiled, group, elements=5000):
        given = families.inputs(case)
        judge.add(case, given, families.run(compiled, case, given))
    judge.conclude()


@pytest.mark.exhaustive
@needs_nvcc
def test_every_kernel_of_the_library_is_nvccs_is_executed_and_is_right(compiled, modules):
    judge = Judge()
    for case in families.racing_cases(compiled):
        given = families.inputs(case)
        judge.add(case, given, families.run(compiled, case, given))
    judge.conclude()
    library = build.ptx_library(modules)
    command = ["nm", "--dynamic", "--defined-only", str(library)]
    symbols = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    # The kernels of the source would be weak symbols.
    strong = set(re.findall(r" T (_ZN8fusedops4cuda\w+)", symbols))
    kernels = {entry.name for path in modules for entry in ptx.entries(path.read_text(), path.name)}
    assert kernels <= strong
    assert len(kernels) == len(inventory.instantiated_kernels(library))
    assert compiled.executed() == inventory.instantiated_kernels(library)


@pytest.mark.exhaustive
@needs_nvcc
def test_one_ulp_more_in_a_constant_of_the_ptx_is_noticed(compiled, modules, tmp_path):
    softmax, *others = modules
    head, start, kernel = softmax.read_text().partition(
        ".visible .entry _ZN8fusedops4cuda21softmax_forward_applyIffLi4EEE"
    )
    body, end, tail = kernel.partition("\n}\n")
    log2_e = "0f3FB8AA3B"
    assert log2_e in body
    planted = tmp_path / softmax.name
    planted.write_text(head + start + body.replace(log2_e, "0f3FB8AA3C") + end + tail)
    changed = Emulator(build.ptx_library([planted, *others]))
    case = Case("softmax_forward", "float32", "float32", rows=3, cols=40_000, width=4)
    assert "softmax_forward_apply<float, float, 4>" in changed.kernels_of(
        row_cases.Prepared(changed, case, row_cases.inputs(case)).args
    )
    right, wrong = row_cases.run(compiled, case), row_cases.run(changed, case)
    assert right["output"].tobytes() != wrong["output"].tobytes()


KERNEL = """.version 9.0
.visible .entry kernel(
\t.param .u64 kernel_param_0
)
{
\t%s
}
"""


def test_known_ptx_is_translated_line_by_line():
    kernels = ptx.entries(KERNEL % "@!%p1 add.s32 %r1, %r2, -5; // a comment", "module.ptx")
    text = ptx.translation(kernels, "module.ptx")
    assert 'extern "C" void kernel(uint64_t argument0)' in text
    statement = "set(r1, static_cast<int32_t>(as<int32_t>(r2) + static_cast<int32_t>(-5ll)));"
    assert f'#line 6 "module.ptx"\nif (!p1) {{ {statement} }}\n' in text


@pytest.mark.parametrize(
    "line",
    [
        "popc.b32 %r1, %r2;",  # an opcode
        "add.f16 %rs1, %rs2, %rs3;",  # a type
        "add.sat.s32 %r1, %r2, %r3;",  # modifiers
        "add.rz.f32 %f1, %f2, %f3;",
        "setp.lt.and.s32 %p1, %r1, %r2, %p2;",
        "ld.volatile.shared.f32 %f1, [%r1];",
        "shfl.sync.up.b32 %r1|%p1, %r2, 1, 0, -1;",
        "barrier.sync.aligned 0;",
        "bar.sync 0, 64;",  # operands
        "add.s32 %r1, %r2;",
        "mov.u32 %r1, %clock;",
        "ld.global.f32 %f1, [%rd1+%rd2];",
        ".local .align 4 .b8 depot[16];",  # declarations
        "call.uni (retval), function, (param);",
        "add.s32 %r1, %r2, %r3",  # no end
    ],
)
def test_ptx_that_is_not_known_is_an_error_with_its_line(line):
    with pytest.raises(ptx.PtxError, match=re.escape(f"module.ptx:6: {line}")):
        ptx.translation(ptx.entries(KERNEL % line, "module.ptx"), "module.ptx")


def test_a_module_that_holds_more_than_kernels_is_an_error():
    with pytest.raises(ptx.PtxError, match=re.escape("module.ptx:1: .func helper()")):
        ptx.entries(".func helper()\n", "module.ptx")
