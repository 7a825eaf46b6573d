"""What ops cost on a machine, by tables that `python -m fusedops tune` measures.

A table is the lines of one machine: an op in one mode on one dtype and size, as Inductor computes
it and as we do. Tables are shipped for some families of processors, and lie in the user's cache
where they were measured there; the nearest to the machine in use is the one that counts.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import math
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import torch

from fusedops.graph.policy.machine import Machine, count_of
from fusedops.graph.policy.machine import here as here

#: Where the shipped tables lie.
SHIPPED = Path(__file__).parent / "tables"

#: An inference step is the forward pass; a training step both passes.
INFERENCE, TRAINING = "inference", "training"

_MACHINE = tuple(field.name for field in fields(Machine))
_CASE = ("op", "mode", "dtype", "rows", "cols")
COLUMNS = (*_MACHINE, "fusedops", *_CASE, "inductor_ms", "fusedops_ms", "copy_gb_per_s")


@dataclass(frozen=True)
class Size:
    """rows of cols elements each, of one dtype."""

    rows: int
    cols: int
    dtype: torch.dtype

    @property
    def elements(self) -> int:
        return self.rows * self.cols


@dataclass(frozen=True)
class Cost:
    """Milliseconds of one op in one mode; `ms_per_byte` is a copy's, for each byte read or written.

    rows, cols: the size that was measured, the nearest to the one that was asked for.
    """

    inductor: float
    ours: float
    ms_per_byte: float
    rows: int
    cols: int


_Key = tuple[str, str, str]


@dataclass(frozen=True, eq=False)
class Table:
    """The lines of one machine in one file.

    name: the file's, without its folder.
    tuned: whether it was measured by the user, not shipped.
    fusedops: the version whose kernels were measured.
    digest: of the file's content.
    costs: by op, mode and dtype those of each size.
    """

    name: str
    tuned: bool
    machine: Machine
    fusedops: str
    digest: str
    costs: dict[_Key, dict[tuple[int, int], Cost]]

    @property
    def identity(self) -> str:
        """What tells it from all others, and from what it was before."""
        return f"{self.name}-{self.machine.threads}-{self.digest}"

    def cost(self, op: str, mode: str, size: Size) -> Cost | None:
        """What `op` costs, from the nearest size that was measured; None where none was."""
        dtype = str(size.dtype).removeprefix("torch.")
        # 16-bit dtypes move the same bytes; what was not measured at all goes by float32.
        names = {"float16": ("float16", "bfloat16")}.get(dtype, (dtype, "float32"))
        keys = [(op, mode, name) for name in names]
        sizes = next((self.costs[key] for key in keys if key in self.costs), None)
        if not sizes:
            return None
        found = min(sizes.values(), key=lambda cost: _distance(size, cost))
        share = size.elements / (found.rows * found.cols)
        times = found.inductor * share, found.ours * share, found.ms_per_byte
        return Cost(*times, found.rows, found.cols)

    def fit(self, machine: Machine) -> str:
        """How the table was chosen for a machine, in words."""
        family, _, isa, regime = machine.unlike(self.machine)
        if self.tuned and self.machine == machine:
            how = "measured on this machine"
        elif not (family or isa or regime):
            how = f"for {machine.family}"
        else:
            how = f"the nearest to {machine.family}, {machine.isa}, {count_of(machine.threads)}"
        running = _version()
        older = f"; measured with fusedops {self.fusedops}, this is {running}"
        return how if self.fusedops == running else how + older

    def __str__(self) -> str:
        return f"{self.name}, {count_of(self.machine.threads)}"


@functools.cache
def _version() -> str:
    return (Path(__file__).parents[2] / "VERSION").read_text().strip()


def _distance(size: Size, cost: Cost) -> float:
    rows, cols = max(size.rows, 1) / cost.rows, max(size.cols, 1) / cost.cols
    return abs(math.log(rows)) + abs(math.log(cols))


def tables_for(machine: Machine) -> list[Table]:
    """The tables of a machine's kind of device, those first that count more: the user's of this
    very machine; then a shipped one of its family and number of threads; then the nearest."""
    tables = [table for table in _tables() if table.machine.device == machine.device]
    return sorted(tables, key=functools.partial(_unfitness, machine))


def _unfitness(machine: Machine, table: Table) -> tuple[bool | float | str, ...]:
    """What to sort by: of tables of the same kind of machine a shipped one goes before those that
    the user measured with other threads or another torch."""
    is_exact = table.tuned and table.machine == machine
    unlike, differs = machine.unlike(table.machine), machine.differs(table.machine)
    return (not is_exact, *unlike, table.tuned, *differs, table.name)


def devices() -> list[torch.device]:
    """All that a table can be for: the CPU, and the GPUs that torch sees."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [torch.device("cpu"), *(torch.device("cuda", index) for index in range(gpus))]


