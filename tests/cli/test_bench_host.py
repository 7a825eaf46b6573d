"""`python -m fusedops bench --host` calls both functions alike, and takes the least time."""

from __future__ import annotations

import argparse
import csv
import itertools

import pytest
import torch

from fusedops.cli.bench import arguments, host
from fusedops.cli.errors import UsageError


def parsed(command: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    arguments.add_arguments(parser)
    return parser.parse_args(command.split())


@pytest.mark.parametrize("mode", host.MODES)
@pytest.mark.parametrize("op", host.FUNCTIONS)
def test_both_functions_compute_the_same(op, mode):
    torchs, ours = host.FUNCTIONS[op]
    results = []
    for function in (torchs, ours):
        torch.manual_seed(0)
        results.append(host._call(function, mode)())
    torch.testing.assert_close(*results)


def test_the_fastest_burst_counts_and_calls_take_turns(monkeypatch):
    ticks = itertools.accumulate(itertools.cycle([1000, 5000, 2000, 3000]))
    monkeypatch.setattr(host.time, "perf_counter_ns", lambda: next(ticks))
    calls = []
    least = host.least_us([lambda: calls.append(0), lambda: calls.append(1)], bursts=2)
    assert least == [5000 / host.BURST / 1e3, 3000 / host.BURST / 1e3]
    assert calls == ([0] * host.BURST + [1] * host.BURST) * 2


@pytest.mark.parametrize(
    "others", ["--op softmax", "--memory", "--models", "--shape 2x3", "--batch 2"]
)
def test_options_of_other_benchmarks_are_refused(others):
    with pytest.raises(UsageError, match="not with --host"):
        arguments.check_options(parsed(f"--host {others}"))


def test_csv_holds_every_function_in_every_mode(command, tmp_path):
    file = tmp_path / "host.csv"
    ended = command("bench", "--host", "--quick", "--csv", str(file))
    assert ended.code == 0, ended.err
    with file.open() as lines:
        rows = list(csv.DictReader(lines))
    found = [(row["op"], row["mode"]) for row in rows]
    assert found == list(itertools.product(host.FUNCTIONS, host.MODES))
    assert "times torch's" in ended.out
