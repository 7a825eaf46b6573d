"""Measurements as tables on the terminal, as CSV and as plots."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fusedops.cli.bench.host import HostTime
from fusedops.cli.bench.measurement import COPY, OURS, REFERENCE, Measurement
from fusedops.cli.bench.memory import Peak
from fusedops.cli.bench.models import TOLERANCE, StepTime
from fusedops.cli.bench.operators import family
from fusedops.cli.bench.peers import PEERS, not_installed
from fusedops.cli.env import describe_machine
from fusedops.cli.errors import UserError
from fusedops.cli.files import write_atomically

GROUP = ["op", "direction", "dtype"]
CASE = [*GROUP, "rows", "cols"]
BY_LENGTH = ["family", "direction", "dtype", "cols"]
#: Okabe and Ito's colours, which colour-blind readers can tell apart; a provider has the same in
#: every picture.
COLOURS = {
    "eager": "#999999",
    "inductor": "#E69F00",
    "fusedops": "#0072B2",
    "openvino": "#009E73",
    "onnxruntime": "#CC79A7",
}
RATIOS = ["share_of_copy", "speedup_over_eager", "speedup_over_best_peer"]


def to_frame(measurements: Iterable[Measurement | Peak | StepTime | HostTime]) -> pd.DataFrame:
    """One row for each measurement, in their order."""
    return pd.DataFrame(map(asdict, measurements))


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Writes four significant digits, more than a timing is accurate to."""
    write_atomically(path, frame.to_csv(index=False, float_format="%.4g").encode())


def print_tables(frame: pd.DataFrame, console: Console) -> None:
    """Prints a table with one row for each case, then the geometric means over the shapes."""
    providers = list(frame.provider.unique())
    title = "Milliseconds, and how many times faster than eager; inductor and fusedops in graphs"
    times = _table(title, [*GROUP, "shape"])
    _add_columns(times, [f"{name} ms" for name in providers])
    _add_columns(times, [f"{name} x" for name in _challengers(providers)])
    _add_columns(times, ["share of copy"])
    for row in _case_rows(frame, providers):
        times.add_row(*row)
    console.print(times)

    ours = frame[frame.provider == OURS].assign(family=frame.op.map(family))
    _print_means(ours, "over the shapes", GROUP, console)
    variants = ours[ours.op != ours.family]
    if len(variants):
        _print_means(variants, "over the variants, by row length", BY_LENGTH, console)


def _print_means(frame: pd.DataFrame, over: str, key: list[str], console: Console) -> None:
    means = _table(f"fusedops: geometric means {over}", key)
    _add_columns(means, [column.replace("_", " ") for column in RATIOS])
    ratios = np.exp(np.log(frame.set_index(key)[RATIOS]).groupby(key, sort=False).mean())
    for names, values in ratios.iterrows():
        means.add_row(*map(escape, map(str, names)), *(f"{value:.2f}" for value in values))
    console.print(means)


def print_peaks(frame: pd.DataFrame, console: Console) -> None:
    """Prints a table with one row for each case and one column for each way to compute it."""
    providers = list(frame.provider.unique())
    title = "Peak memory beyond what was allocated before, in units of the input's size"
    table = _table(title, [*GROUP, "input"])
    _add_columns(table, providers)
    for (*group, _, _), peaks in frame.groupby(CASE, sort=False):
        of = peaks.set_index("provider")
        megabytes = of.input_bytes.iloc[0] / 1e6
        cells = [_peak(of, name) for name in providers]
        table.add_row(*map(escape, group), f"{megabytes:.1f} MB", *cells)
    console.print(table)


def _peak(of: pd.DataFrame, provider: str) -> str:
    """A cell; empty if the provider cannot compute the case."""
    if provider not in of.index:
        return ""
    peak = of.loc[provider]
    return f"+{peak.peak_over_input:.2f}\n{peak.peak_bytes / 1e6:.1f} MB"


def read_steps(file: Path) -> list[StepTime]:
    """The steps that `write_csv` wrote; an empty list if the file is missing or empty."""
    if not file.exists() or not file.stat().st_size:
        return []
    names = [field.name for field in fields(StepTime)]
    try:
        frame = pd.read_csv(file)
        if list(frame) != names:
            raise ValueError(f"its columns are {', '.join(map(str, frame))}")
        return [StepTime(*row) for row in frame.itertuples(index=False)]
    except ValueError as error:
        raise UserError(
            f"--resume: {file} was not written by `bench --models --csv`: {error}"
        ) from error


def print_steps(frame: pd.DataFrame, console: Console) -> None:
    """Prints a table with one row for each step; shares in percent, the spread after its ratio."""
    steps = [StepTime(*row) for row in frame.itertuples(index=False)]
    inputs = dict.fromkeys(f"{step.batch}x{step.length}x{step.width}" for step in steps)
    title = (
        f"Whole models, {', '.join(inputs)}: milliseconds a step, and what their sites take of it"
    )
    table = _table(title, ["model", "mode", "dtype", "threads"])
    peers = [name for name in PEERS if frame[f"{name}_ms"].notna().any()]
    _add_columns(table, ["eager", "inductor", "fusedops", *peers])
    _add_columns(table, ["over Inductor", "share", "sites"])
    for step in steps:
        table.add_row(*_step_row(step, peers), style="bold red" if step.is_slower else None)
    console.print(table)
    for line in (*not_installed(), _verdict(steps)):
        console.print(line, markup=False)


def _step_row(step: StepTime, peers: Sequence[str]) -> Iterator[str]:
    """The cells of a row; empty for peers that did not run."""
    yield from (step.model, step.mode, step.dtype, str(step.threads))
    yield from (f"{ms:.1f}" for ms in (step.eager_ms, step.inductor_ms, step.fusedops_ms))
    times = (getattr(step, f"{name}_ms") for name in peers)
    yield from ("" if math.isnan(ms) else f"{ms:.1f}" for ms in times)
    mark = "slower: " if step.is_slower else ""
    yield f"{mark}{step.speedup:.2f} (±{step.spread / 2:.0%})"
    yield f"{step.share_before:.0%} to {step.share_after:.0%}"
    yield f"{step.sites_speedup:.2f}"


def _verdict(steps: Sequence[StepTime]) -> str:
    slower = sum(step.is_slower for step in steps)
    return f"{slower} of {len(steps)} cells slower than Inductor by more than {TOLERANCE:.0%}"


def print_host_times(frame: pd.DataFrame, console: Console) -> None:
    """Prints a table with one row for each function and mode."""
    table = _table("Host time: microseconds a call, the minimum of bursts", ["op", "mode", "input"])
    _add_columns(table, ["torch us", "fusedops us", "times torch's"])
    for row in frame.itertuples():
        numbers = (f"{us:.2f}" for us in (row.torch_us, row.fusedops_us, row.ratio))
        table.add_row(row.op, row.mode, f"{row.rows}x{row.cols}", *numbers)
    console.print(table)


def _challengers(providers: Sequence[str]) -> list[str]:
    return [name for name in providers if name not in (COPY, REFERENCE)]


def _case_rows(frame: pd.DataFrame, providers: Sequence[str]) -> Iterator[list[str]]:
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


def _table(title: str, names: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in names:
        table.add_column(name, no_wrap=True)
    return table


def _add_columns(table: Table, names: Sequence[str]) -> None:
    for name in names:
        table.add_column(name, justify="right")


def write_plots(frame: pd.DataFrame, directory: Path) -> list[Path]:
    """Writes a bar chart of the share of a copy's speed for every op, direction and dtype."""
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
