"""Which sources get faults, how many, and which tests are to catch them."""

from __future__ import annotations

import random
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from .faults import Fault, faults_of

ROOT = Path(__file__).parents[2]
#: The weights of the parts of the project, and how the paths of their sources begin. A source
#: belongs to the first that fits.
STRATA = {
    "cpu": (20, r"csrc/cpu/"),
    "cuda": (20, r"csrc/cuda/"),
    "operators": (10, r"csrc/(ops/|args)"),
    "ops": (14, r"fusedops/(ops/|functional|nn\.)"),
    "policy": (5, r"fusedops/graph/policy/"),
    "rewriter": (16, r"fusedops/graph/"),
    "cli": (7, r"fusedops/cli/"),
    "rest": (8, r"fusedops/|csrc/c_api/"),
}
#: Sources without faults, and why no test of `make test` notices some of theirs.
LEFT_OUT = {
    r"csrc/cuda/launch/plan\.": "decides speed: results are right with any plan",
    r".*/(work_(division|sharing)|scratch)\.": "thresholds, and sizes that `make sanitize` checks",
    r"csrc/cpu/dispatch/isa": "chooses among instruction sets",
    r"csrc/cpu/threads/(parallel|torch|openmp)": "chooses the number of threads",
    r"csrc/cpu/threads/(fork|interpreter_exit)": "races with a fork or the end of the process",
    r".*(c_(device|memory)_cuda|register_cuda|/streams)\.": "calls CUDA itself",
    r"fusedops/cli/(bench|timing)": "sizes and times of measurements",
    r"fusedops/cli/demo": "shows an encoder whose package `make test` does not install",
    r"fusedops/graph/inductor": "repairs other versions of torch",
}
#: Lines with a fault that change no result, and why.
EQUIVALENT = {
    "csrc/cpu/norm/forward.h": {
        "if (begin != 1) rows.compute(begin, count);": "the first chunk is computed twice",
        "if (interleaved_rows(args) > kInterleavedRows) row = steps<kInterleavedRows>(row, "
        "range.end);": "rows have the same bits in twos",
    },
    "csrc/cpu/norm/backward.h": {
        "const Vec<C> from_zero = (mean <= 0 ? -mean : mean) * rstd;": "the sign of 0 is not read",
    },
    "csrc/cpu/norm/common.h": {
        "constexpr int64_t kLongestRowBytes = int64_t(1) << 17, kShortStepBytes = "
        "int64_t(1) >> 14;": "it decides what is prefetched",
    },
    "csrc/cpu/masked_softmax/rows.h": {
        "row.next = row.input - group_rows * args.input.spacing.stride;": (
            "the row there is only prefetched"
        ),
    },
    "csrc/cpu/softmax/short_rows.h": {
        "(args.dim_size < kShortRowCols && args.inner <= InnerSegments::kMaxCols);": (
            "spatial.h is as right"
        ),
    },
    "csrc/cpu/simd/exp_division.h": {
        "C(kFusesProducts && rest == 0 ? kAlmostLeast * magnitude(inverse)": (
            "division in steps has the same bits"
        ),
    },
    "csrc/cpu/softmax/rows.h": {
        "return chunk_max == -kInfinity<C> ? C(1) : chunk_max;": "-inf minus any number is -inf",
    },
    "csrc/cuda/masked_softmax/scores.h": {
        "if (end >= kWidth) ;": "the loop then replaces nothing",
    },
    "csrc/cuda/masked_softmax/rows.h": {
        "if (args.grad_sinks != nullptr && row.cols > 0 && column_of<kWidth>(0) != 0) {": (
            "every thread holds the sum, and writes the same"
        ),
    },
    "csrc/cuda/block/segments.h": {
        "if (threadIdx.x > 1) return;": "every thread holds the partial, and writes the same",
    },
    "csrc/cuda/block/reduce.h": {
        "if (lane == 1) row_values[warp] = value;": "every lane holds the warp's value",
    },
    "csrc/cuda/block/philox.h": {
        "if (!is_on_) ;": "without a seed p is 0: nothing is dropped, and the scale is 1",
    },
    "csrc/cuda/launch/dispatch.h": {
        "if (width > 0 && cols % width == 0 && std::all_of(accesses.begin(), accesses.end(), "
        "allows)) {": "a width of 1 is what is returned below too",
    },
    "csrc/cuda/norm/spatial.h": {
        "if (threadIdx.x > 1 || first + k >= args.dim_size) continue;": (
            "every thread holds the sum, and writes the same"
        ),
    },
    "csrc/cuda/softmax/rows.h": {
        "if constexpr (sizeof(Out) == 1) {": "the longer exponential is more precise",
        "if (start > 1) tile.load(input + start, left, -INFINITY);": "tiles are wider than 1",
        "for (int32_t start = 0; start <= segment.cols; start += grads.step()) {": (
            "an empty tile adds 0"
        ),
    },
    "csrc/cuda/norm/backward.h": {
        "if (kThreads == 0 && cols <= 0) continue;": "no vector of such a thread is inside",
    },
    "csrc/ops/tensor.h": {
        "int64_t first, count = 1, stride = 1;": "one element is at any stride",
    },
    "csrc/ops/norm.h": {
        "double offset() const { return weight || true ? weight_offset : 0; }": "kernels read the "
        "offset beside a weight only",
    },
    "fusedops/integrations/onnx.py": {
        "return returned if len(returned) > (0) else returned[0]": "torch.onnx reads a tuple of "
        "one result as that result",
    },
    "fusedops/graph/readers/softmax_decomposed.py": {
        'return SoftmaxChain("softmax", scores, total.dims[(1)], (call.node,), '
        "refusal=SEVERAL_DIMS)": "such a site is only reported",
    },
    "fusedops/graph/readers/intervals.py": {
        "product = (OpCall(operator.mul, (symbol, times)))": "a product with 1 has no effect",
    },
    "fusedops/ops/norm.py": {
        "by_normalized = ((grad_output * weight).to(normalized.dtype))": "autograd drops a "
        "gradient that is not needed",
    },
    "fusedops/graph/rewriting/layouts.py": {
        "(OpCall(aten.sym_size.int, (result, d)))": "a known size is read from the tensor",
    },
    "fusedops/graph/rules/stack.py": {
        "if any(list(shape) != list(shapes[(1)]) for shape in shapes):": (
            "any two that differ differ from both"
        ),
    },
}
#: The folders of tests and globs for a source, of the first beginning that fits.
TESTS = {
    r"csrc/cuda/": "simt",
    r"csrc/c_api/": "deploy/test_c_api*",
    r"csrc/ops/": "ops bad_input/test_bad_op*",
    r"csrc/": "ops",
    r"fusedops/graph/policy/": "graph/test_policy* graph/test_rewrite_policy* cli/test_tune* graph",
    r"fusedops/(graph/|backend|config|export)": "graph",
    r"fusedops/cli/": "cli",
    r"fusedops/__(init|main)__": "graph/test_rewrite_config* deploy/test_autoload* cli",
    r"fusedops/integrations/dtensor/": "distributed",
    r"fusedops/integrations/onnx": "deploy/test_onnx*",
    r"fusedops/integrations/": "integrations",
    r"fusedops/parallel/": "parallel",
    r"fusedops/replacement/": "graph/test_replace*",
    r"fusedops/ops/registration/libraries": "deploy/test_library* cli/test_env* ops",
    r"fusedops/": "ops transforms */test_*arguments*",
}
#: Tests of minutes, which come after others that are as close to a source.
SLOW = re.compile(r".*_(registration|exit|census|autocast|ddp|transformers|linear|random_graphs)\.")
#: Beginnings of words: those of tests about many sources, and those that say nothing in a name.
GENERAL, EMPTY = {"valu", "kern", "spel", "safe", "argu"}, {"ops", "cpu", "grap", "rewr"}
#: What sources are about, where their names do not have the word that their tests have.
ABOUT = {"scores": "masked", "positions": "masks", "intervals": "masks", "row_scale": "norm"}


