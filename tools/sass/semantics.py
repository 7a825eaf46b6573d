"""Computes the instructions of SASS on which addresses and jumps depend.

A handler takes the warp and an instruction, and returns the values of its outputs; None stands for
an unknown value. All outputs are unknown if the handler raises UnknownValue, or if there is none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from .code import access_bytes
from .decoding import Step
from .registers import (
    CONSTANT,
    DOUBLE,
    WORD,
    Mask,
    UnknownValue,
    Value,
    Warp,
    all_known,
    as_word,
    is_predicate,
    is_zero,
    known,
    select_lanes,
    sign_extend,
    signed,
)

Handler = Callable[[Warp, Step], Sequence["Value | Mask"]]
HANDLERS: dict[str, Handler] = {}


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Returns a decorator that registers a handler for the instructions `names` and for their
    variants on uniform registers, whose names begin with U."""

    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = HANDLERS[f"U{name}"] = handler
        return handler

    return register


def known_words(warp: Warp, operands: Sequence[str]) -> tuple[int | np.ndarray, ...]:
    return known(*(as_word(warp.read(operand)) for operand in operands))


def carry_in(warp: Warp, step: Step) -> int | np.ndarray:
    """Returns the sum of the carries that an instruction reads: of none unless it has .X."""
    if "X" not in step.parts:
        return 0
    carries = known(*(warp.predicate(operand) for operand in step.predicate_inputs))
    return sum((c.astype(np.uint64) if isinstance(c, np.ndarray) else int(c)) for c in carries)


def with_carries(step: Step, total: int | np.ndarray) -> list[Value | Mask]:
    """Returns the values of a sum's outputs: its lower word for the register, and its carries for
    the predicates."""
    results: list[Value | Mask] = []
    carries = 0
    for output in step.outputs:
        if not is_predicate(output):
            results.append(total & WORD)
        else:
            carries += 1
            results.append((total >> 32) >= carries)
    return results


@handles("IADD3", "VIADD", "IADD")
def add(warp: Warp, step: Step) -> Sequence[Value]:
    terms = known(*(warp.read(operand) for operand in step.values))
    return with_carries(step, sum(terms) + carry_in(warp, step))


@handles("IMAD")
def multiply_add(warp: Warp, step: Step) -> Sequence[Value]:
    """Computes a * b + c in words, or with .WIDE or .HI in 64 bits. Compilers also use it with a
    factor of zero, which moves c."""
    if "WIDE" in step.parts or "HI" in step.parts:
        return multiply_wide(warp, step)
    a, b, c = (warp.read(operand) for operand in step.values[:3])
    product: Value = 0  # a factor of zero makes this a move of c, even if the other is unknown
    if not (is_zero(a) or is_zero(b)):
        a, b = known(a, b)
        product = (a & WORD) * (b & WORD) & WORD
    (c,) = known(c)
    return with_carries(step, product + c + carry_in(warp, step))


def multiply_wide(warp: Warp, step: Step) -> Sequence[Value | Mask]:
    """Computes the product of two words plus a 64-bit number, or with .HI the upper word of this
    sum. If a predicate is among the outputs, it gets the carry of the sum."""
    a, b = known_words(warp, step.values[:2])
    (c,) = known(warp.read_pair(step.values[2]))
    if "U32" not in step.parts:
        a, b = sign_extend(a), sign_extend(b)
        c = sign_extend(c) if re.match("-?0x", step.values[2]) else c
    product = a * b & DOUBLE
    total = product + c & DOUBLE
    value = total >> 32 if "HI" in step.parts else total
    return [total < product if is_predicate(output) else value for output in step.outputs]


@handles("LEA")
def shift_add(warp: Warp, step: Step) -> Sequence[Value]:
    """Computes (a << shift) + b. With .HI, a is the lower word of a 64-bit number, and b is added
    to the upper word of this number shifted left."""
    values = step.values
    a, b = known(*(warp.read(operand) for operand in values[:2]))
    shift = int(values[-1], 16)
    if "SX32" in step.parts:
        shifted = sign_extend(a & WORD) << shift >> 32 & WORD
    elif "HI" in step.parts:
        (high,) = known_words(warp, values[2:3])
        shifted = ((a & WORD) | high << 32) << shift >> 32 & WORD
    else:
        shifted = a << shift & WORD
    return with_carries(step, shifted + b + carry_in(warp, step))


