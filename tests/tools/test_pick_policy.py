"""tools/pick_policy.py on measurements that are made up."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import pick_policy  # noqa: E402

HEADER = (
    "op,direction,dtype,rows,cols,width,elements,threads,row_threads,blocks,partitions,segment,"
    "fixed,is_incumbent,median_us,copy_us,share_of_copy,bytes,difference,error"
)
PLANS = """\
inline constexpr int kMaxRegimes = 4;
inline constexpr RegimeTable kNarrowRegimes = {
    {4096, 8}};
// Why these.
inline constexpr Regimes kSoftmaxRegimes = {
    {{512, 16}, {1024, 32}, {4096, 16}},
    {{4096, 16}},  // floats
    {{8192, 16}},
    {{4096, 8}},
};
inline constexpr Regimes kNormRegimes = {{{4096, 16}}, {{4096, 16}}, kNarrowRegimes, {{4096, 8}}};
inline constexpr Regimes kMaskedSoftmaxRegimes = {{{4096, 16}}, {{4096, 16}}, {}, {}};
inline constexpr Regimes kAnyMaskedSoftmaxRegimes = {{{4096, 16}}, {{4096, 16}}, {{4096, 8}}, {}};
inline constexpr Clusters kClustersOf64 = {64, 16384, {{32768, 2}, {65536, 4}, {262144, 8}}};
inline constexpr Clusters kNarrowClusters = {16, 8192, {{16384, 2}, {32768, 4}, {131072, 8}}};
inline constexpr Clusters kNormBackwardClusters = {16, 8192, {{16384, 2}, {32768, 4}, {65536, 8}}};
inline constexpr int64_t kNormBackwardBlocks = 264;  // that hold whole rows;
inline constexpr int32_t kSegmentThreads = 128, kSegmentCols = 4096, kMaxSegments = 1024;
"""


def row(
    cols: int,
    elements: int,
    share: float | str,
    *,
    incumbent: bool = False,
    op: str = "softmax",
    direction: str = "forward",
    dtype: str = "bfloat16",
    width: int = 8,
    rows: int = 1000,
    blocks: int = 1,
    partitions: int = 0,
    segment: int = 0,
    fixed: int = 0,
    block_threads: int = 128,
) -> str:
    """A line of the CSV. A share that is text is the error of the launch."""
    bytes_of_vector = width * pick_policy.ITEM_BYTES[dtype]
    threads = fixed or pick_policy.threads_per_row(cols // blocks, elements or 32, bytes_of_vector)
    block = max(block_threads, threads)
    measured = f",,,1,0,{share}" if isinstance(share, str) else f"10,9,{share},1,0,"
    return (
        f"{op},{direction},{dtype},{rows},{cols},{width},{elements},{block},{threads},"
        f"{blocks},{partitions},{segment},{fixed},{incumbent:d},{measured}"
    )


@pytest.fixture
def pick(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Runs the tool on these lines; returns its exit code and the plans afterwards."""

    def run(lines: Iterable[str], *arguments: str) -> tuple[int, str]:
        table, plans = tmp_path / "tune.csv", tmp_path / "plan.h"
        table.write_text("\n".join([HEADER, *lines]) + "\n")
        plans.write_text(PLANS)
        code = pick_policy.main([str(table), "--plans", str(plans), *arguments])
        return code, plans.read_text()

    return run


def table_of(text: str, name: str, index: int) -> list[list[int]]:
    return pick_policy.regimes_in(text)[name][1][index].regimes


def test_the_best_plan_wins_and_its_measurement_stands_behind_it(pick, capsys):
    lines = [row(4096, 16, 0.80, incumbent=True), row(4096, 32, 0.95), row(4096, 8, 0.70)]
    code, text = pick(lines, "--write")
    assert code == 0
    assert table_of(text, "kSoftmaxRegimes", 0) == [[512, 16], [4096, 32]]
    assert "{4096, 32},  // 4096: 95 % of a copy, 80 % before\n" in text
    assert "// Why these." in text and "kNormRegimes = {{{4096, 16}}" in text
    printed = capsys.readouterr().out
    assert "+        {4096, 32},  // 4096: 95 %" in printed and "-    {{512, 16}" in printed


