"""What stacks of tensors are run on: as in rows.py and norm.py, several tensors at a time, each
with its own memory, row spacing and parameters. Needs numpy only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..emulator.library import DTYPES, VECTOR_BYTES, Args, DeviceArray, Emulator
from ..emulator.structs import NormStack, NormStackBackward, SoftmaxStack
from . import norm as norm_cases
from . import rows as row_cases
from .norm import NormCase
from .rows import Arrays, Case

#: The last length that dry launches look at: the kernels that keep a row end at 32768.
MAX_LENGTH = 33_000
_MODULES = {Case: row_cases, NormCase: norm_cases}
#: Arrays that each tensor has of its own; all others are slots of one array.
OWN = ("input", "weight", "bias")
_PARAMETERS = ("weight", "bias", "grad_weight", "grad_bias")


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

    def rows_of(self, name: str) -> int:
        """The rows of this array that belong to one tensor."""
        return 1 if name in _PARAMETERS else self.of.rows

    def slot(self, i: int, arrays: Arrays) -> Arrays:
        """The arrays of tensor i, from those of all."""
        rows = {name: self.rows_of(name) for name in arrays}
        return {name: values[i * rows[name] :][: rows[name]] for name, values in arrays.items()}


def inputs(case: StackCase) -> Arrays:
    """The inputs of all tensors, one below the other. Each tensor's parameters are those of the one
    before, rotated by a column."""
    given = _MODULES[type(case.of)].inputs(replace(case.of, rows=case.count * case.of.rows))
    for name in given.keys() & set(_PARAMETERS):
        turned = [np.roll(given[name], i, axis=1) for i in range(case.count)]
        given[name] = np.concatenate(turned)
    return given


def output_dtypes(case: StackCase) -> dict[str, str]:
    return _MODULES[type(case.of)].output_dtypes(case.of)


class Prepared:
    """A case in device memory: launch ``args``, then read the outputs."""

    def __init__(
        self, emulator: Emulator, case: StackCase, given: Arrays, misaligned: int | None = None
    ) -> None:
        self._emulator, self._case, self._misaligned = emulator, case, misaligned
        emulator.use_clusters(case.of.clusters)
        self._own = {name: self._tensors(name, given[name]) for name in OWN if name in given}
        shared = {name: values.shape for name, values in given.items() if name not in OWN}
        self._outputs = {
            name: self._array(name, (case.count * case.rows_of(name), self._cols(name)))
            for name in output_dtypes(case)
        }
        self._shared = {name: self._array(name, shape) for name, shape in shared.items()}
        for name, array in self._shared.items():
            array.values[:] = given[name]
        self.args = self._args()
        self._workspace = emulator.workspace(self.args)

    def _cols(self, name: str) -> int:
        return 1 if name in ("mean", "rstd") else self._case.cols

    def _dtype(self, name: str) -> str:
        of = self._case.of
        if isinstance(of, Case):
            return of.other if name == "output" else of.dtype
        if name in ("mean", "rstd"):
            return of.statistics
        return of.parameter_dtype if name in _PARAMETERS else of.dtype

    def _array(
        self, name: str, shape: tuple[int, int], padded: bool = False, width: int | None = None
    ) -> DeviceArray:
        dtype = self._dtype(name)
        width = self._case.of.width if width is None else width
        alignment = min(VECTOR_BYTES, width * DTYPES[dtype].itemsize)
        return self._emulator.array(shape, dtype, alignment, padded)

    def _tensors(self, name: str, values: np.ndarray) -> list[DeviceArray]:
        rows, arrays = self._case.rows_of(name), []
        for i in range(self._case.count):
            width = 1 if name == "input" and i == self._misaligned else None
            padded = name == "input" and i % 2 == 1
            arrays.append(self._array(name, (rows, self._case.cols), padded, width))
            arrays[-1].values[:] = values[i * rows :][:rows]
        return arrays

    def _args(self) -> Args:
        case, of = self._case, self._case.of
        slot = of.rows * of.cols
        arrays = self._shared | self._outputs
        if isinstance(of, Case):
            args = SoftmaxStack(slot=slot, count=case.count)
            args.each.output = arrays["output"].rows
            args.each.rows, args.each.cols, args.each.log = of.rows, of.cols, of.log
        else:
            kind = NormStack if of.is_forward else NormStackBackward
            args = kind(norm_cases.args_of(of, arrays), slot=slot, count=case.count)
            if "weight" in self._own:
                args.each.weight = self._own["weight"][0].columns
            if of.is_forward and "bias" in self._own:
                args.each.bias = self._own["bias"][0].columns
        args.each.input.dtype = self._own["input"][0].rows.dtype
        for name, field in (("input", "inputs"), ("weight", "weights"), ("bias", "biases")):
            for i, array in enumerate(self._own.get(name, ())):
                getattr(args, field)[i] = array.rows if name == "input" else array.address
        return args

    def outputs(self) -> Arrays:
        return {name: array.read() for name, array in self._outputs.items()}


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
    return sorted(candidates, key=lambda case: (case.cols <= 512, case.cols))
