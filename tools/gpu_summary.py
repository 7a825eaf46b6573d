#!/usr/bin/env python3
"""summary.md and summary.json of a run of gpu_check.sh, from the tables in its folder."""

from __future__ import annotations

import json
import sys
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


def main(folder: Path) -> None:
    versions = dict(read_table(folder / "versions.tsv"))
    rows = read_table(folder / "stages.tsv")
    stages = [dict(zip(STAGE, (*row, int(seconds)), strict=True)) for *row, seconds in rows]
    (folder / "summary.md").write_text(markdown(versions, stages))
    summary = {"versions": versions, "stages": stages}
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
