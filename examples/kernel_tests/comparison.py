"""Runs a kernel on the cases of https://github.com/llmsystem/llmsys_s25_hw3, kernel_tests/: with
the same shapes, masks, tolerances and random numbers. Results and times of every case are compared
with

- the primitives: the decomposed computation of those tests, which their speed-ups refer to;
- eager PyTorch's own operator;
- Inductor's code for that operator.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

try:
    from fusedops.cli import options
    from fusedops.cli.bench.command import keep_freed_memory
    from fusedops.cli.errors import Parser, end_in_one_line
    from fusedops.cli.timing import Call, clock_for, interleave, median_ratio
except (ImportError, ValueError) as error:  # a missing extra or library, or an invalid setting
    sys.exit(f"the kernel tests need fusedops[bench], which cannot be imported: {error}")

SEED, CASES = 42, 5
HEADS, MOST_TOKENS, LONGEST_SEQUENCE = 8, 1024, 512
EPS = 1e-8
PRIMITIVES, EAGER, INDUCTOR, OURS = "primitives", "eager", "inductor", "fusedops"
BASELINES = (PRIMITIVES, EAGER, INDUCTOR)

Compute = Callable[..., Tensor | tuple[Tensor, ...]]


@dataclass(frozen=True)
class KernelTest:
    """A computation and its inputs.

    draw: draws the arguments of one case.
    asked_for: the speed-up over the primitives that llmsys_s25_hw3 asks for.
    """

    name: str
    draw: Callable[[Shapes], tuple[Tensor, ...]]
    primitives: Compute
    eager: Compute
    ours: Compute
    atol: float
    rtol: float
    asked_for: float

    def calls(self, inputs: Sequence[Tensor]) -> dict[str, Call]:
        """The call of each provider. Each shape is compiled separately."""
        torch.compiler.reset()
        compiled = torch.compile(self.eager, dynamic=False)
        computes = (self.primitives, self.eager, compiled, self.ours)
        return {
            name: partial(compute, *inputs)
            for name, compute in zip((*BASELINES, OURS), computes, strict=True)
        }


class Shapes:
    """Draws shapes and tensors. The calls of Python's generator are those of the original tests, so
    that the shapes are the same."""

    def __init__(self, device: str = "cpu"):
        self.generator, self.device = random.Random(SEED), device
        torch.manual_seed(SEED)

    def batch_and_length(self) -> tuple[int, int]:
        """The number and length of sequences with at most MOST_TOKENS tokens in total."""
        length = self.generator.randint(1, LONGEST_SEQUENCE)
        return self.generator.randint(1, MOST_TOKENS // length), length

    def length(self, batch: int) -> int:
        """The length of `batch` sequences."""
        return self.generator.randint(1, min(MOST_TOKENS // batch, LONGEST_SEQUENCE))

    def width(self) -> int:
        """The width of a token: four floats for each head, times a number up to 10 // HEADS."""
        return self.generator.choice(range(1, 10 // HEADS + 1)) * HEADS * 4

    def scores(self) -> tuple[int, int, int, int]:
        """The shape of attention's scores: batch, heads, queries, keys."""
        batch, queries = self.batch_and_length()
        return batch, HEADS, queries, self.length(batch)

    def padding(self, batch: int, keys: int) -> Tensor:
        """An additive mask for scores: -1e8 after the last key of each sequence."""
        mask = torch.zeros(batch, 1, 1, keys)
        for sequence in mask:
            sequence[..., self.generator.randint(1, keys) :] = -1e8
        return mask.to(self.device)

    def uniform(self, *shape: int) -> Tensor:
        """A tensor with uniform values in [-1, 1)."""
        return (torch.rand(shape) * 2 - 1).to(self.device)


def cases(test: KernelTest, device: str, count: int = CASES) -> Iterator[tuple[Tensor, ...]]:
    """The arguments of each case."""
    shapes = Shapes(device)
    for _ in range(count):
        yield test.draw(shapes)


def check(test: KernelTest, calls: dict[str, Call]) -> float:
    """The largest difference of our result from the primitives'.

    Raises:
        AssertionError: a provider differs from the primitives by more than the test's tolerance.
    """
    results = {name: _as_tuple(call()) for name, call in calls.items()}
    reference = results[PRIMITIVES]
    for name, result in results.items():
        torch.testing.assert_close(
            result, reference, atol=test.atol, rtol=test.rtol, msg=partial(_named, test, name)
        )
    pairs = zip(results[OURS], reference, strict=True)
    return max((one - other).abs().max().item() for one, other in pairs)


def _as_tuple(result: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def _named(test: KernelTest, provider: str, message: str) -> str:
    return f"{test.name}: {provider} differs from the primitives\n{message}"


def main(test: KernelTest, argv: Sequence[str] | None = None) -> int:
    """Returns the exit code. An error is one line on standard error."""
    return end_in_one_line(test.name, lambda: run(test, _parse(test, argv)))


def run(test: KernelTest, args: argparse.Namespace) -> int:
    """Compares, times and prints each case, then prints the average speed-ups."""
    device = str(args.device)
    if device == "cpu":
        keep_freed_memory()
    torch.set_num_threads(args.threads)
    clock = clock_for(device)
    rounds, slot_ms = (8, 5) if args.quick else (24, 20)
    print(f"{test.name}: float32 on {device}, threads: {args.threads}; speed-up over")
    print(f"{'shape':24}{'largest difference':>20}", *(f"{name:>11}" for name in BASELINES))
    speedups: dict[str, list[float]] = {name: [] for name in BASELINES}
    for inputs in cases(test, device):
        calls = test.calls(inputs)
        difference = check(test, calls)
        times = interleave(calls, clock, rounds, slot_ms)
        for name in BASELINES:
            speedups[name].append(median_ratio(times[name], times[OURS]))
        shape = "x".join(map(str, inputs[0].shape))
        print(f"{shape:24}{difference:20.1e}", *(f"{of[-1]:10.1f}x" for of in speedups.values()))
    averages = (f"{statistics.mean(of):10.1f}x" for of in speedups.values())
    print(f"{'average':44}", *averages)
    print(f"{'llmsys_s25_hw3 asks for, on a GPU':44} {test.asked_for:10.1f}x")
    return 0


def _parse(test: KernelTest, argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        description=f"{test.name}: agreement and speed-up, by case and on average",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--device", type=options.device, default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--threads", type=options.threads, default=1, help="CPU threads")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    return parser.parse_args(argv)
