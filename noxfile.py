"""`nox`: the tests with other versions of torch and Python, and as on CPUs with fewer instructions.

``nox -s matrix -- WHEEL`` tests the wheel that ``make wheel`` built, with Pythons on PATH, which
pyenv puts there with PYENV_VERSION=3.11.7:3.13.0. What follows ``nox -s instructions --`` are
options of pytest. ``nox --list`` names the sessions, each of which can be run alone.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import nox

nox.options.envdir = "build/nox"
nox.options.error_on_missing_interpreters = True

#: Tests of a wheel: operators, transforms, compiling, training, exporting, AOTInductor, DTensors.
WHEEL_TESTS = (
    "tests/ops/test_norm.py",
    "tests/ops/test_nn.py",
    "tests/ops/test_small_calls.py",
    "tests/graph/test_rewrite_backend.py",
    "tests/graph/test_rewrite_export.py",
    "tests/deploy/test_autoload.py",
    "tests/deploy/test_package.py",
    "tests/distributed/test_distributed.py",
    "tests/transforms/test_nested.py",
    "tests/transforms/test_tracing.py",
)
#: The packages that WHEEL_TESTS import, and setuptools, which torch.compile needs from Python 3.12.
PACKAGES = ("numpy", "pytest", "expecttest", "hypothesis", "setuptools")


@nox.session(python=["3.11", "3.13"])
@nox.parametrize("torch", ["2.10.0", "2.13.0", "2.15.0"])
def matrix(session: nox.Session, torch: str) -> None:
    """Tests one wheel, outside of the checkout, with the oldest, pinned and newest torch."""
    if len(session.posargs) != 1 or not Path(session.posargs[0]).is_file():
        session.error(f"got {session.posargs}, wanted the wheel of `make wheel` after --")
    wheel, folder = Path(session.posargs[0]).resolve(), Path(session.create_tmp()).resolve()
    # Otherwise Python might import the sources in place of the wheel, and Inductor might run code
    # that it compiled for another torch.
    variables = {"PYTHONPATH": None, "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    try:
        session.install(f"torch=={torch}", *PACKAGES)
        session.install("--no-deps", str(wheel))
        for name in ("tests", "docs", "examples"):
            shutil.copytree(name, folder / name)
        shutil.copy("pyproject.toml", folder)
        with session.chdir(folder):
            session.run("python", "-m", "fusedops", "check", env=variables)
            session.run("python", "-m", "pytest", "-q", *WHEEL_TESTS, env=variables)
    finally:
        shutil.rmtree(session.virtualenv.location)  # a torch with CUDA takes 7 GB


#: The kernels' instruction sets (FUSEDOPS_CPU_ISA); each includes those before it.
ISAS = ("default", "avx2", "avx512")
#: The variables that limit eager PyTorch to an instruction set. oneDNN's AVX512_CORE excludes the
#: instructions for bfloat16 and for tiles, which newer CPUs have.
EAGER = {
    isa: {"ATEN_CPU_CAPABILITY": isa, "ONEDNN_MAX_CPU_ISA": onednn, "MKL_ENABLE_INSTRUCTIONS": mkl}
    for isa, onednn, mkl in (
        ("default", "SSE41", "SSE4_2"),
        ("avx2", "AVX2", "AVX2"),
        ("avx512", "AVX512_CORE", "AVX512"),
    )
}
#: The one code path of MKL that is the same on every CPU, AMD's among them.
EAGER["compatible"] = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "COMPATIBLE"}

#: Tests of results that another instruction set might change. The files of operators are found by
#: what their names contain.
RESULT_TESTS = (
    "tests/tools/test_bounds.py",
    *(
        str(path)
        for name in ("softmax", "norm", "cross_entropy", "rows", "stack", "nan", "nn")
        for path in sorted(Path("tests/ops").glob(f"test_*{name}*.py"))
    ),
    "tests/ops/test_op_bits.py",
    "tests/ops/test_ops_layout.py",
    "tests/ops/test_ops_sizes.py",
    "tests/properties",
    "tests/graph",
)


@nox.session(python=False)
@nox.parametrize(
    "kernels, eager",
    [
        *(nox.param(isa, isa, id=isa) for isa in ISAS),
        # No result of ours may depend on eager's instructions.
        nox.param("default", "avx512", id="default-beside-avx512"),
        nox.param("avx512", "default", id="avx512-beside-default"),
        nox.param("avx2", "compatible", id="avx2-beside-compatible"),
    ],
)
def instructions(session: nox.Session, kernels: str, eager: str) -> None:
    """Tests operators and rewritten graphs with limited instructions of kernels and of eager."""
    question = "from fusedops.ops.registration import libraries; print(libraries.cpu_isa())"
    best = session.run(sys.executable, "-c", question, silent=True, log=False).strip()
    needed = {kernels, EAGER[eager]["ATEN_CPU_CAPABILITY"]}
    if missing := needed & set(ISAS[ISAS.index(best) + 1 :]):
        session.skip(f"this machine, or this build, has no {', '.join(missing)}")
    with tempfile.TemporaryDirectory() as cache:
        variables = {"FUSEDOPS_CPU_ISA": kernels, "TORCHINDUCTOR_CACHE_DIR": cache}
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        session.run(*pytest, *RESULT_TESTS, *session.posargs, env=variables | EAGER[eager])
