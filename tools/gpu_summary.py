#!/usr/bin/env python3
"""Writes summary.md and summary.json of a run of gpu_check.sh, from the tables in its folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

STAGE = ("stage", "kind", "status", "seconds")


def read_table(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text().splitlines()]


def markdown(versions: dict[str, str], stages: list[dict[str, str | int]]) -> str:
    lines = [f"# {versions['device']}, {versions['date'][:10]}", ""]
    lines += [f"- {name}: {value}" for name, value in versions.items()]
    lines += ["", f"| {' | '.join(STAGE)} |", "| --- | --- | --- | ---: |"]
    lines += [f"| {' | '.join(map(str, stage.values()))} |" for stage in stages]
    return "\n".join(lines) + "\n"


def write_summary(folder: Path) -> None:
    versions = dict(read_table(folder / "versions.tsv"))
    rows = read_table(folder / "stages.tsv")
    stages = [dict(zip(STAGE, (*row, int(seconds)), strict=True)) for *row, seconds in rows]
    text = markdown(versions, stages)  # before writing, so that an error leaves both files alone
    summary = json.dumps({"versions": versions, "stages": stages}, indent=2)
    (folder / "summary.md").write_text(text)
    (folder / "summary.json").write_text(summary + "\n")


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code. An error is one line on standard error."""
    if len(arguments) != 1:
        return say(2, f"got {len(arguments)} arguments, wanted one: the folder of a run")
    folder = Path(arguments[0])
    try:
        write_summary(folder)
    except OSError as error:
        return say(1, f"{error.filename or folder}: {error.strerror}")
    except (ValueError, KeyError) as error:  # not a table of gpu_check.sh, or a truncated one
        return say(1, f"the tables in {folder} are damaged: {error!r}; run gpu_check.sh again")
    return 0


def say(code: int, problem: str) -> int:
    print(f"gpu_summary: {problem}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
