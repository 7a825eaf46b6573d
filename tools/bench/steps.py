"""Times a step of a whole model in eager, with Inductor and with fusedops, and finds which part of
the time its softmaxes and norms take, which are its sites (`sites.py`).

A step of inference is a forward pass without gradients, and a step of training is a forward and a
backward pass with the model's default dropout. The models of DEFAULT have no head, because the loss
over a vocabulary would take more time than the two layers. A cell of the benchmark is a model in
one mode, with one dtype and number of threads.
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

from fusedops.cli import timing
from fusedops.cli.bench.cases import BACKWARD, FORWARD
from fusedops.cli.bench.measurement import OURS, REFERENCE, require_small
from fusedops.cli.timing import Call, Clock
from tools.bench.peers import ONNX_RUNTIME, OPENVINO, PEERS
from tools.bench.sites import KERNEL_NAMES, share_of_sites
from tools.bench.zoo import BASE, MODELS, Size, cast, main_tensors

INDUCTOR = "inductor"
COMPILED = (INDUCTOR, OURS)
INFERENCE, TRAINING = "inference", "training"
MODES = {FORWARD: INFERENCE, BACKWARD: TRAINING}
# An attention head has this width in most transformers, whatever the width of the model. In a
# narrower model, attention scores therefore take a larger part of the time.
HEAD_WIDTH = 64
DEFAULT = ("gpt2", "bert", "llama", "t5", "vit", "swin")
QUICK = (("gpt2", TRAINING), ("bert", INFERENCE))
DTYPES = ("float32", "bfloat16")
# Measuring stops once the relative error of the median of Inductor's time over ours is at most
# PRECISION, and in any case after TURNS or TURNS_QUICK turns. A turn times the calls in all of
# balanced_orders().
PRECISION = 0.005
TURNS, TURNS_QUICK = 2, 1
#: The table calls a step slower if it takes longer than Inductor's by more than this fraction.
TOLERANCE = 0.02
SLOT_MS = 1.0  # this is less than a step takes, so that interleave() calls a step once in each slot


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
    """The times of one step with all providers, which are eager, the compilers and the peers. The
    fields are the columns of the CSV, in this order.

    The time of a peer is NaN if it is not installed or does not run the step. `speedup` is how many
    times as fast as Inductor fusedops is, as the median over the rounds, and `spread` is the
    interquartile range of this ratio as a fraction of the median. `share_before` and `share_after`
    are the parts of the step's time that softmaxes and norms take with Inductor and with fusedops;
    they are NaN on a GPU. `sites_speedup` is the ratio of the times that these take.
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
    """Returns the steps that the arguments select, without repetitions: those of the named models,
    or of the default ones if there are no names, in the modes that the directions stand for."""
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
    """Returns a call for eager and for each compiler. Their results have been compared."""
    torch.set_num_threads(step.threads)
    if _is_random(step):
        # With dropout, results cannot be compared, because each provider draws other numbers.
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
            call = peer.prepare(plain.build(dropout=True), plain.inputs(), step.dtype, step.threads)
            _check(step, name, call(), expected)
            calls[name] = call
        except Exception as error:  # the column of this peer stays empty, and the others are run
            problems.append(f"{step}: {name} is left out: {error}")
    return calls, problems


def measure_step(step: Step, calls: dict[str, Call], turns: int) -> StepTime:
    """Times the prepared calls, which take turns. On a CPU, then profiles those of Inductor and of
    fusedops, to find how much time softmaxes and norms take."""
    times = _interleave(calls, turns, timing.clock_for(step.device))
    medians = {name: statistics.median(times[name]) for name in calls}
    before, after = math.nan, math.nan
    if step.device == "cpu":
        before, after = (share_of_sites(calls[name]) for name in (INDUCTOR, OURS))
    return StepTime(
        **step.columns,
        eager_ms=medians[REFERENCE],
        inductor_ms=medians[INDUCTOR],
        fusedops_ms=medians[OURS],
        speedup=timing.median_ratio(times[INDUCTOR], times[OURS]),
        spread=_spread(times),
        share_before=before,
        share_after=after,
        sites_speedup=_ratio(before * medians[INDUCTOR], after * medians[OURS]),
        openvino_ms=medians.get(OPENVINO, math.nan),
        onnxruntime_ms=medians.get(ONNX_RUNTIME, math.nan),
    )


