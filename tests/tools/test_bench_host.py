"""`python -m tools.bench host` calls both functions alike, and takes the least time."""

from __future__ import annotations

import csv
import itertools

import pytest
import torch

from tools.bench import host
from tools.bench.__main__ import main


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


def test_csv_holds_every_function_in_every_mode(monkeypatch, capsys, tmp_path):
    file = tmp_path / "host.csv"
    monkeypatch.setattr(host, "keep_freed_memory", lambda: None)  # it starts the program anew
    assert main(["host", "--quick", "--csv", str(file)]) == 0
    rows = csv.DictReader(file.read_text().splitlines())
    found = [(row["op"], row["mode"]) for row in rows]
    assert found == list(itertools.product(host.FUNCTIONS, host.MODES))
    assert "times torch's" in capsys.readouterr().out
