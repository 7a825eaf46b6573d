"""Whole models: a step in eager, with Inductor and with fusedops, and what the sites take of it.

Inference is a forward pass without gradients, training a forward and a backward pass with the
dropout that the model has by default. Models have no head: the loss of a vocabulary would take more
time than the two layers. A cell is a model in a mode, a dtype and on a number of threads.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch._inductor import config as inductor_config

from fusedops.cli.bench.cases import BACKWARD, FORWARD
from fusedops.cli.bench.measurement import MAX_DISAGREEMENT, OURS, REFERENCE
from fusedops.cli.bench.peers import ONNX_RUNTIME, OPENVINO, PEERS
from fusedops.cli.bench.sites import KERNEL_NAMES, share_of_sites
from fusedops.cli.bench.zoo import BASE, MODELS, Size, cast, main_tensors
from fusedops.cli.timing import (
    Call,
    WallClock,
    balanced_orders,
    interleave,
    median_ratio,
    relative_spread,
)

INDUCTOR = "inductor"
COMPILED = (INDUCTOR, OURS)
INFERENCE, TRAINING = "inference", "training"
MODES = {FORWARD: INFERENCE, BACKWARD: TRAINING}
# The width of a head in most transformers. The narrower a model, the more of its time goes to
# scores.
HEAD_WIDTH = 64
DEFAULT = ("gpt2", "bert", "llama", "t5", "vit", "swin")
QUICK = (("gpt2", TRAINING), ("bert", INFERENCE))
DTYPES = ("float32", "bfloat16")
# How well a median ratio is to be known, and after how many turns through all orders it is taken as
# it is.
PRECISION = 0.005
TURNS, TURNS_QUICK = 2, 1
#: What a step may take longer than Inductor's before it is called slower.
TOLERANCE = 0.02
SLOT_MS = 1.0  # a step takes longer: a slot is one step


@dataclass(frozen=True)
class Step:
    """What is timed: one step of a model on inputs of one size, on a number of threads."""

    model: str
    mode: str
    dtype: torch.dtype
    threads: int
    batch: int
    size: Size

    @property
    def dtype_name(self) -> str:
        """The dtype as the command line and the CSV spell it."""
        return str(self.dtype).removeprefix("torch.")

    def build(self, dropout: bool) -> nn.Module:
        """The model, always with the same weights."""
        torch.manual_seed(0)
        model = MODELS[self.model].build(self.size, dropout)
        return model.to(self.dtype).train(self.mode == TRAINING)

    def inputs(self) -> dict[str, Any]:
        """Always the same."""
        torch.manual_seed(1)
        return cast(MODELS[self.model].inputs(self.size, self.batch), self.dtype)

    def __str__(self) -> str:
        size = f"{self.batch}x{self.size.length}x{self.size.width}"
        return f"{self.model} {self.mode} {self.dtype_name} {size}, {self.threads} thread(s)"


@dataclass(frozen=True)
class StepTime:
    """All providers on one step: the columns of the CSV, in their order.

    Not a number where a peer is not installed, or does not run the step. `speedup` is that of
    fusedops over Inductor, `spread` its interquartile range as a share of it.
    The shares are those of the step's time that the sites take, before by Inductor and after by
    fusedops; `sites_speedup` is how many times less that time has become.
    """

    model: str
    mode: str
    dtype: str
    batch: int
    length: int
    width: int
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
        """Whether fusedops takes longer than Inductor, by more than is tolerated."""
        return self.speedup < 1 / (1 + TOLERANCE)

    def is_of(self, step: Step) -> bool:
        """Whether this was measured on such a step."""
        mine = (self.model, self.mode, self.dtype, self.threads, self.batch)
        its = (step.model, step.mode, step.dtype_name, step.threads, step.batch)
        size = (step.size.length, step.size.width)
        return mine == its and (self.length, self.width) == size


def chosen_steps(
    names: Sequence[str],
    directions: Sequence[str],
    dtypes: Sequence[torch.dtype],
    threads: Sequence[int],
    batch: int,
    size: Size,
    quick: bool,
) -> list[Step]:
    """The named models, or the default set, in the modes that go in these directions."""
    modes = [MODES[direction] for direction in directions]
    pairs = QUICK if quick and not names else product(names or DEFAULT, modes)
    wanted = [pair for pair in pairs if pair[1] in modes]
    cells = product(wanted, dtypes, threads)
    return [Step(*pair, dtype, number, batch, size) for pair, dtype, number in cells]


def size_of(length: int, width: int) -> Size:
    """Sequences of `length` tokens in a model of that width, otherwise as the larger of the zoo."""
    return replace(BASE, length=length, width=width, heads=max(1, width // HEAD_WIDTH))


def prepare_step(step: Step) -> dict[str, Call]:
    """A call for each way to compile it, known to compute what eager computes."""
    torch.set_num_threads(step.threads)
    if _is_random(step):
        # Each provider draws its own numbers: only without dropout can they be compared.
        check_step(step, _compile(step, (OURS,), dropout=False))
        return _compile(step, COMPILED, dropout=True)
    calls = _compile(step, COMPILED, dropout=True)
    check_step(step, calls)
    return calls


def prepare_peers(step: Step, expected: Sequence[Tensor]) -> tuple[dict[str, Call], list[str]]:
    """A call for each peer that is installed and runs such steps, and why others do not."""
    calls, problems = {}, []
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
        except Exception as error:  # whatever keeps a peer from a model costs its column alone
            problems.append(f"{step}: {name} is left out: {error}")
    return calls, problems


def measure_step(step: Step, calls: dict[str, Call], turns: int) -> StepTime:
    """Time what was prepared, in turns, then profile it."""
    times = _interleave(calls, turns)
    medians = {name: statistics.median(times[name]) for name in calls}
    before, after = (share_of_sites(calls[name]) for name in (INDUCTOR, OURS))
    return StepTime(
        model=step.model,
        mode=step.mode,
        dtype=step.dtype_name,
        batch=step.batch,
        length=step.size.length,
        width=step.size.width,
        threads=step.threads,
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


def _interleave(calls: dict[str, Call], turns: int) -> dict[str, list[float]]:
    """Every order of the calls in each turn, until the ratio that counts is known well enough."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    rounds = len(balanced_orders(list(calls)))
    for turn in range(1, turns + 1):
        for name, more in interleave(calls, WallClock(), rounds, SLOT_MS).items():
            times[name] += more
        if _spread(times) < PRECISION * math.sqrt(turn * rounds):  # its share that a median has
            break
    return times