@handles("LOP3")
def logic(warp: Warp, step: Step) -> Sequence[Value | Mask]:
    values = step.values
    table = int(values[-1], 16)
    a, b, c = (as_word(warp.read(operand)) for operand in values[-4:-1])
    (result,) = known(truth_table(table, a, b, c, WORD))
    return [result != 0 if is_predicate(output) else result for output in step.outputs]


def truth_table(table: int, a: Value, b: Value, c: Value, ones: int) -> Value:
    """Computes the function of LOP3, which `table` defines as a truth table, for each bit of a, b
    and c. Returns None if an input is unknown on which the function depends."""
    inputs = []
    for value, bit in ((a, 4), (b, 2), (c, 1)):
        depends = any((table >> i & 1) != (table >> (i ^ bit) & 1) for i in range(8))
        if value is None and depends:
            return None
        inputs.append((0 if value is None else value, bit))
    result = 0
    for row in range(8):
        if table >> row & 1:
            term = ones
            for value, bit in inputs:
                term = term & (value if row & bit else ones ^ value)
            result = result | term
    return result


@handles("PLOP3")
def predicate_logic(warp: Warp, step: Step) -> Sequence[Mask | None]:
    tables = [int(operand, 16) for operand in step.values]
    inputs = [warp.predicate(operand) for operand in step.predicate_inputs[:3]]
    bits = [None if i is None else np.where(i, 1, 0) if isinstance(i, np.ndarray) else int(i)
            for i in inputs]  # fmt: skip
    results = [truth_table(table, *bits, 1) for table in tables]
    return [None if r is None else bool(r) if isinstance(r, int) else r != 0 for r in results]


@handles("ISETP")
def compare(warp: Warp, step: Step) -> Sequence[Mask | None]:
    """Compares two words, and joins the result with a predicate by AND or OR. With .EX the words
    are the upper halves of 64-bit numbers, and another predicate says how their lower halves
    compare."""
    a, b = known_words(warp, step.values[:2])
    others = known(*(warp.predicate(operand) for operand in step.predicate_inputs))
    if "U32" not in step.parts:
        a, b = signed(a), signed(b)
    relation = step.parts[0]
    strict = {"GE": a > b, "GT": a > b, "LE": a < b, "LT": a < b, "NE": a != b}.get(relation, False)
    where_equal = others[1] if "EX" in step.parts else relation in ("GE", "LE", "EQ")
    result = strict | ((a == b) & where_equal)
    joined = result & others[0] if "AND" in step.parts else result | others[0]
    return [joined, None][: len(step.outputs)]


@handles("FSETP", "DSETP")
def compare_floats(warp: Warp, step: Step) -> Sequence[Mask | None]:
    """Compares two floating point numbers. If only one of them is known, the known one is a
    constant, and the other a result of arithmetic, which is taken to be unequal to the constant."""
    if step.name == "DSETP":
        bits, floating = np.uint64, np.float64
        values = [warp.read_pair(operand) for operand in step.values[:2]]
    else:
        bits, floating = np.uint32, np.float32
        values = [as_word(warp.read(operand)) for operand in step.values[:2]]
    others = known(*(warp.predicate(operand) for operand in step.predicate_inputs))
    relation = step.parts[0]
    if all_known(*values) and relation in ("EQ", "NEU", "GT", "LT"):
        a, b = (np.asarray(value, dtype=bits).view(floating) for value in values)
        result = {"EQ": a == b, "NEU": a != b, "GT": a > b, "LT": a < b}[relation]
    elif (values[0] is None) != (values[1] is None) and relation in ("EQ", "NEU"):
        result = np.asarray(relation == "NEU")
    else:
        raise UnknownValue
    joined = result & others[0] if "AND" in step.parts else result | others[0]
    return [bool(joined) if joined.ndim == 0 else joined, None][: len(step.outputs)]


