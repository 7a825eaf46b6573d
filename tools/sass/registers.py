"""Holds the registers of a warp, and parses the operands of SASS, the machine code of a GPU.

A value is an int, if it is the same in all lanes, or an array of uint64 with a number for each of
the 32 lanes. An unknown value is None. Registers have values below 2^32, and pairs of registers
values below 2^64.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

LANES = 32
WORD, DOUBLE = (1 << 32) - 1, (1 << 64) - 1

Value = int | np.ndarray | None
Mask = bool | np.ndarray


@dataclass(frozen=True)
class WarpContext:
    """A warp of a launch: its block and number, the sizes of the launch, and the content of the
    constant bank, which has the kernel's parameters."""

    block: int
    warp: int
    threads: tuple[int, int]  # the threads of a block in x and y
    blocks: int
    cluster: int
    constants: bytes
    # The numbers of arrays that hold true; all others hold zeros.
    masks: frozenset[int] = frozenset()

    def special(self, name: str) -> Value:
        """Returns the value of a special register, or None for one that is not known."""
        lane = np.arange(LANES, dtype=np.uint64)
        thread = self.warp * LANES + lane
        known = {
            "SR_TID.X": thread % self.threads[0],
            "SR_TID.Y": thread // self.threads[0],
            "SR_TID.Z": 0,
            "SR_CTAID.X": self.block,
            "SR_CTAID.Y": 0,
            "SR_CTAID.Z": 0,
            "SR_LANEID": lane,
            "SR_CgaCtaId": self.block % self.cluster,
            "SRZ": 0,
        }
        return known.get(name)

    def constant(self, bank: int, offset: Value, size: int) -> Value:
        """Returns the number in `size` bytes of constant bank 0. Returns None for other banks, and
        if the offset is unknown or differs between lanes."""
        if bank != 0 or not isinstance(offset, int):
            return None
        return int.from_bytes(self.constants[offset : offset + size], "little")


def split_operands(text: str) -> list[str]:
    """Returns the operands of an instruction, split at commas that are not inside of brackets."""
    return [part.strip() for part in re.split(r",(?![^\[\]]*\])", text) if part.strip()]


@cache
def is_predicate(operand: str) -> bool:
    return re.fullmatch(r"!?U?P(\d|T)", operand) is not None


def all_known(*values: Value) -> bool:
    return all(value is not None for value in values)


def as_word(value: Value) -> Value:
    return None if value is None else value & WORD


class UnknownValue(Exception):
    """A value on which the result of an instruction depends is unknown."""


def known(*values: Any) -> tuple[Any, ...]:
    """Returns the values. Raises UnknownValue if one of them is unknown."""
    if not all_known(*values):
        raise UnknownValue
    return values


def select_lanes(which: np.ndarray, a: Value | Mask, b: Value | Mask) -> np.ndarray:
    """Returns a in the lanes of `which`, b in the others."""
    picked = np.where(which, a, b)
    return picked if picked.dtype == bool else picked.astype(np.uint64)


def is_zero(value: Value) -> bool:
    return isinstance(value, int) and value == 0


def signed(value: int | np.ndarray, bits: int = 32) -> int | np.ndarray:
    """Returns a word of `bits` bits as a signed number, which is an int or an array of int64."""
    if isinstance(value, int):
        return value - (1 << bits) if value >> (bits - 1) & 1 else value
    if bits == 64:
        return value.view(np.int64)
    return value.astype(np.uint32).view(np.int32).astype(np.int64)


def sign_extend(value: int | np.ndarray) -> int | np.ndarray:
    """Returns a word of 32 bits extended to 64 bits by its sign."""
    number = signed(value)
    return number & DOUBLE if isinstance(number, int) else number.view(np.uint64)


@cache
def pair_of(operand: str) -> tuple[str, str] | None:
    """Returns the two registers of a 64-bit operand, or None if the operand is no register."""
    found = re.fullmatch(r"(U?R)(\d+)(?:\.64)?(?:\.reuse)?", operand)
    return (f"{found[1]}{found[2]}", f"{found[1]}{int(found[2]) + 1}") if found else None


