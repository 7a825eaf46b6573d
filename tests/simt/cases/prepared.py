"""A case in the memory of the device, whatever its family. Needs numpy only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from .. import philox
from ..emulator.library import STORED, VECTOR_BYTES, Args, DeviceArray, Emulator
from ..emulator.structs import Columns, Dropout, Rows, Slices

Arrays = dict[str, np.ndarray]


class Form(NamedTuple):
    """What an array is like: ``width`` elements are a vector that its rows are aligned for."""

    shape: tuple[int, int]
    dtype: str
    width: int = 1
    padded: bool = False


class InDeviceMemory:
    """A case in device memory: launch ``args``, then read the outputs.

    A case says what form each array has, and a subclass what the arguments are besides the arrays
    that have their names.
    """

    def __init__(
        self, emulator: Emulator, case: Any, given: Arrays, misaligned: str | None = None
    ) -> None:
        self._emulator, self._case, self._misaligned = emulator, case, misaligned
        emulator.use_clusters(getattr(case, "clusters", False))
        self._outputs = list(case.output_dtypes())
        self.arrays: dict[str, DeviceArray] = {}
        for name in dict.fromkeys((*given, *self._outputs)):
            self.arrays[name] = self._array(name)
        for name, values in given.items():
            array = self.arrays[name].values
            array[:] = values.reshape(array.shape)
        self.args = with_arrays(self._args(), self.arrays)
        self._workspace = emulator.workspace(self.args)

    def _array(self, name: str) -> DeviceArray:
        shape, dtype, width, padded = self._case.form(name)
        width = 1 if name == self._misaligned else width
        alignment = min(VECTOR_BYTES, width * STORED[dtype].itemsize)
        return self._emulator.array(shape, dtype, alignment, padded)

    def _args(self) -> Args:
        raise NotImplementedError

    def _dropout(self) -> Dropout:
        case = self._case
        self._seed = self._emulator.array((1, 1), "int64", 8)
        self._seed.values[:] = philox.SEED
        seed = self._seed.address if case.drops else None
        return Dropout(seed, philox.threshold(case.p), philox.scale(case.p))

    def launch_over(self, source: str, output: str) -> np.ndarray:
        """Launches with ``output`` in the memory of ``source``, and returns what is there then."""
        setattr(self.args, output, getattr(self.args, source))
        self._emulator.launch(self.args)
        return self.arrays[source].read()

    def outputs(self) -> Arrays:
        return {name: self.arrays[name].read() for name in self._outputs}


def with_arrays(args: Args, arrays: Mapping[str, DeviceArray]) -> Args:
    """The arguments, with the arrays that have the names of fields."""
    for name, kind in args._fields_:
        if name not in arrays:
            continue
        array = arrays[name]
        if kind is Slices:
            setattr(args, name, array.slices(args.dim_size))
        elif kind is Rows:
            setattr(args, name, array.rows)
        else:
            setattr(args, name, array.columns if kind is Columns else array.address)
    return args
