"""`python -m tests.environments`: the tests as on CPUs with fewer instructions.

Variables lower the instructions that this package's kernels use, and those of eager PyTorch:
ATen's own loops, oneDNN's and MKL's. Every environment that the machine has instructions for runs
the tests of the operators and of rewritten graphs, and the counts are printed last.

As a plugin of pytest (``-p tests.environments``) it has ``--share N``: every Nth test, chosen by
its name, and at least one of each test function.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: From fewer instructions to more.
ISAS = ("default", "avx2", "avx512")

#: What eager may use, by the least that it needs. oneDNN's AVX512_CORE is without the instructions
#: for bfloat16 and for tiles that newer CPUs have.
EAGER = {
    "default": {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    },
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
    "avx512": {
        "ATEN_CPU_CAPABILITY": "avx512",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
        "MKL_ENABLE_INSTRUCTIONS": "AVX512",
    },
    # The one code path of MKL that is the same on every CPU, AMD's among them.
    "compatible": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "COMPATIBLE"},
}
#: By name: the kernels' instructions, and eager's. Some are equal, as on one CPU; some differ, as
#: no result of ours may depend on eager's.
ENVIRONMENTS = {
    "default": ("default", "default"),
    "avx2": ("avx2", "avx2"),
    "avx512": ("avx512", "avx512"),
    "default-beside-avx512": ("default", "avx512"),
    "avx512-beside-default": ("avx512", "default"),
    "avx2-beside-compatible": ("avx2", "compatible"),
}

#: The tests that run in every environment: those of results that code paths may change.
TESTS = (
    "tests/tools/test_bounds.py",
    "tests/ops/test_softmax_values.py",
    "tests/ops/test_softmax_grad.py",
    "tests/ops/test_softmax_stats.py",
    "tests/ops/test_softmax_dims.py",
    "tests/ops/test_spatial_norm.py",
    "tests/ops/test_spatial_softmax.py",
    "tests/ops/test_softmax_inplace.py",
    "tests/ops/test_softmax_dropout.py",
    "tests/ops/test_masked_softmax_values.py",
    "tests/ops/test_masked_softmax_grad.py",
    "tests/ops/test_layer_norm_values.py",
    "tests/ops/test_layer_norm_grad.py",
    "tests/ops/test_rms_norm.py",
    "tests/ops/test_std_norm.py",
    "tests/ops/test_add_norm.py",
    "tests/ops/test_norm_range.py",
    "tests/ops/test_norm_wanted_gradients.py",
    "tests/ops/test_narrow_rows.py",
    "tests/ops/test_cpu_denormals.py",
    "tests/ops/test_concurrent_rows.py",
    "tests/ops/test_stack_ops.py",
    "tests/ops/test_nan_payloads.py",
    "tests/ops/test_nn.py",
    "tests/ops/test_ops_layout.py",
    "tests/ops/test_ops_determinism.py",
    "tests/ops/test_ops_sizes.py",
    "tests/properties",
    "tests/graph",
)


def variables(name: str) -> dict[str, str]:
    ours, eager = ENVIRONMENTS[name]
    return {"FUSEDOPS_CPU_ISA": ours} | EAGER[eager]


def available(best: str) -> list[str]:
    """The environments of a machine whose best instruction set is this."""
    least = {"compatible": "avx2"}
    return [
        name
        for name, needed in ENVIRONMENTS.items()
        if all(ISAS.index(least.get(isa, isa)) <= ISAS.index(best) for isa in needed)
    ]


def run(name: str, arguments: Sequence[str], **options: object) -> subprocess.CompletedProcess:
    """Runs pytest in an environment. Code that Inductor compiles there is not kept."""
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | variables(name) | {"TORCHINDUCTOR_CACHE_DIR": cache}
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
        return subprocess.run(command, env=environment, cwd=ROOT, **options)


# --- the plugin -----------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    help = "run every Nth test, chosen by name, and at least one of each function"
    parser.addoption("--share", type=int, default=1, metavar="N", help=help)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen, left_out, functions = [], [], set()
    # In the order of a hash, so that the first of a function's tests is the same everywhere.
    for item in sorted(items, key=lambda item: zlib.crc32(item.name.encode())):
        function = getattr(item, "function", item)
        turn = zlib.crc32(item.name.encode()) % config.getoption("share") == 0
        (chosen if turn or function not in functions else left_out).append(item)
        functions.add(function)
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item in set(chosen)]


# --- the command ----------------------------------------------------------------------------------


def main() -> int:
    """Exit status: 1 where something failed."""
    from fusedops.ops import _library

    parser = argparse.ArgumentParser(prog="python -m tests.environments", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"{', '.join(ENVIRONMENTS)}; all if none is named")
    parser.add_argument("--workers", default="2", help="processes that run tests")
    parser.add_argument("--share", default="1", help="run every Nth test")
    args = parser.parse_args()
    names = args.names or available(_library.cpu_isa())
    if unknown := set(names) - set(ENVIRONMENTS):
        parser.error(f"no environment {', '.join(unknown)}, wanted {', '.join(ENVIRONMENTS)}")
    options = ["-q", "-n", args.workers, "--dist", "worksteal"]
    options += ["-p", "tests.environments", "--share", args.share]
    lines, failed = [], False
    for name in names:
        print(f"--- {name}: {variables(name)}", flush=True)
        start, done = time.monotonic(), run(name, [*options, *TESTS])
        failed = failed or done.returncode != 0
        outcome = "passed" if done.returncode == 0 else f"failed, status {done.returncode}"
        lines.append(f"{name}: {outcome}, in {time.monotonic() - start:.0f} s")
    print("\n".join(lines))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
