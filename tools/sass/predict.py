"""The table of shapes: a prediction for every operator, dtype and row length."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .chips import CHIPS, LATENCY
from .demand import Demand, demands_of
from .launches import Case, LaunchProgram, Plan
from .model import (
    LAUNCH_GAP,
    Cost,
    Prediction,
    copy_seconds,
    cost_of,
    l2_shares,
    moved_bytes,
    seconds,
)
from .toolchain import Code, demangle

MODELLED_ARCH = "90"
OPS = [
    f"{op}{direction}"
    for op in (
        *("softmax", "layer_norm", "rms_norm", "add_rms_norm"),
        *("masked_softmax", "masked_softmax_causal", "masked_softmax_bool"),
    )
    for direction in ("", "_backward")
]
#: float16 takes the same kernels as bfloat16 with other conversions.
DTYPES = ("bfloat16", "float32")
POWERS = [1 << i for i in range(10, 16)]
COLS = (49, 197, 577, 1023, *POWERS, 50257, 65536, 131072, 262144)
TENSOR_BYTES = (64 << 20, 1 << 30)


def table_cases() -> list[Case]:
    cases = []
    for op in OPS:
        for dtype in DTYPES:
            for cols in COLS:
                for size in TENSOR_BYTES:
                    rows = max(1, size // Case(op, dtype, 1, cols).tensor_bytes)
                    cases.append(Case(op, dtype, rows, cols))
    return cases


CHIP = CHIPS[MODELLED_ARCH]
Counted = tuple[Demand, int]  # a launch, and how often it is launched


@dataclass(frozen=True)
class Predictor:
    codes: dict[str, Code]  # by symbol
    names: dict[str, str]
    program: LaunchProgram

    def predict(self, case: Case) -> Prediction:
        (plan,) = self.program.plans([case])
        demands = demands_of(case, self.codes, self.program.plans)
        costs = self.costs(demands, plan)
        times = [
            count * seconds(demand, cost, CHIP)
            for (demand, count), cost in zip(demands, costs, strict=True)
        ]
        launches = sum(count for _, count in demands)
        total = sum(times) + (launches - 1) * LAUNCH_GAP + LATENCY
        copy = copy_seconds(plan.regions, CHIP)
        longest = times.index(max(times))
        return Prediction(
            **vars(case),
            **self.of_longest(*demands[longest], costs[longest]),
            **self.of_all(case, demands, plan),
            **resource_shares(demands, costs, copy),
            launches=launches,
            us=total * 1e6,
            share=(copy + LATENCY) / total,
        )

    def costs(self, demands: Sequence[Counted], plan: Plan) -> list[Cost]:
        shares = l2_shares(demands, plan.regions)
        return [
            cost_of(demand, self.codes[demand.symbol].usage, plan.regions, CHIP, share)
            for (demand, _), share in zip(demands, shares, strict=True)
        ]

    def of_longest(self, demand: Demand, _: int, cost: Cost) -> dict[str, Any]:
        """The columns about the launch that takes longest."""
        return {
            "threads": demand.threads,
            "cluster": demand.cluster,
            "resident": cost.resident,
            "waves": demand.blocks / cost.resident / CHIP.multiprocessors,
            "kb_in_flight": cost.resident * demand.warps_a_block * demand.in_flight / 1024,
            "limiter": cost.limiter,
        }

    def of_all(self, case: Case, demands: Sequence[Counted], plan: Plan) -> dict[str, Any]:
        """The columns that are sums over all launches."""
        moved = sum(sum(moved_bytes(each, plan.regions)) * count for each, count in demands)
        instructions = sum(each.instructions * count for each, count in demands)
        return {
            "kernels": " + ".join(dict.fromkeys(self.names[each.symbol] for each, _ in demands)),
            "bytes_u": moved / case.tensor_bytes,
            "instructions": instructions * 1024 / (case.rows * case.cols),
            "guesses": sum(each.guesses for each, _ in demands),
        }


def resource_shares(
    demands: Sequence[Counted], costs: Sequence[Cost], copy: float
) -> dict[str, float]:
    """The demand for each resource, as a share of what it offers in a copy's time."""
    return {
        name: sum(
            cost.busy[name] * demand.blocks * count
            for (demand, count), cost in zip(demands, costs, strict=True)
        )
        / CHIP.multiprocessors
        / copy
        for name in ("issue", "alu", "mufu", "shuffle")
    }


_predictor: Predictor | None = None


def _start(predictor: Predictor) -> None:
    global _predictor
    _predictor = predictor


def _predict(case: Case) -> Prediction:
    assert _predictor is not None
    return _predictor.predict(case)


def predictions(codes: dict[str, Code], cases: Sequence[Case]) -> list[Prediction]:
    """Predictions for all cases, in as many processes as there are CPUs."""
    with tempfile.TemporaryDirectory() as folder:
        predictor = Predictor(codes, demangle(list(codes)), LaunchProgram(Path(folder)))
        with ProcessPoolExecutor(os.cpu_count(), initializer=_start, initargs=(predictor,)) as pool:
            return list(pool.map(_predict, cases, chunksize=4))
