"""Runs the cases of every family of operators alike. Needs numpy only."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from .cases import (
    column_sums,
    cross_entropy,
    dropout,
    masked,
    norm,
    rows,
    spatial,
    stack,
    statistics,
)
from .cases.norm import NormCase
from .cases.prepared import Arrays
from .cases.rows import Case
from .emulator.library import Args, Emulator

#: Cases of plain rows: a test chooses the length of rows, and options vary with it.
RowsCase = Case | NormCase
AnyCase = (
    RowsCase
    | spatial.SpatialCase
    | masked.MaskedCase
    | stack.StackCase
    | statistics.StatisticsCase
    | column_sums.ColumnSumsCase
    | cross_entropy.CrossEntropyCase
    | dropout.DropoutCase
)
_MODULES = (rows, norm, spatial, masked, stack, statistics, column_sums, cross_entropy, dropout)


def _module_of(kind: type) -> ModuleType:
    return sys.modules[kind.__module__]


def inputs(case: AnyCase) -> Arrays:
    return _module_of(type(case)).inputs(case)


def prepare(emulator: Emulator, case: AnyCase, given: Arrays, **options: str) -> Any:
    """The case in device memory: launch its ``args``, then read its ``outputs()``."""
    return _module_of(type(case)).Prepared(emulator, case, given, **options)


def run(emulator: Emulator, case: AnyCase, given: Arrays | None = None) -> Arrays:
    """The outputs of a case, on its own inputs or on given ones."""
    prepared = prepare(emulator, case, inputs(case) if given is None else given)
    emulator.launch(prepared.args)
    return prepared.outputs()


def prepared_args(emulator: Emulator, case: AnyCase) -> Args:
    return prepare(emulator, case, inputs(case)).args


def bases() -> list[tuple[AnyCase, int]]:
    """The base cases of every family, each with the greatest length whose launches are examined."""
    return [(base, module.MAX_LENGTH) for module in _MODULES for base in module.bases()]


def groups(*kinds: type) -> dict[str, list[AnyCase]]:
    """The base cases of some kinds by op and dtypes, for a test each; of plain rows by default."""
    found: dict[str, list[AnyCase]] = {}
    for kind in kinds or (Case, NormCase):
        for base in _module_of(kind).bases():
            adds = "adds" if getattr(base, "adds", False) else ""
            words = base.op, base.dtype, getattr(base, "other", ""), adds
            found.setdefault("-".join(filter(None, words)), []).append(base)
    return found


def boundary_cases(emulator: Emulator, base: AnyCase, **options: int) -> Iterator[AnyCase]:
    return _module_of(type(base)).boundary_cases(emulator, base, **options)


def candidates(emulator: Emulator) -> list[AnyCase]:
    """Cases of few rows of every family, of the lengths that change a launch."""
    return [case for module in _MODULES for case in module.racing_candidates(emulator)]


def racing_cases(emulator: Emulator) -> list[AnyCase]:
    """Few and small cases for a slow build: each kernel once."""
    return [*_racing_cases(emulator, _MODULES), *cluster_cases(emulator)]


def cluster_cases(emulator: Emulator) -> list[AnyCase]:
    """Each kernel of clusters once."""
    modules = (rows, norm, masked)
    return [case for module in modules for case in module.cluster_cases(emulator)]


def sanitized_cases(emulator: Emulator) -> list[AnyCase]:
    """The softmax and the norm of rows at every boundary. The other families have more elaborate
    kernels over the same tiles: each of them once."""
    bases = [base for group in groups().values() for base in group]
    boundaries = [case for base in bases for case in boundary_cases(emulator, base)]
    others = [module for module in _MODULES if module not in (rows, norm)]
    return [*boundaries, *_racing_cases(emulator, others), *cluster_cases(emulator)]


def _racing_cases(emulator: Emulator, modules: Iterable[ModuleType]) -> Iterator[AnyCase]:
    for module in modules:
        yield from each_kernel_once(emulator, module.racing_candidates(emulator))


def each_kernel_once(emulator: Emulator, cases: Iterable[AnyCase]) -> Iterator[AnyCase]:
    """Those of the cases that reach a kernel which none before them reaches."""
    reached: set[str] = set()
    for case in cases:
        kernels = emulator.kernels_of(prepared_args(emulator, case))
        if not kernels <= reached:
            yield case
        reached |= kernels
