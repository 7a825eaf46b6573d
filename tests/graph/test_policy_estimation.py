"""A CPU that no policy table is for gets one, estimated by its speed and kept."""

import csv
from dataclasses import astuple, replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fusedops.graph.policy import costs, estimation
from fusedops.graph.policy.costs import Size
from fusedops.graph.policy.machine import Machine, here

HERE = Machine("cpu", "Xeon 8480 6/143/8", "intel-sapphire-rapids", "avx512", 4, "2.13.0")
SIZE = Size(512, 768, torch.float32)


@pytest.fixture
def shipped(monkeypatch, tmp_path):
    """shipped(family="amd-zen4", ...): ships the table of a machine that differs so from HERE, on
    which a call takes 1 ms, a softmax of 512x768 takes 3, and Inductor's code 5."""
    folder = tmp_path / "shipped"
    folder.mkdir()
    monkeypatch.setattr(costs, "SHIPPED_FOLDER", folder)
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path / "cache"))
    estimation._ensure_table.cache_clear()

    def write(factor=1.0, **differs):
        machine = replace(HERE, **differs)
        cases = [
            ("softmax", "inference", dtype, *shape, inductor * factor, ours * factor, 10.0)
            for dtype in ("float32", "bfloat16")
            for shape, inductor, ours in (((8, 128), 1.5, 1.0), ((512, 768), 5.0, 3.0))
        ]
        rows = [(*astuple(machine), "0.1.0", *case) for case in cases]
        with (folder / f"{machine.family}.csv").open("a", newline="") as file:
            csv.writer(file).writerows([costs.COLUMNS, *rows] if file.tell() == 0 else rows)

    return write


@pytest.fixture
def measures(monkeypatch):
    """Makes this CPU take 4 ms for a softmax, and 1e-6 for a byte of a copy; lists the number of
    threads of each measurement."""
    calls = []

    def measure():
        calls.append(torch.get_num_threads())
        return {replace(SIZE, dtype=dtype): (4.0, 1e-6) for dtype in estimation._DTYPES}

    monkeypatch.setattr(estimation, "_measure", measure)
    return calls


def _best(machine=HERE):
    estimation.ensure_table(machine)
    return costs.tables_for(machine)[0]


def test_times_are_the_familys_at_the_speed_of_this_machine(shipped, measures):
    shipped(threads=2)
    shipped(threads=2, family="amd-zen4", factor=10.0)
    table = _best()
    assert table.fit(HERE).startswith("estimated by this machine's speed")
    cost = table.cost("softmax", "inference", SIZE)
    # The kernel takes 2 of our 3 ms, and 4 here, so that all kernels take twice as long.
    times = (cost.ours + cost.call, cost.inductor + cost.call)
    assert (*times, cost.ms_per_byte) == pytest.approx((5.0, 8.5, 1e-6))


def test_times_of_an_unknown_processor_are_the_mean_of_all_families(shipped, measures):
    shipped(threads=2)
    shipped(threads=2, family="amd-zen4", factor=4.0)
    cost = _best(replace(HERE, family="aarch64", isa="neon")).cost("softmax", "inference", SIZE)
    times = (cost.ours + cost.call, cost.inductor + cost.call)
    assert times == pytest.approx((6.0, 10.0))


def test_a_table_is_measured_once_and_kept(shipped, measures):
    shipped(threads=2)
    name = _best().name
    estimation._ensure_table.cache_clear()  # as in another process
    assert _best().name == name and len(measures) == 1
    assert _best(replace(HERE, threads=8)).name != name and len(measures) == 2


@pytest.mark.parametrize("differs", [{}, {"isa": "avx2", "threads": 2}], ids=["own", "lowered"])
def test_neither_a_known_machine_nor_lowered_instructions_are_estimated(shipped, measures, differs):
    shipped(**differs)
    assert _best().origin == costs.SHIPPED and measures == []


def test_a_table_that_ships_later_goes_before_the_estimated_one(shipped, measures):
    shipped(threads=2)
    assert _best().origin == costs.ESTIMATED
    shipped()
    assert _best().origin == costs.SHIPPED


def test_a_busy_machine_is_measured_another_time(shipped, monkeypatch):
    shipped(threads=2)
    monkeypatch.setattr(estimation, "_measure", lambda: None)
    assert _best().origin == costs.SHIPPED


def test_nothing_is_measured_that_cannot_be_kept(shipped, measures, monkeypatch):
    shipped(threads=2)
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", "/dev/null")
    assert _best().origin == costs.SHIPPED and measures == []


def test_this_machine_is_measured_while_a_graph_is_compiled(shipped, monkeypatch):
    shipped(threads=torch.get_num_threads(), family="alpha")
    machine = replace(here(torch.device("cpu")), family="beta")
    monkeypatch.setattr(estimation, "_SHAPES", ((512, 768),))
    monkeypatch.setattr(estimation, "_STEADY", 1.0)
    with FakeTensorMode(), torch.device("meta"), torch.autocast("cpu"), torch.inference_mode():
        table = _best(machine)
    assert table.origin == costs.ESTIMATED
    assert 0 < table.cost("softmax", "inference", SIZE).ours < 1e3
