"""Reads the times of ops on a machine from tables that `python -m fusedops tune` measures.

A table belongs to one machine. Each line has two times of one op in one mode, dtype and size: that
of Inductor's code, and that of the op of fusedops. Tables for some families of processors ship with
fusedops; those that the user has measured are in the user's cache folder, and so are those that
were estimated for this machine (`estimation`). Among the tables that have an op, the one nearest to
the machine in use decides.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import math
import operator
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch

from fusedops._installation import version
from fusedops.graph.policy.machine import Machine, count_of
from fusedops.graph.policy.machine import here as here

#: The folder of the shipped tables.
SHIPPED_FOLDER = Path(__file__).parent / "tables"

#: Where a table comes from: it ships with fusedops, the user has measured it, or it was estimated.
SHIPPED, TUNED, ESTIMATED = "shipped", "tuned", "estimated"

#: An inference step is a forward pass; a training step is a forward and a backward pass.
INFERENCE, TRAINING = "inference", "training"

#: A measured op of at most this many elements took hardly longer than a call without a kernel.
_FEW_ELEMENTS = 2**11

#: The name that tables have for a softmax with the matrix products around it, which Inductor runs
#: as scaled_dot_product_attention (SDPA).
ATTENTION = "attention"

_MACHINE = tuple(field.name for field in fields(Machine))
_CASE = ("op", "mode", "dtype", "rows", "cols")
#: The columns of a table file, in order. "fusedops" is the version of fusedops.
COLUMNS = (*_MACHINE, "fusedops", *_CASE, "inductor_ms", "fusedops_ms", "copy_gb_per_s")


@dataclass(frozen=True)
class Size:
    """The size of an op's input: how many rows it has, and the columns and dtype of each row."""

    rows: int
    cols: int
    dtype: torch.dtype

    @property
    def elements(self) -> int:
        return self.rows * self.cols


@dataclass(frozen=True)
class Cost:
    """The times of one op in one mode, in milliseconds.

    inductor, ours: the time of Inductor's code, and that of our op. A time that was measured is
        that of a compiled function with nothing else in it; `Table.cost` returns what the op takes
        in a larger function, without `call`.
    ms_per_byte: the time that a copy takes for each byte that it reads or writes.
    rows, cols: the size that was measured. `Table.cost` scales the times to another size, and
        leaves these two as they are.
    call: the time that both measured calls took without their ops.
    """

    inductor: float
    ours: float
    ms_per_byte: float
    rows: int
    cols: int
    call: float = 0.0


_Key = tuple[str, str, str]


