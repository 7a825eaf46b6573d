"""Parses SASS, the machine code of a GPU, as `cuobjdump -sass` prints it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

#: Part of an opcode -> the bytes that such an access moves for each thread. Without such a part it
#: moves 4 bytes.
ACCESS_BYTES = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16, "256": 32}


@dataclass(frozen=True)
class Instruction:
    """One line of SASS."""

    opcode: str  # such as LDG.E.NA.128
    operands: str

    _WITHOUT_RESULT = ("STG", "STS", "STL", "BRA", "RED", "BAR", "EXIT")

    @property
    def name(self) -> str:
        return self.opcode.partition(".")[0]

    @property
    def bytes(self) -> int:
        """The bytes of global memory that the instruction moves for each thread."""
        if self.name not in ("LDG", "STG"):
            return 0
        parts = self.opcode.split(".")
        return next((ACCESS_BYTES[part] for part in parts if part in ACCESS_BYTES), 4)

    def loaded_registers(self) -> dict[int, int]:
        """Returns the registers that a load from global memory writes, and the bytes of each."""
        first = re.match(r"R(\d+)", self.operands)
        if self.name != "LDG" or not first:
            return {}
        size = min(self.bytes, 4)
        return {int(first[1]) + i: size for i in range(self.bytes // size)}

    def read_registers(self) -> set[int]:
        sources = self.operands
        if self.name not in self._WITHOUT_RESULT:
            sources = sources.partition(",")[2]
        return {int(number) for number in re.findall(r"\bR(\d+)", sources)}


def parse_sass(text: str) -> dict[str, list[Instruction]]:
    """Returns the instructions of every function in the output of `cuobjdump -sass`."""
    pattern = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;]*);")
    functions: dict[str, list[Instruction]] = {}
    body: list[Instruction] = []
    for line in text.splitlines():
        if function := re.match(r"\s*Function : (\S+)", line):
            body = functions.setdefault(function[1], [])
        elif (found := pattern.match(line)) and found[1] != "NOP":
            body.append(Instruction(found[1], found[2].strip()))
    return functions


def bytes_in_flight(body: Iterable[Instruction]) -> int:
    """Returns how many bytes a thread requests at most before it uses one of them. The more these
    are, the better a kernel hides the latency of memory."""
    pending: dict[int, int] = {}
    most = 0
    for instruction in body:
        if instruction.read_registers() & pending.keys():
            pending = {}
        pending |= instruction.loaded_registers()
        most = max(most, sum(pending.values()))
    return most
