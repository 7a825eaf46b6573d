"""Follows a warp through the machine code (SASS) of a kernel, to count the instructions that it
executes and the bytes that it moves.

Integers, addresses and predicates are computed for all 32 lanes, from the launch's parameters in
the constant bank and from the indices of threads and blocks. Memory holds zeros. The results of
floating point arithmetic are unknown. A jump that depends on one is not taken, and counts as a
guess. Lanes that diverge converge again because the lanes at the lowest address always run first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .code import Instruction, access_bytes
from .decoding import Step, decode
from .errors import ReportError
from .registers import (
    DOUBLE,
    LANES,
    Mask,
    UnknownValue,
    Value,
    Warp,
    WarpContext,
    all_known,
    as_word,
)
from .semantics import HANDLERS

JUMPS = {"BRA", "EXIT", "CALL", "RET", "BRX"}
MOST_STEPS = 400_000  # a warp that executes more is in a loop that a guess has made endless
REGION_SHIFT = 40  # address >> 40 is the number of its array (region): 1, 2, ..., and 0 for null
UNKNOWN_REGION = -1  # the number that stands for the array of an unknown address
TRUE_BYTES = 0x01010101  # this word is four elements of a bool mask that are true


@dataclass
class Trace:
    """Counts what a warp has executed and moved, or what several warps have, as a weighted sum."""

    # Name of an instruction -> how often warps executed it.
    executed: Counter[str] = field(default_factory=Counter)
    # Number of an array -> the bytes loaded from it.
    loaded: Counter[int] = field(default_factory=Counter)
    stored: Counter[int] = field(default_factory=Counter)
    guesses: float = 0

    @property
    def instructions(self) -> float:
        return sum(self.executed.values())

    @property
    def bytes(self) -> float:
        return sum(self.loaded.values()) + sum(self.stored.values())

    def add(self, other: Trace, weight: float) -> None:
        for name in ("executed", "loaded", "stored"):
            mine = getattr(self, name)
            for key, count in getattr(other, name).items():
                mine[key] += count * weight
        self.guesses += other.guesses * weight


def execute(warp: Warp, step: Step, where: Mask | None) -> None:
    """Executes an instruction other than a jump, which writes its outputs in the lanes of `where`.
    If the instruction has no handler in `semantics.py`, its outputs become unknown in all lanes."""
    handler = HANDLERS.get(step.name)
    if where is False:
        return
    if handler is None:
        for names in step.destinations:
            for name in names:
                warp.values[name] = None
        return
    try:
        values = handler(warp, step)
    except UnknownValue:
        values = [None] * len(step.destinations)
    for names, value in zip(step.destinations, values, strict=False):
        if len(names) == 1:
            warp.write(names[0], value, where)
        elif names:
            warp.write(names[0], as_word(value), where)
            warp.write(names[1], None if value is None else value >> 32, where)


def addresses(warp: Warp, step: Step) -> Value:
    """Returns the address of an access in each lane: the sum of the terms in its brackets, or None
    if a term is unknown."""
    text = next(operand for operand in (*step.inputs, *step.outputs) if "[" in operand)
    inside = re.search(r"\[([^\[\]]*)\]$", text)
    total: Value = 0
    for term in inside[1].split("+"):
        if re.fullmatch(r"-?0x[0-9a-f]+", term):
            value: Value = int(term, 16)
        elif term.endswith(".64") or term.startswith("UR"):
            value = warp.read_pair(term)
        else:
            value = warp.read(term.partition(".")[0])
        if not all_known(total, value):
            return None
        total = total + value if not isinstance(value, int) else total + value % (1 << 64)
        total = total & DOUBLE
    return total


class Walk:
    """Follows one warp through a kernel, and counts what it does in `trace`."""

    def __init__(self, body: Sequence[Instruction], context: WarpContext):
        self.steps = [decode(instruction) for instruction in body]
        self.index = {step.address: i for i, step in enumerate(self.steps)}
        self.warp = Warp(context)
        self.trace = Trace()

    def run(self) -> Trace:
        """Runs the warp until all lanes have ended, and returns its trace. In each turn the lanes
        at the lowest instruction execute it. `groups` maps the index of an instruction to the
        lanes that wait there."""
        context = self.warp.context
        threads = context.threads[0] * context.threads[1]
        groups = {0: np.arange(LANES) + context.warp * LANES < threads}
        for _ in range(MOST_STEPS):
            if not groups:
                return self.trace
            at = min(groups)
            lanes = groups.pop(at)
            step = self.steps[at]
            self.trace.executed[step.label] += 1
            guard = self.warp.predicate(step.guard) if step.guard else True
            if step.name not in JUMPS:
                self.compute(step, guard, lanes)
                arrivals = [(at + 1, lanes)]
            else:
                arrivals = [one for one in self.jump(at, step, guard, lanes) if one[1].any()]
            for target, mask in arrivals:
                groups[target] = groups[target] | mask if target in groups else mask
        raise ReportError(f"a warp executes more than {MOST_STEPS} instructions")

    def compute(self, step: Step, guard: Mask | None, lanes: np.ndarray) -> None:
        """Executes an instruction in the lanes whose guard is true. If the guard is not known, all
        outputs become unknown, and the bytes of all lanes count."""
        where: Mask | None = guard
        if where is not None and not step.name.startswith("U") and not lanes.all():
            where = lanes & where
        if step.name not in ("LDG", "STG"):
            execute(self.warp, step, where)
            return
        at = addresses(self.warp, step)
        self.move(step, at, lanes if guard is None else lanes & guard)
        if step.name == "LDG":
            self.load(step, at, where)

    def load(self, step: Step, at: Value, where: Mask | None) -> None:
        """Writes the outputs of a load: zeros, or true if it reads a bool mask, so that every
        column is visible. The outputs become unknown if the address is unknown."""
        first = at if isinstance(at, int) or at is None else int(at.min())
        held = None if first is None else 0
        if first is not None and first >> REGION_SHIFT in self.warp.context.masks:
            held = TRUE_BYTES
        for names in step.destinations:
            for name in names:
                self.warp.write(name, held, where)

    def jump(
        self, at: int, step: Step, guard: Mask | None, lanes: np.ndarray
    ) -> list[tuple[int, np.ndarray]]:
        """Returns where the lanes continue, as pairs of the index of an instruction and the lanes
        that continue there. A jump whose condition or target is unknown is not taken, and counts as
        a guess."""
        condition = [self.warp.predicate(p) for p in step.predicate_inputs]
        if (guard is None or any(c is None for c in condition)) and lanes.any():
            self.trace.guesses += 1
            return [(at + 1, lanes)]
        taken = lanes & guard
        for c in condition:
            taken = taken & c
        left = [(at + 1, lanes & ~taken)]
        if step.name == "EXIT":
            return left
        target = step.target
        if step.name == "RET":
            target = self.warp.read(step.inputs[0].split()[0])
        if step.name == "BRX" or target is None:
            self.trace.guesses += 1
            return [(at + 1, lanes)]
        if isinstance(target, np.ndarray):
            target = int(target[taken][0]) if taken.any() else step.address
        if target not in self.index:  # the target is a NOP, which parse_sass leaves out
            target = min(address for address in self.index if address > target)
        return [*left, (self.index[int(target)], taken)]

    def move(self, step: Step, at: Value, lanes: np.ndarray) -> None:
        """Counts the bytes that an access moves. Lanes with the same address count once."""
        if not lanes.any():
            return
        size = access_bytes(step.parts)
        moved: Counter[int] = Counter()
        if at is None:
            self.trace.guesses += 1
            moved[UNKNOWN_REGION] += int(lanes.sum()) * size
        else:
            for address in np.unique(np.broadcast_to(np.asarray(at, np.uint64), LANES)[lanes]):
                moved[int(address) >> REGION_SHIFT] += size
        (self.trace.loaded if step.name == "LDG" else self.trace.stored).update(moved)


def follow(body: Sequence[Instruction], context: WarpContext) -> Trace:
    """Follows the warp of `context` through a kernel, and returns its trace."""
    with np.errstate(over="ignore"):
        return Walk(body, context).run()
