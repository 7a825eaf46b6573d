"""The shapes of tools/sass_report.py: a warp's path, its instructions, the bytes that move."""

import csv
import dataclasses
import shutil
import struct

import pytest
from sass import demand, gates, launches, limits, shapes, tables, toolchain
from sass.chips import CHIPS
from sass.code import parse_sass
from sass.launches import Case, Region
from sass.machine import follow
from sass.registers import WarpContext

CHIP = CHIPS["90"]


def trace_of(sass, *, parameters=b"", block=0, warp=0, threads=(32, 1), blocks=1, masks=()):
    (body,) = parse_sass(f"\t\tFunction : kernel\n{sass}").values()
    launch = launches.Launch("kernel", blocks, 1, threads, parameters)
    constants = launch.constants(0x210)
    return follow(body, WarpContext(block, warp, threads, blocks, 1, constants, frozenset(masks)))


LOOP = """
        /*0000*/                   HFMA2.MMA R4, -RZ, RZ, 0, 0 ;
        /*0010*/                   ULDC UR4, c[0x0][0x210] ;
        /*0020*/                   VIADD R4, R4, 0x1 ;
        /*0030*/                   FADD R5, R5, R4 ;
        /*0040*/                   ISETP.GE.AND P0, PT, R4, UR4, PT ;
        /*0050*/              @!P0 BRA 0x20 ;
        /*0060*/                   EXIT ;
"""


@pytest.mark.parametrize("trips", [1, 2, 77])
def test_a_loop_is_followed_as_often_as_the_launch_says(trips):
    trace = trace_of(LOOP, parameters=trips.to_bytes(4, "little"))
    assert trace.instructions == 2 + 4 * trips + 1
    assert trace.executed["FADD"] == trips
    assert trace.guesses == 0


BRANCH = """
        /*0000*/                   LDC R0, c[0x0][0x210] ;
        /*0010*/                   ISETP.NE.AND P0, PT, R0, 0x3, PT ;
        /*0020*/               @P0 BRA 0x50 ;
        /*0030*/                   MUFU.EX2 R2, R3 ;
        /*0040*/                   EXIT ;
        /*0050*/                   EXIT ;
"""


@pytest.mark.parametrize("dtype, instructions, exponentials", [(3, 5, 1), (0, 4, 0)])
def test_branches_of_other_dtypes_are_not_counted(dtype, instructions, exponentials):
    trace = trace_of(BRANCH, parameters=dtype.to_bytes(4, "little"))
    assert (trace.instructions, trace.executed["MUFU"]) == (instructions, exponentials)


# Each thread reads 16 bytes from thread * 16 + block * 512 on while that is below 0x308, and stores
# what it has read; the lanes that have nothing to do jump over the loads.
ADDRESSES = """
        /*0000*/                   S2R R0, SR_TID.X ;
        /*0010*/                   S2UR UR4, SR_CTAID.X ;
        /*0020*/                   LDC.64 R2, c[0x0][0x210] ;
        /*0030*/                   IMAD.SHL.U32 R1, R0, 0x10, RZ ;
        /*0040*/                   UIMAD UR4, UR4, 0x200, URZ ;
        /*0050*/                   VIADD R1, R1, UR4 ;
        /*0060*/                   ISETP.GE.U32.AND P0, PT, R1, 0x308, PT ;
        /*0070*/               @P0 BRA 0xc0 ;
        /*0080*/                   IADD3 R4, P1, R1, R2, RZ ;
        /*0090*/                   IADD3.X R5, RZ, R3, RZ, P1, !PT ;
        /*00a0*/                   LDG.E.128 R8, desc[UR6][R4.64] ;
        /*00b0*/                   STG.E.128 desc[UR6][R4.64+0x10000000000], R8 ;
        /*00c0*/                   EXIT ;
"""


@pytest.mark.parametrize("block, lanes", [(0, 32), (1, 17), (2, 0)])
def test_bytes_are_those_of_the_lanes_inside_the_row(block, lanes):
    base = (5 << 40) + (1 << 32) - 16  # the addition carries into the upper word
    trace = trace_of(ADDRESSES, parameters=base.to_bytes(8, "little"), block=block, blocks=3)
    assert trace.loaded[5] == trace.stored[6] == 16 * lanes
    assert trace.instructions == (13 if lanes else 9)
    assert trace.guesses == 0


def test_lanes_that_read_the_same_address_move_it_once():
    sass = """
        /*0000*/                   LDC.64 R2, c[0x0][0x210] ;
        /*0010*/                   LDG.E R4, desc[UR6][R2.64] ;
        /*0020*/                   EXIT ;
    """
    assert trace_of(sass, parameters=(7 << 40).to_bytes(8, "little")).loaded == {7: 4}