def tests_of(path: str) -> list[str]:
    """The files of tests for a source. Those that share most words with its name come first."""
    globs = next(globs for beginning, globs in TESTS.items() if re.match(beginning, path))
    wanted = _words(path.partition(".")[0]) | _words(ABOUT.get(Path(path).stem, ""))

    def distance(test: str) -> tuple[float, float]:
        words = _words(Path(test).stem)
        shared = len(words & wanted) + len(words & GENERAL) / 2 - bool(SLOW.match(test)) / 2
        return -shared, -shared / len(words)

    found = [test for pattern in globs.split() for test in _files(pattern)]
    return sorted(dict.fromkeys(found), key=distance)


def _words(text: str) -> set[str]:
    """The beginnings of words, since a mask, masks and masked are one subject."""
    return {word[:4] for word in re.findall(r"[a-z0-9]+", text)} - EMPTY


def _files(pattern: str) -> list[str]:
    paths = (ROOT / "tests").glob(pattern if "*" in pattern else f"{pattern}/test_*.py")
    names = sorted(path.relative_to(ROOT).as_posix() for path in paths)
    if not names:
        raise LookupError(f"tests/mutants/plan.py: tests/ has nothing like {pattern}")
    return names


def stratum_of(path: str) -> str | None:
    """The name of a source's stratum; None where it gets no faults."""
    if any(re.match(beginning, path) for beginning in LEFT_OUT):
        return None
    return next((name for name, (_, fits) in STRATA.items() if re.match(fits, path)), None)


def sources() -> list[str]:
    """The files of the package and its libraries."""
    command = ["git", "ls-files", "csrc", "fusedops"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for path in listed.split() if path.endswith((".py", ".h", ".cpp", ".cu"))]


def queues(seed: int, paths: list[str]) -> dict[str, list[Fault]]:
    """The faults of each stratum, in the order in which they are drawn."""
    drawn: dict[str, list[tuple[bytes, Fault]]] = {name: [] for name in STRATA}
    for path in paths:
        if name := stratum_of(path):
            drawn[name] += with_places(seed, path, (ROOT / path).read_text())
    return {name: [fault for _, fault in sorted(faults)] for name, faults in drawn.items()}


def with_places(seed: int, path: str, text: str) -> Iterator[tuple[bytes, Fault]]:
    """The faults of a source that change a result, each with its place in the queue: a hash of the
    line that it changes, so that a survivor is drawn again however the other lines change."""
    seen: Counter[str] = Counter()
    for fault in faults_of(path, text):
        line = fault.changed_line(text)
        if line not in EQUIVALENT.get(path, {}):
            yield sha256(f"{seed} {path} {line} {seen[line]}".encode()).digest(), fault
        seen[line] += 1


def counts(total: int, seed: int) -> Counter[str]:
    """How many faults each stratum gets."""
    weights = [weight for weight, _ in STRATA.values()]
    return Counter(random.Random(seed).choices(list(STRATA), weights, k=total))
