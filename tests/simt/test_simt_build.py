"""An object of the emulator is compiled again only after what it was made of has changed."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from .emulator import build


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source, the header that it includes, and an empty cache."""
    monkeypatch.setattr(build, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(build, "RUNTIME", [])
    (tmp_path / "a.cpp").write_text('#include "a.h"\nint main() { return status; }\n')
    (tmp_path / "a.h").write_text("constexpr int status = 3;\n")
    return tmp_path


def made(folder: Path) -> int:
    """When the object was made."""
    return build.compile_object(folder / "a.cpp", []).stat().st_mtime_ns


def test_what_is_there_is_not_made_again(folder):
    first = made(folder)
    os.utime(folder / "a.h", (1, 1))  # another time, the same content
    (folder / "b.h").write_text("// a header that it does not include")
    assert made(folder) == first


def test_another_header_makes_another_object(folder):
    first = made(folder)
    (folder / "a.h").write_text("constexpr int status = 4;\n")
    assert made(folder) != first


def test_other_objects_make_another_program(folder):
    def status() -> int:
        program = build.link("program", [(folder / "a.cpp", [])], [])
        return subprocess.run([program]).returncode

    assert status() == 3
    (folder / "a.h").write_text("constexpr int status = 4;\n")
    assert status() == 4


def test_a_header_that_changes_while_it_is_compiled_is_compiled_again(folder):
    os.utime(folder / "a.h", (time.time() + 60,) * 2)
    assert made(folder) != made(folder)


def test_a_compiler_that_fails_says_why_and_leaves_no_object(folder):
    made(folder)
    (folder / "a.h").write_text("")
    for _ in range(2):
        with pytest.raises(build.BuildError, match="'?‘?status’?'? was not declared"):
            made(folder)