def test_a_predicate_that_some_lanes_wrote_first_still_masks_lanes():
    sass = """
        /*0000*/                   S2R R0, SR_TID.X ;
        /*0010*/                   LDC.64 R2, c[0x0][0x210] ;
        /*0020*/                   ISETP.GT.AND P0, PT, R0, 0x7, PT ;
        /*0030*/               @P0 ISETP.GT.AND P1, PT, R0, 0xf, PT ;
        /*0040*/                   IMAD.WIDE.U32 R4, R0, 0x4, R2 ;
        /*0050*/               @P1 LDG.E R6, desc[UR6][R4.64] ;
        /*0060*/                   EXIT ;
    """
    trace = trace_of(sass, parameters=(7 << 40).to_bytes(8, "little"))
    assert trace.loaded == {7: 4 * 16}


def is_known_true(*instructions, **launch):
    """Whether the predicate P0 is true after these instructions, which no guess decides."""
    path = [*instructions, "@P0 EXIT", "MUFU.EX2 R5, R5", "EXIT"]
    sass = "".join(f"/*{16 * at:04x}*/ {each} ;\n" for at, each in enumerate(path))
    trace = trace_of(sass, **launch)
    assert trace.guesses == 0
    return trace.executed["MUFU"] == 0


@pytest.mark.parametrize("other", ["RZ", "R6"], ids=["a constant", "a number of each lane"])
@pytest.mark.parametrize("relation, holds", [("NEU", True), ("EQ", False)])
def test_a_computed_float_is_equal_to_nothing(relation, holds, other):
    compare = f"FSETP.{relation}.AND P0, PT, R2, {other}, PT"
    assert is_known_true("S2R R6, SR_TID.X", "FADD R2, R3, R4", compare) == holds


@pytest.mark.parametrize("operand", ["UR4", "c[0x0][0x210]"])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_doubles_that_are_parameters_are_compared(operand, softcap):
    compare = f"DSETP.NEU.AND P0, PT, RZ, {operand}, PT"
    parameters = struct.pack("<d", softcap)
    given = is_known_true("ULDC.64 UR4, c[0x0][0x210]", compare, parameters=parameters)
    assert given == (softcap != 0)


@pytest.mark.parametrize("masks, holds", [([], False), ([7], True)])
def test_memory_holds_zeros_and_masks_hold_true(masks, holds):
    load = "LDC.64 R2, c[0x0][0x210]", "LDG.E.U8 R4, desc[UR6][R2.64]"
    launch = {"parameters": (7 << 40).to_bytes(8, "little"), "masks": masks}
    assert is_known_true(*load, "ISETP.NE.AND P0, PT, R4, RZ, PT", **launch) == holds


def test_predicates_in_the_bits_of_an_unwritten_register_are_known():
    assert is_known_true(
        "LOP3.LUT R4, R4, 0xfffffffd, RZ, 0xc0, !PT",
        "LOP3.LUT R4, R4, 0x2, RZ, 0xfc, !PT",
        "LOP3.LUT P0, RZ, R4, 0x2, RZ, 0xc0, !PT",
    )


#: A selector, and the bytes of 0x81B2C3D4 that it picks, or their signs.
PERMUTED = [
    ("0x3210", 0x81B2C3D4),
    ("0x0123", 0xD4C3B281),
    ("0x9991", 0xFFFFFFC3),
    ("0x4440", 0x000000D4),
]


@pytest.mark.parametrize("selector, result", PERMUTED)
def test_bytes_are_permuted(selector, result):
    assert is_known_true(
        "LDC R2, c[0x0][0x210]",
        f"PRMT R2, R2, {selector}, RZ",
        f"ISETP.EQ.AND P0, PT, R2, {result:#x}, PT",
        parameters=(0x81B2C3D4).to_bytes(4, "little"),
    )


def test_sixteen_bits_are_known_beside_a_float():
    halves = "PRMT R2, RZ, 0x7610, R2", "PRMT R2, R2, 0x9910, RZ"
    assert is_known_true("FADD R2, R3, R4", *halves, "ISETP.EQ.AND P0, PT, R2, RZ, PT")


def test_a_jump_on_a_computed_float_is_a_guess_that_is_not_taken():
    sass = """
        /*0000*/                   FADD R2, R3, R4 ;
        /*0010*/                   FSETP.GT.AND P0, PT, R2, RZ, PT ;
        /*0020*/               @P0 BRA 0x40 ;
        /*0030*/                   FADD R2, R3, R4 ;
        /*0040*/                   EXIT ;
    """
    trace = trace_of(sass)
    assert (trace.guesses, trace.instructions) == (1, 5)


