"""Defines types of command-line options. Each converts an option's text to a valid value, or raises
an error that names the text and the values that are accepted."""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fusedops.cli.errors import UsageError
from fusedops.cli.files import check_folder, check_writable

#: With more threads for each core, a benchmark would measure how threads wait for a core, and
#: a process that starts thousands of threads exceeds the system's limits.
THREADS_A_CORE = 4
MOST_THREADS = THREADS_A_CORE * (os.cpu_count() or 1)


def checked(
    convert: Callable[[str], Any], accepts: Callable[[Any], bool], wanted: str
) -> Callable[[str], Any]:
    """Returns a type for argparse. This function converts the text of an option, and raises an
    error that says what is `wanted`, unless `accepts` returns True for the value."""

    def parse(text: str) -> Any:
        try:
            value = convert(text)
        except (ValueError, RuntimeError, OverflowError):
            value = None
        if value is None or not accepts(value):
            raise argparse.ArgumentTypeError(f"got {text!r}, wanted {wanted}")
        return value

    return parse


#: The greatest size that a dimension can have in torch.
MOST = 2**63 - 1
positive = checked(int, lambda value: 0 < value <= MOST, "an integer from 1 to 2^63 - 1")
seed = checked(int, lambda value: 0 <= value <= MOST, "an integer from 0 to 2^63 - 1")
threads = checked(
    int,
    lambda value: 0 < value <= MOST_THREADS,
    f"an integer from 1 to {MOST_THREADS}, {THREADS_A_CORE} a core",
)
probability = checked(float, lambda value: 0 <= value < 1, "a number from 0 to below 1")
rate = checked(float, lambda value: 0 < value < math.inf, "a number above 0")


def device(text: str) -> torch.device:
    """Returns the device that `text` names: the CPU, or a GPU that torch sees."""
    match = re.fullmatch(r"cpu|cuda(?::(\d{1,9}))?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted cpu, cuda or cuda:N")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if text != "cpu" and int(match[1] or 0) >= gpus:
        seen = f"only {gpus} GPU(s)" if gpus else "no GPU"
        raise argparse.ArgumentTypeError(
            f"got {text!r}, but torch sees {seen}; see `python -m fusedops env`"
        )
    return torch.device(text)


def output_file(text: str) -> Path:
    """Returns the path of a file that can be written. The file is checked while options are parsed,
    so that a command does not fail after its work."""
    return _writable(text, "a file", check_writable)


def output_folder(text: str) -> Path:
    """Returns the path of a folder into which files can be written. It need not exist yet."""
    return _writable(text, "a folder", check_folder)


def _writable(text: str, kind: str, check: Callable[[Path], None]) -> Path:
    """Returns `text` as a path. Raises an error with the reason unless `check` accepts the path."""
    wanted = f"got {text!r}, wanted {kind} that can be written"
    if not text:
        raise argparse.ArgumentTypeError(wanted)
    try:
        check(Path(text))
    except (OSError, ValueError, RuntimeError) as error:
        # Errors about an invalid name are ValueErrors or RuntimeErrors, which have no `strerror`.
        reason = getattr(error, "strerror", None) or error
        raise argparse.ArgumentTypeError(f"{wanted}: {reason}") from error
    return Path(text)


def require_memory(what: str, size: float) -> None:
    """Raises UsageError if `what`, which takes `size` bytes, does not fit into this machine's
    memory. Linux would grant the allocation, and kill the process later."""
    has = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > has:
        raise UsageError(
            f"{what} takes at least {size / 1e9:,.0f} GB, and this machine has {has / 1e9:,.0f}; "
            "pass smaller sizes"
        )
