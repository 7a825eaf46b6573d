"""No command line ends in a traceback: one line names the option, what came and what is wanted.

A row is the words of a command line, the exit code (1: a failure, 2: wrong usage) and what the line
on standard error must say. A name in braces is one of the fixture `places`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from exhaustive import beyond
from processes import run_python

from fusedops.cli import env, options
from fusedops.cli.bench import command as bench
from fusedops.cli.tune import command as tune

HUGE = "9" * 5000

#: Files of `explain`, by name; "model" computes x + 1 and needs nothing.
FILES = {
    "good.py": "import torch\ndef build(): return (lambda x: x + 1), torch.ones(2)\n",
    "syntax.py": "def build(:\n",
    "null.py": "x = '\0'\n",
    "raises.py": "\nraise ValueError('no weights')\n",
    "exits.py": "import sys\nsys.exit('bye')\n",
    "exits_well.py": "import sys\nsys.exit(0)\n",
    "imports.py": "import there_is_no_such_module\n",
    "recursive.py": "def build(): return build()\n",
    "empty.py": "",
    "torch.py": "def build(): return (lambda: None),\n",
    "model.txt": "def build(): return (lambda: None),\n",
    "returns.py": """
import torch
class Model(torch.nn.Module):
    def forward(self, x): return x + 1
class Picky(torch.nn.Module):
    def forward(self, x): raise KeyError("no such head")
