"""tools/pick_policy.py on measurements that are made up."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pick_policy
import pytest

HEADER = (
    "op,direction,dtype,rows,cols,width,elements,threads,row_threads,blocks,partitions,segment,"
    "fixed,is_incumbent,median_us,copy_us,share_of_copy,bytes,difference,error"
)
PLANS = """\
CONSTANT(kSegmentCols, 4096)
// Why these.
REGISTERS(kSoftmaxForward, kWide16, 512, 16, 0)
REGISTERS(kSoftmaxForward, kWide16, 1024, 32, 0)
REGISTERS(kSoftmaxForward, kWide16, 16384, 16, 0)
CLUSTER(kSoftmaxForward, kWide16, 32768, 64, 2)
CLUSTER(kSoftmaxForward, kWide16, 65536, 64, 4)
CLUSTER(kSoftmaxForward, kWide16, 262144, 64, 8)
REGISTERS(kSoftmaxForward, kWide16, 32768, 16, 0)
SEGMENTS(kSoftmaxForward, kWide16, 0)
REGISTERS(kSoftmaxForward, kWide32, 4096, 16, 0)
REGISTERS(kSoftmaxForward, kUnaligned, 8192, 16, 0)
CLUSTER(kSoftmaxForward, kSingle, 16384, 16, 2)
CLUSTER(kSoftmaxForward, kSingle, 32768, 16, 4)
CLUSTER(kSoftmaxForward, kSingle, 131072, 16, 8)
REGISTERS(kMaskedForward, kWide16, 4096, 16, 0)
REGISTERS(kAnyMasked, kSingle, 4096, 8, 0)
REGISTERS(kNormBackward, kWide16, 8192, 16, 0)
CLUSTER(kNormBackward, kWide16, 16384, 16, 2)
CLUSTER(kNormBackward, kWide16, 32768, 16, 4)
CLUSTER(kNormBackward, kWide16, 65536, 16, 8)
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
    least = max(1, 32 // bytes_of_vector)
    threads = fixed or max(least, 1 << (-(-cols // blocks) // (elements or 32)).bit_length() - 1)
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
        table, plans = tmp_path / "tune.csv", tmp_path / "plans.def"
        table.write_text("\n".join([HEADER, *lines]) + "\n")
        plans.write_text(PLANS)
        code = pick_policy.main([str(table), "--plans", str(plans), *arguments])
        return code, plans.read_text()

    return run


Lines = list[tuple[str, int, int, int]]


def lines_of(text: str, pass_: str, vectors: str) -> Lines:
    """The lines of a pass and its vectors, without their remarks."""
    found = filter(None, map(pick_policy.line_of, text.splitlines()))
    return [
        (line.macro[0], line.cols, line.elements, line.last)
        for line in found
        if line.group == (pass_, vectors)
    ]


def softmax_lines(text: str, vectors: str = "kWide16") -> Lines:
    return lines_of(text, "kSoftmaxForward", vectors)


#: The lines of rows in clusters, and of one block beside them.
CLUSTERS = [("C", 32768, 64, 2), ("C", 65536, 64, 4), ("C", 262144, 64, 8)]
BLOCK = [("R", 32768, 16, 0)]


def test_the_best_plan_wins_and_its_measurement_stands_behind_it(pick, capsys):
    lines = [row(16384, 16, 0.80, incumbent=True), row(16384, 32, 0.95), row(16384, 8, 0.70)]
    code, text = pick(lines, "--write")
    assert code == 0
    assert softmax_lines(text)[:2] == [("R", 512, 16, 0), ("R", 16384, 32, 0)]
    line = (
        "REGISTERS(kSoftmaxForward, kWide16, 16384, 32, 0)  // 16384: 95 % of a copy, 80 % before"
    )
    assert line in text
    assert "// Why these." in text and softmax_lines(text, "kWide32") == [("R", 4096, 16, 0)]
    assert f"+{line}" in capsys.readouterr().out


def test_nothing_is_written_without_being_asked(pick, capsys):
    code, text = pick([row(4096, 16, 0.8, incumbent=True), row(4096, 32, 0.95)])
    assert code == 0 and text == PLANS and capsys.readouterr().out.startswith("--- a/plans.def")


@pytest.mark.parametrize("other, chosen", [(0.915, 16), (0.93, 8)])
def test_the_incumbent_stays_within_two_percent(pick, other, chosen):
    _, text = pick([row(16384, 16, 0.9, incumbent=True), row(16384, 8, other)], "--write")
    assert softmax_lines(text)[2] == ("R", 16384, chosen, 0)


def test_the_mean_over_row_counts_and_operators_decides(pick):
    lines = [
        *(row(4096, 16, 0.85, incumbent=True, rows=rows) for rows in (264, 1000)),
        *(row(4096, 32, share, rows=rows) for rows, share in ((264, 0.80), (1000, 0.99))),
        *(row(4096, 8, share, rows=rows) for rows, share in ((264, 0.90), (1000, 0.90))),
        row(4096, 16, 0.85, incumbent=True, op="log_softmax"),
        row(4096, 8, 0.89, op="log_softmax"),
        row(4096, 32, 0.99, op="log_softmax"),
    ]
    _, text = pick(lines, "--write")
    assert ("R", 4096, 32, 0) in softmax_lines(text)
    assert "// 4096: 92 % of a copy, 85 % before" in text


def test_a_plan_that_failed_or_was_not_measured_everywhere_never_wins(pick):
    lines = [
        *(row(16384, 16, 0.5, incumbent=True, rows=rows) for rows in (264, 1000)),
        row(16384, 8, 0.99, rows=1000),
        row(16384, 8, "differs from the incumbent", rows=264),
        row(16384, 32, 0.99, rows=1000),
    ]
    _, text = pick(lines, "--write")
    assert softmax_lines(text) == softmax_lines(PLANS)


def test_neighbours_with_the_same_plan_become_one_line(pick):
    lines = [
        line
        for cols, now in ((512, 16), (1024, 32), (2048, 16), (16384, 16))
        for line in (row(cols, now, 0.7, incumbent=True), row(cols, 8, 0.9))
    ]
    _, text = pick(lines, "--write")
    assert softmax_lines(text) == [("R", 16384, 8, 0), *CLUSTERS, *BLOCK]


def test_odd_lengths_decide_for_the_lengths_beside_them(pick):
    lines = [
        row(577, 16, 0.3, incumbent=True, width=1),
        row(577, 4, 0.5, width=1),
        row(49, 16, 0.3, incumbent=True, width=1, dtype="float32"),
        row(49, 8, 0.6, width=1, dtype="float32"),
    ]
    _, text = pick(lines, "--write")
    expected = [("R", 64, 8, 0), ("R", 1024, 4, 0), ("R", 8192, 16, 0)]
    assert softmax_lines(text, "kUnaligned")[:3] == expected
    assert softmax_lines(text, "kWide32") == [("R", 4096, 16, 0)]


def test_sizes_of_clusters_are_picked_and_one_block_stays_for_devices_without_them(pick):
    lines = [
        row(32768, 64, 0.7, incumbent=True, blocks=2),
        row(32768, 64, 0.8, blocks=4),
        row(65536, 64, 0.8, incumbent=True, blocks=4),
        row(65536, 64, 0.6, blocks=8),
        row(16384, 16, 0.7, incumbent=True),
        row(16384, 64, 0.9, blocks=2),
    ]
    _, text = pick(lines, "--write")
    assert softmax_lines(text) == [
        ("R", 512, 16, 0), ("R", 1024, 32, 0), ("R", 8192, 16, 0), ("C", 16384, 64, 2),
        ("C", 65536, 64, 4), ("C", 262144, 64, 8), ("R", 16384, 16, 0), ("R", 32768, 16, 0),
    ]  # fmt: skip


def test_sizes_of_clusters_of_unaligned_rows_are_picked(pick):
    lines = [
        row(32767, 16, 0.6, incumbent=True, width=1, blocks=4),
        row(32767, 16, 0.8, width=1, blocks=8),
    ]
    _, text = pick(lines, "--write")
    expected = [("R", 8192, 16, 0), ("C", 16384, 16, 2), ("C", 131072, 16, 8)]
    assert softmax_lines(text, "kUnaligned") == expected
    assert softmax_lines(text) == softmax_lines(PLANS)


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
    expected = [("R", 8192, 16, 0), ("C", 32768, 16, 4), ("C", 65536, 16, 8)]
    assert lines_of(text, "kNormBackward", "kWide16") == expected


def test_the_incumbent_has_its_own_share_beside_a_cluster_of_its_size_with_other_partitions(pick):
    backward = {"op": "layer_norm", "direction": "backward"}
    lines = [
        row(32768, 16, 0.9, incumbent=True, blocks=4, partitions=128, **backward),
        row(32768, 16, 0.7, blocks=4, partitions=64, **backward),
        row(32768, 16, 0.8, blocks=8, partitions=64, **backward),
    ]
    _, text = pick(lines, "--write")
    found, before = (lines_of(each, "kNormBackward", "kWide16") for each in (text, PLANS))
    assert found == before and "32768: 90 % of a copy" in text


def test_masked_rows_of_odd_lengths_decide_for_any_terms_in_both_directions(pick):
    lines = [
        line
        for direction, share in (("forward", 0.9), ("backward", 0.7))
        for line in (
            row(577, 8, 0.5, incumbent=True, op="causal_softmax", direction=direction, width=1),
            row(577, 16, share, op="causal_softmax", direction=direction, width=1),
        )
    ]
    _, text = pick(lines, "--write")
    assert lines_of(text, "kAnyMasked", "kUnaligned") == [("R", 1024, 16, 0), ("R", 4096, 8, 0)]
    assert "1024, 16, 0)  // 577: 79 % of a copy, 50 % before" in text
    assert lines_of(text, "kMaskedForward", "kWide16") == [("R", 4096, 16, 0)]


def test_short_masked_rows_with_kernels_of_their_own_decide_no_line_of_other_kernels(pick):
    plain = {"op": "causal_softmax", "width": 1}
    lines = [
        row(577, 20, 0.6, incumbent=True, fixed=32, **plain),
        row(577, 16, 0.9, **plain),
        row(2049, 8, 0.5, incumbent=True, **plain),
        row(2049, 16, 0.9, **plain),
    ]
    _, text = pick(lines, "--write")
    assert "577: " not in text and "2049: 90 % of a copy, 50 % before" in text


def test_a_soft_cap_decides_nothing(pick):
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
    assert ("R", 2048, 64, 32) in softmax_lines(text)
    assert ("R", 16384, 16, 0) in softmax_lines(text)


def test_a_line_has_no_more_columns_than_its_fixed_threads_hold(pick):
    lines = [row(577, 16, 0.5, incumbent=True, width=1), row(577, 20, 0.9, width=1, fixed=32)]
    _, text = pick(lines, "--write")
    assert softmax_lines(text, "kUnaligned")[:2] == [("R", 640, 20, 32), ("R", 8192, 16, 0)]


def test_one_number_for_all_lengths_is_picked_by_its_worst_length(pick):
    lines = [
        line
        for cols, gain in ((1 << 20, 1.2), (1 << 21, 1.1))
        for line in (
            row(cols, 0, 0.7, incumbent=True, segment=4096),
            row(cols, 0, 0.7 * gain, segment=8192),
            row(cols, 0, 0.6, segment=2048),
        )
    ]
    _, text = pick(lines, "--write")
    assert "CONSTANT(kSegmentCols, 8192)" in text


BAD_LINE = "tune.csv:2: tune has not written this line, or not its end: "


@pytest.mark.parametrize(
    "text, problem",
    [
        ("", "no column op, direction"),
        ("op,rows\nsoftmax,3\n", "no column direction, dtype"),
        (HEADER + "\n" + row(64, 16, 0.9)[:40] + "\n", f"{BAD_LINE}{row(64, 16, 0.9)[:40]}\n"),
        (HEADER + "\n" + row(64, 16, 0.9, op="gelu") + "\n", f"{BAD_LINE}gelu,"),
        (HEADER + "\n" + row(64, 16, 0.9, direction="up") + "\n", f"{BAD_LINE}softmax,up,"),
        (HEADER + "\n" + row(64, 16, 0.9).replace(",64,", ",x,") + "\n", f"{BAD_LINE}softmax,"),
        (HEADER + "\n" + row(64, 16, 0.9).replace(",0.9,", ",,") + "\n", f"{BAD_LINE}softmax,"),
        (HEADER + "\n" + row(64, 16, 0.9) + ",x\n", f"{BAD_LINE}softmax,"),
    ],
    ids=["empty", "columns", "truncated", "op", "direction", "number", "share", "long"],
)
def test_a_bad_table_is_refused_by_its_line(tmp_path, capsys, text, problem):
    table, plans = tmp_path / "tune.csv", tmp_path / "plans.def"
    table.write_text(text)
    plans.write_text(PLANS)
    assert pick_policy.main([str(table), "--plans", str(plans), "--write"]) == 1
    printed = capsys.readouterr()
    assert re.search(problem, printed.err) and printed.out == "" and plans.read_text() == PLANS


def test_a_missing_file_is_named(tmp_path, capsys):
    assert pick_policy.main([str(tmp_path / "none.csv")]) == 1
    assert "none.csv: No such file" in capsys.readouterr().err


def test_it_reads_the_shipped_list(pick, capsys):
    text = pick_policy.PLANS.read_text()
    groups = {line.group for line in map(pick_policy.line_of, text.splitlines()) if line}
    passes = {
        f"{name}{way}" for name in pick_policy.PASSES.values() for way in ("Forward", "Backward")
    }
    assert passes <= {pass_ for pass_, _ in groups}
    unplanned = row(64, 16, 0.9, op="spatial_softmax", incumbent=True)
    assert pick([unplanned], "--plans", str(pick_policy.PLANS)) == (0, PLANS)
    assert capsys.readouterr().out == ""
    assert f"CONSTANT(kRowBlockThreads, {pick_policy.BLOCK_THREADS})" in text
