"""The output of a run: progress, curves and tables."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fusedops.cli.files import write_atomically
from translation.training import EpochRecord, StepRecord, Trainer, tokens_per_second

SIZE = 7, 4  # inches, of a picture
RECENT_STEPS = 20  # the steps over which the displayed speed is averaged


def make_console() -> Console:
    """A console as wide as the terminal, or 120 columns if the output is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False)


def follow(
    steps: Iterable[StepRecord], trainer: Trainer, epochs: int, folder: Path, console: Console
) -> None:
    """Runs all steps with a progress bar; after each epoch prints a line and writes the curves."""
    columns = [
        TextColumn("epoch {task.fields[epoch]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]:,.0f} tokens/s  loss {task.fields[loss]:.3f}"),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=console) as progress:
        nan = float("nan")
        bar = progress.add_task(
            "",
            total=epochs * trainer.steps_per_epoch,
            completed=len(trainer.records),
            epoch=min(len(trainer.epochs) + 1, epochs),
            speed=nan,
            loss=nan,
        )
        for record in steps:
            progress.update(
                bar,
                completed=record.step + 1,
                epoch=record.epoch + 1,
                speed=tokens_per_second(trainer.records[-RECENT_STEPS:]),
                loss=record.loss,
            )
            if len(trainer.records) % trainer.steps_per_epoch == 0:
                console.print(epoch_line(trainer.epochs[-1]))
                write_curves(folder, trainer)


def epoch_line(epoch: EpochRecord) -> str:
    return (
        f"epoch {epoch.epoch + 1}: loss {epoch.loss:.3f}, validation {epoch.valid_loss:.3f}, "
        f"{epoch.tokens_per_second:,.0f} tokens/s, {epoch.seconds:.1f} s"
    )


def write_curves(folder: Path, trainer: Trainer) -> None:
    """Writes the records of steps and epochs, and a plot of their losses."""
    write_csv(folder / "losses.csv", StepRecord._fields, trainer.records)
    write_csv(folder / "epochs.csv", EpochRecord._fields, trainer.epochs)
    plot_losses(folder / "losses.png", trainer)


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence]) -> None:
    """Writes numbers without rounding."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode())


def plot_losses(path: Path, trainer: Trainer) -> None:
    """Plots the loss of every step, and the validation loss after every epoch."""
    figure, axes = plt.subplots(figsize=SIZE, layout="constrained")
    steps = [record.step + 1 for record in trainer.records]
    axes.plot(steps, [record.loss for record in trainer.records], lw=0.8, label="training")
    ends = [(record.epoch + 1) * trainer.steps_per_epoch for record in trainer.epochs]
    axes.plot(ends, [record.valid_loss for record in trainer.epochs], "o-", label="validation")
    axes.set(xlabel="step", ylabel="loss of target tokens (nats)")
    axes.legend()
    write_figure(path, figure)


def write_figure(path: Path, figure: Figure) -> None:
    """Writes a figure in the format of the path's suffix."""
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix[1:], dpi=150)
    plt.close(figure)
    write_atomically(path, content.getbuffer())


def print_scores(scores: dict[str, float], pairs: int, console: Console) -> None:
    """Prints the BLEU of each way to decode."""
    table = Table(title=f"BLEU of {pairs} held-out pairs", title_justify="left")
    table.add_column("")
    table.add_column("BLEU", justify="right")
    for name, score in scores.items():
        table.add_row(name, f"{score:.1f}")
    console.print(table)


def print_samples(rows: Iterable[Sequence[str]], console: Console) -> None:
    """Prints source, reference and translation of some pairs."""
    columns = ("source", "reference", "translation")
    table = Table(*columns, title="Translations", title_justify="left", show_lines=True)
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)
