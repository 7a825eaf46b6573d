"""Translates nvcc's PTX of the kernels to C++ that runs on the emulator.

A kernel becomes a function of the same mangled name, a variable for each register and a ``goto``
for each branch; ptx_machine.h has the rest. Linked with the package's launch code, it takes the
place of the source's own kernel. Every opcode is in one of the tables here with all its modifiers.
Anything that is not known is a PtxError that names the line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

TYPES = {
    **{f"{kind}{bits}": f"uint{bits}_t" for kind in "ub" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": f"int{bits}_t" for bits in (16, 32, 64)},
    **{"f32": "float", "f64": "double", "pred": "bool"},
    **{"f16": "__half", "bf16": "__nv_bfloat16", "f16x2": "__half2", "bf16x2": "__nv_bfloat162"},
}
_SPECIAL = {
    f"%{name}.{axis}": f"simt::self->{member}.{axis}"
    for name, member in {
        "tid": "thread",
        "ctaid": "block",
        "ntid": "block_size",
        "nctaid": "grid_size",
    }.items()
    for axis in "xyz"
} | {
    "%cluster_ctarank": "simt::self->cluster_rank",
    "%cluster_nctaid.x": "simt::self->cluster_size",
}


class PtxError(Exception):
    """PTX that is not understood."""


@dataclass(frozen=True)
class Op:
    """An instruction that computes one register from others. T is the type it is named for."""

    types: str  # the ones that are known
    value: str  # a C++ expression
    operands: str = "T T"
    result: str = "T"


#: The key is the opcode without its last type.
OPS = {
    "add": Op("s32 s64 f32 f64", "{0} + {1}"),
    "add.rn": Op("f32 f64", "{0} + {1}"),
    "sub": Op("s32 s64 f32 f64", "{0} - {1}"),
    "sub.rn": Op("f32 f64", "{0} - {1}"),
    "mul": Op("f32 f64", "{0} * {1}"),
    "mul.rn": Op("f32 f64", "{0} * {1}"),
    "mul.lo": Op("s32 s64", "{0} * {1}"),
    "mul.wide": Op("s32 u32", "wide_product({0}, {1})", result="b64"),
    "mad.lo": Op("s32", "{0} * {1} + {2}", "T T T"),
    "fma.rn": Op("f32 f64", "std::fma({0}, {1}, {2})", "T T T"),
    "fma.rm": Op("f32", "fma_down({0}, {1}, {2})", "T T T"),
    "div": Op("u32 s64 u64", "{0} / {1}"),
    "rem": Op("u32 u64", "{0} % {1}"),
    "neg": Op("s32 s64 f32 f64", "-{0}", "T"),
    "abs": Op("f32", "std::fabs({0})", "T"),
    "copysign": Op("f32 f64", "std::copysign({1}, {0})"),  # the sign of the first operand
    "max": Op("u32 s32 f32 f64", "std::fmax({0}, {1})"),  # double holds every u32 and s32
    "min": Op("s32 u32 s64", "std::min({0}, {1})"),
    "and": Op("pred b32 b64", "{0} & {1}"),
    "or": Op("pred b32 b64", "{0} | {1}"),
    "xor": Op("b32 b64", "{0} ^ {1}"),
    "not": Op("pred b32 b64", "inverted({0})", "T"),
    "shl": Op("b32 b64", "shifted_left({0}, {1})", "T u32"),
    "shr": Op("s32 u32 s64 u64", "shifted_right({0}, {1})", "T u32"),
    "bfi": Op("b64", "insert_bits({0}, {1}, {2}, {3})", "T T u32 u32"),
    "selp": Op("u16 b32 u32 b64 f32 f64", "{2} ? {0} : {1}", "T T pred"),
    "setp.eq": Op("s16 b32 s32 s64 f32 f64", "{0} == {1}", result="pred"),
    "setp.ne": Op("s16 s32 s64", "{0} != {1}", result="pred"),
    "setp.neu": Op("f32 f64", "{0} != {1}", result="pred"),
    "setp.nan": Op("f32 f64", "std::isunordered({0}, {1})", result="pred"),
    "setp.num": Op("f32 f64", "!std::isunordered({0}, {1})", result="pred"),
    "setp.lt": Op("s16 s32 u32 s64 u64 f32 f64", "{0} < {1}", result="pred"),
    "setp.ltu": Op("f64", "!({0} >= {1})", result="pred"),
    "setp.le": Op("s32 s64", "{0} <= {1}", result="pred"),
    "setp.leu": Op("f32 f64", "!({0} > {1})", result="pred"),
    "setp.gt": Op("s16 s32 u32 s64 f32 f64", "{0} > {1}", result="pred"),
    "setp.ge": Op("s32 u32 s64 f32", "{0} >= {1}", result="pred"),
    "setp.gtu": Op("f32 f64", "!({0} <= {1})", result="pred"),
    "setp.geu": Op("f32 f64", "!({0} < {1})", result="pred"),
    "cvta.to.global": Op("u64", "{0}", "T"),
    "cvta.global": Op("u64", "{0}", "T"),
    "mapa.shared::cluster": Op("u32", "window.mapped({0}, {1})"),
    "ex2.approx.ftz": Op("f32", "exp2_approx({0})", "T"),
    "rcp.approx.ftz": Op("f32 f64", "reciprocal_approx({0})", "T"),
    "rcp.rn": Op("f64", "1 / {0}", "T"),
    "rsqrt.approx": Op("f32 f64", "1 / std::sqrt({0})", "T"),
    "cvt.s64": Op("s32", "int64_t{{{0}}}", "T", "s64"),
    "cvt.u64": Op("u32", "uint64_t{{{0}}}", "T", "u64"),
    "cvt.u32": Op("u16 u64", "static_cast<uint32_t>({0})", "T", "u32"),
    "cvt.u16": Op("u32", "static_cast<uint16_t>({0})", "T", "u16"),
    "cvt.rn.f32": Op("s16 s32 u32 s64 f64", "static_cast<float>({0})", "T", "f32"),
    "cvt.rn.f64": Op("s16 s32 u32 s64", "static_cast<double>({0})", "T", "f64"),
    "cvt.f64": Op("f32", "double{{{0}}}", "T", "f64"),
    "cvt.sat.f32": Op("f32", "saturated({0})", "T"),
    "cvt.rni.f32": Op("f32", "std::nearbyint({0})", "T"),
    "cvt.f32": Op("f16 bf16", "widened({0})", "T", "f32"),
    "cvt.rn.f16": Op("f32", "__float2half_rn({0})", "T", "f16"),
    "cvt.rn.bf16": Op("f32", "__float2bfloat16_rn({0})", "T", "bf16"),
    # The first operand is the upper half.
    "cvt.rn.f16x2": Op("f32", "__floats2half2_rn({1}, {0})", "T T", "f16x2"),
    "cvt.rn.bf16x2": Op("f32", "__floats2bfloat162_rn({1}, {0})", "T T", "bf16x2"),
}
_MOVES = {f"mov.{name}" for name in ("pred", "u16", "b32", "u32", "f32", "b64", "u64", "f64")}
_HALVES = {"b32": "u16", "b64": "u32"}
_LOADS = {
    f"ld.{space}{vector}.{name}"
    for space in ("param", "global", "global.L1::no_allocate", "shared")
    for vector in ("", ".v2", ".v4")
    for name in ("u8", "u16", "u32", "s32", "u64", "f32", "f64")
}
_STORES = {
    f"st.{space}{vector}.{name}"
    for space in ("global", "shared")
    for vector in ("", ".v2", ".v4")
    for name in ("u16", "u32", "u64", "f32", "f64")
}


def _name(register: str) -> str:
    if not re.fullmatch(r"%(?:[a-z]+\d+|temp|over)|\$?[A-Za-z_]\w*", register):
        raise PtxError(f"not a register or a label: {register}")
    return register.lstrip("%$")


def _read(operand: str, type_: str) -> str:
    """A register, a symbol or a constant as a C++ value of a PTX type."""
    cpp = TYPES[type_]
    if operand in _SPECIAL:
        return f"as<{cpp}>({_SPECIAL[operand]})"
    if re.fullmatch(r"-?\d+", operand):
        return f"static_cast<{cpp}>({operand}ll)"
    if found := re.fullmatch(r"0[fFdD]((?:[0-9A-F]{8}){1,2})", operand):
        return f"as<{cpp}>(0x{found[1]}{'u' if len(found[1]) == 8 else 'ull'})"
    return f"as<{cpp}>({_name(operand)})"


def _elements(operand: str) -> list[str]:
    """The elements of ``{a, b}``; ``a`` alone is one element."""
    return [part.strip() for part in operand.strip("{}").split(",")]


def _address(operand: str, space: str) -> str:
    found = re.fullmatch(r"\[([%\w]+)(?:\+(-?\d+))?\]", operand)
    if not found:
        raise PtxError(f"not an address: {operand}")
    base, offset = found[1], found[2] or "0"
    if space == "shared::cluster":
        return f"{_read(base, 'u32')} + {offset}"
    if space == "shared":
        return f"window.generic({_read(base, 'u32')} + {offset})"
    return f"{_read(base, 'u64')} + {offset}"


def _compute(opcode: str, operands: list[str]) -> str:
    stem, _, type_ = opcode.rpartition(".")
    op = OPS.get(stem)
    if op is None or type_ not in op.types.split():
        raise PtxError(f"unknown opcode {opcode}")
    types = op.operands.replace("T", type_).split()
    values = [_read(*pair) for pair in zip(operands[1:], types, strict=True)]
    result = TYPES[op.result.replace("T", type_)]
    return f"set({_name(operands[0])}, static_cast<{result}>({op.value.format(*values)}));"


def _move(opcode: str, operands: list[str]) -> str:
    type_ = opcode.rpartition(".")[2]
    to, source = operands
    if to.startswith("{"):
        half = TYPES[_HALVES[type_]]
        return "".join(
            f"set({_name(part)}, half_of<{half}>({_read(source, type_)}, {i}));"
            for i, part in enumerate(_elements(to))
        )
    if source.startswith("{"):
        low, high = (_read(part, _HALVES[type_]) for part in _elements(source))
        return f"set({_name(to)}, pack<{TYPES[type_]}>({low}, {high}));"
    return f"set({_name(to)}, {_read(source, type_)});"


def _load(opcode: str, operands: list[str]) -> str:
    to, source = operands
    registers, (_, space, *_, type_) = _elements(to), opcode.split(".")
    access = f"load<{TYPES[type_]}, {len(registers)}>({_address(source, space)})"
    sets = "".join(f" set_extended({_name(r)}, got[{i}]);" for i, r in enumerate(registers))
    return f"{{ const auto got = {access};{sets} }}"


def _store(opcode: str, operands: list[str]) -> str:
    to, source = operands
    space, type_ = opcode.split(".")[1], opcode.rpartition(".")[2]
    values = [_read(part, type_) for part in _elements(source)]
    target = f"store<{TYPES[type_]}, {len(values)}>({_address(to, space)}"
    return f"{target}, {{{', '.join(values)}}});"


def _shuffle(opcode: str, operands: list[str]) -> str:
    """A shuffle. Its predicate says whether the source lane exists, as it does in a whole warp."""
    to, _, exists = operands[0].partition("|")
    values = ", ".join(_read(operand, "b32") for operand in operands[1:])
    found = f" {_name(exists)} = true;" if exists else ""
    return f"set({_name(to)}, shuffle_xor({values}));{found}"


def _barrier(_: str, operands: list[str]) -> str:
    """A barrier of all threads of the block. One with another number, or with a count of threads,
    is refused."""
    (number,) = operands
    return f"barrier({int(number)});"


def _warp_barrier(_: str, operands: list[str]) -> str:
    (members,) = operands
    return f"warp_barrier({_read(members, 'b32')});"


def _cluster_barrier(opcode: str, operands: list[str]) -> str:
    """One half of a barrier of all threads of the cluster."""
    if operands:
        raise PtxError(f"operands: {operands}")
    return f"cluster_{opcode.split('.')[2]}();"


def _mbarrier_init(_: str, operands: list[str]) -> str:
    barrier, arrivals = operands
    return f"mbarrier_init({_address(barrier, 'shared')}, {_read(arrivals, 'u32')});"


def _mbarrier_expect(_: str, operands: list[str]) -> str:
    """An arrival that expects bytes. What it returns is not wanted."""
    state, barrier, count = operands
    if state != "_":
        raise PtxError(f"not the sink: {state}")
    return f"mbarrier_expect({_address(barrier, 'shared')}, {_read(count, 'u32')});"


def _mbarrier_wait(_: str, operands: list[str]) -> str:
    """A wait that may end early, but never does so here."""
    is_over, barrier, parity = operands
    arguments = f"{_address(barrier, 'shared')}, {_read(parity, 'u32')}"
    return f"mbarrier_wait({arguments}); {_name(is_over)} = true;"


def _store_async(opcode: str, operands: list[str]) -> str:
    to, source, barrier = operands
    type_ = opcode.rpartition(".")[2]
    values = [_read(part, type_) for part in _elements(source)]
    addresses = [_address(each, "shared::cluster") for each in (to, barrier)]
    target = f"window.store_async<{TYPES[type_]}, {len(values)}>({', '.join(addresses)}"
    return f"{target}, {{{', '.join(values)}}});"


def _branch(_: str, operands: list[str]) -> str:
    (label,) = operands
    return f"goto {_name(label)};"


Translate = Callable[[str, list[str]], str]
#: Opcodes that do not compute one register from others, all modifiers included.
OTHERS: dict[str, Translate] = {
    **dict.fromkeys(_MOVES, _move),
    **dict.fromkeys(_LOADS, _load),
    **dict.fromkeys(_STORES, _store),
    "shfl.sync.bfly.b32": _shuffle,
    "bar.sync": _barrier,
    "bar.warp.sync": _warp_barrier,
    "barrier.cluster.arrive.relaxed.aligned": _cluster_barrier,
    "barrier.cluster.wait.aligned": _cluster_barrier,
    "mbarrier.init.shared::cta.b64": _mbarrier_init,
    "fence.mbarrier_init.release.cluster": lambda *_: "",
    "mbarrier.arrive.expect_tx.shared::cta.b64": _mbarrier_expect,
    "mbarrier.try_wait.parity.shared::cta.b64": _mbarrier_wait,
    "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32": _store_async,
    "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32": _store_async,
    "bra": _branch,
    "bra.uni": _branch,
    "ret": lambda *_: "return;",
}


def _instruction(text: str) -> str:
    found = re.fullmatch(r"(?:@(!?)(%\w+)\s+)?([a-z][\w.:]*)\s*(.*)", text)
    if not found:
        raise PtxError(f"not an instruction: {text}")
    negated, predicate, opcode, rest = found.groups()
    # Commas inside braces do not separate operands.
    operands = [part.strip() for part in re.findall(r"(?:\{[^}]*\}|[^,{])+", rest)]
    action = OTHERS.get(opcode, _compute)(opcode, operands)
    return f"if ({negated}{_name(predicate)}) {{ {action} }}" if predicate else action


def _registers(text: str) -> str:
    found = re.fullmatch(r"\.reg \.(\w+)\s+(%\w+)(?:<(\d+)>)?", text)
    if not found:
        raise PtxError(f"not a register: {text}")
    type_, name, count = found.groups()
    names = [_name(f"{name}{i}") for i in range(int(count))] if count else [_name(name)]
    return f"{TYPES[type_]} {', '.join(f'{each}{{}}' for each in names)};"


def _shared(text: str) -> str:
    if dynamic := re.fullmatch(r"\.extern \.shared \.align 16 \.b8 (\w+)\[\]", text):
        return f"const uint32_t {dynamic[1]} = window.place_dynamic();"
    found = re.fullmatch(r"\.shared \.align (?:4|8|16) \.b8 (\w+)\[(\d+)\]", text)
    if not found:
        raise PtxError(f"not a shared array: {text}")
    name, size = found.groups()
    identity = f"static char identity_of{name};"
    return f"{identity} const uint32_t {name} = window.place(&identity_of{name}, {size});"


def _statement(text: str) -> str:
    if text in ("{", "}"):
        return text
    if text.endswith(":"):
        return f"{_name(text[:-1])}:;"
    if text.startswith(".reg "):
        return _registers(text)
    if text.startswith(".shared "):
        return _shared(text)
    if text.startswith(".pragma "):
        return ""
    return _instruction(text)


def _statements(line: str) -> Iterator[str]:
    """The statements of a line, braces of a scope included."""
    rest = line.strip()
    while rest:
        found = re.match(r"([{}])|(\$?\w+:)(?!:)|([^;]+);", rest)
        if not found:
            raise PtxError(f"not a statement: {rest}")
        yield (found[1] or found[2] or found[3]).strip()
        rest = rest[found.end() :].strip()


@dataclass
class Entry:
    """A kernel's PTX, and its translation to C++."""

    name: str
    parameters: list[str] = field(default_factory=list)
    first: int = 0  # line of the body
    body: list[str] = field(default_factory=list)
    shared: list[str] = field(default_factory=list)  # arrays of the module, which kernels share

    def translated(self, file: str) -> str:
        """The kernel in C++. Each line of PTX is one line of C++, so that the emulator's errors
        name lines of PTX."""
        arguments, addresses = [], []
        for i, text in enumerate(self.parameters):
            found = re.fullmatch(
                r"\.param (?:\.align (?:4|8) \.b8 (\w+)\[(\d+)\]|\.(\w+) (\w+))", text
            )
            if not found:
                raise PtxError(f"{file}: {self.name}: not a parameter: {text}")
            struct, size, type_, plain = found.groups()
            arguments.append(f"{f'Struct<{size}>' if struct else TYPES[type_]} argument{i}")
            addresses.append(f"const uint64_t {struct or plain} = address_of(argument{i});")
        lines = [f'extern "C" void {self.name}({", ".join(arguments)}) {{ SharedWindow window;']
        lines += map(_shared, self._named_arrays())
        lines += [*addresses, f'#line {self.first} "{file}"']
        for number, line in enumerate(self.body, self.first):
            try:
                lines.append(" ".join(map(_statement, _statements(line))))
            except (PtxError, KeyError, ValueError) as error:
                raise PtxError(f"{file}:{number}: {line.strip()}: {error}") from error
        return "\n".join([*lines, "}\n"])

    def _named_arrays(self) -> list[str]:
        """The module's shared arrays that the kernel names. Their addresses count from the first
        one, which is the memory that the launch asked for, where there is any."""
        named = set(re.findall(r"\b_Z\w+", "\n".join(self.body)))
        arrays = [text for text in self.shared if re.search(r"(\w+)\[", text)[1] in named]
        return sorted(arrays, key=lambda text: not text.startswith(".extern "))


