"""No tool ends in a traceback: one line names the option, what came and what is wanted.

A row is the tool, its arguments, the exit code (1: a failure, 2: wrong usage) and what the line on
standard error must say. What is refused is refused before any data is loaded.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
sys.path.insert(1, str(Path(__file__).parents[2] / "examples" / "kernel_tests"))
sys.path.insert(2, str(Path(__file__).parents[2] / "tools"))
import compare_translation
import comparison as kernel_comparison
import gpu_summary
import sass_report
import train_translation
from sass import gates, toolchain
from translation import comparison, corpus, subwords
from translation.checkpoints import Checkpoints

from fusedops.cli import options
from fusedops.cli.errors import UserError

USAGE, FAILURE = 2, 1
POSITIVE = r"wanted an integer from 1 to 2\^63 - 1"
A_FOLDER = "wanted a folder that can be written"
A_DEVICE = "wanted cpu, cuda or cuda:N"
A_LANGUAGE = "wanted a language such as de or pt-BR"
THREADS = f"wanted an integer from 1 to {options.MOST_THREADS}"
HUGE = "9" * 5000

MAINS = {
    "train": train_translation.main,
    "compare": compare_translation.main,
    "summary": gpu_summary.main,
    "sass": sass_report.main,
    **{
        name: lambda argv, name=name: kernel_comparison.main(
            importlib.import_module(name).TEST, argv
        )
        for name in ("softmax_fw", "softmax_bw", "layernorm_fw", "layernorm_bw")
    },
}


def refused(option, wanted, *values):
    """Rows of values that an option is refused for in the same words."""
    return [(f"{option}={v}", USAGE, f"{option}: got '{v}', {wanted}") for v in values]


#: Sizes that must be above 0, and a value of each that is not.
NOT_POSITIVE = {"embedding": 0, "heads": -8, "layers": "none", "feed-forward": 1.5, "positions": 0}
NOT_POSITIVE |= dict.fromkeys(("batch-size", "samples-per-epoch", "warm-up-steps"), 0)
SHARED = [
    ("--bogus", USAGE, "unrecognized arguments: --bogus"),
    ("word", USAGE, "unrecognized arguments: word"),
    ("--data", USAGE, "--data: expected one argument"),
    ("--languages de", USAGE, "--languages: expected 2 arguments"),
    ("--languages de de", USAGE, "--languages: got de twice, wanted two languages"),
    ("--languages ../de en", USAGE, f"--languages: got '../de', {A_LANGUAGE}"),
    ("--languages de e/n", USAGE, f"--languages: got 'e/n', {A_LANGUAGE}"),
    ("--cache {FILE}", USAGE, f"--cache: .*{A_FOLDER}: Not a directory"),
    ("--cache /proc/cache", USAGE, f"--cache: .*{A_FOLDER}"),
    ("--output {FILE}", USAGE, f"--output: .*{A_FOLDER}: Not a directory"),
    ("--output {FILE}/runs", USAGE, f"--output: .*{A_FOLDER}: Not a directory"),
    ("--output {HERE}/" + "x" * 300, USAGE, f"--output: .*{A_FOLDER}: File name too long"),
    ("--device cuda:256", USAGE, "--device: got 'cuda:256', but torch sees"),
    ("--vocabulary 2000000000", USAGE, "--vocabulary, .* takes at least .* GB"),
    ("--embedding 100000000", USAGE, "--embedding .* takes at least .* GB"),
    ("--embedding 255", USAGE, "--embedding 255 is not a multiple of --heads 8"),
    ("--heads 7", USAGE, "--embedding 256 is not a multiple of --heads 7"),
    ("--layers 1000000000", USAGE, "takes at least .* GB"),
    ("--positions 10000000", USAGE, "takes at least .* GB"),
    ("--batch-size 1000000000", USAGE, "takes at least .* GB"),
    ("--batch-size " + HUGE, USAGE, POSITIVE),
    *(row for name, value in NOT_POSITIVE.items() for row in refused(f"--{name}", POSITIVE, value)),
    *refused("--output", A_FOLDER, ""),
    *refused("--device", A_DEVICE, "abacus", "meta"),
    *refused("--vocabulary", "wanted an integer above 4", 0, 4, 99999999999),
    *refused("--dropout", "wanted a number from 0 to below 1", 1, -0.1, "nan"),
    *refused("--learning-rate", "wanted a number above 0", 0, "inf", "1e999"),
    *refused("--seed", "wanted an integer from 0 to", -1, 2**63),
    ("--dtype float16", USAGE, "--dtype: invalid choice: 'float16'"),
    ("--data {HERE}/none.tsv", FAILURE, "--data .*none.tsv: No such file.* source<TAB>target"),
    ("--data {HERE}", FAILURE, "--data .*: Is a directory; wanted a file of lines"),
    ("--data=", FAILURE, "--data .: Is a directory"),
    (
        "--data {FILE}",
        FAILURE,
        "--data .*: 0 .*; 1 malformed .*line 1: has 0 tabs.*source<TAB>target",
    ),
    ("--data {EMPTY}", FAILURE, "--data .*: 0 sentence pairs.*source<TAB>target"),
    ("--data {BINARY}", FAILURE, "--data .*: 0 sentence pairs"),
    ("--data {ONE}", FAILURE, "--data: no pair is left to train with"),
    ("--data hf:", FAILURE, "--data hf:"),
]

TRAIN = [
    ("--use-fused-kernel maybe", USAGE, "--use-fused-kernel: invalid choice: 'maybe'"),
    *refused("--epochs", POSITIVE, 0, "nan"),
    *refused("--checkpoint-every", POSITIVE, 0),
    *refused("--bleu-pairs", POSITIVE, 0),
    *refused("--beam", POSITIVE, 0),
    ("--beam 10001", USAGE, "--beam 10001 is wider than --vocabulary 10000"),
    ("--resume yes", USAGE, "unrecognized arguments: yes"),
]

KERNELS = [
    *refused("--threads", THREADS, 0, "many", 100000),
    *refused("--device", A_DEVICE, "nonsense", ""),
    ("--device cuda:99", USAGE, "--device: got 'cuda:99', but torch sees"),
    ("--quick 3", USAGE, "unrecognized arguments: 3"),
]

SASS = [
    ("--arch 70", USAGE, "--arch: invalid choice: 70"),
    ("--arch sm_90", USAGE, "--arch: invalid int value: 'sm_90'"),
    ("--arch", USAGE, "--arch: expected at least one argument"),
    *refused("--csv", "wanted a file that can be written", ""),
    ("--csv {HERE}", USAGE, "--csv: got .*, wanted a file that can be written"),
    ("--write-budget --arch 90", USAGE, "--write-budget writes all architectures"),
    ("--all yes", USAGE, "unrecognized arguments: yes"),
]

SUMMARY = [
    ("", USAGE, "got 0 arguments, wanted one: the folder of a run"),
    ("{HERE} {HERE}", USAGE, "got 2 arguments, wanted one"),
    ("{HERE}", FAILURE, "versions.tsv: No such file or directory"),
    ("{HERE}/none", FAILURE, "versions.tsv: No such file or directory"),
    ("{FILE}", FAILURE, "versions.tsv: Not a directory"),
    ("{TORN}", FAILURE, "the tables in .* are damaged"),
]

TABLES = {
    "train": [*SHARED, *TRAIN],
    "compare": SHARED,
    "softmax_fw": KERNELS,
    **{name: KERNELS[:1] for name in ("softmax_bw", "layernorm_fw", "layernorm_bw")},
    "sass": SASS,
    "summary": SUMMARY,
}


@pytest.fixture
def places(tmp_path):
    """What the braces of a row stand for."""
    (tmp_path / "file").write_text("no pair")
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "one").write_text("ein Satz\ta sentence\n")
    torn = tmp_path / "torn"
    torn.mkdir()
    (torn / "versions.tsv").write_text("device\tH200\ndate\n")
    (torn / "stages.tsv").write_text("build\tcorrect")
    files = ("file", "empty", "binary", "one", "torn")
    return {name.upper(): str(tmp_path / name) for name in files} | {"HERE": str(tmp_path)}


@pytest.mark.parametrize("tool", TABLES)
def test_a_bad_call_of_a_tool_is_refused_in_one_line(tool, places, capsys, monkeypatch):
    monkeypatch.chdir(places["HERE"])
    defaults = ["--cache", f"{places['HERE']}/cache"] if tool in ("train", "compare") else []
    wrong = []
    for line, code, message in TABLES[tool]:
        try:
            ended = MAINS[tool]([*defaults, *line.format_map(places).split()])
        except SystemExit as stopped:  # of the parser, where a tool needs no more than Python
            ended = stopped.code
        error = capsys.readouterr().err.rstrip("\n")
        clear = re.search(message, error) and "\n" not in error and len(error) < 1100
        if ended != code or not clear or (Path(places["HERE"]) / "runs").exists():
            wrong.append(f"{line:.50}: wanted {code} and {message!r}, got {ended} and {error}")
    assert not wrong, "\n".join(wrong)


# --- faults of files ------------------------------------------------------------------------------


def pairs(count):
    return [(f"{i % 7} {i % 5} a b", f"{i % 5} {i % 7} B A") for i in range(count)]


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"x" * 99])
def test_damaged_subwords_in_the_cache_are_named(tmp_path, damage):
    subwords.load_subwords(pairs(40), 20, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(UserError, match=f"--cache: {file} is damaged: .*remove it"):
        subwords.load_subwords(pairs(40), 20, tmp_path)


def test_a_truncated_corpus_is_read_up_to_its_end_and_says_so(tmp_path):
    file = tmp_path / "pairs.tsv"
    whole = "".join(f"{source}\t{target}\n" for source, target in pairs(10)).encode()
    file.write_bytes(whole[:-9])  # in the middle of the last line
    found = corpus.load_corpus(str(file), (), tmp_path)
    assert len(found.pairs) == 9 and "line 10: has 0 tabs" in found.describe()


SIZES = (
    "--vocabulary 20 --embedding 8 --heads 2 --layers 1 --feed-forward 8 --positions 16 "
    "--batch-size 8 --use-fused-kernel false --epochs 1"
)


@pytest.fixture
def train(tmp_path):
    """Arguments for a run of seconds, with its output in `tmp_path / "out"`."""
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{source}\t{target}\n" for source, target in pairs(40)))
    places = ["--data", file, "--cache", tmp_path / "cache", "--output", tmp_path / "out"]
    return [*SIZES.split(), *map(str, places)]


class Planted:
    """Unpickled, it would write a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, r"--resume: the checkpoint is not one of this tool \(KeyError: 'settings'\)"),
        ({"settings": 3}, "--resume: the checkpoint is not one of this tool"),
        ([1, 2], "--resume: the checkpoint is not one of this tool"),
        ({"settings": {}, "model": {}}, "--resume: the checkpoint is not one of this tool"),
        (
            {"settings": {"heads": 3, "seed": 1, "layers": 1}},
            "the checkpoint is of another run: heads was 3, now 2, seed was 1, now 0",
        ),
    ],
)
def test_a_checkpoint_of_another_program_is_named(train, tmp_path, capsys, state, message):
    Checkpoints(tmp_path / "out").save(state)
    assert train_translation.main([*train, "--resume"]) == FAILURE
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(message, line)


