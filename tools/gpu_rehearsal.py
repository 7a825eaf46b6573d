#!/usr/bin/env python3
"""Tries each stage of gpu_check.sh as far as it goes without a GPU, for `gpu_check.sh --dry-run`.

Standard input has a line for each stage: its name, a tab, and its command in the words of a shell.
Tests are collected, arguments parsed, and a build planned. A program that is not on this machine is
not tried. The exit code is 1 if a stage could not start.
"""

from __future__ import annotations

import argparse
import io
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import NoReturn

TUNE = "build/tune/tune"
#: Modules whose arguments are parsed in this process: each of their stages would take seconds to
#: import torch.
PARSED = ("fusedops", "tools.bench")
PARSE = argparse.ArgumentParser.parse_args
LIMIT_S, LINES_SHOWN = 300, 15


def without_gpu(words: list[str], folder: str) -> list[str]:
    """Returns a command that ends before the given one would need a GPU. What it builds is in
    `folder`."""
    if TUNE in words:  # behind a profiler or a sanitizer, too
        return [*words[words.index(TUNE) :], "--list"]
    if words[-2:] == ["fusedops", "env"]:
        return words
    if "pytest" in words:
        return [*words, *(["-n", "0"] if "-n" in words else []), "--collect-only"]
    if "cmake --build" in words[-1]:
        return [*words[:-1], words[-1].replace("build/tune", folder) + " -- -n"]
    if words[0] == "bash":
        return [*words[:-1], words[-1].replace(".py", ".py --help")]
    if is_parsed(words):  # which refuses a GPU that is not there
        return ["cpu" if word == "cuda" else word for word in words]
    return [*words, "--help"]


def is_parsed(words: Sequence[str]) -> bool:
    return words[1:2] == ["-m"] and words[2] in PARSED


def missing_programs(words: list[str]) -> list[str]:
    """Returns what the machine lacks of the programs that a command runs."""
    wanted = ["cmake", "ninja", "nvcc"] if "cmake" in words[-1] else [words[0]]
    wanted += [TUNE] if TUNE in words[1:] else []
    return [program for program in wanted if not shutil.which(program)]


def run(words: list[str]) -> str | None:
    """Returns None if the command succeeds, else what it prints."""
    if is_parsed(words) and words[-1] != "env":
        return parse(words[2], words[3:])
    try:
        done = subprocess.run(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return f"{shlex.join(words)} takes more than {LIMIT_S} s"
    return None if done.returncode == 0 else done.stdout


def parse_and_exit(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> NoReturn:
    """Ends a program that has parsed its arguments. --help would not: it hides options that the
    program does not know."""
    PARSE(parser, arguments)
    sys.exit(0)


def parse(module: str, arguments: Sequence[str]) -> str | None:
    """Returns None if the module, run as a program, takes the arguments, else what it prints."""
    output, code = io.StringIO(), None
    sys.argv = [module, *arguments]
    argparse.ArgumentParser.parse_args = parse_and_exit
    with redirect_stdout(output), redirect_stderr(output):
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            code = end.code
        except Exception:
            return traceback.format_exc()
    return output.getvalue() if code else None


def main() -> int:
    """Returns the exit code."""
    tried, failed = 0, 0
    for line in sys.stdin:
        name, _, command = line.rstrip("\n").partition("\t")
        words = shlex.split(command)
        if missing := missing_programs(words):
            print(f"{name} is not tried: there is no {' and no '.join(missing)} here")
            continue
        tried += 1
        with tempfile.TemporaryDirectory() as folder:
            problem = run(without_gpu(words, folder))
        if problem is not None:
            failed += 1
            shown = problem.strip().splitlines()[-LINES_SHOWN:]
            print("\n    ".join([f"{name} cannot start:", *shown]))
    print(f"{tried - failed} of {tried} stages that were tried can start")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
