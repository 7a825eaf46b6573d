"""The gates of tools/sass_report.py on the machine code of the CUDA kernels; no GPU is needed."""

import pandas as pd
import pytest
from exhaustive import beyond
from sass import code, gates, kernels, toolchain

from fusedops.cli.errors import UserError


@pytest.fixture(scope="module")
def kernel():
    """A report of one kernel, a hot one of clusters that keeps its budget."""
    numbers = {
        "registers": 64, "spills": 0, "stack": 0, "threads": 1024, "warps": 32, "kb_in_flight": 64,
        "instructions": 1000, "loads": 4, "narrow_loads": 0, "stores": 4, "narrow_stores": 0,
        "fences": 0, "sends": 2,
    }  # fmt: skip
    name = "softmax_forward_cluster<bf16, 8, 4>"
    return pd.DataFrame([{"arch": 90, "kernel": name, "is_hot": True, **numbers}])


#: The others take as long each, and a build for them four times as long.
ARCHITECTURES = beyond([90], kernels.CHIPS)


@pytest.mark.nvcc
@pytest.mark.slow("disassembles every kernel of an architecture")
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_no_kernel_spills_and_hot_ones_keep_to_128_bits_and_their_budget(arch):
    found = toolchain.kernels_in(toolchain.LIBRARY, [arch])
    budget = gates.read_budget()
    assert list(gates.failures(found, budget)) == []

    # Clusters exist from sm_90 on.
    assert found.kernel.str.contains("_cluster").any() == (arch >= 90)
    hot = found[found.is_hot]
    assert set(hot.kernel) == set(budget.kernel[budget.arch == arch])
    # Masked kernels and norms over channels are held to their budget alone: masks are bytes, an
    # operand may have one value for a row, a weight has one for a channel, and the floats of long
    # rows and 16-bit channels have 32 KB in flight where 38 would keep a B200 busy.
    is_plain = ~hot.kernel.str.contains("masked|spatial_norm")
    plain = hot[is_plain & hot.kernel.str.contains("forward")]
    assert (plain.kb_in_flight >= kernels.CHIPS[arch].needed_in_flight / 1024).all()
    # Dropout reads its seed; of these kernels only norms of a sum have it. Those of floats read a
    # branch of 16 bits too, of either dtype. The kernels of segments read and write partials, a few
    # floats a row. cross_entropy reads the ends of rows that are not aligned one by one.
    whole = plain[~plain.kernel.str.contains("_(?:partials|apply)<|cross_entropy")]
    of_sums = whole.kernel.str.contains(", true")
    of_floats = whole.kernel.str.contains("<float, 4, 4, true")
    assert set(whole.narrow_loads[~of_sums]) == {0}
    assert (whole.narrow_loads[~of_floats] <= 1).all()
    assert (whole.narrow_loads[of_floats] <= 1 + 2 * 4).all()


@pytest.mark.parametrize(
    "change, failure",
    [
        ({"registers": 72}, "registers is 72, wanted at most 64"),
        ({"kb_in_flight": 32}, "kb_in_flight is 32, wanted at least 64"),
        ({"instructions": 1011}, "instructions is 1011, wanted at most 1010"),
        ({"loads": 5}, "loads is 5, wanted at most 4"),
        ({"narrow_loads": 4}, "narrow_loads is 4, wanted at most 0"),
        ({"stores": 5}, "stores is 5, wanted at most 4"),
        ({"narrow_stores": 1}, "narrow_stores is 1, wanted at most 0"),
        ({"kernel": "softmax_forward_registers<bf16, 8, 16>"}, "not in sass_budget.csv"),
        ({"spills": 2}, "2 spills, 0 bytes of stack, wanted none"),
        ({"stack": 8}, "0 spills, 8 bytes of stack, wanted none"),
        ({"fences": 1}, "1 fences, wanted none, and 2 sends"),
        ({"sends": 0}, "0 fences, wanted none, and 0 sends"),
    ],
)
def test_a_kernel_that_breaks_a_gate_is_named(kernel, change, failure):
    assert list(gates.failures(kernel.assign(instructions=1010), kernel)) == []
    (line,) = gates.failures(kernel.assign(**change), kernel)
    assert failure in line


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
    assert code.bytes_in_flight(body) == 32
    usage = kernels.Usage(registers=33, stack=0, shared_bytes=0, threads=256)
    # 65536 registers hold six blocks of 256 threads of 40.
    wanted = {
        "registers": 40, "warps": 48, "kb_in_flight": 48, "instructions": 10, "loads": 3,
        "narrow_loads": 1, "stores": 1, "narrow_stores": 1, "spills": 1, "fences": 0, "sends": 0,
    }  # fmt: skip
    assert wanted.items() <= kernels.numbers_of(body, usage, kernels.CHIPS[90]).items()


FENCED = """
        Function : a_barrier_that_orders_memory
        /*0000*/                   MEMBAR.ALL.GPU ;
        /*0010*/                   ERRBAR ;
        /*0020*/                   CGAERRBAR ;
        /*0030*/                   UCGABAR_ARV ;
        /*0040*/                   UCGABAR_WAIT ;
        /*0050*/                   CCTL.IVALL ;
        /*0060*/                   EXIT ;
        Function : two_drops
        /*0000*/                   CCTL.IVALL ;
        /*0010*/              @!P0 CCTL.IVALL ;
        /*0020*/                   EXIT ;
        Function : a_relaxed_arrival
        /*0000*/                   UCGABAR_ARV ;
        /*0010*/                   UCGABAR_WAIT ;
        /*0020*/                   CCTL.IVALL ;
        /*0030*/                   STAS [R6.64], R13 ;
        /*0040*/                   EXIT ;
"""


def test_fences_and_more_than_one_drop_of_the_cache_are_counted():
    usage = kernels.Usage(registers=32, stack=0, shared_bytes=0, threads=256)
    bodies = code.parse_sass(FENCED).values()
    found = [kernels.numbers_of(body, usage, kernels.CHIPS[90]) for body in bodies]
    assert [(each["fences"], each["sends"]) for each in found] == [(3, 0), (1, 0), (0, 1)]


def test_a_missing_disassembler_is_an_error_that_names_the_packages(tmp_path, monkeypatch):
    monkeypatch.setattr(toolchain, "tool_environment", lambda: {"PATH": "/nowhere"})
    library = tmp_path / "library.so"
    library.touch()
    with pytest.raises(UserError, match="pip install nvidia-cuda-cuobjdump"):
        toolchain.kernels_in(library, [90])


def test_a_missing_library_is_an_error_with_the_command_that_builds_it(tmp_path):
    with pytest.raises(UserError, match="library.so is missing.*FUSEDOPS_BUILD_CUDA=1"):
        toolchain.kernels_in(tmp_path / "library.so", [90])