@dataclass(frozen=True, eq=False)
class Table:
    """The times measured on one machine, which are its lines in one table file.

    name: the file's name, without its folder and suffix.
    origin: SHIPPED, TUNED or ESTIMATED.
    fusedops: the version whose kernels were measured.
    digest: a hash of the file's content.
    costs: for each (op, mode, dtype) the cost of each size.
    """

    name: str
    origin: str
    machine: Machine
    fusedops: str
    digest: str
    costs: dict[_Key, dict[tuple[int, int], Cost]]

    def cost(self, op: str, mode: str, size: Size) -> Cost | None:
        """Returns the times of `op` at a size, or None if the op was not measured in that mode. The
        time of the call stays as it is at the nearest size that was measured, and the rest is
        scaled by the number of elements.

        Where one size of a shipped CPU table is left out and predicted from the others, the time is
        off by a factor of 1.11 (the median), and what is decided takes 1.0 % longer on average. If
        the nearest size is that of the nearest rows and columns, and the whole time is scaled, the
        figures are 1.91 and 3.4 %.
        """
        dtype = str(size.dtype).removeprefix("torch.")
        # A dtype that was not measured gets the times of another: float16 gets the times of
        # bfloat16, which has as many bytes, and any other dtype gets the times of float32.
        names = {"float16": ("float16", "bfloat16")}.get(dtype, (dtype, "float32"))
        keys = [(op, mode, name) for name in names]
        sizes = next((self.costs[key] for key in keys if key in self.costs), None)
        if not sizes:
            return None
        nearest = min(sizes.values(), key=lambda cost: _distance(size, cost))
        share = size.elements / (nearest.rows * nearest.cols)
        calls = self.calls[mode]
        call = min(calls)
        inductor, ours = (
            own - call + share * (measured - own)
            for own, measured in zip(calls, (nearest.inductor, nearest.ours), strict=True)
        )
        return Cost(inductor, ours, nearest.ms_per_byte, nearest.rows, nearest.cols, call)

    @functools.cached_property
    def calls(self) -> dict[str, tuple[float, float]]:
        """For each mode the time of a call of Inductor's code, and that of a call of compiled code
        with one of our ops, each without its kernel: the least times in that mode. They are 0 if
        nothing small was measured."""
        by_mode: dict[str, list[Cost]] = {}
        for (_, mode, _), sizes in self.costs.items():
            by_mode.setdefault(mode, []).extend(sizes.values())
        return {
            mode: (_least(every, "inductor"), _least(every, "ours"))
            for mode, every in by_mode.items()
        }

    def is_for(self, machine: Machine) -> bool:
        """Returns whether the table's times are a machine's: they were measured or estimated on it,
        or they ship for its family, instruction set and number of threads."""
        if self.origin == TUNED:
            return self.machine == machine
        if self.origin == ESTIMATED:  # from the times of the tables that ship with one version
            return self.machine == machine and self.fusedops == version()
        same_kind = not any(machine.kind_mismatch(self.machine))
        return same_kind and machine.threads == self.machine.threads

    def fit(self, machine: Machine) -> str:
        """Returns why the table was chosen for a machine, in words."""
        family, vendor, isa, regime = machine.kind_mismatch(self.machine)
        if self.origin == ESTIMATED:
            how = "estimated by this machine's speed: python -m fusedops tune measures it"
        elif self.origin == TUNED and self.is_for(machine):
            how = "measured on this machine"
        elif not (family or isa or regime):
            how = f"for {machine.family}"
        else:
            how = f"the nearest to {machine.family}, {machine.isa}, {count_of(machine.threads)}"
            how += ", which no table is for: run python -m fusedops tune" if vendor else ""
        running = version()
        older = f"; measured with fusedops {self.fusedops}, this is {running}"
        return how if self.fusedops == running else how + older

    def __str__(self) -> str:
        return f"{self.name}, {count_of(self.machine.threads)}"


def _least(measured: Sequence[Cost], name: str) -> float:
    """Returns the least time of that name, or 0 if its size is not small."""
    least = min(measured, key=operator.attrgetter(name))
    time: float = getattr(least, name)
    return time if least.rows * least.cols <= _FEW_ELEMENTS else 0.0


def _distance(size: Size, cost: Cost) -> float:
    """Returns how far the measured size is from `size`, by the ratios of their elements and
    columns."""
    elements = max(size.elements, 1) / (cost.rows * cost.cols)
    return abs(math.log(elements)) + abs(math.log(max(size.cols, 1) / cost.cols))


def tables_for(machine: Machine) -> list[Table]:
    """Returns the tables of a machine's device type, the best first: one that the user has measured
    on this machine, then a shipped one of its family, instruction set and number of threads, then
    the one that was estimated for it, then the nearest."""
    tables = [table for table in _tables() if table.machine.device == machine.device]
    usable = [table for table in tables if table.origin != ESTIMATED or table.is_for(machine)]
    return sorted(usable, key=functools.partial(_unfitness, machine))


def _unfitness(machine: Machine, table: Table) -> tuple[bool | float | str, ...]:
    """Returns the key by which tables are sorted, the best first. For the same kind of machine a
    shipped table precedes one that the user measured with another number of threads or torch."""
    is_for, origin = table.is_for(machine), table.origin
    rank = (TUNED, SHIPPED, ESTIMATED).index(origin) if is_for else 3
    kind_mismatch, distance = machine.kind_mismatch(table.machine), machine.distance(table.machine)
    return (rank, *kind_mismatch, origin == TUNED, *distance, table.name)


