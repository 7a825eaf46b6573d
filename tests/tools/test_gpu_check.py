"""tools/gpu_check.sh, which needs a GPU: what can be read in it without one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = (ROOT / "tools" / "gpu_check.sh").read_text()
#: The files of a word such as tests/cuda/test_cuda_{values,gradients}.py.
NAMED = {
    f"test_cuda_{name}.py"
    for names in re.findall(r"tests/cuda/test_cuda_\{?([\w,]+)\}?\.py", SCRIPT)
    for name in names.split(",")
}


@pytest.mark.parametrize("path", (ROOT / "tests" / "cuda").glob("test_*.py"), ids=lambda p: p.name)
def test_every_test_of_a_gpu_runs_in_some_stage(path):
    assert path.name in NAMED


def test_no_stage_names_a_file_that_is_not_there():
    assert all((ROOT / "tests" / "cuda" / name).exists() for name in NAMED)
