"""The operators that csrc/cuda/register_cuda.cpp registers with torch."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import run_python

from fusedops.ops.registration import libraries

pytestmark = pytest.mark.nvcc


@pytest.mark.slow("links all objects, and starts Python with torch")
def test_every_operator_runs_on_the_device_and_the_stream_of_its_tensors():
    done = run_python("-m", "cudart.operators", cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split() == list(libraries.OPS)
