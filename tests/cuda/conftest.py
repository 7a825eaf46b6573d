"""The kernels on a GPU. Values are held to the same bounds as on the CPU (tests/oracle.py)."""

import sys
from pathlib import Path

import pytest
import torch

# Without a GPU no test is collected: hundreds of skips would hide one that matters.
collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]

# Modules here import tests and helpers from there.
sys.path.append(str(Path(__file__).parents[1] / "ops"))


@pytest.fixture
def tensors_on_gpu():
    """Tensors are made on the GPU unless a test says otherwise."""
    before = torch.get_default_device()
    torch.set_default_device("cuda")
    yield
    torch.set_default_device(before)