def test_nothing_is_written_without_being_asked(pick, capsys):
    code, text = pick([row(4096, 16, 0.8, incumbent=True), row(4096, 32, 0.95)])
    assert code == 0 and text == PLANS and capsys.readouterr().out.startswith("--- a/plan.h")


def test_a_table_that_kernels_share_is_read_by_its_name():
    assert table_of(PLANS, "kNormRegimes", pick_policy.NARROW_TABLE) == [[4096, 8]]


@pytest.mark.parametrize("other, chosen", [(0.915, 16), (0.93, 32)])
def test_the_incumbent_stays_within_two_percent(pick, other, chosen):
    _, text = pick([row(4096, 16, 0.9, incumbent=True), row(4096, 32, other)], "--write")
    assert table_of(text, "kSoftmaxRegimes", 0)[-1] == [4096, chosen]


def test_the_worst_row_count_and_operator_decide(pick):
    lines = [
        *(row(4096, 16, 0.85, incumbent=True, rows=rows) for rows in (264, 1000)),
        *(row(4096, 32, share, rows=rows) for rows, share in ((264, 0.80), (1000, 0.99))),
        *(row(4096, 8, share, rows=rows) for rows, share in ((264, 0.90), (1000, 0.90))),
        row(4096, 16, 0.85, incumbent=True, op="log_softmax"),
        row(4096, 8, 0.89, op="log_softmax"),
        row(4096, 32, 0.99, op="log_softmax"),
    ]
    _, text = pick(lines, "--write")
    assert table_of(text, "kSoftmaxRegimes", 0)[-1] == [4096, 8]
    assert "// 4096: 89 % of a copy, 85 % before" in text


def test_a_plan_that_failed_or_was_not_measured_everywhere_never_wins(pick):
    lines = [
        *(row(4096, 16, 0.5, incumbent=True, rows=rows) for rows in (264, 1000)),
        row(4096, 8, 0.99, rows=1000),
        row(4096, 8, "differs from the incumbent", rows=264),
        row(4096, 32, 0.99, rows=1000),
    ]
    _, text = pick(lines, "--write")
    assert table_of(text, "kSoftmaxRegimes", 0) == table_of(PLANS, "kSoftmaxRegimes", 0)


def test_neighbours_with_the_same_plan_become_one_regime(pick):
    lines = [
        line
        for cols, now in ((512, 16), (1024, 32), (2048, 16), (4096, 16))
        for line in (
            row(cols, now, 0.7, incumbent=True),
            *(
                row(cols, other, 0.9 if other == 8 else 0.6)
                for other in (8, 16, 32)
                if other != now
            ),
        )
    ]
    _, text = pick(lines, "--write")
    assert table_of(text, "kSoftmaxRegimes", 0) == [[4096, 8]]


def test_there_are_no_more_regimes_than_the_table_has_room_for(pick):
    best = {64: 8, 128: 16, 256: 8, 512: 16, 1024: 32, 2048: 8, 4096: 16}
    lines = [
        row(cols, e, 0.9 if e == best[cols] else 0.89 if cols == 256 else 0.5, incumbent=e == 16)
        for cols in best
        for e in (8, 16, 32)
    ]
    _, text = pick(lines, "--write")
    table = table_of(text, "kSoftmaxRegimes", 0)
    assert len(table) <= 4
    ends = [regime[0] for regime in table]
    assert ends == sorted(set(ends)) and ends[-1] == 4096


def test_odd_lengths_decide_the_narrow_table(pick):
    lines = [
        row(577, 16, 0.3, incumbent=True, width=1),
        row(577, 4, 0.5, width=1),
        row(49, 16, 0.3, incumbent=True, width=1, dtype="float32"),
        row(49, 8, 0.6, width=1, dtype="float32"),
    ]
    _, text = pick(lines, "--write")
    assert table_of(text, "kSoftmaxRegimes", 2) == [[64, 8], [1024, 4], [8192, 16]]
    assert table_of(text, "kSoftmaxRegimes", 1) == table_of(PLANS, "kSoftmaxRegimes", 1)


def test_sizes_of_clusters_are_picked(pick):
    lines = [
        *(row(cols, 64, 0.7, incumbent=True, blocks=2) for cols in (32768,)),
        row(32768, 64, 0.8, blocks=4),
        row(65536, 64, 0.8, incumbent=True, blocks=4),
        row(65536, 64, 0.6, blocks=8),
        row(16384, 64, 0.7, incumbent=True),
        row(16384, 64, 0.9, blocks=2),
    ]
    _, text = pick(lines, "--write")
    expected = ["64, 8192,", "{", "{16384, 2},", "{65536, 4},", "{262144, 8},"]
    assert clusters_of(text, "kClustersOf64") == expected