@handles("SHF")
def shift(warp: Warp, step: Step) -> Sequence[Value]:
    """Shifts a 64-bit number, which two words make up, left (.L) or right, and returns its lower
    word, or with .L.HI its upper word. A right shift with .HI shifts only the upper word, unless
    the opcode says 64 bits."""
    low, count, high = (as_word(warp.read(operand)) for operand in step.values[:3])
    low, count = known(low, count)
    if "L" in step.parts and "HI" not in step.parts:
        return [low << (count & 63) & WORD]
    (high,) = known(high)
    pair = low | high << 32
    if "L" in step.parts:
        return [pair << (count & 63) >> 32 & WORD]
    if "HI" in step.parts and "64" not in "".join(step.parts):
        shifted = (signed(high) if "S32" in step.parts else high) >> count
    else:
        shifted = (signed(pair, 64) if "S64" in step.parts else pair) >> (count & 63)
    return [shifted & WORD if isinstance(shifted, int) else shifted.astype(np.uint64) & WORD]


@handles("SEL")
def select(warp: Warp, step: Step) -> Sequence[Value]:
    a, b = (as_word(warp.read(operand)) for operand in step.values[:2])
    (which,) = known(warp.predicate(step.predicate_inputs[0]))
    if isinstance(which, bool):
        return [a if which else b]
    return [select_lanes(which, *known(a, b))]


@handles("VIMNMX", "IMNMX", "VIADDMNMX")
def extreme(warp: Warp, step: Step) -> Sequence[Value]:
    """Computes the minimum or maximum of two words. In VIADDMNMX the first word is the sum of two
    operands."""
    values = known_words(warp, step.values)
    (is_min,) = known(warp.predicate(step.predicate_inputs[0]))
    if step.name.endswith("ADDMNMX"):
        values = [values[0] + values[1] & WORD, values[2]]
    a, b = values[:2] if "U32" in step.parts else map(signed, values[:2])
    result = np.where(is_min, np.minimum(a, b), np.maximum(a, b))
    return [int(result) & WORD if result.ndim == 0 else result.astype(np.uint64) & WORD]


@handles("MOV")
def move(warp: Warp, step: Step) -> Sequence[Value]:
    return [as_word(warp.read(step.values[0]))]


#: This selector takes the lower half of the result from one word and the upper half from another.
MOVE_HALF = 0x7610


@handles("PRMT")
def permute(warp: Warp, step: Step) -> Sequence[Value]:
    """Makes a word of four bytes. Each nibble of the selector picks one of the eight bytes of two
    words, or if its bit 3 is set, that byte's sign bit, repeated eight times."""
    low, selector, high = (as_word(warp.read(operand)) for operand in step.values[:3])
    if selector == MOVE_HALF and high is None:
        high = 0  # only the lower 16 bits of the result matter, which come from the other word
    if not isinstance(selector, int):
        raise UnknownValue
    low, high = known(low, high)
    pair = low | high << 32
    result: Value = 0
    for i in range(4):
        nibble = selector >> 4 * i
        byte = pair >> 8 * (nibble & 7) & 0xFF
        if nibble & 8:
            byte = (byte >> 7) * 0xFF
        result = result | byte << 8 * i
    return [result]


@handles("S2R", "S2UR", "CS2R")
def special(warp: Warp, step: Step) -> Sequence[Value]:
    return [warp.context.special(step.values[0])]


@handles("R2UR")
def to_uniform(warp: Warp, step: Step) -> Sequence[Value]:
    value = warp.read(step.values[0])
    return [int(value[0]) if isinstance(value, np.ndarray) else value]


@handles("LDC", "ULDC")
def load_constant(warp: Warp, step: Step) -> Sequence[Value]:
    found = CONSTANT.fullmatch(step.values[0])
    size = access_bytes(step.parts[-1:])
    return [warp.read_constant(found, size) if found else None]


