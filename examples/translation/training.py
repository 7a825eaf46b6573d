"""Training that can be resumed after an interruption with the same results."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from fusedops.cli.errors import UserError
from translation.checkpoints import Checkpoints, State
from translation.model import IGNORED, PAD, DecoderLM

Batch = tuple[Tensor, Tensor]  # inputs and labels, [pairs, positions]


@dataclass(frozen=True)
class TrainingConfig:
    """The settings that, besides model and data, determine the results of a run."""

    batch_size: int = 128
    samples_per_epoch: int = 20_000
    learning_rate: float = 1e-3
    warm_up_steps: int = 400
    seed: int = 0
    dtype: str = "float32"


class StepRecord(NamedTuple):
    """One step: the loss before the update, and the number of tokens without padding."""

    step: int
    epoch: int
    loss: float
    tokens: int
    seconds: float


class EpochRecord(NamedTuple):
    """One epoch; its speed is the median of its steps, which compilation does not affect."""

    epoch: int
    loss: float
    valid_loss: float
    tokens_per_second: float
    seconds: float


class Trainer:
    """Trains `model` with `loss`, a function of a batch, and keeps the records.

    Each epoch takes `samples_per_epoch` of the pairs in an order that depends on the seed and the
    epoch's number; an incomplete last batch is dropped. Everything else that a step depends on is
    in `state`.
    """

    def __init__(
        self,
        model: DecoderLM,
        loss: Callable[[Tensor, Tensor], Tensor],
        train: Batch,
        valid: Batch,
        config: TrainingConfig,
        data_hash: str = "",
    ) -> None:
        self.model, self.loss, self.config = model, loss, config
        self.inputs, self.labels = train
        self.valid = valid
        self.device = model.head.weight.device
        self.settings = asdict(model.config) | asdict(config) | {"data": data_hash}
        pairs = min(config.samples_per_epoch, len(self.inputs))
        self.steps_per_epoch = pairs // config.batch_size
        if self.steps_per_epoch == 0:
            raise UserError(
                f"--batch-size is {config.batch_size}, but an epoch has {pairs} pairs: "
                f"{len(self.inputs)} fit --positions, --samples-per-epoch takes "
                f"{config.samples_per_epoch}; pass a smaller batch, or more pairs"
            )
        self.optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))
        self.records: list[StepRecord] = []
        self.epochs: list[EpochRecord] = []

    def run(self, epochs: int, checkpoints: Checkpoints, every: int) -> Iterator[StepRecord]:
        """Trains for `epochs` in total; saves after each epoch, and after every `every` steps."""
        while len(self.records) < epochs * self.steps_per_epoch:
            self.records.append(self.train_step())
            epoch_ends = len(self.records) % self.steps_per_epoch == 0
            if epoch_ends:
                self.epochs.append(self.epoch_record())
            if epoch_ends or len(self.records) % every == 0:
                checkpoints.save(self.state())
            yield self.records[-1]

    def train_step(self) -> StepRecord:
        """Runs the next step."""
        start = time.perf_counter()
        step = len(self.records)
        epoch, position = divmod(step, self.steps_per_epoch)
        order = epoch_order(len(self.inputs), self.config.seed, epoch)
        rows = order[position * self.config.batch_size :][: self.config.batch_size]
        inputs, labels = self.inputs[rows], self.labels[rows]
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, self.config)
        self.model.train()
        with autocast(self.device, self.config.dtype):
            loss = self.loss(inputs.to(self.device), labels.to(self.device))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        tokens, value = int((inputs != PAD).sum()), loss.item()
        return StepRecord(step, epoch, value, tokens, time.perf_counter() - start)

    def epoch_record(self) -> EpochRecord:
        """The record of the epoch that has just ended."""
        steps = self.records[-self.steps_per_epoch :]
        return EpochRecord(
            epoch=steps[0].epoch,
            loss=statistics.fmean(record.loss for record in steps),
            valid_loss=self.valid_loss(),
            tokens_per_second=statistics.median(r.tokens / r.seconds for r in steps),
            seconds=sum(record.seconds for record in steps),
        )

    @torch.no_grad()
    def valid_loss(self) -> float:
        """The mean loss over the target tokens of all validation pairs; NaN if there are none."""
        self.model.eval()
        total, count = 0.0, 0
        batches = zip(*(part.split(self.config.batch_size) for part in self.valid), strict=True)
        for inputs, labels in batches:
            scored = int((labels != IGNORED).sum())
            with autocast(self.device, self.config.dtype):
                loss = self.model.loss(inputs.to(self.device), labels.to(self.device))
            total, count = total + loss.item() * scored, count + scored
        return total / count if count else float("nan")

    def state(self) -> State:
        """Everything that the next steps depend on, and the records of the previous ones."""
        return {
            "settings": self.settings,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": [torch.get_rng_state(), *self._cuda_rng_state()],
            "records": [tuple(record) for record in self.records],
            "epochs": [tuple(record) for record in self.epochs],
        }

    def _cuda_rng_state(self) -> list[Tensor]:
        return [torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else []

    def load(self, state: State) -> None:
        """Restores `state`. Raises UserError if it belongs to another run or program."""
        try:
            self._load(state)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise UserError(
                f"--resume: the checkpoint is not one of this tool ({type(error).__name__}: "
                f"{error}); start without --resume in another --output"
            ) from error

    def _load(self, state: State) -> None:
        saved = state["settings"]
        if differing := [name for name in saved if saved[name] != self.settings.get(name)]:
            raise UserError(
                "--resume: the checkpoint is of another run: "
                + ", ".join(f"{n} was {saved[n]}, now {self.settings.get(n)}" for n in differing)
                + "; pass the earlier values, or another --output"
            )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"][0])
        if self.device.type == "cuda" and len(state["rng"]) > 1:
            torch.cuda.set_rng_state(state["rng"][1], self.device)
        self.records = [StepRecord(*record) for record in state["records"]]
        self.epochs = [EpochRecord(*record) for record in state["epochs"]]


@lru_cache(maxsize=1)
def epoch_order(pairs: int, seed: int, epoch: int) -> Tensor:
    """The order of the pairs in an epoch, from a separate generator."""
    return torch.randperm(pairs, generator=torch.Generator().manual_seed(seed + epoch))


def learning_rate(step: int, config: TrainingConfig) -> float:
    """Rises linearly for `warm_up_steps`, then falls with the root of the step.

    Source: Vaswani et al., "Attention Is All You Need" (2017), section 5.3.
    """
    warm_up, step = config.warm_up_steps, step + 1
    return config.learning_rate * min(step / warm_up, (warm_up / step) ** 0.5)


def autocast(device: torch.device, dtype: str) -> AbstractContextManager:
    """Autocast with matrix products in bfloat16 and parameters in float32; disabled for float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16")


def tokens_per_second(records: Sequence[StepRecord]) -> float:
    """The average speed over several steps."""
    return sum(r.tokens for r in records) / sum(r.seconds for r in records)
