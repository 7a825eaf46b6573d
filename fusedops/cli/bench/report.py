"""Shows measurements as tables on the terminal, as CSV and as plots."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fusedops.cli.bench.measurement import COPY, OURS, REFERENCE
from fusedops.cli.bench.operators import family
from fusedops.cli.env import describe_machine
from fusedops.cli.files import write_atomically

GROUP = ["op", "direction", "dtype"]
CASE = [*GROUP, "rows", "cols"]
BY_LENGTH = ["family", "direction", "dtype", "cols"]
#: The colours of the providers in all pictures, by Okabe and Ito, which colour-blind readers can
#: tell apart.
COLOURS = {
    "eager": "#999999",
    "inductor": "#E69F00",
    "fusedops": "#0072B2",
}
RATIOS = ["share_of_copy", "speedup_over_eager", "speedup_over_best_peer"]


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Writes the measurements with four significant digits, which is more than their accuracy."""
    write_atomically(path, frame.to_csv(index=False, float_format="%.4g").encode())


def print_tables(frame: pd.DataFrame, console: Console) -> None:
    """Prints a table with one row for each case. Then prints the geometric means of fusedops'
    ratios over the shapes, and for operators with variants, over the variants at each row
    length."""
    providers = list(frame.provider.unique())
    title = "Milliseconds, and how many times faster than eager; inductor and fusedops in graphs"
    in_ms, ratios = (
        (f"{name} ms" for name in providers),
        (f"{name} x" for name in _challengers(providers)),
    )
    times = table_of(title, [*GROUP, "shape"], [*in_ms, *ratios, "share of copy"])
    for row in _case_rows(frame, providers):
        times.add_row(*row)
    console.print(times)

    ours = frame[frame.provider == OURS].assign(family=frame.op.map(family))
    _print_means(ours, "over the shapes", GROUP, console)
    variants = ours[ours.op != ours.family]
    if len(variants):
        _print_means(variants, "over the variants, by row length", BY_LENGTH, console)


def _print_means(frame: pd.DataFrame, over: str, key: list[str], console: Console) -> None:
    columns = [column.replace("_", " ") for column in RATIOS]
    means = table_of(f"fusedops: geometric means {over}", key, columns)
    ratios = np.exp(np.log(frame.set_index(key)[RATIOS]).groupby(key, sort=False).mean())
    for names, values in ratios.iterrows():
        means.add_row(*map(escape, map(str, names)), *(f"{value:.2f}" for value in values))
    console.print(means)


def _challengers(providers: Sequence[str]) -> list[str]:
    return [name for name in providers if name not in (COPY, REFERENCE)]


def _case_rows(frame: pd.DataFrame, providers: Sequence[str]) -> Iterator[list[str]]:
    """Yields the cells of the table for each case: the times, how many times faster than eager each
    provider is, and the speed of fusedops as a fraction of the speed of a copy."""
    for (*group, rows, cols), measurements in frame.groupby(CASE, sort=False):
        of = measurements.set_index("provider")
        times = [f"{of.median_ms[name]:.3f}" for name in providers]
        speedups = [f"{of.speedup_over_eager[name]:.2f}" for name in _challengers(providers)]
        yield [
            *map(escape, group),
            f"{rows}x{cols}",
            *times,
            *speedups,
            f"{of.share_of_copy[OURS]:.2f}",
        ]


def table_of(title: str, names: Sequence[str], numbers: Sequence[str]) -> Table:
    """Returns an empty table whose first columns have `names` as their titles, and whose other
    columns, which are aligned to the right, have `numbers`."""
    table = Table(title=title, title_justify="left")
    for name in names:
        table.add_column(name, no_wrap=True)
    for number in numbers:
        table.add_column(number, justify="right")
    return table


def write_plots(frame: pd.DataFrame, directory: Path) -> list[Path]:
    """Writes a bar chart for every op, direction and dtype. It shows the speed of each provider as
    a fraction of the speed of a copy. Returns the files."""
    matplotlib.use("Agg")
    return [
        _write_plot(key, group, directory)
        for key, group in frame[frame.provider != COPY].groupby(GROUP, sort=False)
    ]


def _write_plot(key: Sequence[str], group: pd.DataFrame, directory: Path) -> Path:
    shapes = group.rows.astype(str) + "x" + group.cols.astype(str)
    shares = group.assign(shape=shapes).pivot(
        index="shape", columns="provider", values="share_of_copy"
    )
    names = [name for name in COLOURS if name in shares]
    axes = shares.loc[shapes.unique(), names].plot.bar(
        title=f"{' '.join(key)}, {describe_machine()}", color=[COLOURS[name] for name in names],
        ylabel="share of the speed of a copy", xlabel="", rot=0, width=0.8,
        figsize=(max(8, 2 * len(shares)), 4),
    )  # fmt: skip
    for bars in axes.containers:
        axes.bar_label(bars, fmt="%.2f", padding=1, fontsize=7)
    axes.legend(frameon=False, title="", ncols=len(names), loc="upper left")
    axes.margins(y=0.2)
    path, content = directory / f"{'_'.join(key)}.png", io.BytesIO()
    axes.figure.savefig(content, dpi=120, bbox_inches="tight")
    plt.close(axes.figure)
    write_atomically(path, content.getbuffer())
    return path
