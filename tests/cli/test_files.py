"""Results are written whole or not at all, and a path that cannot be written is known early."""

from __future__ import annotations

import os
import re

import pytest

from fusedops.cli.files import check_folder, check_writable, write_atomically


def test_parent_folders_are_made_and_no_temporary_file_is_left(tmp_path):
    path = tmp_path / "new" / "folder" / "result.csv"
    for content in (b"first", b"second"):
        check_writable(path)
        write_atomically(path, content)
        assert path.read_bytes() == content
    assert os.listdir(path.parent) == ["result.csv"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_content_and_nothing_else(tmp_path, monkeypatch, call):
    def fail(*args):
        raise OSError(28, "No space left on device")

    path = tmp_path / "result.csv"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["result.csv"]


def test_a_link_stays_a_link(tmp_path):
    target, link = tmp_path / "target.csv", tmp_path / "link.csv"
    link.symlink_to(target)
    check_writable(link)
    write_atomically(link, b"content")
    assert link.is_symlink() and target.read_bytes() == b"content"


def test_a_pipe_stays_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    check_writable(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(pipe, b"content")
    assert os.read(reader, 100) == b"content" and pipe.is_fifo()
    os.close(reader)


def test_a_check_changes_nothing(tmp_path):
    check_writable(tmp_path / "new" / "result.csv")
    check_folder(tmp_path / "new")
    assert os.listdir(tmp_path) == []


def test_a_file_without_the_right_to_write_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "result.csv"
    path.touch()
    monkeypatch.setattr(os, "access", lambda *args: False)  # root may write everywhere
    with pytest.raises(PermissionError, match=re.escape(str(path))):
        check_writable(path)
