#!/usr/bin/env python3
"""Writes summary.md, summary.json and tune.png for a run of gpu_check.sh, from the run's tables.

tune.csv has the times of kernels with several launch plans. The incumbent is the plan that the
package has. A share is the speed of a kernel as a fraction of the speed of a copy of as many bytes.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path

STAGE = ("stage", "kind", "status", "seconds")
#: The row lengths in the summary. It shows the incumbent's share for each of them, for the largest
#: number of rows that was measured.
LENGTHS = (1024, 4096, 8192, 16384, 32768, 65536)
DTYPES = ("bfloat16", "float32")
Shares = dict[tuple[str, str], dict[int, float]]


def read_table(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text().splitlines()]


def read_shares(path: Path) -> Shares:
    """Returns the shares of the incumbents: (operator with direction, dtype) -> row length ->
    share, for the largest number of rows of that length. Returns {} if there is no file. Lines with
    an error are left out, and so is a last line that tune has not finished."""
    found: dict[tuple[str, str], dict[int, tuple[int, float]]] = {}
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if None in row.values() or row["is_incumbent"] != "1" or not row["share_of_copy"]:
                continue
            name = f"{row['op']} {row['direction']}", row["dtype"]
            case = int(row["rows"]), float(row["share_of_copy"])
            of_name = found.setdefault(name, {})
            of_name[int(row["cols"])] = max(case, of_name.get(int(row["cols"]), case))
    return {name: {n: share for n, (_, share) in of.items()} for name, of in found.items()}


def shares_lines(shares: Shares) -> list[str]:
    """Returns the lines of a table in Markdown, which has the shares in percent and a line for each
    operator and dtype; [] if there are no shares."""
    if not shares:
        return []
    head = ["operator", "dtype", *map(str, LENGTHS)]
    lines = ["", "Speed in percent of a copy's:", ""]
    lines += [f"| {' | '.join(head)} |", f"| --- | --- |{' ---: |' * len(LENGTHS)}"]
    for (op, dtype), of in sorted(shares.items()):
        cells = [f"{100 * of[n]:.0f}" if n in of else "" for n in LENGTHS]
        lines.append(f"| {' | '.join([op, dtype, *cells])} |")
    return lines


def draw_shares(shares: Shares, path: Path) -> bool:
    """Draws the shares over the row length. Returns whether there is a picture afterwards, which
    there is not without matplotlib. A picture that exists is not drawn again, because tune.csv does
    not change once its stage of gpu_check.sh has ended."""
    if path.exists():
        return True
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, len(DTYPES), sharey=True, figsize=(12, 5))
    for axes, dtype in zip(panels, DTYPES, strict=True):
        for (op, of_dtype), of in sorted(shares.items()):
            if of_dtype == dtype:
                lengths = sorted(of)
                axes.plot(lengths, [of[n] for n in lengths], marker=".", label=op)
        axes.set_xscale("log", base=2)
        axes.set(title=dtype, xlabel="columns", ylim=(0, 1.1))
        axes.axhline(1, color="black", linewidth=0.8)
    panels[0].set_ylabel("speed, as a share of a copy's")
    panels[-1].legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, bbox_inches="tight")
    plt.close(figure)
    return True


def markdown(
    versions: dict[str, str], stages: list[dict[str, str | int]], shares: Shares, picture: str
) -> str:
    """Returns the text of summary.md. `picture` is the name of the picture's file, or empty."""
    lines = [f"# {versions['device']}, {versions['date'][:10]}", ""]
    lines += [f"- {name}: {value}" for name, value in versions.items()]
    lines += ["", f"| {' | '.join(STAGE)} |", "| --- | --- | --- | ---: |"]
    lines += [f"| {' | '.join(map(str, stage.values()))} |" for stage in stages]
    lines += shares_lines(shares)
    if picture:
        lines += ["", f"![Speed as a share of a copy's]({picture})"]
    return "\n".join(lines) + "\n"


def write_summary(folder: Path) -> None:
    """Writes the summaries and the picture into the folder of a run, from its tables."""
    versions = dict(read_table(folder / "versions.tsv"))
    rows = read_table(folder / "stages.tsv")
    stages = [dict(zip(STAGE, (*row, int(seconds)), strict=True)) for *row, seconds in rows]
    shares = read_shares(folder / "tune.csv")
    picture = "tune.png" if shares and draw_shares(shares, folder / "tune.png") else ""
    # Both texts are made before either is written, so that an error leaves both files alone.
    text = markdown(versions, stages, shares, picture)
    summary = json.dumps({"versions": versions, "stages": stages}, indent=2)
    (folder / "summary.md").write_text(text)
    (folder / "summary.json").write_text(summary + "\n")


def main(arguments: Sequence[str]) -> int:
    """Writes the summaries, and returns the exit code. An error is one line on standard error."""
    if len(arguments) != 1:
        return say(2, f"got {len(arguments)} arguments, wanted one: the folder of a run")
    folder = Path(arguments[0])
    try:
        write_summary(folder)
    except OSError as error:
        return say(1, f"{error.filename or folder}: {error.strerror}")
    except (ValueError, KeyError) as error:  # a table is not one of gpu_check.sh, or is truncated
        return say(1, f"the tables in {folder} are damaged: {error!r}; run gpu_check.sh again")
    return 0


def say(code: int, problem: str) -> int:
    print(f"gpu_summary: {problem}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
