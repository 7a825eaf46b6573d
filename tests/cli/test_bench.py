"""`python -m fusedops bench` measures the providers of a case in turns, and writes the times."""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from collections import Counter
from functools import partial
from itertools import pairwise, permutations, product
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from processes import run_python
from rich.console import Console

from fusedops.cli import options, timing
from fusedops.cli.bench import arguments, cases, measurement, report
from fusedops.cli.bench import command as bench
from fusedops.cli.bench.operators import OPERATORS
from fusedops.cli.errors import UserError

COLUMNS = (
    "op,direction,dtype,rows,cols,device,threads,provider,median_ms,spread,bytes,"
    "share_of_copy,speedup_over_eager,speedup_over_best_peer"
).split(",")


def case(op="softmax", direction="forward", dtype=torch.float32, shape=(8, 16)) -> cases.Case:
    operator = OPERATORS[op]
    shape = (1,) * (operator.layout.dimensions - len(shape)) + shape
    return cases.Case(op, operator, direction, dtype, shape, device="cpu")


def parsed(command: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    arguments.add_arguments(parser)
    return parser.parse_args(command.split())


def chosen(command: str) -> list[cases.Case]:
    return list(bench.chosen_cases(parsed(command), bench.QUICK.shapes))


@pytest.mark.slow("the program starts twice, and Inductor compiles")
def test_csv_holds_one_row_for_each_measurement(tmp_path):
    file = tmp_path / "new" / "bench.csv"
    command = "bench --quick --op layer_norm --pass forward --dtype float32 --shape 64x32"
    finished = run_python("-m", "fusedops", *command.split(), "--csv", str(file))
    assert finished.returncode == 0, finished.stderr
    assert "MALLOC_MMAP_MAX_=0" in finished.stderr
    assert "layer_norm" in finished.stdout and "64x32" in finished.stdout
    with file.open() as lines:
        rows = list(csv.DictReader(lines))
    assert list(rows[0]) == COLUMNS
    assert [row["provider"] for row in rows] == ["copy", "eager", "inductor", "fusedops"]
    assert all(float(row["median_ms"]) > 0 and row["threads"] == "1" for row in rows)
    assert {row["bytes"] for row in rows} == {str(2 * 64 * 32 * 4)}


def test_an_operator_is_chosen_with_all_its_variants_or_by_one():
    assert {this.op for this in chosen("--op masked_softmax softmax_dropout")} == {
        "masked_softmax[additive]",
        "masked_softmax[padding]",
        "masked_softmax[tenth hidden]",
        "masked_softmax[half hidden]",
        "masked_softmax[half padded]",
        "masked_softmax[causal]",
        "masked_softmax[causal+bias]",
        "masked_softmax[causal+softcap]",
        "softmax_dropout[causal]",
    }
    assert {this.op for this in chosen("--op masked_softmax[causal] softmax")} == {
        "masked_softmax[causal]",
        "softmax",
    }
    assert {this.op for this in chosen("")} == OPERATORS.keys()


def test_attention_is_measured_on_scores_and_the_rest_on_matrices():
    assert {this.shape for this in chosen("--op masked_softmax")} == {
        (8, 12, 128, 128),
        (8, 12, 512, 512),
    }
    (matrix,) = chosen("--op softmax --shape 64x32 --pass forward --dtype float32")
    (scores,) = chosen("--op softmax_dropout --shape 64x32 --pass forward --dtype float32")
    assert matrix.shape == (64, 32) and scores.shape == (1, 1, 64, 32)
    assert (scores.rows, scores.cols) == (64, 32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("op", OPERATORS)
def test_fusedops_and_eager_agree_on_every_case(op, dtype):
    """The results of rows of one or two numbers are zero but for rounding, or NaN in eager too."""
    shapes = (2, 3, 32, 32), (1, 1), (8, 1), (1, 8), (3, 2)
    for direction, shape in product(("forward", "backward"), shapes):
        this = case(op, direction, dtype, shape)
        inputs, operator = this.inputs(), this.operator
        functions = {"eager": operator.eager, "fusedops": operator.fused}
        calls = {name: this.call(function, *inputs) for name, function in functions.items()}
        measurement.check_all(this, inputs, calls)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(
    "op",
    [
        "masked_softmax[causal+bias]",
        "masked_softmax[causal+softcap]",
        "softmax_dropout[causal]",
    ],
)
def test_compiled_graphs_of_both_can_be_timed_again_and_again(op, direction, monkeypatch):
    captured = []
    monkeypatch.setattr(measurement, "compiled", lambda f: captured.append(f) or cases.compiled(f))
    this = case(op, direction, shape=(2, 3, 32, 32))
    calls = measurement.prepare(this)
    assert captured == [this.operator.eager, this.operator.fused]
    assert list(calls) == ["copy", "eager", "inductor", "fusedops"]
    for call in calls.values():
        call()
        call()


def test_dropout_at_another_rate_is_not_timed():
    this = case("softmax_dropout[causal]", shape=(2, 3, 32, 32))
    x, future = inputs = this.inputs()
    survivors = this.operator.survivors(x, future)
    check = partial(measurement.check_keep_rate, this, this.operator.survivors)
    check("right", F.dropout(survivors, 0.1), inputs)
    with pytest.raises(RuntimeError, match=r"'wrong' kept \d+ of 3168, wanted about 2851"):
        check("wrong", F.dropout(survivors, 0.2), inputs)


def test_dropout_that_does_not_rescale_is_not_timed():
    this = case("softmax_dropout[causal]", shape=(2, 3, 32, 32))
    x, future = inputs = this.inputs()
    unscaled = F.dropout(this.operator.survivors(x, future), 0.1) * 0.9
    wrong = partial(lambda: unscaled)
    with pytest.raises(RuntimeError, match="differs from eager by 1.0e-01"):
        measurement.check_all(this, inputs, {"eager": wrong})


def test_a_backward_moves_three_matrices_and_a_forward_two():
    matrix = 8 * 16 * 4
    assert case(direction="forward").bytes == 2 * matrix
    assert case(direction="backward").bytes == 3 * matrix


def test_scores_that_causality_hides_are_written_but_need_not_be_read():
    matrix = 8 * 16 * 4
    assert case("masked_softmax[causal]", "forward").bytes == (1 + 1 / 2) * matrix
    assert case("masked_softmax[causal]", "backward").bytes == (1 + 2 / 2) * matrix
    assert case("masked_softmax[causal+softcap]", "backward").bytes == (1 + 3 / 2) * matrix


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_kernel_that_leaves_out_the_soft_cap_is_not_timed(direction):
    this = case("masked_softmax[causal+softcap]", direction, shape=(2, 3, 32, 32))
    inputs, uncapped = this.inputs(), OPERATORS["masked_softmax[causal]"].fused
    functions = {"eager": this.operator.eager, "uncapped": uncapped}
    calls = {name: this.call(function, *inputs) for name, function in functions.items()}
    with pytest.raises(RuntimeError, match="'uncapped' differs from eager"):
        measurement.check_all(this, inputs, calls)


@pytest.mark.parametrize(
    ("cols", "actual", "expected", "difference"),
    [(16, 0.0, 1.0, "1.0e.00"), (16, torch.nan, 1.0, "nan"), (1, 1.0, 0.0, "1.0e.00")],
    ids=["wrong", "not a number", "of one column"],
)
def test_a_wrong_result_is_not_timed(cols, actual, expected, difference):
    actual, expected = torch.full((8, cols), actual), torch.full((8, cols), expected)
    with pytest.raises(RuntimeError, match=f"'fast' differs from eager by {difference}"):
        measurement.check_agreement(case(shape=(8, cols)), "fast", actual, expected)


class TellingClock:
    """Reports the given time for each call, which returns its name, and logs the calls."""

    def __init__(self, milliseconds, overhead_ms=0.0):
        self.milliseconds, self.overhead_ms, self.log = milliseconds, overhead_ms, []
        self.calls = {name: (lambda name=name: name) for name in milliseconds}

    def __call__(self, call, repeats):
        self.log.append((call(), repeats))
        return self.milliseconds[call()]


def test_calls_take_turns_in_slots_of_equal_length():
    clock = TellingClock({"slow": 5.0, "quick": 2.0})
    times = timing.interleave(clock.calls, clock, rounds=2, slot_ms=10)
    first, second = ("slow", 2), ("quick", 5)
    assert clock.log == [("slow", 1), ("quick", 1), first, second, second, first]
    assert times == {"slow": [5.0, 5.0], "quick": [2.0, 2.0]}


def test_time_that_the_clock_itself_takes_counts_towards_the_slot():
    clock = TellingClock({"quick": 0.01}, overhead_ms=0.99)
    timing.interleave(clock.calls, clock, rounds=1, slot_ms=10)
    assert clock.log == [("quick", 1), ("quick", 10)]


@pytest.mark.parametrize("names", ["ab", "abc", "abcd", "abcde"])
def test_each_call_follows_each_other_call_equally_often(names):
    orders = timing.balanced_orders(names)
    assert all(sorted(order) == list(names) for order in orders)
    follows = Counter(pair for order in orders for pair in pairwise(order))
    assert follows.keys() == set(permutations(names, 2))
    assert len(set(follows.values())) == 1


def test_a_disturbance_of_a_whole_round_leaves_the_ratio_alone():
    assert timing.median_ratio([2, 20, 2], [1, 10, 1]) == 2


def test_spread_is_the_interquartile_range_over_the_median():
    assert timing.relative_spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)
    assert timing.relative_spread([4.0]) == 0


def test_providers_are_related_to_the_copy_to_eager_and_to_the_fastest_peer():
    clock = TellingClock({"copy": 1.0, "eager": 8.0, "inductor": 4.0, "fusedops": 2.0})
    measured = measurement.measure(case(), clock.calls, clock, 3, 1.0)
    assert all(list(row) == COLUMNS for row in measured)
    rows = {row["provider"]: row for row in measured}
    ratios = ("share_of_copy", "speedup_over_eager", "speedup_over_best_peer", "spread")
    assert [rows["fusedops"][name] for name in ratios] == [0.5, 4, 2, 0]
    assert rows["eager"]["speedup_over_best_peer"] == 0.5


def test_a_shape_is_written_as_the_sizes_of_its_dimensions():
    assert arguments.parse_shape("4096x1024") == (4096, 1024)
    assert arguments.parse_shape("8x12x128x128") == (8, 12, 128, 128)


@pytest.mark.parametrize(("gpus", "device"), [(0, "cuda"), (0, "cuda:0"), (2, "cuda:2")])
def test_a_missing_gpu_is_refused_before_anything_runs(monkeypatch, gpus, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(argparse.ArgumentTypeError, match="but torch sees (no GPU|only 2)"):
        options.device(device)
    for existing in ["cpu", "cuda", "cuda:1"][: 1 + gpus]:
        assert options.device(existing) == torch.device(existing)


def test_a_case_that_is_named_twice_is_measured_once():
    twice = "--op softmax softmax --dtype float32 float32 --pass forward forward --shape 2x3 2x3"
    assert len(chosen(twice)) == 1


def test_a_case_that_fails_does_not_stop_the_others(capsys):
    def measure(this, say):
        if this == "bad":
            raise RuntimeError("no\ncode")
        if this == "interrupt":
            raise KeyboardInterrupt
        return [this]

    assert bench.measure_each(["one", "bad", "two"], measure) == (["one", "two"], ["bad"], False)
    assert bench.measure_each(["one", "interrupt", "two"], measure) == (["one"], [], True)
    with pytest.raises(KeyboardInterrupt):
        bench.measure_each(["interrupt", "two"], measure)
    assert "bad is left out: RuntimeError" in capsys.readouterr().err
    with pytest.raises(UserError, match="nothing was measured"):
        bench.measure_each(["bad"], measure)


def a_row(**changes) -> dict[str, object]:
    row = dict(
        op="softmax", direction="forward", dtype="float32", rows=2, cols=3, device="cpu",
        threads=1, provider="fusedops", median_ms=1.0, spread=0.0, bytes=1, share_of_copy=1.0,
        speedup_over_eager=2.0, speedup_over_best_peer=2.0,
    )  # fmt: skip
    return row | changes


@pytest.fixture
def measured(monkeypatch):
    """Replaces the measurements: three providers, and one case left out."""
    rows = [a_row(provider=name) for name in ("copy", "eager", "inductor", "fusedops")]
    monkeypatch.setattr(bench, "keep_freed_memory", lambda: None)
    measured = bench.Measured(rows, left_out=["a case"], interrupted=False)
    monkeypatch.setattr(bench, "measure_each", lambda *_: measured)
    return measured


def test_the_program_restarts_once_with_an_allocator_that_keeps_memory(monkeypatch, capsys):
    started = []
    monkeypatch.setattr(os, "execve", lambda *arguments: started.append(arguments))
    for name in bench.ALLOCATOR_SETTINGS:
        monkeypatch.delenv(name, raising=False)
    bench.keep_freed_memory()
    ((program, arguments, environment),) = started
    assert (program, arguments[0]) == (sys.executable, sys.executable)
    assert environment.items() >= bench.ALLOCATOR_SETTINGS.items()
    assert capsys.readouterr().err.startswith("restarting with MALLOC_MMAP_MAX_=0")
    for name, value in bench.ALLOCATOR_SETTINGS.items():
        monkeypatch.setenv(name, value)
    bench.keep_freed_memory()
    assert len(started) == 1


class RecordedEvent:
    """Replaces torch.cuda.Event: every call takes two milliseconds."""

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        """Does nothing, where a real event would be enqueued."""

    def elapsed_time(self, end):
        return 2.0


def test_a_gpu_is_timed_by_events_around_each_call(monkeypatch):
    properties = SimpleNamespace(L2_cache_size=64)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", RecordedEvent)
    clock, calls = timing.CudaClock("cpu"), []
    assert clock(lambda: calls.append(1), repeats=3) == 2.0
    assert len(calls) == 4 and clock.overhead_ms >= 0  # the first is not timed
    flushed = []
    clock._flush = SimpleNamespace(zero_=lambda: flushed.append(len(calls)))
    clock._flush_ms, calls = 1.0, []
    assert clock(lambda: calls.append(time.sleep(0.005)), repeats=2) == 2.0
    assert flushed.count(1) == flushed.count(2) >= 10  # a GPU is busy for twice a call's launch
    assert isinstance(timing.clock_for("cpu"), timing.WallClock)


def test_results_are_written_before_they_are_shown_and_a_case_left_out_is_a_failure(
    tmp_path, measured, monkeypatch, command
):
    file, charts = tmp_path / "new" / "b.csv", tmp_path / "charts"
    written = ["--csv", str(file), "--plot", str(charts)]
    ended = command("bench", "--op", "softmax", "--shape", "2x3", *written)
    assert ended.code == 1 and "softmax" in ended.out
    assert len(file.read_text().splitlines()) == 5
    assert [chart.name for chart in charts.iterdir()] == ["softmax_forward_float32.png"]

    def broken(*args):
        raise BrokenPipeError

    file.unlink()
    monkeypatch.setattr(bench, "print_tables", broken)
    assert command("bench", "--op", "softmax", "--shape", "2x3", *written).code == 1
    assert file.exists()


def test_the_results_before_an_interrupt_are_written(tmp_path, measured, monkeypatch, command):
    file = tmp_path / "b.csv"
    monkeypatch.setattr(bench, "measure_each", lambda *_: measured._replace(interrupted=True))
    ended = command("bench", "--op", "softmax", "--csv", str(file))
    assert ended.code == 130 and ended.err.splitlines()[-1].endswith("bench: interrupted")
    assert len(file.read_text().splitlines()) == 5


def test_each_variant_has_its_own_mean_for_each_row_length(capsys):
    measured = [
        a_row(op=f"masked_softmax[{variant}]", cols=cols, speedup_over_eager=speedup)
        for variant, speedup in (("causal", 2.0), ("padding", 8.0))
        for cols in (128, 512)
    ]
    report.print_tables(pd.DataFrame(measured), Console(width=160))
    lines = capsys.readouterr().out.partition("over the variants, by row length")[2].splitlines()
    rows = [line.replace("│", " ").split() for line in lines if "masked_softmax" in line]
    assert [row[:4] + row[5:6] for row in rows] == [
        ["masked_softmax", "forward", "float32", "128", "4.00"],
        ["masked_softmax", "forward", "float32", "512", "4.00"],
    ]
