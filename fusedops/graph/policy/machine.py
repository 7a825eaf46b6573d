"""What times depend on that were measured on a machine: its processor, and how it is used."""

from __future__ import annotations

import functools
import importlib
import math
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch


class Family(NamedTuple):
    """Processors that are alike, by what /proc/cpuinfo tells of them.

    A virtual machine may hide the model's number, as cloud providers do, but not the instructions:
    a flag that came with a generation tells it from those before.
    """

    name: str
    vendor_id: str
    cpu_family: str
    flag: str


#: The first that fits is a processor's family.
FAMILIES = (
    Family("amd-zen5", "AuthenticAMD", "26", "avx512f"),
    Family("amd-zen4", "AuthenticAMD", "25", "avx512f"),
    Family("amd-zen3", "AuthenticAMD", "25", "avx2"),
    # With Emerald and Granite Rapids, which have the same cores or the next ones.
    Family("intel-sapphire-rapids", "GenuineIntel", "6", "amx_tile"),
    Family("intel-skylake-server", "GenuineIntel", "6", "avx512f"),
    Family("intel", "GenuineIntel", "6", ""),
)


@dataclass(frozen=True)
class Machine:
    """What times are valid for. Where two differ, so may what pays.

    device: "cpu" or "cuda".
    processor: the model's name, of a GPU too.
    family: a name of FAMILIES, of a GPU its capability, or else the architecture.
    isa: the instruction set that the kernels use, which FUSEDOPS_CPU_ISA can lower.
    threads: how many torch uses; 1 on a GPU.
    torch: its version.
    """

    device: str
    processor: str
    family: str
    isa: str
    threads: int
    torch: str

    @property
    def vendor(self) -> str:
        """The first word of the family."""
        return self.family.partition("-")[0]

    def unlike(self, other: Machine) -> tuple[bool, ...]:
        """In which ways another is of another kind; what stands first weighs more than the rest."""
        return (
            self.family != other.family,
            self.vendor != other.vendor,
            self.isa != other.isa,
            (self.threads == 1) != (other.threads == 1),
        )

    def differs(self, other: Machine) -> tuple[float, ...]:
        """How far another of the same kind is; what stands first weighs more than the rest."""
        threads = abs(math.log(self.threads / other.threads))
        return threads, self.processor != other.processor, self.torch != other.torch

    def __str__(self) -> str:
        where = f"{self.processor} ({self.family}, {self.isa})"
        return f"{where}, {count_of(self.threads)}, torch {self.torch}"


def count_of(threads: int) -> str:
    """A number of threads in words."""
    return "1 thread" if threads == 1 else f"{threads} threads"


def here(device: torch.device) -> Machine:
    """The machine that a device of this process is."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        capability = "sm{}{}".format(*torch.cuda.get_device_capability(device))
        return Machine("cuda", name, f"cuda-{capability}", capability, 1, _torch_version())
    processor, family = _processor()
    isa = importlib.import_module("fusedops.ops._library").cpu_isa()
    return Machine("cpu", processor, family, isa, torch.get_num_threads(), _torch_version())


def _torch_version() -> str:
    """Without what was built, as in 2.13.0+cpu: a CPU's code does not depend on it."""
    return str(torch.__version__).partition("+")[0]


@functools.cache
def _processor() -> tuple[str, str]:
    """Name and family of the CPU."""
    facts = cpuinfo()
    name = facts.get("model name") or platform.processor() or platform.machine()
    numbers = [facts[field] for field in ("cpu family", "model", "stepping") if field in facts]
    if numbers:  # in a virtual machine the name alone may be that of many
        name = f"{name} {'/'.join(numbers)}"
    return name, family_of(facts)


def family_of(facts: dict[str, str]) -> str:
    """The family that a /proc/cpuinfo tells of; the architecture where it is none of FAMILIES."""
    flags = facts.get("flags", "").split()
    for family in FAMILIES:
        told = (facts.get("vendor_id"), facts.get("cpu family"))
        if told == (family.vendor_id, family.cpu_family) and family.flag in (*flags, ""):
            return family.name
    return platform.machine() or "unknown"


def cpuinfo() -> dict[str, str]:
    """What /proc/cpuinfo has on the first processor; nothing where a system has no such file."""
    file = Path("/proc/cpuinfo")
    text = file.read_text() if file.exists() else ""
    fields = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in fields}
