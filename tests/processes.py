"""Python in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def output(*command: object) -> str:
    """What a command prints, which must succeed."""
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=True
    ).stdout


def run_python(
    *arguments: object, cwd: Path | None = None, timeout: float | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """What ``python *arguments`` did, with environment variables beside those that are set."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