# nvcc's 32-bit division of 1000003 by the parameter.
DIVISION = """
        /*0000*/                   LDC R6, c[0x0][0x210] ;
        /*0010*/                   I2F.U32.RP R0, R6 ;
        /*0020*/                   IMAD.MOV R7, RZ, RZ, -R6 ;
        /*0030*/                   MUFU.RCP R0, R0 ;
        /*0040*/                   VIADD R2, R0, 0xffffffe ;
        /*0050*/                   F2I.FTZ.U32.TRUNC.NTZ R3, R2 ;
        /*0060*/                   IMAD.MOV.U32 R2, RZ, RZ, RZ ;
        /*0070*/                   IMAD R7, R7, R3, RZ ;
        /*0080*/                   IMAD.HI.U32 R3, R3, R7, R2 ;
        /*0090*/                   MOV R4, 0xf4243 ;
        /*00a0*/                   IMAD.HI.U32 R3, R3, R4, RZ ;
        /*00b0*/                   IMAD.MOV R5, RZ, RZ, -R3 ;
        /*00c0*/                   IMAD R5, R6, R5, R4 ;
        /*00d0*/                   ISETP.GE.U32.AND P0, PT, R5, R6, PT ;
        /*00e0*/               @P0 IMAD.IADD R5, R5, 0x1, -R6 ;
        /*00f0*/               @P0 VIADD R3, R3, 0x1 ;
        /*0100*/                   ISETP.GE.U32.AND P1, PT, R5, R6, PT ;
        /*0110*/               @P1 VIADD R3, R3, 0x1 ;
        /*0120*/                   ISETP.NE.U32.AND P2, PT, R3, c[0x0][0x214], PT ;
        /*0130*/               @P2 BRA 0x150 ;
        /*0140*/                   MUFU.EX2 R9, R9 ;
        /*0150*/                   EXIT ;
"""


