"""Times a step of a whole model in eager, with Inductor and with fusedops, and its sites' share.

Inference is a forward pass without gradients, training a forward and a backward pass with the
model's default dropout. The models of DEFAULT have no head: the loss over a vocabulary would take
more time than the two layers. A cell is a model in one mode, with one dtype and number of threads.
The sites of a model are its softmaxes and norms (`sites.py`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch._inductor import config as inductor_config

from fusedops.cli.bench.cases import BACKWARD, FORWARD
from fusedops.cli.bench.measurement import OURS, REFERENCE, require_small
from fusedops.cli.timing import (
    Call,
    Clock,
    balanced_orders,
    clock_for,
    interleave,
    median_ratio,
    relative_spread,
)
from tools.bench.peers import ONNX_RUNTIME, OPENVINO, PEERS
from tools.bench.sites import KERNEL_NAMES, share_of_sites
from tools.bench.zoo import BASE, MODELS, Size, cast, main_tensors

INDUCTOR = "inductor"
COMPILED = (INDUCTOR, OURS)
INFERENCE, TRAINING = "inference", "training"
MODES = {FORWARD: INFERENCE, BACKWARD: TRAINING}
# A head has this width in most transformers, whatever the width of the model. In a narrower model
# scores take a larger share of the time.
HEAD_WIDTH = 64
DEFAULT = ("gpt2", "bert", "llama", "t5", "vit", "swin")
QUICK = (("gpt2", TRAINING), ("bert", INFERENCE))
DTYPES = ("float32", "bfloat16")
# Measuring stops once the median of Inductor's time over ours is this precise, and in any case
# after TURNS or TURNS_QUICK turns, each of which times the calls in all of balanced_orders().
PRECISION = 0.005
TURNS, TURNS_QUICK = 2, 1
#: A step may take longer than Inductor's by this share without being called slower.
TOLERANCE = 0.02
SLOT_MS = 1.0  # less than a step takes, so that interleave() calls a step once in each slot


@dataclass(frozen=True)
class Step:
    """One step of a model on inputs of one size, on a device, with a number of CPU threads."""

    model: str
    mode: str
    dtype: torch.dtype
    threads: int
    batch: int
    size: Size
    device: str = "cpu"

    @property
    def dtype_name(self) -> str:
        """Returns the dtype as the command line and the CSV spell it."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def columns(self) -> dict[str, Any]:
        """Returns the columns of StepTime that identify the step."""
        names = ("model", "mode", "batch", "device", "threads")
        size = {"length": self.size.length, "width": self.size.width}
        return {name: getattr(self, name) for name in names} | size | {"dtype": self.dtype_name}

    def build(self, dropout: bool) -> nn.Module:
        """Returns the model, always with the same weights."""
        torch.manual_seed(0)
        with torch.device(self.device):
            model = MODELS[self.model].build(self.size, dropout)
        return model.to(self.dtype).train(self.mode == TRAINING)

    def inputs(self) -> dict[str, Any]:
        """Returns the model's inputs, always the same."""
        torch.manual_seed(1)
        with torch.device(self.device):
            return cast(MODELS[self.model].inputs(self.size, self.batch), self.dtype)

    def __str__(self) -> str:
        size = f"{self.batch}x{self.size.length}x{self.size.width}"
        where = self.device if self.device != "cpu" else f"{self.threads} thread(s)"
        return f"{self.model} {self.mode} {self.dtype_name} {size}, {where}"


