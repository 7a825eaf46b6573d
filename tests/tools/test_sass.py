"""The gates of tools/sass_report.py on the machine code of the CUDA kernels; no GPU is needed."""

import dataclasses
import re

import pytest
from exhaustive import beyond
from sass import chips, code, errors, gates, kernels, toolchain


@pytest.fixture(scope="module")
def kernel():
    """A hot kernel that keeps its budget."""
    return kernels.Kernel(
        arch="90", name="softmax_forward_registers<bf16, bf16, 8, 4>",
        registers=63, spills=0, stack=0, threads=1024, warps=32,
        loads=4, narrow_loads=0, stores=4, narrow_stores=0,
        kb_in_flight=64,
    )  # fmt: skip


#: The others take as long each, and a build for them four times as long.
ARCHITECTURES = beyond(["90"], chips.CHIPS)


@pytest.mark.nvcc
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_no_kernel_spills_and_hot_ones_keep_to_128_bits_and_their_budget(arch):
    found = toolchain.kernels_in(toolchain.codes_of([arch]))
    budget = gates.read_budget()
    assert list(gates.local_memory_failures(found)) == []
    assert list(gates.budget_failures(found, budget)) == []

    hot = [kernel for kernel in found if kernel.is_hot]
    assert {kernel.name for kernel in hot} == {name for of_arch, name in budget if of_arch == arch}
    # Masked kernels and norms over channels are held to their budget alone: masks are bytes, an
    # operand may have one value for a row, a weight has one for a channel, and the floats of long
    # rows and 16-bit channels have 32 KB in flight where 38 would keep a B200 busy.
    forward = [kernel for kernel in hot if "forward" in kernel.name]
    plain = [kernel for kernel in forward if not re.search("masked|spatial_norm", kernel.name)]
    needed = chips.CHIPS[arch].needed_in_flight / 1024
    assert all(kernel.kb_in_flight >= needed for kernel in plain)
    # Dropout reads its seed; of these kernels only norms of a sum have it. Those of floats read a
    # branch of 16 bits too, of either dtype. The kernels of segments read and write partials, a few
    # floats a row. cross_entropy reads the ends of rows that are not aligned one by one.
    others = "_(partials|apply)<|cross_entropy"
    whole = [kernel for kernel in plain if not re.search(others, kernel.name)]
    narrow = {kernel.narrow_loads for kernel in whole if ", true" not in kernel.name}
    assert narrow == {0}
    of_floats = {kernel for kernel in whole if "<float, 4, 4, true" in kernel.name}
    assert all(kernel.narrow_loads <= 1 for kernel in whole if kernel not in of_floats)
    assert all(kernel.narrow_loads <= 1 + 2 * 4 for kernel in of_floats)


@pytest.mark.parametrize(
    "change, failure",
    [
        ({"registers": 65}, "registers is 72, wanted at most 64"),
        ({"kb_in_flight": 32}, "kb_in_flight is 32, wanted at least 64"),
        ({"narrow_loads": 4}, "narrow_loads is 4, wanted at most 0"),
        ({"narrow_stores": 1}, "narrow_stores is 1, wanted at most 0"),
        ({"name": "softmax_forward_registers<bf16, bf16, 8, 16>"}, "not in sass_budget.csv"),
    ],
)
def test_a_hot_kernel_over_budget_is_named(kernel, change, failure):
    budget = {("90", kernel.name): gates.Budget.of(kernel)}
    assert list(gates.budget_failures([kernel], budget)) == []
    (line,) = gates.budget_failures([dataclasses.replace(kernel, **change)], budget)
    assert failure in line


def test_a_spill_or_a_stack_is_named(kernel):
    broken = [dataclasses.replace(kernel, spills=2), dataclasses.replace(kernel, stack=8)]
    assert list(gates.local_memory_failures([kernel])) == []
    assert len(list(gates.local_memory_failures(broken))) == 2


SASS = """
        Function : two_loads_then_a_loop
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/              @!P0 LDG.E.NA.128 R4, desc[UR4][R2.64] ;
        /*0020*/                   LDG.E.128 R8, desc[UR4][R2.64+0x10] ;
        /*0030*/                   FADD R0, R7, R8 ;
        /*0040*/                   LDG.E.U16 R4, [R2.64] ;
        /*0050*/                   STG.E.64 [R2.64], R4 ;
        /*0060*/                   STL [R1+0x8], R0 ;
        /*0070*/               @P0 BRA 0x40 ;
        /*0080*/                   EXIT ;
        /*0090*/                   BRA 0x90;
        /*00a0*/                   NOP;
"""


def test_widths_of_accesses_are_counted_and_loads_before_a_use_are_in_flight():
    (body,) = code.parse_sass(SASS).values()
    assert [instruction.guard for instruction in body[:3]] == ["", "!P0", ""]
    assert code.bytes_in_flight(body) == 32
    usage = kernels.Usage(registers=33, stack=0, shared_bytes=0, threads=256)
    report = kernels.analyse("90", "two_loads_then_a_loop", body, usage)
    assert (report.loads, report.narrow_loads, report.narrow_stores, report.spills) == (3, 1, 1, 1)
    assert report.warps == 48  # 65536 registers hold six blocks of 256 threads of 40
    assert report.kb_in_flight == 48


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A file in place of a library, with a cache of its own."""
    monkeypatch.setattr(toolchain, "CACHE", tmp_path / "cache")
    path = tmp_path / "library.so"
    path.write_text("one state")
    return path


def test_a_missing_disassembler_is_an_error_that_names_the_packages(library, monkeypatch):
    monkeypatch.setattr(toolchain, "tool_environment", lambda: {"PATH": "/nowhere"})
    with pytest.raises(errors.MissingTool, match="pip install nvidia-cuda-cuobjdump"):
        toolchain.codes_of(["90"], library)


def test_a_missing_library_is_an_error_with_the_command_that_builds_it(library):
    library.unlink()
    with pytest.raises(errors.ReportError, match="library.so is missing.*FUSEDOPS_BUILD_CUDA=1"):
        toolchain.codes_of(["90"], library)


def test_each_state_of_a_library_is_taken_apart_once(library, monkeypatch):
    taken_apart = []

    def take_apart(path, arch):
        taken_apart.append((path.read_text(), arch))
        return {}

    monkeypatch.setattr(toolchain, "take_apart", take_apart)
    for state in ("one state", "another"):
        library.write_text(state)
        for _ in range(2):
            assert toolchain.codes_of(["80", "90"], library) == {"80": {}, "90": {}}
    states = ("one state", "another")
    assert taken_apart == [(state, arch) for state in states for arch in ("80", "90")]
    assert len([path for path in toolchain.CACHE.iterdir() if path.is_dir()]) == 1