@pytest.mark.parametrize("divisor", [2, 3, 7, 1000, 999983])
def test_a_division_has_its_quotient(divisor):
    parameters = divisor.to_bytes(4, "little") + (1000003 // divisor).to_bytes(4, "little")
    assert trace_of(DIVISION, parameters=parameters).executed["MUFU"] == 2


# --- the launch code ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    if shutil.which("g++") is None:
        pytest.skip("no g++: the launch code is not compiled")
    return launches.LaunchProgram(tmp_path_factory.mktemp("launches"))


@pytest.mark.exhaustive
def test_plans_are_those_of_the_launch_code(program):
    cases = [Case("softmax", "bfloat16", 8192, 1024), Case("softmax", "float32", 4, 4_000_000)]
    short, long = program.plans(cases)
    (launch,) = short.launches
    assert "softmax_forward_registers" in launch.symbol
    assert launch.blocks * launch.threads[1] == 8192
    assert [region.kind for region in short.regions.values()] == ["rows", "rows"]
    assert {region.kind for region in long.regions.values()} == {"rows", "partials"}
    assert len({one.symbol for one in long.launches}) == 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("op", shapes.OPS)
def test_every_operator_of_the_table_is_launched(program, op):
    for plan in program.plans([Case(op, dtype, 64, 1024) for dtype in shapes.DTYPES]):
        assert plan.launches
        assert sum(region.bytes for region in plan.regions.values()) > 0


def test_the_constant_bank_has_the_sizes_of_block_grid_and_cluster():
    launch = launches.Launch("kernel", 64, 4, (128, 2), b"\x07")
    bank = launch.constants(0x210)
    words = [int.from_bytes(bank[at : at + 4], "little") for at in (0, 4, 12, 0x144)]
    assert words == [128, 2, 64, 4] and bank[0x210:] == b"\x07"


# --- arithmetic -----------------------------------------------------------------------------------


def a_demand(**changes):
    plain = demand.Demand(
        symbol="kernel", blocks=1320, cluster=1, threads=256, instructions=1320 * 8 * 500,
        loaded={1: 1320 * 16384.0}, stored={2: 1320 * 16384.0}, guesses=0,
    )  # fmt: skip
    return dataclasses.replace(plain, **changes)


REGIONS = {
    1: Region("input", "rows", 1320 * 16384),
    2: Region("output", "rows", 1320 * 16384),
    3: Region("weight", "shared", 4096),
    4: Region("workspace", "partials", 8192),
}


def test_shared_operands_do_not_count_and_partials_count_once():
    one = a_demand(loaded={1: 1e6, 3: 1e9, 4: 1e6}, stored={2: 2e6, 4: 8192})
    assert shapes.moved_bytes(one, REGIONS) == 3e6 + 2 * 8192


def test_issue_is_the_share_of_what_the_gpu_issues_while_a_copy_runs():
    copy_seconds = 2 * 1320 * 16384 / (0.9 * 4.8e12)
    most = 132 * 4 * 1.98e9 * copy_seconds  # a scheduler issues one instruction a clock
    assert shapes.issue_share(most / 2, REGIONS, CHIP) == pytest.approx(0.5)


def test_blocks_that_walk_over_rows_are_extrapolated():
    few, more = a_demand(instructions=1000.0), a_demand(instructions=1800.0, loaded={1: 9.0})
    few = dataclasses.replace(few, loaded={1: 5.0})
    far = demand.extrapolated(few, more, 10)
    assert (far.instructions, far.loaded) == (9000.0, {1: 45.0})


def test_samples_of_blocks_are_in_range_and_differ():
    assert demand.sampled_blocks(3, 16) == [0, 1, 2]
    blocks = demand.sampled_blocks(65536, 16)
    assert len(blocks) == 16 and min(blocks) >= 0 and max(blocks) < 65536
    assert len({block % 2048 // 256 for block in blocks}) == 8  # of a causal row's every eighth


# --- gates ----------------------------------------------------------------------------------------


@pytest.fixture
def row():
    return shapes.Shape(
        op="softmax", dtype="bfloat16", rows=32768, cols=1024, kernels="k", launches=1,
        threads=128, cluster=1, bytes_u=2.0, instructions=480, issue=0.5, guesses=0,
    )  # fmt: skip


@pytest.mark.parametrize(
    "change, failure",
    [
        ({"issue": 0.52}, "issue is 0.520, wanted at most 0.515"),
        ({"bytes_u": 3.0}, "bytes_u is 3.000, wanted at most 2.060"),
        ({"cols": 2048}, "softmax bfloat16 32768 x 2048: not in sass_shapes.csv"),
    ],
)
def test_a_shape_over_its_budget_is_named(row, tmp_path, change, failure):
    path = tmp_path / "model.csv"
    tables.write_csv(gates.ShapeBudget, [row], path)
    budget = gates.read_shapes(path)
    assert list(gates.shape_failures([row], budget)) == []
    (line,) = gates.shape_failures([dataclasses.replace(row, **change)], budget)
    assert failure in line


def test_limits_are_reported_as_met_or_not(row):
    causal = dataclasses.replace(row, op="masked_softmax_causal", cols=2048, instructions=500)
    dense = dataclasses.replace(causal, op="masked_softmax", instructions=1000, issue=0.8)
    backward = dataclasses.replace(row, op="layer_norm_backward", bytes_u=5.1)
    lines = list(limits.limit_lines([row, causal, dense, backward]))
    assert [line.partition(":")[0] for line in lines] == ["met", "not met", "not met", "met"]
    assert "1 of 2 above, the worst 0.80 (masked_softmax, 32768 x 2048)" in lines[1]
    assert "the worst 5.10" in lines[2]
    assert lines[3].endswith("at most 0.6; 0.50")


# --- the kernels ----------------------------------------------------------------------------------

CHECKED_COLS = (1024, 32768)


@pytest.mark.nvcc
def test_shapes_keep_their_budget_of_instructions_and_bytes():
    cases = [
        case
        for case in shapes.table_cases()
        if case.dtype == "bfloat16" and case.cols in CHECKED_COLS and case.tensor_bytes < 1 << 27
    ]
    rows = shapes.shapes_of(toolchain.codes_of(["90"])["90"], cases)
    assert list(gates.shape_failures(rows, gates.read_shapes())) == []
    # Less than what has to move, each tensor once, would be a path that was not followed.
    least = {"softmax": 2, "layer_norm": 2, "rms_norm": 2, "masked_softmax": 2, "add_rms_norm": 4}
    for row in rows:
        if row.op in least:
            assert row.bytes_u >= 0.999 * least[row.op], row


def test_the_file_of_shapes_has_the_table():
    with gates.SHAPES.open(newline="") as file:
        found = {(row["op"], row["dtype"], int(row["rows"]), int(row["cols"]))
                 for row in csv.DictReader(file)}  # fmt: skip
    assert found == {(c.op, c.dtype, c.rows, c.cols) for c in shapes.table_cases()}