def nothing(): return None
def model_alone(): return Model()
def empty(): return ()
def swapped(): return torch.ones(2), Model()
def listed(): return [Model(), torch.ones(2)]
def no_inputs(): return (Model(),)
def too_many(): return Model(), torch.ones(2), torch.ones(2)
def wrong_name(): return Model(), {"y": torch.ones(2)}
def no_name(): return Model(), {1: torch.ones(2)}
def wrong_kind(): return Model(), ("text",)
def picky(): return Picky(), torch.ones(2)
def wants(size): return Model(), torch.ones(size)
def fails(): raise RuntimeError("line one\\nline two")
def leaves(): raise SystemExit(3)
shapes = lambda: (torch.nn.Linear(3, 4), torch.ones(2))
number = 3
""",
}


@pytest.fixture
def places(tmp_path):
    """What the braces of a row stand for."""
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content.encode())
    (tmp_path / "latin.py").write_bytes(b"x = '\xe9'\n")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    return {
        "HERE": str(tmp_path),
        "FILE": str(tmp_path / "good.py"),
        "HUGE": HUGE,
        "LONG": "x" * 300,
        "LOOP": str(tmp_path / "loop"),
    }


USAGE, FAILURE = 2, 1
A_SHAPE = "wanted ROWSxCOLS such as 4096x1024"
POSITIVE = r"wanted an integer from 1 to 2\^63 - 1"
THREADS = f"wanted an integer from 1 to {options.MOST_THREADS}, 4 a core"
A_DEVICE = "wanted cpu, cuda or cuda:N"
A_FILE, A_FOLDER = "wanted a file that can be written", "wanted a folder that can be written"
A_TARGET = "wanted FILE:FUNCTION with an existing Python file"
A_TUPLE = "wanted a tuple: the model, then its inputs"
COMMAND = "COMMAND"


def refused(option, wanted, *values):
    """Rows of values that an option is refused for in the same words."""
    return [([f"{option}={v}"], USAGE, f"{option}: got '{v}', {wanted}") for v in values]


def returns(function, message):
    """A row of a function in returns.py."""
    return [f"{{HERE}}/returns.py:{function}"], FAILURE, message


NO_TARGETS = ["", ":", ":build", "{FILE}", "{FILE}:", "{HERE}/folder.py:build", "a\0b.py:build"]
NO_TARGETS += ["{HERE}/missing.py:build", "{HERE}/model.txt:build", "{LOOP}:build"]
NO_TARGETS += ["{LONG}.py:build"]

NO_COMMAND = [
    ([], USAGE, COMMAND),
    ([""], USAGE, COMMAND),
    (["bogus"], USAGE, "'bogus' .*'env', 'check', 'bench', 'tune', 'demo', 'explain'"),
    (["ENV"], USAGE, "'ENV' "),
    (["--quick"], USAGE, COMMAND),
    (["--version=2"], USAGE, "--version: ignored explicit argument '2'"),
    (["--"], USAGE, COMMAND),
    (["--", "env"], USAGE, COMMAND),
    (["-1", "env"], USAGE, "COMMAND|-1"),
    (["--quick", "bench"], USAGE, "unrecognized arguments: --quick"),
    (["env", "bench"], USAGE, "unrecognized arguments: bench"),
    (["env", "--jso", "n"], USAGE, "unrecognized arguments: n"),
    (["env", "--json=yes"], USAGE, "--json"),
    (["env", "--jason"], USAGE, "unrecognized arguments: --jason"),
    (["env", "-j"], USAGE, "unrecognized arguments: -j"),
    (["check", "softmax"], USAGE, "unrecognized arguments: softmax"),
    (["check", "--quick"], USAGE, "unrecognized arguments: --quick"),
    (["demo", "--quick"], USAGE, "unrecognized arguments: --quick"),
    (["demo", "-1"], USAGE, "unrecognized arguments: -1"),
]

EXPLAIN = [
    ([], USAGE, "FILE:FUNCTION"),
    *(([target], USAGE, A_TARGET) for target in NO_TARGETS),
    (["{FILE}:other"], USAGE, "defines no function 'other'"),
    (["{FILE}:build()"], USAGE, r"defines no function 'build\(\)'"),
    (["{HERE}/empty.py:build"], USAGE, "defines no function 'build'"),
    (["{HERE}/returns.py:number"], USAGE, "defines no function 'number'"),
    (["{FILE}:build", "more"], USAGE, "unrecognized arguments: more"),
    (["{FILE}:build", "--graph", "2"], USAGE, "unrecognized arguments: 2"),
    (["{FILE}:build", "--json=1"], USAGE, "--json"),
    (["{FILE}:build", "--batch", "1"], USAGE, "--batch: got 1 with .*:build, wanted no --batch"),
    (["{FILE}:build", "--attention=eager"], USAGE, "--attention: got 'eager' with .*, wanted no "),
    (["{FILE}:build", "--jsn"], USAGE, "unrecognized arguments: --jsn"),
    (["{HERE}/syntax.py:build"], FAILURE, r"syntax.py: importing it raised SyntaxError.*line 1"),
    (["{HERE}/null.py:build"], FAILURE, "null.py: importing it raised (SyntaxError|ValueError)"),
    (["{HERE}/latin.py:build"], FAILURE, "latin.py: importing it raised SyntaxError"),
    (["{HERE}/raises.py:build"], FAILURE, "raised ValueError at raises.py:2: no weights"),
    (["{HERE}/exits.py:build"], FAILURE, "raised SystemExit at exits.py:2: bye"),
    (["{HERE}/exits_well.py:build"], FAILURE, "raised SystemExit at exits_well.py:2: 0"),
    (["{HERE}/imports.py:build"], FAILURE, "ModuleNotFoundError at imports.py:1: .*no_such_module"),
    (["{HERE}/recursive.py:build"], FAILURE, "FUNCTION raised RecursionError at recursive.py:1"),
    returns("nothing", f"returned a NoneType, {A_TUPLE}"),
    returns("model_alone", f"returned a Model, {A_TUPLE}"),
    returns("listed", f"returned a list, {A_TUPLE}"),
    returns("empty", f"returned an empty tuple, {A_TUPLE}"),
    returns("swapped", "first element, a Tensor, cannot be called"),
    returns("no_inputs", r"TypeError.*forward\(\) missing 1 required"),
    returns("too_many", "the model, given its inputs, raised TypeError"),
    returns("wrong_name", "unexpected keyword argument 'y'"),
    returns("no_name", "TypeError.*keywords must be strings"),
    returns("wrong_kind", "the model, given its inputs, raised"),
    returns("picky", "KeyError at returns.py:6: 'no such head'"),
    returns("wants", "FUNCTION raised TypeError.*'size'"),
    returns("fails", "RuntimeError at returns.py:19: line one line two"),
    returns("leaves", "FUNCTION raised SystemExit at returns.py:20: 3"),
    returns("shapes", "the model, given its inputs, raised"),
]

BENCH = [
    (["softmax"], USAGE, "unrecognized arguments: softmax"),
    (["--quik"], USAGE, "unrecognized arguments: --quik"),
    (["--op"], USAGE, "--op: expected at least one argument"),
    (["--op", "gelu"], USAGE, "--op: invalid choice: 'gelu'.*'softmax'"),
    (["--op", "softmax,layer_norm"], USAGE, "--op: invalid choice"),
    (["--pass"], USAGE, "--pass: expected at least one argument"),
    (["--pass", "sideways"], USAGE, "--pass: invalid choice: 'sideways'.*'forward', 'backward'"),
    (["--dtype"], USAGE, "--dtype: expected at least one argument"),
    (["--dtype", "int8"], USAGE, "--dtype: invalid choice: 'int8'.*'float32'"),
    (["--shape"], USAGE, "--shape: expected at least one argument"),
    *refused(
        "--shape", A_SHAPE, "", "4096", "4096x", "0x5", "-1x5", "1.5x2", "2X3", "1_0x3", "²x3"
    ),
    (["--shape", "{HUGE}x2"], USAGE, A_SHAPE),
    (["--shape", "999999999999999999x999999999999999999"], USAGE, "--shape: .* GB"),
    (["--shape", "8x8", "1000000x1000000"], USAGE, "--shape: .*1000000x1000000 takes at least"),
    (["--op", "softmax", "--shape", "8x64x32", "512x32"], USAGE, "--shape: .* both 512 rows of 32"),
    (["--op", "masked_softmax", "--shape", "8x8", "1x8x8"], USAGE, "both 8 rows of 8 columns"),
    (["--op", "masked_softmax", "--shape", "1x2x3x4x5"], USAGE, "5 dimensions, wanted at most 4"),
    (["--device"], USAGE, "--device: expected one argument"),
    *refused("--device", A_DEVICE, "", "nonsense", " cpu", "cpu:1", "meta", "cuda:", "cuda:-1"),
    (["--device", "cuda:{HUGE}"], USAGE, A_DEVICE),
    (["--device", "cuda:256"], USAGE, "--device: got 'cuda:256', but torch sees"),
    (["--threads"], USAGE, "--threads: expected one argument"),
    *refused("--threads", THREADS, "", 0, -1, 1.5, 1000000),
    (["--threads", "{HUGE}"], USAGE, THREADS),
    (["--threads", "1", "2"], USAGE, "unrecognized arguments: 2"),
    (["--csv"], USAGE, "--csv: expected one argument"),
    *refused("--csv", A_FILE, ""),
    (["--csv", "{HERE}"], USAGE, f"--csv: .*{A_FILE}: Is a directory"),
    (["--csv", "{FILE}/b.csv"], USAGE, f"--csv: .*{A_FILE}: Not a directory"),
    (["--csv", "/proc/no/b.csv"], USAGE, f"--csv: .*{A_FILE}: "),
    (["--csv", "{HERE}/{LONG}.csv"], USAGE, f"{A_FILE}: File name too long"),
    (["--csv", "{HERE}/{LONG}/b.csv"], USAGE, f"{A_FILE}: File name too long"),
    (["--csv", "{LOOP}/b.csv"], USAGE, f"--csv: .*{A_FILE}: "),
    (["--csv", "a\0b"], USAGE, f"--csv: .*{A_FILE}: "),
    (["--plot"], USAGE, "--plot: expected one argument"),
    *refused("--plot", A_FOLDER, ""),
    (["--plot", "{FILE}"], USAGE, f"--plot: .*{A_FOLDER}: Not a directory"),
    (["--plot", "/proc/charts"], USAGE, f"--plot: .*{A_FOLDER}: "),
    (["--quick=3"], USAGE, "--quick"),
]

TUNE = [
    (["now"], USAGE, "unrecognized arguments: now"),
    (["--op", "softmax"], USAGE, "unrecognized arguments: --op softmax"),
    (["--device"], USAGE, "--device: expected one argument"),
    *refused("--device", A_DEVICE, "tpu"),
    (["--threads"], USAGE, "--threads: expected at least one argument"),
    *refused("--threads", THREADS, 0),
    (["--threads", "1", "all"], USAGE, f"--threads: got 'all', {THREADS}"),
    (["--budget"], USAGE, "--budget: expected one argument"),
    *refused("--budget", POSITIVE, 0, "3m", "nan", 2**63),
    (["--output"], USAGE, "--output: expected one argument"),
    *refused("--output", A_FILE, ""),
    (["--output", "{HERE}"], USAGE, f"--output: .*{A_FILE}: Is a directory"),
    (
        [],
        FAILURE,
        "/dev/null/tables/.*csv cannot be written: Not a directory; set FUSEDOPS_CACHE_DIR",
    ),
]

TABLES = {(): NO_COMMAND, ("explain",): EXPLAIN, ("bench",): BENCH, ("tune",): TUNE}


@pytest.fixture(autouse=True)
def nothing_is_measured(monkeypatch):
    """A row that should have been refused fails at once, and replaces this process by no other."""

    def begin(*args, **kwargs):
        raise AssertionError("the command has begun its work")

    monkeypatch.setattr(bench, "keep_freed_memory", begin)
    monkeypatch.setattr(bench, "measure_each", begin)
    monkeypatch.setattr(tune, "keep_freed_memory", begin)
    monkeypatch.setattr(tune, "measure_all", begin)


@pytest.mark.parametrize("words", TABLES, ids=lambda words: " ".join(words) or "no command")
def test_a_bad_command_line_is_refused_in_one_line(command, places, words):
    before = sorted(os.listdir(places["HERE"]))
    wrong = []
    for argv, code, message in TABLES[words]:
        ended = command(*words, *(argument.format_map(places) for argument in argv))
        (line, *more) = ended.err.splitlines() or [""]
        files = [name for name in sorted(os.listdir(places["HERE"])) if name != "__pycache__"]
        clear = line.startswith("python -m fusedops") and re.search(message, line)
        if (ended.code, ended.out, more, files) != (code, "", [], before) or not clear:
            wrong.append(f"{argv}: wanted {code} and {message!r}, got {ended} and {files}")
        elif len(line) >= 1100:
            wrong.append(f"{argv}: a line of {len(line)} characters")
    assert not wrong, "\n".join(wrong)


# --- odd command lines that are right -------------------------------------------------------------


@pytest.mark.parametrize("argv", [["--help"], ["-h"], ["env", "-h"], ["bench", "--help"]], ids=str)
def test_help_ends_with_success(command, argv):
    ended = command(*argv)
    assert ended.code == 0 and "usage: python -m fusedops" in ended.out and ended.err == ""


def test_a_model_without_any_site_has_none_replaced(command, places):
    ended = command("explain", f"{places['FILE']}:build")
    assert ended.code == 0 and ended.out.startswith("fusedops: 0 of 0 sites replaced: ")
    ended = command("explain", f"{places['FILE']}:build", "--json")
    assert ended.code == 0 and '"replaced": 0' in ended.out and '"sites": []' in ended.out


def test_a_file_named_like_one_of_our_modules_does_not_replace_it(command, places):
    assert command("explain", f"{places['HERE']}/torch.py:build").code == 0
    assert sys.modules["torch"] is torch


def test_a_missing_compiler_is_named_before_anything_is_measured(command, monkeypatch):
    monkeypatch.setenv("CXX", "there-is-no-such-compiler")
    ended = command("bench", "--quick")
    (line,) = ended.err.splitlines()
    assert ended.code == FAILURE and line.endswith("python -m fusedops env")
    assert "torch.compile finds no C++ compiler; fix: install g++, or name one in CXX" in line


@pytest.mark.parametrize("argv", [["explain", "{FILE}:build"], ["bench", "--quick"]])
def test_without_torch_compile_no_wrong_numbers_are_shown(command, places, monkeypatch, argv):
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    ended = command(*(argument.format_map(places) for argument in argv))
    (line,) = ended.err.splitlines()
    assert (ended.code, ended.out) == (FAILURE, "")
    assert "TORCH_COMPILE_DISABLE switches torch.compile off; fix: unset it" in line


def test_explain_needs_no_compiler(command, places, monkeypatch):
    monkeypatch.setenv("CXX", "there-is-no-such-compiler")
    assert command("explain", f"{places['FILE']}:build").code == 0


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "env: interrupted"),
        (BrokenPipeError(), 1, None),
        (OSError(28, "No space left on device"), 1, "output: No space left on device"),
        (OSError(13, "Permission denied", "a.csv"), 1, "a.csv: Permission denied"),
        (MemoryError(), 1, "not enough memory: none is left; pass smaller sizes"),
        (RuntimeError("can't allocate memory: 8 bytes"), 1, "not enough memory: can't allocate"),
        (ZeroDivisionError("a\nbug"), 1, r"ZeroDivisionError at .*\.py:\d+: a bug; .*report it"),
        (ZeroDivisionError("bug" * 999), 1, r"^.{700} \.\.\. .{200}$"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_any_error_ends_in_one_line(command, monkeypatch, error, code, message):
    def fail():
        raise error

    monkeypatch.setattr(env, "collect", fail)
    ended = command("env")
    assert (ended.code, ended.out) == (code, "")
    lines = ended.err.splitlines()
    assert len(lines) == (1 if message else 0)
    assert not message or re.search(message, lines[0])


def test_in_pythons_development_mode_an_unexpected_error_shows_its_traceback(command, monkeypatch):
    def fail():
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(env, "collect", fail)
    monkeypatch.setattr(sys, "flags", SimpleNamespace(dev_mode=True))
    with pytest.raises(ZeroDivisionError, match="a bug"):
        command("env")


def test_a_missing_file_of_our_own_is_not_taken_for_a_missing_package(command, monkeypatch):
    monkeypatch.setitem(sys.modules, "fusedops.cli.explain", None)
    ended = command("explain", "model.py:build")
    (line,) = ended.err.splitlines()
    assert ended.code == FAILURE and "ModuleNotFoundError" in line and "pip install" not in line


# --- processes ------------------------------------------------------------------------------------


def in_shell(rest: str) -> subprocess.CompletedProcess[str]:
    """Runs `env` with redirections."""
    command = ["bash", "-c", f'"{sys.executable}" -m fusedops env {rest}']
    return subprocess.run(command, capture_output=True, text=True)


def test_a_full_disk_is_a_failure_without_a_traceback():
    ended = in_shell(">/dev/full")
    assert ended.returncode == FAILURE
    assert ended.stderr == "python -m fusedops env: output: No space left on device\n"


def test_a_reader_that_closes_the_pipe_early_gets_no_error():
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "fusedops", "env"]
    ended = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (FAILURE, "")


@pytest.mark.parametrize("closed", beyond([">&- 2>&-"], [">&-", "2>&-", ">&- 2>&-"]))
def test_closed_streams_are_no_failure(closed):
    ended = in_shell(closed)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_terminal_of_ascii_shows_what_it_can(tmp_path):
    file = tmp_path / "modèle.py"
    file.write_text(FILES["good.py"])
    ended = run_python("-m", "fusedops", "explain", f"{file}:fonctión", PYTHONIOENCODING="ascii")
    assert ended.returncode == USAGE and r"foncti\xf3n" in ended.stderr


#: Variables with values that keep fusedops from running.
WRONG_VARIABLES = [("FUSEDOPS_FUSE", "nonsense"), ("FUSEDOPS_CPU_ISA", "sse9")]


@pytest.mark.parametrize(("variable", "value"), WRONG_VARIABLES)
def test_env_reports_a_variable_that_keeps_the_rest_from_running(variable, value):
    reported = run_python("-m", "fusedops", "env", **{variable: value})
    assert (reported.returncode, reported.stderr) == (FAILURE, "")
    problems = reported.stdout.partition("\nproblems\n")[2]
    assert variable in problems and "fix: unset" in problems


@pytest.mark.parametrize(("variable", "value"), WRONG_VARIABLES)
@pytest.mark.parametrize("command", [("explain", "model.py:build"), ("check",)])
def test_a_command_that_a_variable_keeps_from_running_points_to_env(command, variable, value):
    ended = run_python("-m", "fusedops", *command, **{variable: value})
    (line,) = ended.stderr.splitlines()
    assert (ended.returncode, ended.stdout) == (FAILURE, "")
    assert variable in line and "fix: unset" in line and line.endswith("python -m fusedops env")


def test_ctrl_c_ends_in_one_line_and_writes_nothing(tmp_path, interrupted):
    code, error = interrupted("bench", "--csv", str(tmp_path / "new" / "b.csv"))
    assert code == 130 and error.splitlines()[-1] == "python -m fusedops bench: interrupted"
    assert "Traceback" not in error and list(tmp_path.iterdir()) == []
