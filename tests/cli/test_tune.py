"""`python -m fusedops tune` keeps to its time, and writes a table that is used at once."""

from __future__ import annotations

import csv
import time
from dataclasses import replace

import pytest
import torch
import torch._inductor.config as inductor_config

from fusedops.cli.bench import command as bench
from fusedops.cli.tune import command as tune
from fusedops.cli.tune import graphs, measurement
from fusedops.cli.tune.graphs import Graph
from fusedops.graph.policy import costs
from fusedops.graph.policy.machine import here

CPU = torch.device("cpu")
SOFTMAX = Graph("softmax", "inference", torch.float32, (8, 32), 16, "cpu", threads=1)


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """A user's cache, with the allocator's settings in place, so that no program restarts."""
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path / "cache"))
    for name, value in bench.ALLOCATOR_SETTINGS.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "cache" / "tables"


@pytest.fixture
def unsteady(monkeypatch):
    """Makes every measurement count, as other tests run at the same time."""
    monkeypatch.setattr(measurement, "STEADY", 1.0)


@pytest.fixture
def measured(monkeypatch, cache):
    """measured(ours): Inductor takes 2 ms for a graph, fusedops ``ours``; nothing is compiled."""

    def pretend(ours):
        def measure(graph):
            return [costs.Cost(2.0, ours, 1e-7, rows, graph.cols) for rows in graph.rows]

        monkeypatch.setattr(tune, "compile_ahead", lambda graphs, deadline: iter(()))
        monkeypatch.setattr(tune, "measure", measure)

    pretend(1.0)
    return pretend


def test_a_table_is_used_as_soon_as_it_is_measured(monkeypatch, cache, unsteady, command):
    trained = replace(SOFTMAX, op="add_layer_norm", mode="training", dtype=torch.bfloat16)
    monkeypatch.setattr(tune, "all_graphs", lambda device, threads: [SOFTMAX, trained])
    monkeypatch.setattr(tune, "compile_ahead", lambda graphs, deadline: iter(()))
    ended = command("tune", "--threads", "1")
    assert ended.code == 0, ended.err
    (file,) = cache.iterdir()
    assert str(file) in ended.out and "4 sizes measured" in ended.out
    first, *_ = costs.tables_for(replace(here(CPU), threads=1))
    assert first.name == file.stem and first.origin == costs.TUNED
    for graph in (SOFTMAX, trained):
        for rows in graph.rows:
            cost = first.cost(graph.op, graph.mode, costs.Size(rows, 16, graph.dtype))
            assert (cost.rows, cost.cols) == (rows, 16)
            assert 0 < cost.ours + cost.call < 1e3 and 0 < cost.inductor + cost.call < 1e3
            assert cost.ms_per_byte > 0


def test_each_number_of_threads_has_a_file_of_its_own(measured, cache, command):
    assert command("tune", "--threads", "1", "2").code == 0
    tables = [table for file in cache.iterdir() for table in costs.read(file, costs.TUNED)]
    assert sorted(table.machine.threads for table in tables) == [1, 2]
    measured(1.5)
    assert command("tune", "--threads", "2").code == 0
    size = costs.Size(1024, 512, torch.float32)
    for threads, ours in ((1, 1.0), (2, 1.5)):
        table = costs.tables_for(replace(here(CPU), threads=threads))[0]
        cost = table.cost("masked_softmax[additive]", "inference", size)
        assert cost.ours + cost.call == ours


def test_one_file_to_ship_has_all_numbers_of_threads(measured, tmp_path, cache, command):
    file = tmp_path / "new" / "cpu.csv"
    assert command("tune", "--threads", "1", "2", "--output", str(file)).code == 0
    assert [table.machine.threads for table in costs.read(file, costs.SHIPPED)] == [1, 2]
    assert not cache.exists()
    with file.open() as lines:
        assert next(csv.reader(lines)) == list(costs.COLUMNS)


