"""Every Python block of the README and of docs/ runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCKS = {
    f"{page.name} {i}": block
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for i, block in enumerate(
        re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    )
}


@pytest.mark.parametrize("name", BLOCKS)
def test_python_block_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[name], name, "exec"), {"__name__": "readme"})
