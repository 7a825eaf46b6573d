"""How a command ends: with its exit code, and with one line on standard error where it failed.

Exit codes: 0 for success, 1 for a failure, 2 for wrong usage, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

INTERRUPTED = 130  # 128 and the number of the signal, as shells count

# An error may quote what it was given: its head names the option, its end says what to do.
HEAD, TAIL = 700, 200


class UserError(Exception):
    """Something that the user can mend; its text is the whole message."""

    exit_code = 1


class UsageError(UserError):
    """An option that has a wrong value, or that does not go with another one."""

    exit_code = 2


class Parser(argparse.ArgumentParser):
    """A parser that refuses in one line, without the list of all options above it."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def end_in_one_line(program: str, run: Callable[[], int]) -> int:
    """What `run` returns, or the exit code of what it raised, said in a line for the user.

    `python -X dev` shows the traceback of what no one expected.
    """
    _make_streams_safe()
    try:
        code = run()
        sys.stdout.flush()
        return code
    except UserError as error:
        return _say(program, str(error), error.exit_code)
    except KeyboardInterrupt:
        return _say(program, "interrupted", INTERRUPTED)
    except BrokenPipeError:  # as by `| head`, whose reader wants no more
        _discard_what_cannot_be_written()
        return UserError.exit_code
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        if isinstance(error, OSError):
            _discard_what_cannot_be_written()
        return _say(program, describe(error), UserError.exit_code)


def location_of(error: BaseException, file: str | None = None) -> str:
    """ "model.py:12", the innermost line of `file`, or of any, through which the error came."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if file in (None, frame.filename)]
    return f"{os.path.basename(inside[-1].filename)}:{inside[-1].lineno}" if inside else ""


def one_line(text: str) -> str:
    """The text without line breaks, and without its middle where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= HEAD + TAIL else f"{line[:HEAD]} ... {line[-TAIL:]}"


def _say(program: str, message: str, code: int) -> int:
    print(one_line(f"{program}: {message}"), file=sys.stderr)
    return code


def describe(error: Exception) -> str:
    """What went wrong, for whoever reads nothing else."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'output'}: {error.strerror}"
    if isinstance(error, MemoryError) or "allocate" in str(error):
        return f"there is not enough memory: {str(error) or 'none is left'}; pass smaller sizes"
    return (
        f"{type(error).__name__} at {location_of(error)}: {error}; this is not expected: please "
        "report it, with the traceback that `python -X dev` in place of `python` shows"
    )


def _make_streams_safe() -> None:
    """Closed streams swallow what is written; characters that one cannot show are escaped."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _discard_what_cannot_be_written() -> None:
    """Python flushes the output once more when it exits, and would fail once more."""
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError):  # a stream without a file of its own
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stdout.fileno())
            os.close(null)
