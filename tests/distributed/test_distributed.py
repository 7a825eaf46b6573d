"""DTensors, data parallelism and tensor parallelism on 1, 2 and 4 processes. The claims are in the
files claims_*.py."""

from __future__ import annotations

import re

import pytest
from distributed.formulas import exchanged, sent
from distributed.launch import LIMIT, ROOT, failures
from processes import run_python


@pytest.mark.slow("the processes import torch, and compile models")
@pytest.mark.parametrize(
    "modules",
    [
        ("ops", "autograd", "refusals", "communication"),
        pytest.param(("models", "compiled"), marks=pytest.mark.exhaustive),
    ],
)
def test_two_processes(modules, tmp_path):
    assert failures(modules, 2, tmp_path) == ""


@pytest.mark.exhaustive
def test_four_processes(tmp_path):
    modules = ("ops", "autograd", "models", "two_dimensions", "communication")
    assert failures(modules, 4, tmp_path) == ""


@pytest.mark.exhaustive
def test_one_process(tmp_path):
    assert failures(("autograd", "refusals"), 1, tmp_path) == ""


def test_a_process_that_dies_gives_the_others_an_error(tmp_path):
    report = failures(("a_death",), 2, tmp_path)
    assert "claim_the_others_get_an_error in process 0 of 2" in report
    assert "integrations/dtensor/softmax.py" in report, report


def _table(heading):
    """The rows of the last table under a heading of docs/distributed.md, without its head."""
    section = (ROOT / "docs/distributed.md").read_text().split(f"{heading}\n")[1]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_table_of_many_ranks_follows_from_the_formulas():
    rows, worlds = _table("### Beyond one machine"), (8, 64, 256, 1024)
    assert len(rows) == 6
    for call, collective, size, *sizes in rows:
        size, times_ranks, _ = size.replace(",", "").partition(" *W*")
        results = [int(size) * (world if times_ranks else 1) for world in worlds]
        wanted = list(map(sent, [collective] * len(worlds), results, worlds))
        assert [int(number.replace(",", "")) for number in sizes] == wanted, call


def test_the_table_of_many_ranks_has_the_bytes_of_the_formulas():
    number_of_rows, gathered = 4096, 2 * 4096 * 8192
    sizes = [
        int(row[2].replace(",", "").removesuffix(" *W*"))
        for row in _table("### Beyond one machine")
    ]
    one_rank = {
        call: sum(exchanged(call, number_of_rows, world=1)[0].values())
        for call in ("cross_entropy", "layer_norm", "rms_norm")
    }
    of_logits, of_layer_norm, of_rms_norm = one_rank.values()
    logits = 2 * number_of_rows * 131072
    assert sizes == [of_logits, logits, of_layer_norm, of_rms_norm, gathered, gathered]


def test_an_import_does_not_load_dtensor():
    code = "import sys, fusedops; sys.exit('torch.distributed.tensor' in sys.modules)"
    assert run_python("-c", code, cwd=ROOT, timeout=LIMIT).returncode == 0


@pytest.mark.exhaustive
def test_the_example_has_the_loss_of_one_process():
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
    example = ("examples/sequence_parallel.py", "--steps", 3)
    variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    finished = run_python(*launcher, *example, cwd=ROOT, timeout=LIMIT, **variables)
    assert finished.returncode == 0, finished.stderr
    losses = re.findall(r"^\s*\d+\s+(\d+\.\d+)\s+(\d+\.\d+)$", finished.stdout, re.MULTILINE)
    assert len(losses) == 3, finished.stdout
    assert all(abs(float(ours) - float(alone)) < 1e-4 for ours, alone in losses), losses
    assert "7 of 7 sites replaced" in finished.stdout, finished.stdout
