"""Which sources get faults, how many, and which tests are to catch them."""

from __future__ import annotations

import random
import re
import subprocess
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

from .faults import Fault, faults_of

ROOT = Path(__file__).parents[2]


#: The weights of the parts of the project, and their sources. A source belongs to the first that
#: fits; * also stands for folders.
STRATA = {
    "cpu": (20, "csrc/include/fusedops/cpu/*|csrc/cpu/*"),
    "cuda": (20, "csrc/include/fusedops/cuda/*|csrc/cuda/*"),
    "operators": (10, "csrc/ops/*|csrc/include/fusedops/args.h"),
    "ops": (14, "fusedops/ops/*|fusedops/functional.py|fusedops/nn.py"),
    "policy": (5, "fusedops/graph/policy/*"),
    "rewriter": (16, "fusedops/graph/*"),
    "cli": (7, "fusedops/cli/*"),
    "rest": (8, "fusedops/*|csrc/c_api/*"),
}
#: Sources whose faults no test of `make test` could or should notice, by the reason.
LEFT_OUT = {
    "decide speed alone: results are right with any": "csrc/include/fusedops/cuda/launch_plan.h",
    "thresholds, and sizes that `make sanitize` checks": "*/work_division.h|*/work_sharing.h",
    "choose among processors and threads": "csrc/cpu/isa.*|csrc/cpu/parallel*",
    "races with a fork and an exit": "csrc/cpu/fork.*|csrc/cpu/interpreter_exit.*",
    "call CUDA itself": "csrc/c_api/c_device_cuda.cu|csrc/cuda/register*|*/streams.py",
    "sizes and times of measurements": "fusedops/cli/bench/*|fusedops/cli/timing.py",
    "downloads a model": "fusedops/cli/demo/*",
    "repairs other versions of torch": "fusedops/graph/inductor.py",
}
#: The tests of a source, those of the first pattern that fits it; and of a source, words that tests
#: about it have in their names and it does not.
LAYERS = {
    "csrc/cuda/*|csrc/include/fusedops/cuda/*": "simt",
    "csrc/c_api/*": "deploy/test_c_api*",
    "csrc/*": "ops",
    "fusedops/graph/policy/*": "graph/test_policy* graph/test_rewrite_policy* cli/test_tune* graph",
    "fusedops/graph/*|fusedops/backend*|fusedops/config*|fusedops/export*": "graph",
    "fusedops/cli/*": "cli",
    "fusedops/integrations/dtensor/*": "distributed",
    "fusedops/integrations/onnx*": "deploy/test_onnx*",
    "fusedops/integrations/*": "integrations",
    "fusedops/parallel/*": "parallel",
    "fusedops/replacement/*": "graph/test_replace*",
    "fusedops/ops/_library*": "deploy/test_library* cli/test_env* ops",
    "fusedops/*": "ops transforms */test_*arguments*",
}
WORDS = {
    "*/cuda/scores.h": "masked",
    "*/graph/rules/scores.py": "masked",
    "*/graph/ir/positions.py": "masks computed",
    "*/graph/rules/intervals.py": "masks computed",
    "*/graph/rules/row_scale.py": "norm",
    "*/ops/_mutation.py": "inplace",
}
#: Words of tests that are about many sources.
GENERAL = {"valu", "kern", "spel", "safe", "argu"}
#: Tests of other builds and machines, and programs that take long.
NEVER_RUN = ("*/test_cpu_isa*", "*/test_large*", "*/test_simt_ptx*", "*/test_simt_sanitizers*")


def tests_of(path: str) -> list[str]:
    """The files of tests for a source. Those that share most words with its name come first."""
    layer = next(globs for pattern, globs in LAYERS.items() if fits(path, pattern))
    extra = " ".join(words for pattern, words in WORDS.items() if fits(path, pattern))
    wanted = _words(f"{path.partition('.')[0]} {extra}")

    def closeness(test: str) -> tuple[float, float]:
        words = _words(Path(test).stem)
        shared = len(words & wanted) + len(words & GENERAL) / 2
        return -shared, -shared / len(words)

    return sorted(_files(layer), key=closeness)


def _words(text: str) -> set[str]:
    """The beginnings of words, since a mask, masks and masked are one subject."""
    return {word[:4] for word in re.findall(r"[a-z0-9]+", text)} - {"ops", "cpu", "grap", "rewr"}


def fits(path: str, patterns: str) -> bool:
    return any(fnmatch(path, pattern) for pattern in patterns.split("|"))


def _files(globs: str) -> list[str]:
    """The files of tests that each of the folders or globs names, without repetitions."""
    found: dict[str, None] = {}
    for pattern in globs.split():
        paths = (ROOT / "tests").glob(pattern if "*" in pattern else f"{pattern}/test_*.py")
        names = sorted(path.relative_to(ROOT).as_posix() for path in paths)
        if not names:
            raise LookupError(f"tests/mutants/plan.py: tests/ has nothing like {pattern}")
        found.update(dict.fromkeys(names))
    return [name for name in found if not fits(name, "|".join(NEVER_RUN))]


def stratum_of(path: str) -> str | None:
    """The name of a source's stratum; None where it gets no faults."""
    if fits(path, "|".join(LEFT_OUT.values())):
        return None
    return next((name for name, (_, patterns) in STRATA.items() if fits(path, patterns)), None)


def sources() -> list[str]:
    """The files of the package and its libraries."""
    command = ["git", "ls-files", "csrc", "fusedops"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for path in listed.split() if path.endswith((".py", ".h", ".cpp", ".cu"))]


def queues(seed: int, paths: list[str]) -> dict[str, list[Fault]]:
    """The faults of each stratum, in the order in which they are drawn."""
    drawn: dict[str, list[Fault]] = {name: [] for name in STRATA}
    for path in paths:
        if name := stratum_of(path):
            drawn[name] += faults_of(path, (ROOT / path).read_text())
    for name, faults in drawn.items():
        random.Random(f"{seed} {name}").shuffle(faults)
    return drawn


def counts(total: int, seed: int) -> Counter[str]:
    """How many faults each stratum gets."""
    weights = [weight for weight, _ in STRATA.values()]
    return Counter(random.Random(seed).choices(list(STRATA), weights, k=total))
