"""examples/frameworks: each program trains, and runs our operators forward and backward."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest
import torch

# Their packages are in the extra `frameworks`, which `make test` does not install.
pytestmark = pytest.mark.exhaustive

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "frameworks"))


@pytest.mark.parametrize("framework", ["trainer", "accelerate", "lightning"])
def test_a_framework_trains_on_our_operators_in_bfloat16(framework, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    program = importlib.import_module(f"train_with_{framework}")
    with torch.profiler.profile() as profile:
        program.main()
    shown = capsys.readouterr().out
    assert "fusedops: 5 of 5 sites replaced" in shown
    first, last = map(float, re.findall(r"loss ([\d.]+) after .*, ([\d.]+) after", shown)[0])
    assert last < first
    ran = {event.name.removeprefix("fusedops::").strip("_") for event in profile.events()}
    norms = {"rms_norm", "rms_norm_backward", "add_rms_norm", "add_rms_norm_backward"}
    loss = {"cross_entropy", "cross_entropy_backward"}
    assert norms | loss <= ran and any(name.startswith("masked_softmax") for name in ran)


@pytest.mark.parametrize("backend", ["fusedops", "FUSEDOPS"])
def test_accelerate_has_no_backend_of_ours(backend):
    """The documentation says so; should a version accept it, recommend it instead."""
    from accelerate import Accelerator

    with pytest.raises(ValueError, match="is not a valid DynamoBackend"):
        Accelerator(cpu=True, dynamo_backend=backend)
