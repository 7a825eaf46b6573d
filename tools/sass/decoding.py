"""Decodes what an instruction of SASS, the machine code of a GPU, reads and writes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from .code import Instruction, access_bytes
from .registers import is_predicate, split_operands


@dataclass(frozen=True)
class Step:
    """A decoded instruction."""

    address: int
    name: str
    parts: tuple[str, ...]  # the parts of the opcode after its name
    guard: str
    outputs: tuple[str, ...]  # the registers and predicates that the instruction writes
    inputs: tuple[str, ...]
    target: int  # the address that a jump names, or -1; other instructions do not use it

    @cached_property
    def label(self) -> str:
        """The name by which the step is counted. A SYNCS instruction that waits (TRYWAIT) is
        counted by another name than one that does not."""
        return f"{self.name}.TRYWAIT" if "TRYWAIT" in self.parts else self.name

    @cached_property
    def predicate_inputs(self) -> list[str]:
        return [operand for operand in self.inputs if is_predicate(operand)]

    @cached_property
    def destinations(self) -> list[tuple[str, ...]]:
        """The registers or the predicate that each output writes. An output has () if its value is
        thrown away."""
        return [written(self.name, self.parts, output) for output in self.outputs]

    @cached_property
    def values(self) -> list[str]:
        return [operand for operand in self.inputs if not is_predicate(operand)]


_STORES = {"STG", "STS", "STL", "ST", "RED"}
WITHOUT_OUTPUT = {*_STORES, "BRA", "EXIT", "BAR", "CALL", "RET", "BRX", "BREAK"}


LOADS = {"LDG", "LD", "LDS", "LDL"}
PAIR_PARTS = {"64", "WIDE", "U64"}  # an opcode with one of these parts writes a pair of registers
ONE_WORD = {"SHF", "USHF", "I2F", "MUFU"}  # these write 32 bits, even if the opcode names 64


def written(name: str, parts: Sequence[str], output: str) -> tuple[str, ...]:
    """Returns the registers or the predicate that an instruction writes for an output operand; ()
    for RZ and PT, which throw the value away."""
    found = re.match(r"(U?[RP])(\d+)", output)
    if found is None:
        return ()
    if is_predicate(output):
        return (found[0],)
    words = 1
    if name in LOADS:
        words = max(1, access_bytes(parts) // 4)
    elif name == "CS2R":
        words = 1 if "32" in parts else 2
    elif "HI" not in parts and name not in ONE_WORD and PAIR_PARTS & set(parts):
        words = 2
    return tuple(f"{found[1]}{int(found[2]) + i}" for i in range(words))


def count_outputs(name: str, operands: Sequence[str]) -> int:
    """Returns how many operands are outputs; they come before the inputs. A comparison has two
    predicates as outputs, and a vote one register or predicate. The outputs of other instructions
    are any number of predicates, one register, and predicates for its carries."""
    if name in WITHOUT_OUTPUT or not operands:
        return 0
    if name in PREDICATE_SETTERS:
        return 2
    if name.startswith("VOTE"):
        return 1
    count = 1
    while count < len(operands) and is_predicate(operands[count - 1]):
        count += 1
    while count < len(operands) - 2 and is_predicate(operands[count]):
        count += 1
    return count


@cache
def decode(instruction: Instruction) -> Step:
    name, *parts = instruction.opcode.split(".")
    operands = split_operands(instruction.operands)
    count = count_outputs(name, operands)
    target = re.search(r"0x([0-9a-f]+)", instruction.operands)
    return Step(
        instruction.address, name, tuple(parts), instruction.guard,
        tuple(operands[:count]), tuple(operands[count:]), int(target[1], 16) if target else -1,
    )  # fmt: skip


PREDICATE_SETTERS = {"ISETP", "UISETP", "PLOP3", "UPLOP3", "FSETP", "DSETP", "HSETP2"}
