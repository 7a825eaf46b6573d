"""The source distribution holds all that a build from it reads, and nothing that a build writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Written by builds and tools, not by hand.
GENERATED = {".so", ".pyc", ".pyo", ".o"}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> set[Path]:
    """The files of the sdist, without making its archive."""
    folder = tmp_path_factory.mktemp("egg")
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    names = (folder / "fusedops.egg-info" / "SOURCES.txt").read_text().splitlines()
    return {Path(name) for name in names}


def sources(folder: str) -> set[Path]:
    """The files of a folder of the checkout that somebody wrote."""
    found = (path for path in (ROOT / folder).rglob("*") if path.is_file())
    return {path.relative_to(ROOT) for path in found if path.suffix not in GENERATED}


@pytest.mark.parametrize("folder", ["csrc", "cmake", "tools"])
def test_a_folder_that_the_build_or_its_user_reads_is_there_whole(folder, files):
    assert sources(folder) and sources(folder) <= files


def test_the_files_of_the_build_of_the_metadata_and_of_the_package_are_there(files):
    first = ("setup.py", "pyproject.toml", "CMakeLists.txt")
    named = ("README.md", "LICENSE", "fusedops/VERSION", "fusedops_autoload.py")
    package = {path for path in sources("fusedops") if path.suffix in (".py", ".csv", ".typed")}
    package |= {path.relative_to(ROOT) for path in (ROOT / "fusedops/graph").glob("*.h")}
    assert package and package | set(map(Path, first + named)) <= files


def test_nothing_that_a_build_writes_is_there(files):
    assert not {path for path in files if path.suffix in GENERATED}
    assert not {path for path in files if path.is_relative_to("fusedops/lib")}
    assert not {path for path in files if path.is_relative_to("fusedops/include")}
