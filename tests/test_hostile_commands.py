"""The command line with hostile options, and FUSEDOPS_* with hostile values."""

import os
import subprocess
import sys

import pytest
from hostile import clear, refused


def _refusals(options, pattern):
    return [refused(f"command({line!r})", pattern) for line in options]


COMMANDS = [
    *_refusals([""], "COMMAND"),
    *_refusals(["nonsense", "benchmark", "ENV", "3"], "(?s)invalid choice|wanted"),
    *_refusals(["--threads 2"], "(?s)COMMAND|arguments"),
    *_refusals(["env extra", "env --yaml", "env --json extra"], "(?s)extra|--yaml"),
    *_refusals(["demo extra", "demo --fast"], "(?s)extra|--fast"),
    *_refusals(["explain"], "FILE:FUNCTION"),
    *_refusals(
        [
            "explain model",
            "explain model.py",
            "explain :build",
            "explain nowhere.py:build",
            "explain /:build",
            "explain nowhere:",
            "explain ::",
        ],
        clear("(target|FILE:FUNCTION)", "got|no "),
    ),
    *_refusals(["explain {folder}/empty.py:build"], "(?s)no function 'build'"),
    *_refusals(["explain {folder}/empty.py:"], "(?s)no function|FILE:FUNCTION"),
    *_refusals(["explain {folder}/number.py:build"], "(?s)no function 'build'|callable"),
    *_refusals(["explain {folder}/broken.py:build"], "(?s)broken.py|SyntaxError"),
    *_refusals(["explain {folder}/raising.py:build"], "(?s)mine"),
    *_refusals(["explain {folder}/nothing.py:build"], "(?s)FUNCTION.*NoneType.*wanted"),
    *_refusals(["explain {folder}/tuple.py:build"], "(?s)FUNCTION.*wanted"),
    *_refusals(["explain {folder}/uncallable.py:build"], "(?s)FUNCTION.*wanted"),
    *_refusals(["explain {folder}/arguments.py:build"], "(?s)build|argument"),
    *_refusals(["explain {folder}/wrong_inputs.py:build"], "(?i)dim"),
    *_refusals(
        ["bench --threads 0", "bench --threads -1", "bench --threads two", "bench --threads 1.5"],
        "(?s)--threads.*(0|-1|two|1.5)",
    ),
    *_refusals(["bench --threads 99999999999"], "(?s)--threads.*99999999999"),
    *_refusals(["bench --threads"], "(?s)--threads.*expected"),
    *_refusals(
        ["bench --device nonsense", "bench --device cuda:99", "bench --device cuda:x"],
        "(?s)--device.*(nonsense|cuda:99|cuda:x)",
    ),
    *_refusals(["bench --device meta", "bench --device cpu:7"], "(?s)--device.*(meta|cpu:7)"),
    *_refusals(["bench --op nonsense", "bench --op"], "--op"),
    *_refusals(["bench --dtype int8", "bench --dtype"], "--dtype"),
    *_refusals(["bench --pass sideways"], "--pass.*sideways"),
    *_refusals(
        ["bench --shape 4096", "bench --shape 0x4", "bench --shape axb"],
        "(?s)--shape.*wanted",
    ),
    *_refusals(["bench --shape -1x4"], "--shape.*expected"),
    *_refusals(["bench --shape 4x", "bench --shape x", "bench --shape 1.5x2"], "--shape.*wanted"),
    *_refusals(["bench --op softmax --shape 99999999x99999999"], "(?s)--shape|memory"),
    *_refusals(["bench --op masked_softmax --shape 1x1x1x1x1x8"], "(?s)--shape.*wanted"),
    *_refusals(
        [
            "bench --quick --op softmax --shape 2x2 --csv {folder}/empty.py/all.csv",
            "bench --quick --op softmax --shape 2x2 --csv {folder}",
            "bench --quick --op softmax --shape 2x2 --csv /proc/bench.csv",
        ],
        "(?s)--csv|empty.py|proc|folder",
    ),
    *_refusals(
        ["bench --quick --op softmax --shape 2x2 --plot {folder}/empty.py"], "(?s)--plot|empty.py"
    ),
    *_refusals(["bench --policy --op softmax", "bench --memory --plot x"], "(?s)--policy|--plot"),
    *_refusals(["bench --models nonsense"], "(?s)--models.*nonsense.*wanted"),
    *_refusals(["bench --models bert --op softmax"], "(?s)--models|--op"),
    *_refusals(
        ["bench --models --width 0", "bench --models --batch 0", "bench --models --length -5"],
        "(?s)--(width|batch|length).*(0|-5)",
    ),
    *_refusals(["bench --models --width 7", "bench --models --width x"], "(?s)--width.*(7|x)"),
    *_refusals(["bench --models --device cuda"], "(?s)--device.*cuda"),
    *_refusals(["bench --nonsense", "bench extra"], "(?s)--nonsense|extra"),
]

#: Variables, a command, its exit code (None: any, `env` only reports), and what it says.
VARIABLES = [
    ({"FUSEDOPS_FUSE": "sometimes"}, "import fusedops", 1, "fuse is 'sometimes'"),
    ({"FUSEDOPS_FUSE": ""}, "import fusedops", 1, "fuse is ''"),
    ({"FUSEDOPS_FUSE": "always,softmx=never"}, "import fusedops", 1, "'softmx' is unknown"),
    ({"FUSEDOPS_FUSE": "sometimes"}, "-m env", None, "fuse is 'sometimes'"),
    ({"FUSEDOPS_FUZE": "always"}, "import fusedops", 0, "nothing reads FUSEDOPS_FUZE"),
    (
        {"FUSEDOPS_CPU_ISA": "sse9"},
        "import fusedops as f, torch; f.softmax(torch.ones(2), 0)",
        1,
        "FUSEDOPS_CPU_ISA is 'sse9', wanted avx512, avx2 or default",
    ),
    ({"FUSEDOPS_CPU_ISA": "sse9"}, "-m env", None, "FUSEDOPS_CPU_ISA"),
    ({"FUSEDOPS_BUILD_CUDA": "maybe"}, "import fusedops", 0, ""),
]


@pytest.mark.parametrize("row", COMMANDS, ids=str)
def test_a_command_ends_with_a_line_that_says_what_is_wrong(row, child):
    assert not child.problem_with(row)


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
    assert status in (None, finished.returncode), printed
    assert says in printed
    assert "Traceback" not in printed or code != "-m env"
