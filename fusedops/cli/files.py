"""Writes files atomically."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Writes a file so that readers see either the old content or the new one, even after a power
    failure.

    Creates missing folders. Follows links. Devices and pipes are written directly.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    if _is_special(path):
        path.write_bytes(content)
        return
    temporary = _temporary(path)
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def check_writable(path: Path) -> None:
    """Raises the OSError that `write_atomically` would raise, before any work is done."""
    path = path.resolve()
    if path.is_dir():
        raise _os_error(errno.EISDIR, path)
    if path.exists() and not os.access(path, os.W_OK):
        raise _os_error(errno.EACCES, path)
    if not _is_special(path):
        _temporary(path).exists()  # raises OSError if the name is too long
        check_folder(path.parent)


def check_folder(folder: Path) -> None:
    """Raises OSError unless files can be written into `folder`, which need not exist yet."""
    folder = folder.resolve()
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    with tempfile.TemporaryFile(dir=existing):
        pass


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file()


def _temporary(path: Path) -> Path:
    return path.with_name(f"{path.name}.{os.getpid()}.tmp")


def _os_error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
