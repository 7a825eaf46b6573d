"""Lists the kernels that headers declare, and those that a library instantiates."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from processes import output

from .emulator.build import ROOT
from .emulator.library import kernel_name

#: device.h defines what declares a kernel.
HEADERS = sorted({*(ROOT / "csrc/cuda").glob("*/*.h")} - {ROOT / "csrc/cuda/block/device.h"})

_DECLARATION = re.compile(
    r"template <([^>]*)>\nFUSEDOPS_KERNEL\(\s*(\w+|\(.*?\))(?:,\s*(?:[\w<>]+|\(.*?\)))?\)\n(\w+)\(",
)


@dataclass(frozen=True)
class Kernel:
    parameters: str  # of the template
    bound: str  # the threads of the largest block it is compiled for, as an expression


def declared_kernels() -> dict[str, Kernel]:
    """Every use of FUSEDOPS_KERNEL, by the name of the kernel."""
    text = "\n".join(header.read_text() for header in HEADERS)
    found = {name: Kernel(*rest) for *rest, name in _DECLARATION.findall(text)}
    assert len(found) == text.count("FUSEDOPS_KERNEL("), "a kernel is declared in another form"
    return found


def instantiated_kernels(library: Path) -> set[str]:
    """The instantiations of the declared kernels, as ``softmax_forward_apply<float, float, 4>``."""
    symbols = output("nm", "--dynamic", "--defined-only", "--demangle", library)
    names = "|".join(declared_kernels())
    signatures = re.findall(rf"void fusedops::cuda::(?:{names})<.*", symbols)
    return {kernel_name(signature) for signature in signatures}


def coverage_table(executed: set[str], instantiated: set[str]) -> str:
    """A line for each kernel: how many of its instantiations ran, and which did not."""
    total = Counter(name.split("<")[0] for name in instantiated)
    missed = instantiated - executed
    lines = []
    for kernel, count in sorted(total.items()):
        absent = sorted(name for name in missed if name.split("<")[0] == kernel)
        lines.append(f"{count - len(absent):4} of {count:3}  {' '.join([kernel, *absent])}\n")
    lines.append(f"{len(instantiated) - len(missed):4} of {len(instantiated):3}  in all\n")
    return "".join(lines)
