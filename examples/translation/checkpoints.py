"""Checkpoints that survive a kill at any moment, and damage of the newest file."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import torch

from fusedops.cli.errors import UserError
from fusedops.cli.files import write_atomically

State = dict[str, Any]


class Checkpoints:
    """The newest two checkpoints in a folder.

    warnings: the problems that `load` found, and how it handled them.
    """

    def __init__(self, folder: Path) -> None:
        self.newest = folder / "checkpoint.pt"
        self.previous = folder / "checkpoint.previous.pt"
        self.corrupt = folder / "checkpoint.corrupt.pt"
        self.warnings: list[str] = []

    def exist(self) -> bool:
        return self.newest.exists() or self.previous.exists()

    def save(self, state: State) -> None:
        """Saves a checkpoint; the newest becomes the previous one. At any moment at least one of
        them is complete."""
        content = io.BytesIO()
        torch.save(state, content)
        for unfinished in self.newest.parent.glob(f"{self.newest.name}.*.tmp"):
            unfinished.unlink()
        if self.newest.exists():
            os.replace(self.newest, self.previous)
        write_atomically(self.newest, content.getbuffer())

    def load(self) -> State:
        """The newest checkpoint that is complete. Raises UserError if there is none."""
        problems = []
        for path in (self.newest, self.previous):
            try:
                state = _read(path)
            except Exception as error:  # whatever a damaged archive or pickle raises
                problems.append(f"{path}: {type(error).__name__}: {error}")
                continue
            self._set_aside(problems)
            return state
        raise UserError(
            "no checkpoint can be read; start without --resume in another --output\n"
            + "\n".join(problems)
        )

    def _set_aside(self, problems: list[str]) -> None:
        """Renames a damaged newest file, which must not become the previous one."""
        if problems and self.newest.exists():
            os.replace(self.newest, self.corrupt)
            self.warnings.append(
                f"corrupt checkpoint, kept as {self.corrupt.name}; the previous one is used\n"
                + problems[0]
            )


def _read(path: Path) -> State:
    with zipfile.ZipFile(path) as archive:  # torch.load does not verify the checksums
        if damaged := archive.testzip():
            raise zipfile.BadZipFile(f"the checksum of {damaged} is wrong")
    return torch.load(path, map_location="cpu", weights_only=True)