def identity() -> str:
    """The tables in use: part of the cache key of every graph."""
    tables = [table for device in devices() for table in tables_for(here(device))]
    identities = " ".join(table.identity for table in tables)
    return hashlib.sha256(identities.encode()).hexdigest()


def user_folder() -> Path | None:
    """Where the user's tables lie: FUSEDOPS_CACHE_DIR, or fusedops in the folder of all caches.

    None where the user has no home.
    """
    if named := os.environ.get("FUSEDOPS_CACHE_DIR"):
        return Path(named) / "tables"
    caches = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(caches):  # the specification has others ignored
        return Path(caches) / "fusedops" / "tables"
    try:
        return Path.home() / ".cache" / "fusedops" / "tables"
    except RuntimeError:
        return None


def user_files() -> list[Path]:
    """The user's tables, damaged ones too."""
    folder = user_folder()
    try:
        return sorted(folder.glob("*.csv")) if folder else []
    except OSError:  # a folder that cannot be listed holds nothing that can be read
        return []


def _tables() -> Iterator[Table]:
    """All that can be read. A shipped one that is damaged raises ValueError; one of the user's is
    warned of once and passed over."""
    for file in sorted(SHIPPED.glob("*.csv")):
        yield from _cached(file, False, _stamp(file))
    for file in user_files():
        yield from _users(file, _stamp(file))


def _stamp(file: Path) -> tuple[int, int]:
    """Changes when a file does."""
    try:
        status = file.stat()
    except OSError:  # removed while we looked
        return (0, 0)
    return status.st_mtime_ns, status.st_size


@functools.cache
def _users(file: Path, stamp: tuple[int, int]) -> tuple[Table, ...]:
    try:
        return read(file, tuned=True)
    except ValueError as error:
        warnings.warn(f"{error}. It is not used.", stacklevel=2)
        return ()


@functools.cache
def _cached(file: Path, tuned: bool, stamp: tuple[int, int]) -> tuple[Table, ...]:
    return read(file, tuned)


def read(file: Path, tuned: bool) -> tuple[Table, ...]:
    """The tables in a file. Raises ValueError, with what to do, where it cannot be read."""
    try:
        content = file.read_bytes()
        rows = list(csv.DictReader(content.decode().splitlines()))
        tables = tuple(_parse(rows, file, tuned, hashlib.sha256(content).hexdigest()))
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise ValueError(f"{_damaged(file, tuned)}: {error!r}") from error
    if not tables:
        raise ValueError(f"{_damaged(file, tuned)}: it is empty")
    return tables


def _damaged(file: Path, tuned: bool) -> str:
    fix = "measure it again with `python -m fusedops tune`, or remove it"
    return f"fusedops: {file} is damaged; {fix if tuned else 'reinstall fusedops'}"


def _parse(rows: list[dict[str, str]], file: Path, tuned: bool, digest: str) -> Iterator[Table]:
    """A table for each machine that the rows name."""
    name = file.stem
    by_machine: dict[tuple[Machine, str], Table] = {}
    for row in rows:
        device, processor, family, isa, threads, version = (row[field] for field in _MACHINE)
        machine = Machine(device, processor, family, isa, int(threads), version)
        new = Table(name, tuned, machine, row["fusedops"], digest, {})
        table = by_machine.setdefault((machine, row["fusedops"]), new)
        cost = _cost(row)
        sizes = table.costs.setdefault((row["op"], row["mode"], row["dtype"]), {})
        sizes[cost.rows, cost.cols] = cost
    yield from by_machine.values()


def _cost(row: dict[str, str]) -> Cost:
    """Raises ValueError where a number is none that can have been measured."""
    names = ("inductor_ms", "fusedops_ms", "copy_gb_per_s", "rows", "cols")
    inductor, ours, copy, rows, cols = (float(row[name]) for name in names)
    if not all(0 < number < math.inf for number in (inductor, ours, copy, rows, cols)):
        raise ValueError(f"a number is not above 0: {row}")
    return Cost(inductor, ours, 1e-6 / copy, int(rows), int(cols))