@handles("HFMA2")
def half_constant(warp: Warp, step: Step) -> Sequence[Value]:
    """Returns the constant that HFMA2 loads when its factors are zero, as compilers use it. Other
    results of half arithmetic are unknown."""
    if [value.lstrip("-") for value in step.values[:2]] != ["RZ", "RZ"] or len(step.values) < 4:
        return [None]
    halves = [np.float16(float_of(text)).view(np.uint16) for text in step.values[2:4]]
    return [int(halves[0]) << 16 | int(halves[1])]


def float_of(text: str) -> float:
    """Returns the number for its text in SASS, which is +INF, -INF, +QNAN or has digits."""
    return float({"+INF": "inf", "-INF": "-inf"}.get(text, text.replace("QNAN", "nan")))


# to_float, reciprocal and to_integer are what compilers make an integer division of.
@handles("I2F")
def to_float(warp: Warp, step: Step) -> Sequence[Value]:
    """Converts an unsigned number to float32, rounding up (.RP). Other conversions are unknown."""
    if "RP" not in step.parts:
        raise UnknownValue
    (value,) = known((warp.read_pair if "U64" in step.parts else warp.read)(step.values[0]))
    exact = np.asarray(value, dtype=np.uint64)
    rounded = exact.astype(np.float32)
    rounded = np.where(rounded.astype(np.float64) < exact.astype(np.float64),
                       np.nextafter(rounded, np.float32(np.inf)), rounded)  # fmt: skip
    return [bits_of(rounded)]


@handles("MUFU")
def reciprocal(warp: Warp, step: Step) -> Sequence[Value]:
    (value,) = known(warp.read(step.values[0]) if step.parts == ("RCP",) else None)
    with np.errstate(all="ignore"):
        return [bits_of(np.float32(1) / np.asarray(value, dtype=np.uint32).view(np.float32))]


@handles("F2I")
def to_integer(warp: Warp, step: Step) -> Sequence[Value]:
    (value,) = known(warp.read(step.values[0]))
    number = np.asarray(value, dtype=np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        result = np.trunc(number).astype(np.uint64)
    return [int(result) if result.ndim == 0 else result]


def bits_of(number: np.ndarray) -> int | np.ndarray:
    bits = np.asarray(number, dtype=np.float32).view(np.uint32)
    return int(bits) if bits.ndim == 0 else bits.astype(np.uint64)


@handles("R2P")
def to_predicates(warp: Warp, step: Step) -> Sequence[Value]:
    """Writes bits of a byte to the predicates P0 to P6 that the mask selects. The output operand is
    PR, which stands for all predicates."""
    register, _, byte = step.values[0].partition(".B")
    value, mask = warp.read(register), int(step.values[1], 16)
    for number in range(7):
        if mask >> number & 1:
            bit = None if value is None else (value >> 8 * int(byte or 0) + number & 1) != 0
            warp.write(f"P{number}", bit, warp.predicate(step.guard) if step.guard else True)
    return [None]


@handles("P2R")
def from_predicates(warp: Warp, step: Step) -> Sequence[Value]:
    """Returns a word whose bits are predicates where the mask has ones, and those of another
    register elsewhere."""
    if step.values[0] != "PR":
        raise UnknownValue
    mask, (result,) = int(step.values[-1], 16), known(warp.read(step.values[-2]))
    result = result & (WORD ^ mask)
    for number in range(7):
        (bit,) = known(warp.values.get(f"P{number}") if mask >> number & 1 else False)
        word = bit.astype(np.uint64) if isinstance(bit, np.ndarray) else int(bit)
        result = result | word << number
    return [result]


# The output predicates of SYNCS say whether a wait for other threads is over. Here it always is.
@handles("SYNCS")
def synchronise(warp: Warp, step: Step) -> Sequence[Value | Mask]:
    return [True if is_predicate(output) else None for output in step.outputs]


@handles("FCHK")
def division_needs_slow_path(warp: Warp, step: Step) -> Sequence[Mask]:
    """Returns False: a division never needs the slow path, which is for numbers that are not
    normal."""
    return [False]