def clusters_of(text: str, name: str) -> list[str]:
    """The lines of a table of clusters that was written anew, without its remarks."""
    lines = text[text.index(f"Clusters {name}") :].splitlines()[1:6]
    return [line.split("//")[0].strip() for line in lines]


def test_sizes_of_narrow_clusters_are_picked(pick):
    lines = [
        row(32767, 16, 0.6, incumbent=True, width=1, blocks=4),
        row(32767, 16, 0.8, width=1, blocks=8),
    ]
    _, text = pick(lines, "--write")
    expected = ["16, 8192,", "{", "{16384, 2},", "{131072, 8},", "},"]
    assert clusters_of(text, "kNarrowClusters") == expected
    assert "kClustersOf64 = {64, 16384, {" in text


def test_sizes_of_clusters_of_the_backward_pass_are_picked_from_partitions_of_each(pick):
    backward = {"op": "layer_norm", "direction": "backward"}
    lines = [
        row(16384, 16, 0.6, incumbent=True, blocks=2, partitions=64, **backward),
        row(16384, 16, 0.7, blocks=4, partitions=32, **backward),
        # Segments have elements too, and no cluster.
        row(65536, 16, 0.4, incumbent=True, blocks=8, partitions=16, **backward),
        row(65536, 16, 0.7, partitions=66, segment=8192, **backward),
    ]
    _, text = pick(lines, "--write")
    expected = ["16, 8192,", "{", "{32768, 4},", "{65536, 8},", "},"]
    assert clusters_of(text, "kNormBackwardClusters") == expected


def test_masked_rows_of_odd_lengths_decide_the_table_of_any_parts_in_both_directions(pick):
    lines = [
        line
        for direction, share in (("forward", 0.9), ("backward", 0.7))
        for line in (
            row(577, 8, 0.5, incumbent=True, op="causal_softmax", direction=direction, width=1),
            row(577, 16, share, op="causal_softmax", direction=direction, width=1),
        )
    ]
    _, text = pick(lines, "--write")
    assert table_of(text, "kAnyMaskedSoftmaxRegimes", 2) == [[1024, 16], [4096, 8]]
    assert "{1024, 16},  // 577: 70 % of a copy, 50 % before" in text
    assert table_of(text, "kMaskedSoftmaxRegimes", 2) == []


def test_short_masked_rows_with_kernels_of_their_own_decide_no_table_of_other_kernels(pick):
    plain = {"op": "causal_softmax", "width": 1}
    lines = [
        row(577, 20, 0.6, incumbent=True, fixed=32, **plain),
        row(577, 16, 0.9, **plain),
        row(2049, 8, 0.5, incumbent=True, **plain),
        row(2049, 16, 0.9, **plain),
    ]
    _, text = pick(lines, "--write")
    assert "577: " not in text and "2049: 90 % of a copy, 50 % before" in text


def test_a_soft_cap_decides_no_table(pick):
    lines = [row(4096, 16, 0.3, incumbent=True, op="capped_softmax")]
    code, text = pick([*lines, row(4096, 8, 0.9, op="capped_softmax")], "--write")
    assert code == 0 and text == PLANS


def test_a_kernel_that_is_compiled_for_its_threads_is_told_from_another_with_as_many(pick):
    lines = [
        row(2048, 16, 0.7, incumbent=True),
        row(2048, 64, 0.8),
        row(2048, 64, 0.9, fixed=32),
        row(4096, 16, 0.9, incumbent=True),
    ]
    _, text = pick(lines, "--write")
    table = table_of(text, "kSoftmaxRegimes", 0)
    assert table == [[512, 16], [1024, 32], [2048, 64, 32], [4096, 16]]