def _interleave(calls: dict[str, Call], turns: int, clock: Clock) -> dict[str, list[float]]:
    """Times the calls in turns, each of which has all of balanced_orders(). Stops when the ratio of
    Inductor's time to ours is precise enough (PRECISION), or after `turns` turns. Returns the times
    of each call."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    rounds = len(timing.balanced_orders(list(calls)))
    for turn in range(1, turns + 1):
        for name, more in timing.interleave(calls, clock, rounds, SLOT_MS).items():
            times[name] += more
        # The error of a median is about the spread divided by the root of the number of rounds.
        if _spread(times) < PRECISION * math.sqrt(turn * rounds):
            break
    return times


def _spread(times: dict[str, list[float]]) -> float:
    pairs = zip(times[INDUCTOR], times[OURS], strict=True)
    return timing.relative_spread([before / after for before, after in pairs])


def _ratio(before: float, after: float) -> float:
    """Returns before / after. Returns NaN if `after` is 0, which it is if no kernel in the profile
    belongs to a softmax or norm."""
    return before / after if after else math.nan


def _compile(step: Step, backends: Sequence[str], dropout: bool) -> dict[str, Call]:
    """Returns a call for eager and for each backend. The calls of backends have been made once,
    which compiles them."""
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
    """Returns the step in eager mode, as a call that returns the outputs, or in training the
    gradients of all parameters."""
    model, inputs = step.build(dropout), step.inputs()
    return partial(_trainer(model, inputs) if step.mode == TRAINING else _infer, model, inputs)


def _is_random(step: Step) -> bool:
    """Returns whether a step draws random numbers. The state of the generator says so, which
    changes when numbers are drawn. Two results can be equal by chance in a model that rarely drops
    anything, such as Swin, which drops paths."""
    call = eager_step(step, dropout=True)
    state = torch.get_rng_state if step.device == "cpu" else torch.cuda.get_rng_state
    before = state()
    call()
    return not torch.equal(before, state())


@torch.no_grad()
def _infer(model: Callable[..., Any], inputs: dict[str, Any]) -> list[Tensor]:
    return main_tensors(model(**inputs))


def _trainer(model: nn.Module, inputs: dict[str, Any]) -> Callable[..., list[Tensor]]:
    """Returns a function that runs a training step of `model` or of a compiled form of it, and
    returns the gradients of all parameters.

    The incoming gradients of the outputs are random. Ones, as for the sum of the outputs, would not
    do, because the gradient of such a sum is nearly zero if the model ends in a norm.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    grads = [torch.randn_like(output) for output in _infer(model, inputs)]

    def train(model: Callable[..., Any], inputs: dict[str, Any]) -> list[Tensor]:
        outputs = main_tensors(model(**inputs))
        return list(torch.autograd.grad(outputs, parameters, grads, materialize_grads=True))

    return train


def check_step(step: Step, calls: dict[str, Call]) -> None:
    """Raises RuntimeError unless the results of all calls agree with eager's."""
    expected = calls[REFERENCE]()
    for name in calls.keys() - {REFERENCE}:
        _check(step, name, calls[name](), expected)


def _check(step: Step, name: str, actual: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    difference = [a - b for a, b in zip(actual, expected, strict=True)]
    require_small(_norm(difference) / _norm(expected), step.dtype, f"{step}: {name!r}")


def _norm(tensors: Sequence[Tensor]) -> float:
    """Returns the Euclidean norm of all elements of the tensors."""
    return math.hypot(*(torch.linalg.vector_norm(t, dtype=torch.float64).item() for t in tensors))
