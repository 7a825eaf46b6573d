"""The structs of csrc/args.h, and the emulator's Config, as ctypes structures.

They are read from the headers, and tests import them by their names in C++. ``Rows`` stands for
``ConstRows`` too, and so on: ctypes does not know const.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping
from ctypes import Structure

from .build import HERE, ROOT

HEADER = ROOT / "csrc/args.h"
CONFIG_HEADER = HERE / "include/simt.h"

_TYPES = {
    "bool": ctypes.c_bool,
    "double": ctypes.c_double,
    "unsigned": ctypes.c_uint,
    **dict.fromkeys(("DType", "NormKind", "Order"), ctypes.c_int32),
    **{f"{name}_t": getattr(ctypes, f"c_{name}") for name in ("uint8", "int32", "uint32", "int64")},
}
_CONSTANT = re.compile(r"^constexpr int32_t (\w+) = (\d+);", re.M)
_STRUCT = re.compile(r"^struct (\w+) {\n(.*?)^};", re.M | re.S)
# Functions have parentheses, static members are no fields.
_FIELDS = re.compile(r"^  (?!static )(?:const )?(\w+)(\*?) ([^(;\n]*);", re.M)
_DECLARATOR = re.compile(r"(\*?)(\w+)(?:\[(\w+)\])?(?: = .*)?")


def structures(text: str, wanted: str = r"\w+") -> dict[str, type[Structure]]:
    """The structures that a header defines, by name; of those names alone."""
    text = re.sub(r" *//.*|\bConst(?=[A-Z])", "", text)
    counts = {name: int(value) for name, value in _CONSTANT.findall(text)}
    found: dict[str, type[Structure]] = {}
    for name, body in _STRUCT.findall(text):
        if re.fullmatch(wanted, name):
            fields = list(_fields(body, _TYPES | found, counts))
            found[name] = type(name, (Structure,), {"_fields_": fields})
    return found


def _fields(
    body: str, types: Mapping[str, type], counts: Mapping[str, int]
) -> Iterator[tuple[str, type]]:
    for kind, pointer, declarators in _FIELDS.findall(body):
        for declarator in declarators.split(", "):
            star, name, count = _DECLARATOR.fullmatch(declarator).groups()
            one = ctypes.c_void_p if pointer or star else types[kind]
            yield name, one * counts[count] if count else one


globals().update(structures(HEADER.read_text()))
globals().update(structures(CONFIG_HEADER.read_text(), "Config"))