@dataclass(frozen=True)
class StepTime:
    """The times of all providers on one step: a row of the CSV, with its columns in their order.

    The time of a peer is NaN if it is not installed or does not run the step. `speedup` is that of
    fusedops over Inductor, the median of the rounds; `spread` is their interquartile range, as a
    share of the median. `share_before` and `share_after` are the sites' shares of the step's time
    with Inductor and with fusedops, NaN on a GPU; `sites_speedup` is the ratio of the sites' times.
    """

    model: str
    mode: str
    dtype: str
    batch: int
    length: int
    width: int
    device: str
    threads: int
    eager_ms: float
    inductor_ms: float
    fusedops_ms: float
    speedup: float
    spread: float
    share_before: float
    share_after: float
    sites_speedup: float
    openvino_ms: float
    onnxruntime_ms: float

    @property
    def is_slower(self) -> bool:
        """Returns whether fusedops takes longer than Inductor by more than TOLERANCE."""
        return self.speedup < 1 / (1 + TOLERANCE)

    def is_of(self, step: Step) -> bool:
        """Returns whether this is a measurement of `step`."""
        return step.columns.items() <= asdict(self).items()


def chosen_steps(
    names: Sequence[str],
    directions: Sequence[str],
    dtypes: Sequence[torch.dtype],
    threads: Sequence[int],
    batch: int,
    size: Size,
    quick: bool,
    device: str,
) -> list[Step]:
    """Returns the steps of the named models, or of the default set, in the modes of these
    directions; each step once."""
    modes = [MODES[direction] for direction in directions]
    pairs = QUICK if quick and not names else product(names or DEFAULT, modes)
    chosen = [pair for pair in pairs if pair[1] in modes]
    cells = product(chosen, dtypes, threads)
    steps = (Step(*pair, dtype, number, batch, size, device) for pair, dtype, number in cells)
    return list(dict.fromkeys(steps))