def test_threads_that_are_too_few_for_a_row_are_given_to_no_neighbour(pick):
    lines = [
        *(row(512, 16, 0.5, incumbent=True), row(512, 32, 0.9)),
        *(row(1024, 32, 0.5, incumbent=True), row(1024, 32, 0.9, fixed=32)),
        *(row(2048, 16, 0.5, incumbent=True), row(2048, 64, 0.9, fixed=32)),
        *(row(3072, 16, 0.5, incumbent=True), row(3072, 32, 0.6), row(3072, 8, 0.61)),
        *(row(4096, 16, 0.5, incumbent=True), row(4096, 32, 0.61), row(4096, 8, 0.6)),
    ]
    _, text = pick(lines, "--write")
    table = table_of(text, "kSoftmaxRegimes", 0)
    assert len(table) <= 4
    assert all(len(regime) == 2 or regime[1] * regime[2] >= regime[0] for regime in table)


def test_one_number_for_all_lengths_is_picked_by_its_worst_length(pick):
    lines = [
        line
        for cols, gain in ((1024, 1.2), (4096, 1.1))
        for line in (
            row(
                cols, 16, 0.7, incumbent=True, op="layer_norm", direction="backward", partitions=264
            ),
            row(cols, 16, 0.7 * gain, op="layer_norm", direction="backward", partitions=132),
            row(cols, 16, 0.6, op="layer_norm", direction="backward", partitions=528),
        )
    ]
    _, text = pick(lines, "--write")
    assert "kNormBackwardBlocks = 132;  // that hold whole rows" in text


def backward_block(cols: int, threads: int, share: float | str, rows: int = 1000) -> str:
    """A plan of a norm's backward pass, with partitions for a wave; the incumbent has 512
    threads."""
    return row(
        cols, 16, share, incumbent=threads == 512, op="layer_norm", direction="backward", rows=rows,
        partitions=132 * 512 // threads, block_threads=threads,
    )  # fmt: skip


def test_blocks_of_fewer_threads_are_shown_by_their_worst_case_and_stay(pick, capsys):
    lines = [
        *(backward_block(1024, *plan) for plan in ((512, 0.90), (256, 0.97), (128, 0.99))),
        *(backward_block(1024, *plan, 264) for plan in ((512, 0.80), (256, 0.91), (128, 0.70))),
        *(backward_block(4096, *plan) for plan in ((512, 0.90), (256, "CUDA error 701"))),
    ]
    fewer_partitions = {"op": "layer_norm", "direction": "backward", "partitions": 66}
    lines.append(row(1024, 16, 0.10, block_threads=512, **fewer_partitions))
    code, text = pick(lines, "--write")
    assert code == 0 and text == PLANS
    assert capsys.readouterr().out == (
        "# The share of a copy by the threads of a block, which stay as they are:\n"
        "# kNormBackwardRegimes, 16 bits, 1024 columns: 512 (now): 80 %, 256: 91 %, 128: 70 %\n"
    )


@pytest.mark.parametrize(
    "text, problem",
    [
        ("", "no column op, direction"),
        ("op,rows\nsoftmax,3\n", "no column direction, dtype"),
        (HEADER + "\n" + row(64, 16, 0.9)[:40] + "\n", r"tune.csv:2: the line has too few"),
        (
            HEADER + "\n" + row(64, 16, 0.9, op="gelu") + "\n",
            "tune.csv:2: op is 'gelu', wanted one",
        ),
        (HEADER + "\n" + row(64, 16, 0.9).replace(",64,", ",x,") + "\n", "tune.csv:2: invalid lit"),
    ],
    ids=["empty", "columns", "truncated", "op", "number"],
)
def test_a_bad_table_is_refused_by_its_line(tmp_path, capsys, text, problem):
    table, plans = tmp_path / "tune.csv", tmp_path / "plan.h"
    table.write_text(text)
    plans.write_text(PLANS)
    assert pick_policy.main([str(table), "--plans", str(plans), "--write"]) == 1
    printed = capsys.readouterr()
    assert problem in printed.err and printed.out == "" and plans.read_text() == PLANS


def test_a_missing_file_is_named(tmp_path, capsys):
    assert pick_policy.main([str(tmp_path / "none.csv")]) == 1
    assert "none.csv: No such file" in capsys.readouterr().err


def test_it_reads_the_shipped_tables():
    text = pick_policy.PLANS.read_text()
    assert set(pick_policy.REGIMES) <= set(pick_policy.regimes_in(text))
    assert pick_policy.picked(text, []) == text
    assert pick_policy.constant_in(text, "kRowBlockThreads") == pick_policy.BLOCK_THREADS
