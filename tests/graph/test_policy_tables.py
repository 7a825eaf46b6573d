"""Which policy table is used on a machine, and how one that cannot be read is reported."""

import csv
from dataclasses import astuple, replace

import pytest
import torch
import torch.nn.functional as F
from expecttest import assert_expected_inline

import fusedops
from fusedops.cli.tune import graphs
from fusedops.graph import Pass
from fusedops.graph.policy import costs
from fusedops.graph.policy import machine as machines
from fusedops.graph.policy.machine import Machine, family_of, here

HERE = Machine("cpu", "Xeon 8480 6/143/8", "intel-sapphire-rapids", "avx512", 4, "2.13.0")


@pytest.fixture
def places(monkeypatch, tmp_path):
    """Empty folders of shipped tables and of the user's."""
    shipped, cache = tmp_path / "shipped", tmp_path / "cache"
    (cache / "tables").mkdir(parents=True)
    shipped.mkdir()
    monkeypatch.setattr(costs, "SHIPPED_FOLDER", shipped)
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(cache))
    return {"shipped": shipped, "tuned": cache / "tables"}


@pytest.fixture
def table(places):
    """table("shipped", "a", family="amd-zen4", ...): one of a machine that differs so from HERE."""

    def write(place, name, fusedops="0.1.0", ours=1.0, machine=HERE, **differs):
        case = ("softmax", "inference", "float32", 64, 64, 2.0, ours, 10.0)
        row = (*astuple(replace(machine, **differs)), fusedops, *case)
        with (places[place] / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([costs.COLUMNS, row])

    return write


def _order(machine=HERE):
    return [table.name for table in costs.tables_for(machine)]


def test_the_users_table_of_this_very_machine_comes_first(table):
    table("shipped", "family")
    table("tuned", "mine")
    assert _order() == ["mine", "family"]
    assert costs.tables_for(HERE)[0].fit(HERE) == "measured on this machine"


@pytest.mark.parametrize(
    "differs", [{"threads": 2}, {"torch": "2.12.0"}, {"isa": "avx2"}, {"processor": "Xeon 8490"}]
)
def test_the_users_tables_of_other_conditions_come_after_the_shipped_ones(table, differs):
    table("shipped", "family")
    table("tuned", "other", **differs)
    assert _order() == ["family", "other"]
    assert costs.tables_for(HERE)[0].fit(HERE) == "for intel-sapphire-rapids"


def test_family_goes_before_vendor_and_that_before_the_instruction_set(table):
    table("shipped", "a-zen", family="amd-zen4")
    table("shipped", "b-skylake", family="intel-skylake-server", isa="avx2")
    table("shipped", "c-sapphire", isa="default", threads=1)
    assert _order() == ["c-sapphire", "b-skylake", "a-zen"]
    assert _order(replace(HERE, family="amd-zen2", isa="avx2"))[0] == "a-zen"
    assert _order(replace(HERE, family="aarch64", isa="avx2"))[0] == "b-skylake"
    nearest = costs.tables_for(HERE)[0].fit(HERE)
    assert nearest == "the nearest to intel-sapphire-rapids, avx512, 4 threads"
    graviton = replace(HERE, family="aarch64", isa="bf16")
    nearest = costs.tables_for(graviton)[0].fit(graviton)
    assert nearest.endswith("4 threads, which no table is for: run python -m fusedops tune")


def test_one_thread_and_several_are_different_tables(table):
    table("shipped", "one", threads=1)
    table("shipped", "two", threads=2)
    assert _order() == ["two", "one"]
    assert _order(replace(HERE, threads=64)) == ["two", "one"]
    assert _order(replace(HERE, threads=1)) == ["one", "two"]


def test_of_one_family_the_same_torch_goes_before_another(table):
    table("shipped", "a-before", torch="2.12.0")
    table("shipped", "b-same")
    assert _order() == ["b-same", "a-before"]


def test_gpus_have_tables_of_their_own(table):
    gpu = Machine("cuda", "NVIDIA H200", "cuda-sm90", "sm90", 1, "2.13.0")
    table("shipped", "cpu")
    assert _order(gpu) == []
    table("shipped", "cuda-sm80", machine=gpu, family="cuda-sm80", isa="sm80")
    table("shipped", "cuda-sm90", machine=gpu, processor="NVIDIA H100")
    assert _order(gpu) == ["cuda-sm90", "cuda-sm80"]


def test_kernels_of_another_version_are_named(table):
    table("tuned", "mine", fusedops="0.0.1")
    fit = costs.tables_for(HERE)[0].fit(HERE)
    version = fusedops.__version__
    assert fit == f"measured on this machine; measured with fusedops 0.0.1, this is {version}"


def test_the_machine_is_recognised_from_what_the_system_reports():
    machine = here(torch.device("cpu"))
    assert (machine.device, machine.threads) == ("cpu", torch.get_num_threads())
    assert machine.isa in ("avx512", "avx2", "default")
    assert machine.torch == torch.__version__.partition("+")[0]


def test_processors_of_one_name_are_told_apart_by_their_numbers(monkeypatch):
    facts = {"model name": "Xeon", "cpu family": "6", "model": "143", "stepping": "8"}
    monkeypatch.setattr(machines, "cpuinfo", lambda: facts)
    monkeypatch.setattr(machines, "_processor", machines._processor.__wrapped__)
    assert here(torch.device("cpu")).processor == "Xeon 6/143/8"


@pytest.mark.parametrize(
    ("vendor", "number", "flags", "family"),
    [
        ("GenuineIntel", "6", "avx2 avx512f amx_tile", "intel-sapphire-rapids"),
        ("GenuineIntel", "6", "avx2 avx512f", "intel-skylake-server"),
        ("GenuineIntel", "6", "avx2", "intel"),
        ("AuthenticAMD", "26", "avx2 avx512f", "amd-zen5"),
        ("AuthenticAMD", "25", "avx2 avx512f", "amd-zen4"),
        ("AuthenticAMD", "25", "avx2", "amd-zen3"),
    ],
)
def test_a_family_is_recognised_by_its_instructions(vendor, number, flags, family):
    facts = {"vendor_id": vendor, "cpu family": number, "model": "0", "flags": flags}
    assert family_of(facts) == family


def test_a_processor_of_no_family_is_of_its_architecture(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert family_of({"Features": "fp asimd"}) == "aarch64"
    assert family_of({}) == "aarch64"


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"FUSEDOPS_CACHE_DIR": "/a"}, "/a/tables"),
        ({"FUSEDOPS_CACHE_DIR": "", "XDG_CACHE_HOME": "/b"}, "/b/fusedops/tables"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/c"}, "/c/.cache/fusedops/tables"),
        ({"HOME": "/c"}, "/c/.cache/fusedops/tables"),
    ],
)
def test_the_users_tables_lie_where_other_tools_keep_theirs(monkeypatch, variables, folder):
    for name in ("FUSEDOPS_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(costs.user_folder()) == folder


DAMAGED = [b"", b"\xff\x00\x9c", b"op,mode\nsoftmax,inference\n", b"device,processor\ncpu,x\n"]


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_shipped_table_is_named_with_its_fix(places, content):
    (places["shipped"] / "cpu.csv").write_bytes(content)
    with pytest.raises(ValueError, match=r"cpu\.csv is damaged; reinstall fusedops"):
        costs.tables_for(HERE)


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_table_of_the_users_is_named_once_and_skipped(table, places, content, recwarn):
    table("shipped", "family")
    (places["tuned"] / "mine.csv").write_bytes(content)
    assert _order() == _order() == ["family"]
    (warning,) = recwarn.list
    message = str(warning.message)
    assert "mine.csv is damaged; measure it again with `python -m fusedops tune`" in message


@pytest.mark.parametrize("number", ["0", "-1", "nan", "inf", "fast"])
def test_a_time_that_no_clock_can_measure_counts_as_damage(table, places, number):
    table("shipped", "family", ours=number)
    with pytest.raises(ValueError, match="is damaged"):
        costs.tables_for(HERE)


def test_a_tensor_without_elements_costs_nothing(table):
    table("tuned", "mine", ours=1.0)
    size = costs.Size(0, 0, torch.float32)
    assert costs.tables_for(HERE)[0].cost("softmax", "inference", size).ours == 0


def test_a_table_that_is_measured_again_is_used_at_once(table):
    table("tuned", "mine", ours=1.0)
    size = costs.Size(64, 64, torch.float32)
    assert costs.tables_for(HERE)[0].cost("softmax", "inference", size).ours == 1
    table("tuned", "mine", ours=1.25)
    assert costs.tables_for(HERE)[0].cost("softmax", "inference", size).ours == 1.25


def test_tuning_and_threads_change_the_cache_key_of_compiled_graphs(table, monkeypatch):
    monkeypatch.setattr(costs, "here", lambda device: HERE)
    table("shipped", "family")
    keys = [Pass().uuid()]
    table("tuned", "mine")
    keys.append(Pass().uuid())
    table("tuned", "mine", ours=1.25)
    keys.append(Pass().uuid())
    assert len({*keys}) == 3 and keys[-1] == Pass().uuid()
    table("shipped", "one", threads=1)
    here_now = replace(HERE, threads=1)
    keys.append(Pass().uuid())
    monkeypatch.setattr(costs, "here", lambda device: here_now)
    keys.append(Pass().uuid())
    assert len({*keys}) == 5


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_shipped_table_knows_every_op(mode):
    size = costs.Size(rows=1024, cols=512, dtype=torch.bfloat16)
    names = {file.stem for file in costs.SHIPPED_FOLDER.glob("*.csv")}
    families = "amd-zen4", "amd-zen5", "intel-sapphire-rapids", "intel-skylake-server"
    assert {f"cpu-{family}" for family in families} <= names
    for shipped in costs.tables_for(HERE):
        measured = (*graphs.SCORES, *graphs.MATRICES, *graphs.SELDOM, costs.ATTENTION)
        missing = {op for op in measured if not shipped.cost(op, mode, size)}
        # These were added when the other processors were not at hand.
        if shipped.name != "cpu-amd-zen4":
            missing -= {"masked_softmax[computed]", "attention"}
        assert missing == (graphs.ONLY_TRAINED if mode == "inference" else set())


def test_explain_shows_what_decided_each_site(table, monkeypatch):
    monkeypatch.setattr(costs, "here", lambda device: replace(HERE, threads=1))
    table("shipped", "cpu-intel")
    table("tuned", "mine", threads=1, fusedops="0.0.1", ours=1.938)

    def model(x):
        return x.softmax(-1) @ x.T, x.tanh().softmax(-1), F.layer_norm(x, (64,))

    with torch.no_grad(), fusedops.config.patch(fuse="profitable"):
        report = fusedops.explain(model, torch.randn(128, 64))
    monkeypatch.setenv("COLUMNS", "80")
    assert_expected_inline(
        str(report).replace(report.sites[0].location, "model.py:3"),
        """\
fusedops: 1 of 3 sites replaced in inference; a call is expected to take 124 us
less, 3% of what these sites take in Inductor's code

replaced  softmax
  line     model.py:3
  inputs   128x64
  times    3.88 ms, Inductor 4 ms; from 64x64 measured in inference

left  softmax
  line     model.py:3
  inputs   128x64
  times    3.88 ms + 6.55 us for reads and writes of its neighbours, Inductor 4
           ms; from 64x64 measured in inference
  why not  within measurement error: Inductor is measured at 4 ms against 3.88
           ms

left  layer_norm
  line     model.py:3
  inputs   128x64
  why not  too small to pay: 8192 elements

  measurements: mine, 1 thread; measured on this machine; measured with fusedops
  0.0.1, this is 0.1.0""",
    )
    figures = report.to_dict()["sites"][1]["figures"]
    assert figures.pop("passes_ms") == pytest.approx(2 * 128 * 64 * 4 / 10e6)
    assert figures == {
        "mode": "inference",
        "fusedops_ms": 3.876,
        "inductor_ms": 4.0,
        "call_ms": 0.0,
        "rows": 64,
        "cols": 64,
        "table": report.sites[0].figures.table,
        "products": False,
    }
