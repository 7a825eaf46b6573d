"""What stacks of tensors are run on: as in rows.py and norm.py, several tensors at a time, each
with its own memory, row spacing and parameters. Needs numpy only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..emulator.library import Args, Emulator
from ..emulator.structs import Dropout, NormStack, NormStackBackward, SoftmaxStack
from . import norm as norm_cases
from . import rows as row_cases
from .norm import PARAMETERS, NormCase
from .prepared import Arrays, Form, InDeviceMemory, with_arrays
from .rows import Case

#: The last length that dry launches look at: the kernels that keep a row end at 32768.
MAX_LENGTH = 33_000
_MODULES = {Case: row_cases, NormCase: norm_cases}
#: Arrays that each tensor has of its own; all others are slots of one array.
OWN = ("input", "weight", "bias")


@dataclass(frozen=True)
class StackCase:
    of: Case | NormCase  # each tensor
    count: int

    @property
    def op(self) -> str:
        return f"{self.of.op} of a stack"

    @property
    def cols(self) -> int:
        return self.of.cols

    @property
    def clusters(self) -> bool:
        return self.of.clusters

    def output_dtypes(self) -> dict[str, str]:
        return self.of.output_dtypes()

    def form(self, name: str) -> Form:
        """What an array is like: "input 0" and so on are those that tensors have of their own."""
        name, _, number = name.partition(" ")
        of = self.of.form(name)
        if number:
            return of._replace(padded=name == "input" and int(number) % 2 == 1)
        rows, cols = of.shape
        return of._replace(shape=(self.count * rows, cols))

    def rows_of(self, name: str) -> int:
        """The rows of this array that belong to one tensor."""
        return 1 if name in PARAMETERS else self.of.rows

    def slot(self, i: int, arrays: Arrays) -> Arrays:
        """The arrays of tensor i, from those of all."""
        rows = {name: self.rows_of(name) for name in arrays}
        return {name: values[i * rows[name] :][: rows[name]] for name, values in arrays.items()}


def inputs(case: StackCase) -> Arrays:
    """The inputs of all tensors, one below the other. Each tensor's parameters are those of the one
    before, rotated by a column."""
    given = _MODULES[type(case.of)].inputs(replace(case.of, rows=case.count * case.of.rows))
    for name in given.keys() & set(PARAMETERS):
        turned = [np.roll(given[name], i, axis=1) for i in range(case.count)]
        given[name] = np.concatenate(turned)
    return given


class Prepared(InDeviceMemory):
    def __init__(
        self, emulator: Emulator, case: StackCase, given: Arrays, misaligned: int | None = None
    ) -> None:
        shared = {name: values for name, values in given.items() if name not in OWN}
        for i in range(case.count):
            tensor = case.slot(i, given)
            shared |= {f"{name} {i}": tensor[name] for name in OWN if name in tensor}
        super().__init__(emulator, case, shared, f"input {misaligned}")

    def _args(self) -> Args:
        case, of = self._case, self._case.of
        if isinstance(of, Case):
            args = SoftmaxStack(row_cases.args_of(of))
        else:
            kind = NormStack if of.is_forward else NormStackBackward
            args = kind(norm_cases.args_of(of, Dropout(None, 0, 1.0)))
        first = {name: self.arrays[f"{name} 0"] for name in OWN if f"{name} 0" in self.arrays}
        with_arrays(args.each, self.arrays | first)
        args.each.input.data = None
        args.slot, args.count = of.rows * of.cols, case.count
        for name, field in (("input", "inputs"), ("weight", "weights"), ("bias", "biases")):
            for i in range(case.count if name in first else 0):
                array = self.arrays[f"{name} {i}"]
                getattr(args, field)[i] = array.rows if name == "input" else array.address
        return args


def bases() -> list[StackCase]:
    plain = [base for base in row_cases.bases() if base.op == "softmax_forward"]
    norms = [base for base in norm_cases.bases() if not base.adds]
    return [StackCase(base, 3) for base in (*plain, *norms)]


def boundary_cases(emulator: Emulator, base: StackCase) -> Iterator[StackCase]:
    """At every length where the launch of a single tensor changes, with options that vary."""
    module = _MODULES[type(base.of)]
    for i, case in enumerate(module.boundary_cases(emulator, base.of)):
        case = replace(case, rows=5, padded=False)
        if isinstance(case, NormCase):
            columns = case.cols <= row_cases.FEW_COLS
            wanted = (i % 4 != 3 or not columns, columns, columns and i % 4 != 2)
            case = replace(case, p=0.0, wanted=wanted)
        yield replace(base, of=case, count=2 + i % 2)


def racing_candidates(emulator: Emulator) -> list[StackCase]:
    """As those of rows.py, but two tensors each."""
    candidates = [case for base in bases() for case in boundary_cases(emulator, base)]
    candidates = [replace(case, of=replace(case.of, rows=3), count=2) for case in candidates]
    return row_cases.several_warps_first(candidates)