def test_a_checkpoint_runs_no_code(train, tmp_path, capsys):
    planted = tmp_path / "planted"
    Checkpoints(tmp_path / "out").save({"settings": Planted(planted)})
    assert train_translation.main([*train, "--resume"]) == FAILURE
    assert not planted.exists()
    (line,) = capsys.readouterr().err.splitlines()
    assert "no checkpoint can be read" in line and "UnpicklingError" in line


def test_modes_are_compared_over_more_than_the_step_that_compiles(train, tmp_path, capsys):
    sizes = train[: train.index("--use-fused-kernel")]
    places = train[train.index("--data") :]
    assert compare_translation.main([*sizes, *places, "--samples-per-epoch", "8"]) == FAILURE
    (line,) = capsys.readouterr().err.splitlines()
    assert f"make {comparison.COMPILATION} step an epoch" in line


def test_a_damaged_budget_is_named(tmp_path):
    file = tmp_path / "budget.csv"
    for content in ("arch,kernel,registers\n90,a\n", "arch,kernel,registers\n90,a,many\n"):
        file.write_text(content)
        with pytest.raises(UserError, match=f"{file} cannot be read.*--write"):
            gates.read_budget(file)
    with pytest.raises(UserError, match="No such file.*run --write-budget"):
        gates.read_budget(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["there-is-no-such-program"], "there-is-no-such-program: No such file or directory"),
        (["sh", "-c", "echo first >&2; echo second >&2; exit 3"], "exit code 3 and said: first"),
        (["false"], "exit code 1 and said: nothing"),
    ],
)
def test_a_program_that_fails_is_named_with_what_it_said(command, message):
    with pytest.raises(UserError, match=message):
        toolchain.run(*command)
