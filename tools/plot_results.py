"""`make plots`: the pictures of docs/benchmarks.md, from the CSV files in docs/results.

Each picture has a function, which reads tables that `python -m fusedops bench` wrote. `--output
FOLDER` writes them to another folder than docs/images.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import matplotlib
import pandas as pd

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

ROOT = Path(__file__).parents[1]
RESULTS, IMAGES = ROOT / "docs" / "results", ROOT / "docs" / "images"
ZEN4 = RESULTS / "cpu-amd-epyc-zen4"
#: Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = {"eager": "#999999", "inductor": "#E69F00", "fusedops": "#0072B2"}
DTYPES = ("float32", "bfloat16")


def operators() -> Figure:
    """Speed-up over eager of every operator, forward and backward."""
    table = pd.concat(pd.read_csv(ZEN4 / f"bench-{name}.csv") for name in ("quick", "norms"))
    return _speedups(table, "Softmax and norms: times as fast as eager PyTorch")


def attention() -> Figure:
    """Speed-up over eager of attention's softmax with its masks and dropout."""
    table = pd.read_csv(ZEN4 / "bench-quick-attention.csv")
    return _speedups(table, "Attention's softmax: times as fast as eager PyTorch")


def models() -> Figure:
    """Speed-up over Inductor of whole models, one thread."""
    table = pd.read_csv(ZEN4 / "bench-models.csv").query("threads == 1")
    table["cell"] = table.model + " " + table["mode"] + " w" + table.width.astype(str)
    cells = table.pivot_table(index="cell", columns="dtype", values="speedup", sort=False)
    figure, axes = plt.subplots(figsize=(9, 0.32 * len(cells) + 1.5))
    cells[::-1].plot.barh(ax=axes, color=["#56B4E9", COLOURS["fusedops"]], width=0.75)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set(title="Whole models: times as fast as Inductor", ylabel="", xlabel="")
    axes.legend(frameon=False, title="")
    return figure


def memory() -> Figure:
    """Peak memory beyond the inputs of a forward and a backward pass, in units of the input."""
    table = pd.read_csv(ZEN4 / "bench-memory.csv").query("dtype == 'float32'")
    training = table[(table.direction == "training") & table.provider.isin(COLOURS)]
    bars = training.pivot_table(
        index="op", columns="provider", values="peak_over_input", sort=False
    )
    figure, axes = plt.subplots(figsize=(9, 0.42 * len(bars) + 1.5))
    _bars(bars[::-1], axes)
    axes.set_title("Peak memory of forward and backward, float32, in units of the input")
    return figure


def _speedups(table: pd.DataFrame, title: str) -> Figure:
    """A panel for each dtype; a bar is the geometric mean over the shapes."""
    table = table[table.provider.isin(("inductor", "fusedops"))]
    table = table.assign(case=table.op + " " + table.direction)
    figure, panels = plt.subplots(
        1, len(DTYPES), sharey=True, figsize=(11, 0.34 * table.case.nunique() + 1.5)
    )
    for axes, dtype in zip(panels, DTYPES, strict=True):
        bars = table[table.dtype == dtype].pivot_table(
            index="case", columns="provider", values="speedup_over_eager", sort=False,
            aggfunc=lambda ratios: ratios.prod() ** (1 / len(ratios)),
        )  # fmt: skip
        _bars(bars[::-1], axes)
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_title(dtype)
    figure.suptitle(title)
    return figure


def _bars(table: pd.DataFrame, axes: plt.Axes) -> None:
    """Draws a row for each line of the table, with its bars in the order of `COLOURS`."""
    names = [name for name in COLOURS if name in table.columns][::-1]
    table[names].plot.barh(ax=axes, color=[COLOURS[name] for name in names], width=0.75)
    axes.set(ylabel="", xlabel="")
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], frameon=False)
    for bars in axes.containers:
        axes.bar_label(bars, fmt="%.1f", padding=2, fontsize=7)


PICTURES: dict[str, Callable[[], Figure]] = {
    "operators.svg": operators,
    "attention.svg": attention,
    "models.svg": models,
    "memory.svg": memory,
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="plot_results.py", description=__doc__)
    parser.add_argument("--output", type=Path, default=IMAGES, metavar="FOLDER")
    folder = parser.parse_args(arguments).output
    folder.mkdir(parents=True, exist_ok=True)
    # Without a date and with fixed identifiers the same numbers give the same file.
    matplotlib.rcParams["svg.hashsalt"] = "fusedops"
    for name, draw in PICTURES.items():
        figure = draw()
        figure.savefig(folder / name, bbox_inches="tight", metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    main()
