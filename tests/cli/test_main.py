"""The command line itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fusedops.cli import COMMANDS, main


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    assert all(command in printed for command in COMMANDS)


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


def test_env_needs_none_of_the_extras():
    extras = ("rich", "pandas", "matplotlib", "transformers", "numpy")
    without = f"import sys; sys.modules.update(dict.fromkeys({extras})); import fusedops.cli as c"
    finished = subprocess.run(
        [sys.executable, "-c", f"{without}; sys.exit(c.main(['env']))"],
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
