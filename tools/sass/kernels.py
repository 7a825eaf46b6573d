"""Computes what a kernel takes of a multiprocessor: registers, stack, and bytes in flight, which
are the bytes that its threads have requested from memory at one time."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from .chips import BLOCK_RESERVED_BYTES, CHIPS, REGISTER_UNIT, REGISTERS, WARP_LANES, Chip
from .code import Instruction, bytes_in_flight


@dataclass(frozen=True)
class Kernel:
    """The report's row about one kernel on one architecture."""

    arch: str
    name: str
    registers: int
    spills: int  # how many instructions load from or store to local memory
    stack: int
    threads: int  # the most threads that a block may have
    warps: int  # how many warps can be resident on a multiprocessor
    loads: int
    narrow_loads: int  # how many loads have less than 128 bits
    stores: int
    narrow_stores: int
    kb_in_flight: int  # the kilobytes in flight on a multiprocessor

    @property
    def is_hot(self) -> bool:
        """Whether the kernel is one for 16-byte vectors of bf16, half or float. The first number
        among its template arguments is the elements of a vector."""
        scalar, _, rest = self.name.partition("<")[2].partition(", ")
        width = re.search(r"\b\d+\b", rest)
        size = {"bf16": 2, "half": 2, "float": 4}.get(scalar, 0)
        return width is not None and size * int(width[0]) == 16

    @property
    def allocated_registers(self) -> int:
        return round_up(self.registers, REGISTER_UNIT)


@dataclass(frozen=True)
class Usage:
    """The resources of a kernel.

    registers, stack: those of a thread; the stack is in bytes.
    shared_bytes: the shared memory of a block.
    threads: the most threads that a block may have.
    """

    registers: int
    stack: int
    shared_bytes: int
    threads: int

    def warps(self, chip: Chip) -> int:
        """Returns how many warps can be resident on a multiprocessor of this chip, if the blocks
        are as large as they may be."""
        registers_a_block = round_up(self.registers, REGISTER_UNIT) * self.threads
        blocks = min(
            chip.max_blocks,
            chip.max_threads // self.threads,
            REGISTERS // registers_a_block,
            chip.shared_bytes // (self.shared_bytes + BLOCK_RESERVED_BYTES),
        )
        return blocks * (self.threads // WARP_LANES)


def round_up(value: int, step: int) -> int:
    return math.ceil(value / step) * step


def analyse(arch: str, name: str, body: Sequence[Instruction], usage: Usage) -> Kernel:
    """Returns the report's row about a kernel, from its instructions and resources."""
    loads = [i.bytes for i in body if i.name == "LDG"]
    stores = [i.bytes for i in body if i.name == "STG"]
    warps = usage.warps(CHIPS[arch])
    in_flight = bytes_in_flight(body) * WARP_LANES * warps
    return Kernel(
        arch=arch,
        name=name,
        registers=usage.registers,
        spills=sum(i.name in ("LDL", "STL") for i in body),
        stack=usage.stack,
        threads=usage.threads,
        warps=warps,
        loads=len(loads),
        narrow_loads=sum(size < 16 for size in loads),
        stores=len(stores),
        narrow_stores=sum(size < 16 for size in stores),
        kb_in_flight=in_flight // 1024,
    )
