"""Whole models: a step in eager, with Inductor and with fusedops, and what the sites take of it.

Inference is a forward pass without gradients, training a forward and a backward pass with the
dropout that the model has by default. Models have no head: the loss of a vocabulary would take more
time than the two layers.
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
from fusedops.cli.bench.sites import KERNEL_NAMES, share_of_sites
from fusedops.cli.models import BASE, MODELS, Size, cast, main_tensors
from fusedops.cli.timing import Call, WallClock, interleave, median_ratio, relative_spread

INDUCTOR = "inductor"
COMPILED = (INDUCTOR, OURS)
INFERENCE, TRAINING = "inference", "training"
MODES = {FORWARD: INFERENCE, BACKWARD: TRAINING}
# Of each head, as in most transformers; the narrower a model, the more of its time goes to scores.
HEAD_WIDTH = 64
DEFAULT = [
    ("gpt2", TRAINING),
    *((name, INFERENCE) for name in ("gpt2", "llama", "gpt_neox", "bert", "vit", "t5")),
]
QUICK = [("gpt2", TRAINING), ("bert", INFERENCE)]
# A multiple of six: of three providers there are six balanced orders.
ROUNDS, ROUNDS_QUICK = 18, 6
SLOT_MS = 1.0  # a step takes longer: a slot is one step


@dataclass(frozen=True)
class Step:
    """What is timed: one step of a model on inputs of one size."""

    model: str
    mode: str
    dtype: torch.dtype
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
        return f"{self.model} {self.mode} {self.dtype_name} {size}"


@dataclass(frozen=True)
class StepTime:
    """The three providers on one step: the columns of the CSV, in their order.

    `speedup` is that of fusedops over Inductor, `spread` its interquartile range as a share of it.
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


def chosen_steps(
    names: Sequence[str],
    directions: Sequence[str],
    dtypes: Sequence[torch.dtype],
    batch: int,
    size: Size,
    quick: bool,
) -> list[Step]:
    """The named models, or the default set, in the modes that go in these directions."""
    modes = [MODES[direction] for direction in directions]
    pairs = list(product(names, modes)) or (QUICK if quick else DEFAULT)
    wanted = (pair for pair in pairs if pair[1] in modes)
    return [Step(*pair, dtype, batch, size) for pair in wanted for dtype in dtypes]


def size_of(length: int, width: int) -> Size:
    """Sequences of `length` tokens in a model of that width, otherwise as the larger of the zoo."""
    return replace(BASE, length=length, width=width, heads=max(1, width // HEAD_WIDTH))


def prepare_step(step: Step) -> dict[str, Call]:
    """A call for each provider, compiled and known to compute what eager computes."""
    if _is_random(step):
        # Each provider draws numbers of its own: twins without dropout show whether they agree.
        check_step(step, _compile(step, dropout=False))
        return _compile(step, dropout=True)
    calls = _compile(step, dropout=True)
    check_step(step, calls)
    return calls


def measure_step(step: Step, calls: dict[str, Call], rounds: int) -> StepTime:
    """Time what `prepare_step` returned, in turns, then profile it."""
    times = interleave(calls, WallClock(), rounds, SLOT_MS)
    ratios = [before / after for before, after in zip(times[INDUCTOR], times[OURS], strict=True)]
    medians = {name: statistics.median(times[name]) for name in calls}
    before, after = (share_of_sites(calls[name]) for name in (INDUCTOR, OURS))
    return StepTime(
        model=step.model,
        mode=step.mode,
        dtype=step.dtype_name,
        batch=step.batch,
        length=step.size.length,
        width=step.size.width,
        threads=torch.get_num_threads(),
        eager_ms=medians[REFERENCE],
        inductor_ms=medians[INDUCTOR],
        fusedops_ms=medians[OURS],
        speedup=median_ratio(times[INDUCTOR], times[OURS]),
        spread=relative_spread(ratios),
        share_before=before,
        share_after=after,
        sites_speedup=_ratio(before * medians[INDUCTOR], after * medians[OURS]),
    )


def _ratio(before: float, after: float) -> float:
    """Not a number where no kernel with a name takes any time, as in opaque calls."""
    return before / after if after else math.nan


def _compile(step: Step, dropout: bool) -> dict[str, Call]:
    torch.compiler.reset()
    eager = eager_step(step, dropout)
    run, model, inputs = eager.func, *eager.args
    compiled = {
        name: partial(run, torch.compile(model, backend=name, dynamic=False), inputs)
        for name in COMPILED
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
    call = eager_step(step, dropout=True)
    return any(not torch.equal(*pair) for pair in zip(call(), call(), strict=True))


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
        return torch.autograd.grad(outputs, parameters, grads, materialize_grads=True)

    return train


def check_step(step: Step, calls: dict[str, Call]) -> None:
    """Raise unless all calls give what eager gives."""
    expected = calls[REFERENCE]()
    for name in COMPILED:
        difference = [a - b for a, b in zip(calls[name](), expected, strict=True)]
        disagreement = _norm(difference) / _norm(expected)
        allowed = MAX_DISAGREEMENT[step.dtype]
        if not disagreement <= allowed:
            raise RuntimeError(
                f"{step}: {name!r} differs from eager by {disagreement:.1e} (relative, L2), wanted "
                f"at most {allowed:.0e}. Nothing was timed; please report this."
            )


def _norm(tensors: Sequence[Tensor]) -> float:
    """Of all numbers in them."""
    return math.hypot(*(torch.linalg.vector_norm(t, dtype=torch.float64).item() for t in tensors))
