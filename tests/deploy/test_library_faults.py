"""With a missing, damaged or wrong library, one message says what to do, and `env` still runs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import fusedops

PACKAGE = Path(fusedops.__file__).parent
REBUILD = "To rebuild, in a checkout of fusedops run: pip install --no-build-isolation"


@pytest.fixture
def package(tmp_path) -> Path:
    """A copy of the package, to be damaged."""
    copy = tmp_path / "fusedops"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("lib", "include", "__pycache__"))
    (copy / "lib").mkdir()
    for name in ("libfusedops.so", "libfusedops_kernels.so", "build_info.json"):
        shutil.copy2(PACKAGE / "lib" / name, copy / "lib")
    return copy


def run(package: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=package.parent, capture_output=True, text=True
    )


def truncated(library: Path) -> None:
    content = library.read_bytes()
    library.write_bytes(content[: len(content) // 2])


def built_for_another_processor(library: Path) -> None:
    content = bytearray(library.read_bytes())
    content[18:20] = (243).to_bytes(2, "little")  # RISC-V
    library.write_bytes(content)


def of_another_version(library: Path) -> None:
    (library.parents[1] / "VERSION").write_text("99.0\n")


def older_than_the_python_files(library: Path) -> None:
    content = library.read_bytes()
    assert content.count(b"softmax_apply(Tensor") == 1
    library.write_bytes(content.replace(b"softmax_apply(Tensor", b"softmax_appli(Tensor"))


FAULTS: dict[Callable[[Path], object], str] = {
    Path.unlink: "libfusedops.so is missing, the package was not built",
    truncated: "libfusedops.so is cut off",
    lambda library: library.write_bytes(b""): "libfusedops.so is not a shared library",
    lambda library: library.write_text(
        "not found\n" * 100
    ): "libfusedops.so is not a shared library",
    built_for_another_processor: "built for another processor architecture (ELF machine 243)",
    of_another_version: "but the Python files are of version 99.0",
    older_than_the_python_files: "is older than the Python files, it has no softmax_apply",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_env_reports_what_is_wrong_with_the_library(package, fault):
    fault(package / "lib" / "libfusedops.so")
    done = run(package, "-m", "fusedops", "env", "--json")
    assert done.returncode == 1, done.stderr
    message = json.loads(done.stdout)["operators"]["error"]
    assert message.startswith("ImportError: fusedops: ")
    assert FAULTS[fault] in message and REBUILD in message


def test_env_reports_what_is_wrong_with_the_library_of_kernels(package):
    truncated(package / "lib" / "libfusedops_kernels.so")
    done = run(package, "-m", "fusedops", "env", "--json")
    assert "libfusedops_kernels.so is cut off" in json.loads(done.stdout)["operators"]["error"]


def test_the_import_says_the_same_in_one_message(package):
    truncated(package / "lib" / "libfusedops.so")
    done = run(package, "-c", "import fusedops")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: fusedops: ") and "is cut off. " + REBUILD in last


def test_torch_compile_says_the_same(package):
    truncated(package / "lib" / "libfusedops.so")
    compiled = "torch.compile(torch.nn.Softmax(-1), backend='fusedops')"
    done = run(package, "-c", f"import torch; {compiled}(torch.ones(2))")
    assert done.returncode == 1
    assert "is cut off. " + REBUILD in done.stderr.strip().splitlines()[-1], done.stderr


def test_a_damaged_op_call_is_reported_and_a_missing_one_is_not_needed(package):
    def eager_calls() -> str:
        done = run(package, "-m", "fusedops", "env", "--json")
        return json.loads(done.stdout)["libraries"].get("eager calls", done.stdout)

    assert eager_calls().startswith("by torch.ops, 2 us slower")
    module = Path(shutil.copy2(PACKAGE / "lib" / "op_call.abi3.so", package / "lib"))
    assert eager_calls() == "by op_call"
    truncated(module)
    assert "op_call.abi3.so is cut off" in eager_calls()


@pytest.mark.parametrize("fault, message", [(Path.unlink, "is missing"), (truncated, "is cut off")])
def test_without_the_library_of_cuda_kernels_cuda_tensors_are_refused(package, fault, message):
    for name in ("libfusedops_cuda.so", "libfusedops_kernels_cuda.so"):
        shutil.copy2(PACKAGE / "lib" / "libfusedops.so", package / "lib" / name)
    fault(package / "lib" / "libfusedops_kernels_cuda.so")
    status = "fusedops.ops._library.cuda_status()"
    code = f"import torch; torch.version.cuda = '13.0'; import fusedops; print({status})"
    done = run(package, "-W", "ignore", "-c", code)
    assert f"libfusedops_kernels_cuda.so {message}" in done.stdout, done.stderr


@pytest.mark.parametrize("content", [None, "", "{", "[]"], ids=["missing", "empty", "cut", "other"])
def test_operators_do_not_need_the_record_of_the_build(package, content):
    record = package / "lib" / "build_info.json"
    record.unlink() if content is None else record.write_text(content)
    done = run(package, "-m", "fusedops", "env", "--json")
    assert done.returncode == 0, done.stderr
    assert "build_info.json is missing or damaged" in json.loads(done.stdout)["libraries"]["cuda"]


def without_version(package: Path) -> str:
    (package / "VERSION").unlink()
    return "VERSION"


def with_half_a_module(package: Path) -> str:
    (package / "nn.py").write_text("class Softmax(\n")
    return "never closed"


@pytest.mark.parametrize("damage", [without_version, with_half_a_module])
def test_env_reports_a_package_whose_files_are_damaged(package, damage):
    told = damage(package)
    result = run(package, "-m", "fusedops", "env")
    assert result.returncode == 1
    assert told in result.stdout + result.stderr
    assert "Traceback" not in result.stderr
