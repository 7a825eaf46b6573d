"""DTensors, data parallelism and tensor parallelism on 1, 2 and 4 processes. The claims are in the
files claims_*.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from distributed.formulas import reduced, sent
from distributed.launch import LIMIT, ROOT, failures


@pytest.mark.parametrize("modules", [("ops", "autograd", "refusals"), ("models", "communication")])
def test_two_processes(modules, tmp_path):
    assert failures(modules, 2, tmp_path) == ""


def test_four_processes(tmp_path):
    assert failures(("ops", "autograd", "two_dimensions", "communication"), 4, tmp_path) == ""


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
    rows = _table("### Beyond one machine")
    assert len(rows) == 5
    for call, collective, size, *sizes in rows:
        size, *sizes = (int(number.replace(",", "")) for number in (size, *sizes))
        assert sizes == [sent(collective, size, world) for world in (8, 64, 256, 1024)], call
    sizes = [int(row[2].replace(",", "")) for row in rows]
    number_of_rows, gathered = 4096, 2 * 4096 * 8192
    of_logits = reduced("cross_entropy", number_of_rows)[0]["all_reduce"]
    of_norm = reduced("layer_norm", number_of_rows)[0]["all_reduce"]
    assert sizes == [of_logits, 2 * number_of_rows * 131072, of_norm, gathered, gathered]


def test_an_import_does_not_load_dtensor():
    code = "import sys, fusedops; sys.exit('torch.distributed.tensor' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=LIMIT).returncode == 0


def test_the_example_has_the_loss_of_one_process():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    finished = subprocess.run(
        [*command, "2", "examples/sequence_parallel.py", "--steps", "3"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert finished.returncode == 0, finished.stderr
    losses = re.findall(r"^\s*\d+\s+(\d+\.\d+)\s+(\d+\.\d+)$", finished.stdout, re.MULTILINE)
    assert len(losses) == 3, finished.stdout
    assert all(abs(float(ours) - float(alone)) < 1e-4 for ours, alone in losses), losses
    assert "7 of 7 sites replaced" in finished.stdout, finished.stdout
