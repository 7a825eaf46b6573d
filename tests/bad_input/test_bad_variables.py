"""FUSEDOPS_* with values that make no sense: the import names them, and `env` runs and does too."""

import os
import subprocess
import sys

import pytest

#: Variables, a command, its exit code, and what it says.
VARIABLES = [
    ({"FUSEDOPS_FUSE": "sometimes"}, "import fusedops", 1, "fuse is 'sometimes'"),
    ({"FUSEDOPS_FUSE": ""}, "import fusedops", 1, "fuse is ''"),
    ({"FUSEDOPS_FUSE": "always,softmx=never"}, "import fusedops", 1, "'softmx' is unknown"),
    ({"FUSEDOPS_FUSE": "sometimes"}, "-m env", 1, "fuse is 'sometimes'"),
    ({"FUSEDOPS_FUZE": "always"}, "import fusedops", 0, "nothing reads FUSEDOPS_FUZE"),
    (
        {"FUSEDOPS_CPU_ISA": "sse9"},
        "import fusedops as f, torch; f.softmax(torch.ones(2), 0)",
        1,
        "FUSEDOPS_CPU_ISA is 'sse9', wanted avx512, avx2 or default",
    ),
    ({"FUSEDOPS_CPU_ISA": "sse9"}, "-m env", 1, "FUSEDOPS_CPU_ISA"),
    ({"FUSEDOPS_BUILD_CUDA": "maybe"}, "import fusedops", 0, ""),
]


@pytest.mark.parametrize(
    ("variables", "code", "status", "says"),
    VARIABLES,
    ids=[f"{row[0]} {row[1]}" for row in VARIABLES],
)
def test_a_variable_that_makes_no_sense_is_named(variables, code, status, says):
    arguments = ["-m", "fusedops", "env"] if code == "-m env" else ["-c", code]
    environment = {name: os.environ[name] for name in os.environ if name != "FUSEDOPS_FUSE"}
    finished = subprocess.run(
        [sys.executable, *arguments],
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    printed = finished.stdout + finished.stderr
    assert finished.returncode == status, printed
    assert says in printed
    assert "Traceback" not in printed or code != "-m env"
