"""The sessions of noxfile.py, which run for hours, name tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tests_that_sessions_name_exist():
    names = re.findall(r'"(tests/.+?)"', (ROOT / "noxfile.py").read_text())
    assert len(names) > 30
    assert [name for name in names if not (ROOT / name).exists()] == []