def entries(text: str, file: str) -> list[Entry]:
    """The kernels of a PTX module, which holds nothing else but arrays that they share."""
    found: list[Entry] = []
    shared: list[str] = []
    inside = ""
    for number, line in enumerate(text.splitlines(), 1):
        line = re.sub(r"//.*", "", line).strip()
        if inside == "body" and line != "}" or inside == "scope":
            found[-1].body.append(line)
            inside = {"{": "scope", "}": "body"}.get(line, inside)
        elif inside == "body":
            inside = ""
        elif inside == "parameters":
            found[-1].parameters += [line.rstrip(",")] if line != ")" else []
            inside = "" if line == ")" else inside
        elif start := re.fullmatch(r"\.visible \.entry (\w+)\(", line):
            found.append(Entry(start[1], shared=shared))
            inside = "parameters"
        elif line.startswith((".shared ", ".extern .shared ")):
            shared.append(line.rstrip(";"))
        elif line == "{":
            found[-1].first = number + 1
            inside = "body"
        elif not re.match(r"$|\.(version|target|address_size|maxntid|minnctapersm) ", line):
            raise PtxError(f"{file}:{number}: {line}")
    return found


def translation(kernels: list[Entry], file: str) -> str:
    """A C++ source file."""
    head = '#include "ptx_machine.h"\n\nusing namespace simt::ptx;\n\n'
    return head + "\n".join(kernel.translated(file) for kernel in kernels)