def devices() -> list[torch.device]:
    """Returns the devices that tables can exist for: the CPU, and the GPUs that torch sees."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [torch.device("cpu"), *(torch.device("cuda", index) for index in range(gpus))]


def identity() -> str:
    """Returns a hash of the tables in use. It is part of Inductor's cache key for every graph, so
    that a graph is compiled again after a table has changed."""
    tables = [table for device in devices() for table in tables_for(here(device))]
    identities = " ".join(f"{each.name}-{each.machine.threads}-{each.digest}" for each in tables)
    return hashlib.sha256(identities.encode()).hexdigest()


def user_folder() -> Path | None:
    """Returns the folder of the user's tables: tables/ in the folder that FUSEDOPS_CACHE_DIR names,
    or by default fusedops/tables/ in the user's cache folder. Returns None if the user has no home
    folder."""
    if named := os.environ.get("FUSEDOPS_CACHE_DIR"):
        return Path(named) / "tables"
    caches = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(caches):  # the XDG specification says to ignore relative paths
        return Path(caches) / "fusedops" / "tables"
    try:
        return Path.home() / ".cache" / "fusedops" / "tables"
    except RuntimeError:
        return None


def user_files() -> list[Path]:
    """Returns the files of the tables that the user has measured, including damaged ones."""
    return _files(user_folder())


def _tables() -> Iterator[Table]:
    """Yields all readable tables. Raises ValueError if a table that ships with fusedops is damaged.
    A damaged table of the user is skipped, with one warning."""
    users = user_folder()
    folders = {
        SHIPPED: SHIPPED_FOLDER,
        TUNED: users,
        ESTIMATED: users / ESTIMATED if users else None,
    }
    for origin, folder in folders.items():
        for file in _files(folder):
            yield from _tables_in(file, _stamp(file), origin)


def _files(folder: Path | None) -> list[Path]:
    """Returns the table files in a folder, in order."""
    try:
        return sorted(folder.glob("*.csv")) if folder else []
    except OSError:  # the folder cannot be listed
        return []


def _stamp(file: Path) -> tuple[int, int]:
    """Returns a value that changes when the file changes."""
    try:
        status = file.stat()
    except OSError:  # the file was removed in the meantime
        return (0, 0)
    return status.st_mtime_ns, status.st_size


@functools.cache
def _tables_in(file: Path, stamp: tuple[int, int], origin: str) -> tuple[Table, ...]:
    """Returns the tables in a file; warns and returns () if it is damaged and does not ship.
    `stamp` is part of the cache's key only, so that a changed file is read again."""
    try:
        return read(file, origin)
    except ValueError as error:
        if origin == SHIPPED:
            raise
        warnings.warn(f"{error}. It is not used.", stacklevel=2)
        return ()


def read(file: Path, origin: str) -> tuple[Table, ...]:
    """Returns the tables in a file. Raises ValueError if it cannot be read or is empty; the message
    says what to do."""
    try:
        content = file.read_bytes()
        rows = list(csv.DictReader(content.decode().splitlines()))
        tables = tuple(_parse(rows, file, origin, hashlib.sha256(content).hexdigest()))
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise ValueError(f"{_damage_message(file, origin)}: {error!r}") from error
    if not tables:
        raise ValueError(f"{_damage_message(file, origin)}: it is empty")
    return tables


def _damage_message(file: Path, origin: str) -> str:
    """Returns the message for a file that cannot be read, which says what to do."""
    fix = "measure it again with `python -m fusedops tune`, or remove it"
    return f"fusedops: {file} is damaged; {'reinstall fusedops' if origin == SHIPPED else fix}"


def _parse(rows: list[dict[str, str]], file: Path, origin: str, digest: str) -> Iterator[Table]:
    """Yields one table for each pair of a machine and a version of fusedops in the rows."""
    name = file.stem
    by_machine: dict[tuple[Machine, str], Table] = {}
    for row in rows:
        device, processor, family, isa, threads, version = (row[field] for field in _MACHINE)
        machine = Machine(device, processor, family, isa, int(threads), version)
        new = Table(name, origin, machine, row["fusedops"], digest, costs={})
        table = by_machine.setdefault((machine, row["fusedops"]), new)
        cost = _cost(row)
        sizes = table.costs.setdefault((row["op"], row["mode"], row["dtype"]), {})
        sizes[cost.rows, cost.cols] = cost
    yield from by_machine.values()


def _cost(row: dict[str, str]) -> Cost:
    """Returns the times in a row of a table file. Raises ValueError if a number is not positive and
    finite."""
    names = ("inductor_ms", "fusedops_ms", "copy_gb_per_s", "rows", "cols")
    inductor, ours, copy, rows, cols = (float(row[name]) for name in names)
    if not all(0 < number < math.inf for number in (inductor, ours, copy, rows, cols)):
        raise ValueError(f"a number is not above 0: {row}")
    return Cost(inductor, ours, 1e-6 / copy, int(rows), int(cols))
