"""Ends a command with an exit code, and after an error with one line on standard error.

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

INTERRUPTED = 130  # shells use 128 plus the number of the signal, which is 2 for SIGINT

# A long message is shortened to HEAD characters of its beginning, which names the option, and TAIL
# characters of its end, which says what to do.
HEAD, TAIL = 700, 200


class UserError(Exception):
    """An error that the user can fix; its text is the whole message."""

    exit_code = 1


class UsageError(UserError):
    """An option with a wrong value, or one that cannot be combined with another."""

    exit_code = 2


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the list of all options."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def end_in_one_line(program: str, run: Callable[[], int]) -> int:
    """Returns the exit code of `run`. If `run` raises an error, prints it as one line, and returns
    the exit code of the error.

    `python -X dev` shows the traceback of unexpected errors.
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
    except BrokenPipeError:  # the reader has closed the pipe, as `| head` does
        _discard_what_cannot_be_written()
        return UserError.exit_code
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        if isinstance(error, OSError):
            _discard_what_cannot_be_written()
        return _say(program, describe(error), UserError.exit_code)


def location_of(error: BaseException, file: str | None = None) -> str:
    """Returns the innermost line of an error's traceback, such as "model.py:12". With `file`, only
    lines in that file count, and the result is empty if there are none."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if file in (None, frame.filename)]
    return f"{os.path.basename(inside[-1].filename)}:{inside[-1].lineno}" if inside else ""


def one_line(text: str) -> str:
    """Returns the text without line breaks, shortened in the middle if it is long."""
    line = " ".join(text.split())
    return min(line, f"{line[:HEAD]} ... {line[-TAIL:]}", key=len)


def _say(program: str, message: str, code: int) -> int:
    """Prints a message in one line on standard error, and returns `code`."""
    print(one_line(f"{program}: {message}"), file=sys.stderr)
    return code


def describe(error: Exception) -> str:
    """Returns the message for an error, with what to do about it."""
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
    """Replaces closed streams by the null device, and escapes characters that cannot be encoded."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _discard_what_cannot_be_written() -> None:
    """Redirects standard output to the null device if it cannot be written. Python flushes it again
    at exit, and would report the same error again."""
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError):  # the stream may have no file descriptor
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stdout.fileno())
            os.close(null)