def test_when_the_time_is_up_the_rest_is_left_out_and_named(measured, cache, command, monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    ended = command("tune", "--threads", "1", "--budget", "5")
    assert ended.code == 0
    assert "left out, for the time was up: " in ended.out and " graphs, from " in ended.out
    (table,) = costs.read(next(cache.iterdir()), costs.TUNED)
    assert 0 < len(table.costs) < 10


def test_a_graph_that_fails_is_named_and_does_not_stop_the_others(
    measured, cache, command, monkeypatch
):
    measure = tune.measure

    def fail_at_norms(graph):
        if "norm" in graph.op:
            raise RuntimeError("no\ncode")
        return measure(graph)

    monkeypatch.setattr(tune, "measure", fail_at_norms)
    ended = command("tune", "--threads", "1")
    assert ended.code == 1 and "layer_norm inference float32, rows of 768, 1 thread" in ended.err
    (table,) = costs.read(next(cache.iterdir()), costs.TUNED)
    assert {op for op, *_ in table.costs} == {
        *graphs.SCORES,
        *graphs.LOSSES,
        "softmax",
        "log_softmax",
        costs.ATTENTION,
    }


def test_times_of_threads_that_waited_for_a_busy_core_do_not_count(
    measured, cache, command, monkeypatch
):
    measure = tune.measure

    def wait(graph):
        costs = list(measure(graph))
        disturbed = graph.threads > 1 and graph.op == "softmax"
        return [replace(cost, inductor=20.0) for cost in costs] if disturbed else costs

    monkeypatch.setattr(tune, "measure", wait)
    ended = command("tune", "--threads", "1", "2")
    assert ended.code == 0 and "for other programs disturbed them: 24 sizes" in ended.out
    by_threads = {
        table.machine.threads: {op for op, *_ in table.costs}
        for file in cache.iterdir()
        for table in costs.read(file, costs.TUNED)
    }
    assert by_threads[1] - by_threads[2] == {"softmax"}


class Waiting:
    """A clock by which a call takes the given times, one after the other."""

    overhead_ms = 0.0

    def __init__(self, *times):
        self.times = iter(times)

    def __call__(self, call, repeats):
        return next(self.times, 1.0)


def test_a_time_counts_once_it_was_measured_twice():
    calls = {"inductor": lambda: None}
    assert measurement.least_times(calls, Waiting(1, 1, 9, 7, 1.02)) == {"inductor": 1.0}
    growing = Waiting(*(2.0**exponent for exponent in range(200)))
    assert measurement.least_times(calls, growing) is None


def test_an_interrupted_run_leaves_the_table_that_was_there(measured, cache, command, monkeypatch):
    command("tune", "--threads", "1")
    (file,) = cache.iterdir()
    before = file.read_bytes()

    def interrupt(graph):
        raise KeyboardInterrupt

    monkeypatch.setattr(tune, "measure", interrupt)
    ended = command("tune", "--threads", "1")
    assert ended.code == 130 and ended.err.splitlines()[-1].endswith("tune: interrupted")
    assert [file.read_bytes() for file in cache.iterdir()] == [before]


def test_an_interrupted_run_keeps_what_it_had_measured(measured, cache, command, monkeypatch):
    measure, graphs = tune.measure, []

    def interrupt_the_third(graph):
        graphs.append(graph)
        if len(graphs) == 3:
            raise KeyboardInterrupt
        return measure(graph)

    monkeypatch.setattr(tune, "measure", interrupt_the_third)
    ended = command("tune", "--threads", "1")
    assert ended.code == 130 and "left out, for you interrupted it: " in ended.out
    (table,) = costs.read(next(cache.iterdir()), costs.TUNED)
    assert 0 < len(table.costs) <= 2 and str(next(cache.iterdir())) in ended.out
    assert command("tune", "--threads", "1").code == 0
    (file,) = cache.iterdir()
    longer = file.read_bytes()
    graphs.clear()
    assert f"{file} stays as it is" in command("tune", "--threads", "1").out
    assert file.read_bytes() == longer


def test_ctrl_c_while_compiling_ends_in_one_line(cache, tmp_path, interrupted, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    code, error = interrupted("tune")
    assert code == 130 and error.splitlines()[-1] == "python -m fusedops tune: interrupted"
    assert "Traceback" not in error and not cache.exists()


def test_a_user_without_a_home_is_told_what_to_set(measured, command, monkeypatch):
    monkeypatch.setattr(costs, "user_folder", lambda: None)
    ended = command("tune", "--threads", "1")
    assert ended.code == 1 and "set FUSEDOPS_CACHE_DIR, or --output" in ended.err


def test_graphs_that_most_models_run_are_measured_first():
    every = graphs.all_graphs("cpu", [1, 2])
    first = every[: len(every) // 3]
    assert {graph.threads for graph in first} == {1, 2}
    assert {graph.op for graph in first} >= {*graphs.SCORES, *graphs.MATRICES}
    assert {graph.dtype for graph in first} == {torch.float32, torch.bfloat16}
    assert len({*every}) == len(every)


@inductor_config.patch({"cpp.min_chunk_size": 4096})
def test_graphs_too_small_for_several_threads_are_compiled_by_themselves():
    def rows(threads):
        return [
            graph.rows
            for graph in graphs.all_graphs("cpu", [threads])
            if (graph.op, graph.mode, graph.cols) == ("softmax", "inference", 128)
            and graph.dtype == torch.float32
        ]

    assert rows(1) == [(8, 128, 2048)]
    assert rows(2) == [(8,), (128, 2048)]
    assert rows(64) == [(8, 128), (2048,)]


def test_on_a_gpu_each_number_of_rows_is_compiled():
    assert all(len(graph.rows) == 1 for graph in graphs.all_graphs("cuda:0", [1]))


def test_on_a_cpu_one_compilation_serves_every_number_of_rows(unsteady):
    op = "masked_softmax[additive]"
    graph = Graph(op, "training", torch.float32, (64, 256), 32, "cpu", threads=1)
    found = list(measurement.measure(graph))  # raises where anything is compiled again
    assert [(cost.rows, cost.cols) for cost in found] == [(64, 32), (256, 32)]


def test_code_is_compiled_ahead_in_other_processes_until_the_time_is_up(monkeypatch):
    compiled = []
    monkeypatch.setattr(measurement, "prepare", compiled.append)
    done = measurement.compile_ahead([SOFTMAX, SOFTMAX], time.monotonic() + 60)
    assert [*done] == [SOFTMAX, SOFTMAX] and compiled == []
    assert [*measurement.compile_ahead([SOFTMAX], time.monotonic() - 1)] in ([], [SOFTMAX])
    on_a_gpu = replace(SOFTMAX, device="cuda:0")  # in processes that are not forked
    assert [*measurement.compile_ahead([on_a_gpu], time.monotonic() + 60)] == [on_a_gpu]
