"""With a missing, damaged or wrong library, one message says what to do, and `env` still runs."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import run_python

import fusedops
from fusedops.cli import env
from fusedops.ops.registration import libraries

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
    return run_python(*arguments, cwd=package.parent)


def reported(package: Path, code: int) -> dict:
    """The report of `env`, which ends with that exit code."""
    done = run(package, "-m", "fusedops", "env", "--json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


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


Faults = dict[Callable[[Path], object], str]
#: Those that the file shows, and those that loading it does.
OF_THE_FILE: Faults = {
    Path.unlink: "libfusedops.so is missing, the package was not built",
    truncated: "libfusedops.so is cut off",
    lambda library: library.write_bytes(b""): "libfusedops.so is not a shared library",
    lambda library: library.write_text(
        "not found\n" * 100
    ): "libfusedops.so is not a shared library",
    built_for_another_processor: "built for another processor architecture (ELF machine 243)",
}
ONCE_LOADED: Faults = {
    of_another_version: "but the Python files are of version 99.0",
    older_than_the_python_files: "is older than the Python files, it has no softmax_apply",
}


@pytest.mark.parametrize("fault", OF_THE_FILE, ids=lambda fault: fault.__name__)
def test_a_damaged_file_is_not_loaded(tmp_path, fault):
    library = Path(shutil.copy2(libraries.CPU_LIBRARY, tmp_path))
    fault(library)
    with pytest.raises(ImportError) as refusal:
        libraries._load(library)
    message = str(refusal.value)
    assert message.startswith("fusedops: ") and OF_THE_FILE[fault] in message and REBUILD in message


@pytest.mark.parametrize("fault", ONCE_LOADED, ids=lambda fault: fault.__name__)
def test_env_reports_what_is_wrong_with_the_library(package, fault):
    fault(package / "lib" / "libfusedops.so")
    message = reported(package, 1)["operators"]["error"]
    assert message.startswith("ImportError: fusedops: ")
    assert ONCE_LOADED[fault] in message and REBUILD in message


def test_a_checkout_without_a_build_says_which_package_it_hides(package, monkeypatch):
    shutil.rmtree(package / "lib")
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE.parent))
    hides = f"{package} is not built, and hides the package that is installed in {PACKAGE}"
    error = run(package, "-c", "import fusedops").stderr.strip().splitlines()[-1]
    assert error.startswith(f"ImportError: fusedops: {hides}. Start Python in another folder")
    (problem,) = reported(package, 1)["problems"]
    assert problem["what"] == hides and "start Python in another folder" in problem["fix"]


@pytest.mark.parametrize("name", ["libfusedops_kernels.so", "op_call.abi3.so"])
def test_env_reports_what_is_wrong_with_the_other_libraries(package, name):
    truncated(Path(shutil.copy2(PACKAGE / "lib" / name, package / "lib")))
    assert f"{name} is cut off" in reported(package, 1)["operators"]["error"]


COMPILES = "import torch; torch.compile(torch.nn.Softmax(-1), backend='fusedops')(torch.ones(2))"


@pytest.mark.parametrize("program", ["import fusedops", COMPILES], ids=["import", "compile"])
def test_a_program_and_a_command_say_it_in_one_message(package, program):
    truncated(package / "lib" / "libfusedops.so")
    done = run(package, "-c", program)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: fusedops: ") and "is cut off. " + REBUILD in last, last
    done = run(package, "-m", "fusedops", "explain")
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1 and line.endswith("python -m fusedops env")


def test_a_missing_op_call_is_not_needed(package):
    assert env.probe_libraries()["eager calls"] == "by op_call"
    eager_calls = reported(package, 0)["libraries"]["eager calls"]
    assert eager_calls.startswith("by torch.ops, 2 us slower")


@pytest.mark.parametrize("fault, message", [(Path.unlink, "is missing"), (truncated, "is cut off")])
def test_without_the_library_of_cuda_kernels_cuda_tensors_are_refused(package, fault, message):
    for name in ("libfusedops_cuda.so", "libfusedops_kernels_cuda.so"):
        shutil.copy2(PACKAGE / "lib" / "libfusedops.so", package / "lib" / name)
    fault(package / "lib" / "libfusedops_kernels_cuda.so")
    status = "fusedops.ops.registration.libraries.cuda_status()"
    code = f"import torch; torch.version.cuda = '13.0'; import fusedops; print({status})"
    done = run(package, "-W", "ignore", "-c", code)
    assert f"libfusedops_kernels_cuda.so {message}" in done.stdout, done.stderr


def test_operators_do_not_need_the_record_of_the_build(package):
    (package / "lib" / "build_info.json").unlink()
    assert "build_info.json is missing or damaged" in reported(package, 0)["libraries"]["cuda"]


@pytest.mark.parametrize("content", ["", "{", "[]"], ids=["empty", "cut", "other"])
def test_a_damaged_record_is_as_a_missing_one(tmp_path, monkeypatch, content):
    (tmp_path / "build_info.json").write_text(content)
    monkeypatch.setattr(libraries, "LIB_DIR", tmp_path)
    monkeypatch.setattr(libraries, "build_info", libraries.build_info.__wrapped__)
    assert "build_info.json is missing or damaged" in libraries._reason_for_no_cuda()


def without_version(package: Path) -> str:
    (package / "VERSION").unlink()
    return "VERSION"


def with_half_a_module(package: Path) -> str:
    (package / "nn.py").write_text("class Softmax(\n")
    return "never closed"


def with_a_module_that_fails(package: Path) -> str:
    (package / "parallel" / "api.py").write_text("raise ImportError('half')")
    return "fusedops cannot be imported: ImportError: fusedops could not be imported: half"


@pytest.mark.parametrize("damage", [without_version, with_half_a_module, with_a_module_that_fails])
def test_env_reports_a_package_whose_files_are_damaged(package, damage):
    told = damage(package)
    result = run(package, "-m", "fusedops", "env")
    assert result.returncode == 1
    assert told in result.stdout + result.stderr
    assert damage is without_version or "fix: pip install --no-build-isolation" in result.stdout
    assert "Traceback" not in result.stderr