def _spread(times: dict[str, list[float]]) -> float:
    pairs = zip(times[INDUCTOR], times[OURS], strict=True)
    return relative_spread([before / after for before, after in pairs])


def _ratio(before: float, after: float) -> float:
    """Not a number where no kernel with a name takes any time, as in opaque calls."""
    return before / after if after else math.nan


def _compile(step: Step, backends: Sequence[str], dropout: bool) -> dict[str, Call]:
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
    """The step without any compiler: its outputs, or the gradients of all parameters."""
    model, inputs = step.build(dropout), step.inputs()
    return partial(_trainer(model, inputs) if step.mode == TRAINING else _infer, model, inputs)


def _is_random(step: Step) -> bool:
    """Whether a step draws numbers; what seldom drops anything, as Swin's paths, may give the same
    twice all the same."""
    call = eager_step(step, dropout=True)
    before = torch.get_rng_state()
    call()
    return not torch.equal(before, torch.get_rng_state())


@torch.no_grad()
def _infer(model: Callable[..., Any], inputs: dict[str, Any]) -> list[Tensor]:
    return main_tensors(model(**inputs))


def _trainer(model: nn.Module, inputs: dict[str, Any]) -> Callable[..., list[Tensor]]:
    """Runs a step of `model`, compiled or not: the gradients of all its parameters.

    The gradients of the outputs are random: behind a norm those of a sum would be next to zero.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    grads = [torch.randn_like(output) for output in _infer(model, inputs)]

    def train(model: Callable[..., Any], inputs: dict[str, Any]) -> list[Tensor]:
        outputs = main_tensors(model(**inputs))
        return list(torch.autograd.grad(outputs, parameters, grads, materialize_grads=True))

    return train


def check_step(step: Step, calls: dict[str, Call]) -> None:
    """Raise unless all calls give what eager gives."""
    expected = calls[REFERENCE]()
    for name in calls.keys() - {REFERENCE}:
        _check(step, name, calls[name](), expected)


def _check(step: Step, name: str, actual: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    difference = [a - b for a, b in zip(actual, expected, strict=True)]
    disagreement = _norm(difference) / _norm(expected)
    allowed = MAX_DISAGREEMENT[step.dtype]
    if not disagreement <= allowed:
        raise RuntimeError(
            f"{step}: {name!r} differs from eager by {disagreement:.1e} (relative, L2), wanted "
            f"at most {allowed:.0e}. Nothing was timed; please report this."
        )


def _norm(tensors: Sequence[Tensor]) -> float:
    """The Euclidean norm of all elements of the tensors."""
    return math.hypot(*(torch.linalg.vector_norm(t, dtype=torch.float64).item() for t in tensors))
