"""Computes what a kernel takes of a multiprocessor: instructions, accesses, registers, stack, and
bytes in flight, which are the bytes that its threads have requested from memory at one time."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .code import Instruction, bytes_in_flight

WARP_LANES = 32
REGISTERS = 65536  # a multiprocessor has this many registers of 32 bits
REGISTER_UNIT = 8  # registers are allocated to threads in units of 8
BLOCK_RESERVED_BYTES = 1024  # shared memory that the runtime reserves for each block
VECTOR_BYTES = 16  # the widest access of a thread
# How many seconds pass from a load to its use on a busy memory system. On an idle one it is 0.6 us.
LATENCY = 0.8e-6
# The part of the datasheet's bandwidth that a copy reaches. On an H200 it moves 4.3 of 4.8 TB/s.
SUSTAINED = 0.9
#: Fences wait until all stores of a thread are in memory: 1 us or more where a row takes 4.
FENCES = ("MEMBAR", "ERRBAR", "CGAERRBAR")


@dataclass(frozen=True)
class Chip:
    """A GPU of an architecture, according to its datasheet and the CUDA programming guide.

    peak_bandwidth: in bytes per second.
    max_threads, max_blocks, shared_bytes: the limits of one multiprocessor.
    """

    name: str
    multiprocessors: int
    peak_bandwidth: float
    max_threads: int
    max_blocks: int
    shared_bytes: int

    @property
    def needed_in_flight(self) -> float:
        """How many bytes a multiprocessor must have requested at any time, so that the memory is
        busy all the time: bandwidth times latency (Little's law)."""
        return SUSTAINED * self.peak_bandwidth / self.multiprocessors * LATENCY


CHIPS = {
    80: Chip("A100", 108, 2.04e12, 2048, 32, 164 * 1024),
    90: Chip("H200", 132, 4.8e12, 2048, 32, 228 * 1024),
    100: Chip("B200", 148, 8.0e12, 2048, 32, 228 * 1024),
    120: Chip("RTX 5090", 170, 1.79e12, 1536, 24, 100 * 1024),
}


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

    @property
    def allocated_registers(self) -> int:
        return math.ceil(self.registers / REGISTER_UNIT) * REGISTER_UNIT

    def warps(self, chip: Chip) -> int:
        """Returns how many warps can be resident on a multiprocessor of this chip, if the blocks
        are as large as they may be."""
        blocks = min(
            chip.max_blocks,
            chip.max_threads // self.threads,
            REGISTERS // (self.allocated_registers * self.threads),
            chip.shared_bytes // (self.shared_bytes + BLOCK_RESERVED_BYTES),
        )
        return blocks * (self.threads // WARP_LANES)


def is_hot(name: str) -> bool:
    """Returns whether the kernel is one for 16-byte vectors of bf16, half or float. The first
    number among its template arguments is the elements of a vector."""
    scalar, _, rest = name.partition("<")[2].partition(", ")
    width = re.search(r"\b\d+\b", rest)
    size = {"bf16": 2, "half": 2, "float": 4}.get(scalar, 0)
    return width is not None and size * int(width[0]) == VECTOR_BYTES


def numbers_of(body: Sequence[Instruction], usage: Usage, chip: Chip) -> dict[str, int]:
    """Returns the report's columns of numbers about a kernel.

    spills: the instructions that load from or store to local memory.
    warps: how many are resident on a multiprocessor, and kb_in_flight the kilobytes there.
    narrow_loads, narrow_stores: those of less than 128 bits.
    fences: the instructions that no kernel of clusters may have. Each CCTL drops the L1 cache, and
        the wait before the first store to another block has one.
    sends: the stores to another block of a cluster (st.async).
    """
    count = Counter(instruction.name for instruction in body)
    loads, stores = ([i.bytes for i in body if i.name == name] for name in ("LDG", "STG"))
    warps = usage.warps(chip)
    return {
        "registers": usage.allocated_registers,
        "spills": count["LDL"] + count["STL"],
        "stack": usage.stack,
        "threads": usage.threads,
        "warps": warps,
        "kb_in_flight": bytes_in_flight(body) * WARP_LANES * warps // 1024,
        "instructions": len(body),
        "loads": len(loads),
        "narrow_loads": sum(size < VECTOR_BYTES for size in loads),
        "stores": len(stores),
        "narrow_stores": sum(size < VECTOR_BYTES for size in stores),
        "fences": sum(count[name] for name in FENCES) + max(0, count["CCTL"] - 1),
        "sends": count["STAS"],
    }