def size_of(length: int, width: int) -> Size:
    """Returns the size BASE of the zoo with another length and width."""
    return replace(BASE, length=length, width=width, heads=max(1, width // HEAD_WIDTH))


def prepare_step(step: Step) -> dict[str, Call]:
    """Returns a call for eager and for each compiler, checked to agree with eager."""
    torch.set_num_threads(step.threads)
    if _is_random(step):
        # Results can be compared only without dropout, whose numbers each provider draws itself.
        check_step(step, _compile(step, (OURS,), dropout=False))
        return _compile(step, COMPILED, dropout=True)
    calls = _compile(step, COMPILED, dropout=True)
    check_step(step, calls)
    return calls


def prepare_peers(step: Step, expected: Sequence[Tensor]) -> tuple[dict[str, Call], list[str]]:
    """Returns a call for each installed peer that supports the step, and messages about those that
    failed or whose results differ from `expected`. No peer runs on a GPU."""
    calls: dict[str, Call] = {}
    problems: list[str] = []
    if step.device != "cpu":
        return calls, problems
    plain = replace(step, dtype=torch.float32)
    for name, peer in PEERS.items():
        if step.mode == TRAINING or not peer.takes(step.dtype):
            continue
        try:
            call = peer.prepare(
                plain.build(dropout=False), plain.inputs(), step.dtype, step.threads
            )
            _check(step, name, call(), expected)
            calls[name] = call
        except Exception as error:  # only this peer's column stays empty
            problems.append(f"{step}: {name} is left out: {error}")
    return calls, problems


def measure_step(step: Step, calls: dict[str, Call], turns: int) -> StepTime:
    """Times the prepared calls, which take turns. On a CPU it then profiles Inductor's and ours."""
    times = _interleave(calls, turns, clock_for(step.device))
    medians = {name: statistics.median(times[name]) for name in calls}
    before, after = math.nan, math.nan
    if step.device == "cpu":
        before, after = (share_of_sites(calls[name]) for name in (INDUCTOR, OURS))
    return StepTime(
        **step.columns,
        eager_ms=medians[REFERENCE],
        inductor_ms=medians[INDUCTOR],
        fusedops_ms=medians[OURS],
        speedup=median_ratio(times[INDUCTOR], times[OURS]),
        spread=_spread(times),
        share_before=before,
        share_after=after,
        sites_speedup=_ratio(before * medians[INDUCTOR], after * medians[OURS]),
        openvino_ms=medians.get(OPENVINO, math.nan),
        onnxruntime_ms=medians.get(ONNX_RUNTIME, math.nan),
    )


def _interleave(calls: dict[str, Call], turns: int, clock: Clock) -> dict[str, list[float]]:
    """Times the calls, in all of balanced_orders() in each turn, until the ratio of Inductor's time
    to ours is precise enough (PRECISION), but for at most `turns` turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    rounds = len(balanced_orders(list(calls)))
    for turn in range(1, turns + 1):
        for name, more in interleave(calls, clock, rounds, SLOT_MS).items():
            times[name] += more
        # The error of a median is about the spread divided by the root of the number of rounds.
        if _spread(times) < PRECISION * math.sqrt(turn * rounds):
            break
    return times


def _spread(times: dict[str, list[float]]) -> float:
    pairs = zip(times[INDUCTOR], times[OURS], strict=True)
    return relative_spread([before / after for before, after in pairs])


def _ratio(before: float, after: float) -> float:
    """Returns the ratio, or NaN if `after` is 0, because no kernel in the profile is of a site."""
    return before / after if after else math.nan


def _compile(step: Step, backends: Sequence[str], dropout: bool) -> dict[str, Call]:
    """Returns a call for eager and for each backend, whose code is compiled by a first call."""
    torch.compiler.reset()
    eager = eager_step(step, dropout)
    run, model, inputs = eager.func, *eager.args
    compiled = {
        name: partial(run, torch.compile(model, backend=name, dynamic=False), inputs)
        for name in backends
    }
    with inductor_config.patch(KERNEL_NAMES):
        for call in compiled.values():
            call()
    return {REFERENCE: eager, **compiled}


def eager_step(step: Step, dropout: bool) -> partial[list[Tensor]]:
    """Returns the step in eager mode: a call for the outputs, or for all parameters' gradients."""
    model, inputs = step.build(dropout), step.inputs()
    return partial(_trainer(model, inputs) if step.mode == TRAINING else _infer, model, inputs)


def _is_random(step: Step) -> bool:
    """Returns whether a step draws random numbers, by the state of the generator. Comparing two
    results would not do: they can be equal if a model rarely drops anything, as Swin drops paths.
    """
    call = eager_step(step, dropout=True)
    state = torch.get_rng_state if step.device == "cpu" else torch.cuda.get_rng_state
    before = state()
    call()
    return not torch.equal(before, state())


@torch.no_grad()
def _infer(model: Callable[..., Any], inputs: dict[str, Any]) -> list[Tensor]:
    return main_tensors(model(**inputs))


def _trainer(model: nn.Module, inputs: dict[str, Any]) -> Callable[..., list[Tensor]]:
    """Returns a function that runs a training step of `model`, compiled or not, and returns the
    gradients of all its parameters.

    The gradients of the outputs are random, because the gradient of a sum after a norm is nearly
    zero.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    grads = [torch.randn_like(output) for output in _infer(model, inputs)]

    def train(model: Callable[..., Any], inputs: dict[str, Any]) -> list[Tensor]:
        outputs = main_tensors(model(**inputs))
        return list(torch.autograd.grad(outputs, parameters, grads, materialize_grads=True))

    return train


def check_step(step: Step, calls: dict[str, Call]) -> None:
    """Raises unless all calls agree with eager."""
    expected = calls[REFERENCE]()
    for name in calls.keys() - {REFERENCE}:
        _check(step, name, calls[name](), expected)


def _check(step: Step, name: str, actual: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    difference = [a - b for a, b in zip(actual, expected, strict=True)]
    require_small(_norm(difference) / _norm(expected), step.dtype, f"{step}: {name!r}")


def _norm(tensors: Sequence[Tensor]) -> float:
    """Returns the Euclidean norm of all elements of the tensors."""
    return math.hypot(*(torch.linalg.vector_norm(t, dtype=torch.float64).item() for t in tensors))
