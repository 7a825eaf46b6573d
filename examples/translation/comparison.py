"""A comparison of the modes: losses, times, and how much of a step the kernels replace."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from fusedops.cli.errors import UserError
from translation.reporting import SIZE, write_csv, write_figure
from translation.training import StepRecord, Trainer

Records = Mapping[str, Sequence[StepRecord]]  # by mode

EVERY = 100  # the interval of steps whose losses are printed
COMPILATION = 1  # the number of first steps that compile, which do not count in times

LINES = {"false": "-", "true": "--", "compile": ":"}  # distinct styles, as the curves coincide

# Operators of an eager step. mul and div scale the scores and the results of dropout.
PARTS = {
    "matrix products": ("mm", "addmm", "bmm"),
    "softmax and its mask": ("_softmax", "_softmax_backward_data", "masked_fill", "masked_fill_"),
    "LayerNorm": ("native_layer_norm", "native_layer_norm_backward"),
    "dropout and scale": (
        *("bernoulli_", "mul", "div_"),
        *("native_dropout", "native_dropout_backward"),  # on a GPU
    ),
    "softmax of the cross entropy": ("_log_softmax", "_log_softmax_backward_data"),
}
REPLACED = tuple(name for name in PARTS if name != "matrix products")


def train_in_turn(trainers: Mapping[str, Trainer], console: Console) -> None:
    """Trains an epoch with each trainer, taking turns after each step. Raises UserError if no step
    could be timed."""
    (steps,) = {trainer.steps_per_epoch for trainer in trainers.values()}
    if steps <= COMPILATION:
        raise UserError(
            f"--batch-size and --samples-per-epoch make {steps} step an epoch, which is the one "
            f"that compiles; wanted at least {COMPILATION + 1}"
        )
    for _ in track(range(steps), "training", console=console):
        for trainer in trainers.values():
            trainer.records.append(trainer.train_step())


def largest_difference(records: Records, steps: Iterable[int]) -> float:
    """The largest relative difference of a mode's loss from eager mode's."""
    return max(
        abs(of_mode[step].loss / records["false"][step].loss - 1)
        for of_mode in records.values()
        for step in steps
    )


def seconds_of_a_step(records: Sequence[StepRecord]) -> float:
    """The median time, without the step that compiles."""
    return statistics.median(record.seconds for record in records[COMPILATION:])


def speed_up(records: Records, mode: str) -> float:
    """The speed-up over eager mode: the median ratio of the times of consecutive steps."""
    pairs = zip(records["false"], records[mode], strict=True)
    ratios = [eager.seconds / fused.seconds for eager, fused in pairs]
    return statistics.median(ratios[COMPILATION:])


def print_losses(records: Records, console: Console) -> None:
    """Prints the losses of every hundredth step and of the last."""
    count = len(records["false"])
    steps = sorted({*range(EVERY - 1, count, EVERY), count - 1})
    table = Table("step", *records, title="Losses", title_justify="left")
    for step in steps:
        table.add_row(str(step + 1), *(f"{records[mode][step].loss:.5f}" for mode in records))
    console.print(table)
    for title, chosen in (("these", steps), ("all", range(count))):
        difference = largest_difference(records, chosen)
        console.print(f"largest relative difference from false at {title} steps: {difference:.1e}")


def print_times(records: Records, console: Console) -> None:
    """Prints the times of a step and of the epoch, and the speed-up over eager mode."""
    columns = ("mode", "step (s)", "epoch (s)", "first step (s)", "speed-up")
    table = Table(*columns, title="Times", title_justify="left")
    for mode, of_mode in records.items():
        table.add_row(
            mode,
            f"{seconds_of_a_step(of_mode):.3f}",
            f"{sum(record.seconds for record in of_mode[COMPILATION:]):.1f}",
            f"{of_mode[0].seconds:.1f}",
            f"{speed_up(records, mode):.2f}x",
        )
    console.print(table)
    console.print("llmsys_s25_hw3 expects 1.1x of fused kernels, on a GPU")


def profile_step(trainer: Trainer) -> dict[str, float]:
    """Milliseconds of each part of an additional step, and of the "rest"."""
    on_gpu = trainer.device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA] * on_gpu + [ProfilerActivity.CPU]) as profiled:
        trainer.train_step()
    self_time = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    of_operator = {
        event.key.removeprefix("aten::"): getattr(event, self_time) / 1000
        for event in profiled.key_averages()
        if event.device_type == DeviceType.CPU  # operators; their kernels would count twice
    }
    of_part = {
        part: sum(of_operator.get(name, 0.0) for name in names) for part, names in PARTS.items()
    }
    return of_part | {"rest": sum(of_operator.values()) - sum(of_part.values())}


def print_shares(of_part: Mapping[str, float], console: Console) -> None:
    """Prints the share of each part of an eager step, and the speed-up if those that fusedops
    replaces took no time."""
    whole = sum(of_part.values())
    table = Table("part of an eager step", "ms", "share", title="Profile", title_justify="left")
    for part, ms in of_part.items():
        table.add_row(part, f"{ms:.0f}", f"{ms / whole:.1%}")
    console.print(table)
    remaining = whole - sum(of_part[part] for part in REPLACED)
    console.print(f"if softmax, LayerNorm and dropout took no time: {whole / remaining:.2f}x")


def write(folder: Path, records: Records) -> None:
    """Writes all records as CSV, and the curves as one picture."""
    rows = ((mode, *record) for mode, of_mode in records.items() for record in of_mode)
    write_csv(folder / "losses.csv", ("mode", *StepRecord._fields), rows)
    plot(folder / "losses.png", records)


def plot(path: Path, records: Records) -> None:
    """Plots the losses, and below them each fused mode's difference from eager mode."""
    figure, (losses, differences) = plt.subplots(
        2, 1, figsize=(SIZE[0], 1.5 * SIZE[1]), sharex=True, layout="constrained"
    )
    for mode, line in LINES.items():
        of_mode = records[mode]
        steps = [record.step + 1 for record in of_mode]
        (curve,) = losses.plot(steps, [r.loss for r in of_mode], line, label=mode)
        if mode != "false":
            pairs = zip(of_mode, records["false"], strict=True)
            apart = [ours.loss / eager.loss - 1 for ours, eager in pairs]
            differences.plot(
                steps, apart, ".", ms=4, color=curve.get_color(), label=f"{mode} against false"
            )
    losses.set(ylabel="loss of target tokens (nats)")
    differences.set(xlabel="step", ylabel="relative difference")
    losses.legend(title="--use-fused-kernel")
    differences.legend()
    write_figure(path, figure)
