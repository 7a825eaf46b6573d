"""Finds the installed package that an unbuilt checkout hides from Python."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent

#: Builds and installs a checkout anew.
REBUILD = "pip install --no-build-isolation --force-reinstall --no-deps ."
#: Says what to do if the current folder, a checkout without libraries, hides the installed package.
#: An editable installation is the checkout itself, and cannot be hidden by it.
FIX_OF_HIDDEN = (
    "start Python in another folder, or build this one: pip install --no-build-isolation -e ."
)


@functools.cache
def version() -> str:
    """Returns the version of these files; an installed package may have another."""
    return (PACKAGE / "VERSION").read_text().strip()


def hidden_installation() -> Path | None:
    """Returns the built package that this folder without libraries hides, because it comes first on
    ``sys.path``: ``python -m`` and ``python -c`` look into the current folder before all others.
    Returns None if this folder is built, or if no built package is hidden."""
    if _is_built(PACKAGE):
        return None
    candidates = (Path(entry).resolve() / PACKAGE.name for entry in sys.path)
    return next(filter(_is_built, candidates), None)


def _is_built(package: Path) -> bool:
    return (package / "lib" / "libfusedops.so").exists()


def hidden_message(installed: Path) -> str:
    """Returns the part of an error that says which folder hides the package in ``installed``."""
    return f"{PACKAGE} is not built, and hides the package that is installed in {installed}"