@dataclass(frozen=True)
class Source:
    """A parsed operand: a register, a number or a place in a constant bank."""

    sign: str = ""  # "-", "~" or none
    register: str = ""
    number: int | None = None
    constant: re.Match | None = None


CONSTANT = re.compile(r"c\[0x(\w+)\]\[(?:(U?R\w+)\+?)?(0x\w+)?\]")


@cache
def parsed(operand: str) -> Source:
    """Returns what an operand stands for. A number is a word of 32 bits, so that -1 is 2^32 - 1."""
    operand = operand.removesuffix(".reuse")
    if re.fullmatch(r"-?0x[0-9a-f]+", operand):
        return Source(number=int(operand, 16) & WORD)
    sign = operand[0] if operand[0] in "-~" else ""
    operand = operand.removeprefix(sign)
    if operand in ("RZ", "URZ"):
        return Source(sign, number=0)
    if constant := CONSTANT.fullmatch(operand):
        return Source(sign, constant=constant)
    return Source(sign, register=operand)


class Warp:
    """The registers of a warp, by the names that SASS gives them.

    A register that nothing has written is 0. Kernels read such a register, for example, when they
    put predicates into some of its bits; the other bits do not matter then.
    """

    def __init__(self, context: WarpContext):
        self.context = context
        self.values: dict[str, Value] = {}

    def predicate(self, operand: str) -> Mask | None:
        """Returns in which lanes a predicate is true, or None if that is unknown."""
        negated = operand.startswith("!")
        name = operand.lstrip("!")
        value = True if name in ("PT", "UPT") else self.values.get(name)
        if value is None or not negated:
            return value
        return not value if isinstance(value, bool) else ~value

    def read(self, operand: str) -> Value:
        """Returns the word that an operand has. The result has 33 bits if the operand is the
        negation of 0, which has a carry."""
        source = parsed(operand)
        if source.constant is not None:
            value: Value = self.read_constant(source.constant, 4)
        else:
            value = self.values.get(source.register, 0) if source.register else source.number
        if value is None or not source.sign:
            return value
        return (WORD - (value & WORD)) + (source.sign == "-")

    def read_constant(self, found: re.Match, size: int) -> Value:
        base = self.read(found[2]) if found[2] else 0
        offset = None if base is None else base + int(found[3] or "0", 16)
        return self.context.constant(int(found[1], 16), offset, size)

    def read_pair(self, operand: str) -> Value:
        """Returns the 64 bits of a 64-bit operand: a register and the next one, or eight bytes of a
        constant bank."""
        if re.match("-U?R", operand):
            value = self.read_pair(operand[1:])
            return None if value is None else (DOUBLE - value + 1) & DOUBLE
        words = pair_of(operand)
        if words is None:
            constant = parsed(operand).constant
            return self.read(operand) if constant is None else self.read_constant(constant, 8)
        low, high = (self.values.get(word, 0) for word in words)
        return low | high << 32 if all_known(low, high) else None

    def write(self, name: str, value: Value | Mask, where: Mask | None) -> None:
        """Writes a register in the lanes of `where`. The register becomes unknown in all lanes if
        `where` is unknown, or if the value is unknown and `where` has any lane."""
        if isinstance(where, np.ndarray) and (where.all() or not where.any()):
            where = bool(where.any())
        if where is True or (where is not False and value is None):
            self.values[name] = value
        elif where is None:
            self.values[name] = None
        elif where is not False:
            # Unknown lanes outside `where` become zeros. Their value does not matter, because only
            # instructions under the same predicate read the register. A predicate stays an array of
            # bools, as a mask has to be.
            unknown = False if is_predicate(name) else 0
            old = self.values.get(name)
            self.values[name] = select_lanes(where, value, unknown if old is None else old)
