"""`make plots`: draws the pictures of the docs' benchmarks from the CSV files in docs/results.

Each picture has a function, which reads tables that `python -m fusedops bench` or `python -m
tools.bench` wrote. `--output FOLDER` writes the pictures to another folder than docs/images.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from fusedops.cli.bench.report import COLOURS

matplotlib.use("Agg")

ROOT = Path(__file__).parents[1]
RESULTS, IMAGES = ROOT / "docs" / "results", ROOT / "docs" / "images"
ZEN4, INTEL = RESULTS / "cpu-amd-epyc-zen4", RESULTS / "cpu-intel-avx512"
SAPPHIRE_RAPIDS = RESULTS / "cpu-intel-sapphire-rapids"
DTYPES = ("float32", "bfloat16")
MACHINES = {
    ZEN4: "an AMD EPYC (Zen 4)",
    INTEL: "an Intel Xeon (AVX-512, no bfloat16)",
    SAPPHIRE_RAPIDS: "an Intel Xeon (Sapphire Rapids, AMX)",
}


def operators() -> Figure:
    """Draws the speed-up over eager of every operator, forward and backward."""
    title = "Softmax and norms: times as fast as eager PyTorch"
    return _means(_softmax_and_norms(), "speedup_over_eager", title, ("inductor", "fusedops"))


def bandwidth() -> Figure:
    """Draws the speed of every operator as a fraction of a copy's, forward and backward."""
    title = "Softmax and norms: share of the speed of a copy of the same bytes"
    return _means(_softmax_and_norms(), "share_of_copy", title, ("eager", "inductor", "fusedops"))


def attention() -> Figure:
    """Draws the speed-up over eager of attention's softmax with its masks and dropout."""
    table = pd.read_csv(ZEN4 / "bench-quick-attention.csv")
    title = "Attention's softmax: times as fast as eager PyTorch"
    return _means(table, "speedup_over_eager", title, ("inductor", "fusedops"))


def models(machine: Path = ZEN4) -> Figure:
    """Draws the speed-up over Inductor of whole models, with a panel for each mode."""
    table = pd.read_csv(machine / "bench-models.csv").query("threads == 1")
    table["case"] = table.model + ", width " + table.width.astype(str)
    cells = {
        mode: table[table["mode"] == mode].pivot_table(
            index="case", columns="dtype", values="speedup", sort=False
        )
        for mode in ("training", "inference")
    }
    heights = [len(each) for each in cells.values()]
    figure, panels = plt.subplots(
        2, 1, height_ratios=heights, sharex=True, figsize=(9, 8), layout="constrained"
    )
    colours = {"float32": "#56B4E9", "bfloat16": COLOURS["fusedops"]}
    for axes, (mode, each) in zip(panels, cells.items(), strict=True):
        _bars(each[::-1], axes, colours, "%.2f")
        axes.axvline(1, color="black", linewidth=0.8, zorder=0)
        axes.set_title(mode)
    figure.suptitle("Whole models: times as fast as Inductor (1 is Inductor)")
    _note(figure, "tools.bench models", machine)
    return figure


def memory() -> Figure:
    """Draws the peak memory of forward and backward, beyond the input and in units of its size."""
    table = pd.read_csv(ZEN4 / "bench-memory.csv").query("dtype == 'float32'")
    training = table[(table.direction == "training") & table.provider.isin(COLOURS)]
    bars = training.pivot_table(
        index="op", columns="provider", values="peak_over_input", sort=False
    )
    figure, axes = plt.subplots(figsize=(9, 0.42 * len(bars) + 1.5), layout="constrained")
    _bars(bars[::-1], axes)
    axes.set_title("Peak memory of forward and backward, float32, in units of the input")
    _note(figure, "tools.bench memory")
    return figure


def _softmax_and_norms() -> pd.DataFrame:
    return pd.concat(pd.read_csv(ZEN4 / f"bench-{name}.csv") for name in ("quick", "norms"))


def _means(table: pd.DataFrame, column: str, title: str, providers: tuple[str, ...]) -> Figure:
    """Draws a panel for each dtype. Each bar is the geometric mean of `column` over the shapes."""
    table = table[table.provider.isin(providers)]
    table = table.assign(case=table.op + " " + table.direction)
    height = 0.15 * (len(providers) + 0.5) * table.case.nunique() + 1.5
    figure, panels = plt.subplots(
        1, len(DTYPES), sharey=True, figsize=(11, height), layout="constrained"
    )
    for axes, dtype in zip(panels, DTYPES, strict=True):
        bars = table[table.dtype == dtype].pivot_table(
            index="case", columns="provider", values=column, sort=False,
            aggfunc=lambda ratios: ratios.prod() ** (1 / len(ratios)),
        )  # fmt: skip
        _bars(bars[::-1], axes, form="%.2f" if column == "share_of_copy" else "%.1f")
        axes.axvline(1, color="black", linewidth=0.8, zorder=0)
        axes.set_title(dtype)
    figure.suptitle(title)
    _note(figure, "fusedops bench")
    return figure


def _bars(
    table: pd.DataFrame, axes: plt.Axes, colours: dict[str, str] = COLOURS, form: str = "%.1f"
) -> None:
    """Draws a row for each line of the table, with a bar for each of its columns in the order of
    `colours`. The numbers beside the bars are on white, so that the line at 1 does not cross
    them."""
    names = [name for name in colours if name in table.columns][::-1]
    table[names].plot.barh(ax=axes, color=[colours[name] for name in names], width=0.8)
    axes.set(ylabel="", xlabel="")
    axes.margins(x=0.1)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles[::-1], labels[::-1], frameon=False, loc="center left", bbox_to_anchor=(1, 0.5)
    )
    behind = {"facecolor": "white", "edgecolor": "none", "pad": 0.3}
    for bars in axes.containers:
        # A bar of 0 was not measured.
        texts = [form % value if value else "" for value in bars.datavalues]
        axes.bar_label(bars, texts, padding=2, fontsize=7, bbox=behind)


def _note(figure: Figure, command: str, machine: Path = ZEN4) -> None:
    """Writes the machine and the command that measured at the bottom of the picture."""
    note = f"one thread of {MACHINES[machine]}, torch 2.13.0; python -m {command}"
    figure.supxlabel(note, fontsize=8, color="#555555")


PICTURES: dict[str, Callable[[], Figure]] = {
    "operators.svg": operators,
    "bandwidth.svg": bandwidth,
    "attention.svg": attention,
    "models.svg": models,
    "models-intel.svg": partial(models, INTEL),
    "models-sapphire-rapids.svg": partial(models, SAPPHIRE_RAPIDS),
    "memory.svg": memory,
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="plot_results.py", description=__doc__)
    parser.add_argument("--output", type=Path, default=IMAGES, metavar="FOLDER")
    folder = parser.parse_args(arguments).output
    folder.mkdir(parents=True, exist_ok=True)
    # Without a date and with fixed identifiers the same numbers give the same file.
    matplotlib.rcParams["svg.hashsalt"] = "fusedops"
    # Letters are written as text, which makes a file a third as large as with outlines of letters.
    matplotlib.rcParams["svg.fonttype"] = "none"
    matplotlib.rcParams["font.family"] = ["DejaVu Sans", "sans-serif"]
    for name, draw in PICTURES.items():
        figure = draw()
        figure.savefig(folder / name, bbox_inches="tight", metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    main()
