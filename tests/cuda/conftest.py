"""The kernels on a GPU. Values are held to the same bounds as on the CPU (tests/oracle.py)."""

import sys
from pathlib import Path

import pytest
import torch

# Modules here import tests and helpers from there.
sys.path.append(str(Path(__file__).parents[1] / "ops"))


def pytest_ignore_collect(collection_path, config):
    """Without a GPU no test is collected: hundreds of skips would hide one that matters. They are
    listed, though, which finds a file that could not be imported."""
    is_test = collection_path.name.startswith("test_")
    is_run = torch.cuda.is_available() or config.option.collectonly
    return True if is_test and not is_run else None


@pytest.fixture
def tensors_on_gpu():
    """Tensors are made on the GPU unless a test says otherwise."""
    before = torch.get_default_device()
    torch.set_default_device("cuda")
    yield
    torch.set_default_device(before)
