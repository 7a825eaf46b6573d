"""Finds the launches that the package makes for an operator and a shape, by its own launch code.

The launch code is C++ for the host. Here it is compiled with the declarations of the tests'
emulator of CUDA, so that it runs without a GPU. Its function launch() is replaced by one that
prints the kernel's symbol, the grid and the parameters.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .errors import ReportError
from .toolchain import ROOT, run

HERE = Path(__file__).parent / "launches"
EMULATOR = ROOT / "tests" / "simt" / "emulator"
FLAGS = [
    *("-std=c++20", "-O0", "-fPIC", "-w", "-x", "c++", "-c"),
    *(f"-I{folder}" for folder in (HERE, EMULATOR, EMULATOR / "include", ROOT / "csrc")),
]
CLUSTER_SIZE_AT = 0x144  # the offset of %cluster_nctaid.x in the constant bank of sm_90
# The kernels call the emulator, which is not linked in. That does no harm, because the program uses
# only the symbols of the kernels and never runs them.
LINK_FLAGS = ["-rdynamic", "-Wl,-z,lazy,--unresolved-symbols=ignore-all"]


@dataclass(frozen=True)
class Case:
    """An operator on a number of rows of one length. A backward pass has `_backward` in `op`."""

    op: str
    dtype: str
    rows: int
    cols: int

    @property
    def tensor_bytes(self) -> int:
        item_bytes = 4 if self.dtype == "float32" else 2
        return self.rows * self.cols * item_bytes

    def with_rows(self, rows: int) -> Case:
        return Case(self.op, self.dtype, rows, self.cols)


@dataclass(frozen=True)
class Region:
    """An array in the GPU's memory that the kernels of a case access.

    kind: "rows" for the tensors, "shared" for what all rows read or add to, such as a weight, or
        "partials" for intermediate results.
    """

    name: str
    kind: str
    bytes: int


@dataclass(frozen=True)
class Launch:
    symbol: str
    blocks: int
    cluster: int
    threads: tuple[int, int]
    parameters: bytes

    @property
    def warps(self) -> int:
        return -(-self.threads[0] * self.threads[1] // 32)

    def constants(self, parameters_at: int) -> bytes:
        """Returns the content of the kernel's constant bank: the sizes of block, grid and cluster,
        and from the offset `parameters_at` on the parameters."""
        sizes = (*self.threads, 1, self.blocks, 1, 1)
        bank = bytearray(parameters_at)
        bank[:24] = b"".join(size.to_bytes(4, "little") for size in sizes)
        if parameters_at > CLUSTER_SIZE_AT:
            bank[CLUSTER_SIZE_AT : CLUSTER_SIZE_AT + 4] = self.cluster.to_bytes(4, "little")
        return bytes(bank) + self.parameters


@dataclass(frozen=True)
class Plan:
    """The launches that the package makes for a case, in order, and the arrays that they access.
    The number of an array is the part of its addresses above bit 40."""

    launches: tuple[Launch, ...]
    regions: dict[int, Region]


class LaunchProgram:
    """The program that prints the launches, compiled into a folder."""

    def __init__(self, folder: Path):
        sources = [*sorted((ROOT / "csrc" / "cuda").glob("*/*.cu")), HERE / "launches.cpp"]
        objects = [folder / f"{source.parent.name}_{source.stem}.o" for source in sources]
        compiler = os.environ.get("CXX", "g++")
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda job: run(compiler, *FLAGS, job[0], "-o", job[1]),
                          zip(sources, objects, strict=True)))  # fmt: skip
        self.program = folder / "launches"
        run(compiler, *LINK_FLAGS, "-o", self.program, *objects, "-ldl")

    def plans(self, cases: Sequence[Case]) -> list[Plan]:
        """Returns the plan of each case, from one run of the program."""
        lines = "".join(f"{case.op} {case.dtype} {case.rows} {case.cols}\n" for case in cases)
        plans = list(parse_plans(run(self.program, input=lines).splitlines()))
        if len(plans) != len(cases):
            raise ReportError(f"{len(plans)} plans for {len(cases)} cases")
        return plans


def parse_plans(lines: Iterable[str]) -> Iterator[Plan]:
    """Yields the plans in the output of the program (launches/launches.cpp)."""
    launches: list[Launch] = []
    regions: dict[int, Region] = {}
    for line in lines:
        kind, *words = line.split()
        if kind == "region":
            regions[int(words[2], 16) >> 40] = Region(words[0], words[1], int(words[3]))
        elif kind == "launch":
            blocks, cluster, x, y = map(int, words[1:5])
            launches.append(Launch(words[0], blocks, cluster, (x, y), bytes.fromhex(words[5])))
        elif kind == "end":
            yield Plan(tuple(launches), regions)
            launches, regions = [], {}
        else:
            raise ReportError(f"the launch code says: {line}")
