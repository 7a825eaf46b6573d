"""Describes a machine by the properties on which measured times depend."""

from __future__ import annotations

import functools
import importlib
import math
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch


class Family(NamedTuple):
    """Processors of one generation, recognised by their fields in /proc/cpuinfo.

    `flag` is an instruction set that earlier generations of the same `cpu_family` lack. The model
    number is not used, because virtual machines, such as cloud providers', may hide it.
    """

    name: str
    vendor_id: str
    cpu_family: str
    flag: str


#: A processor belongs to the first family that matches.
FAMILIES = (
    Family("amd-zen5", "AuthenticAMD", "26", "avx512f"),
    Family("amd-zen4", "AuthenticAMD", "25", "avx512f"),
    Family("amd-zen3", "AuthenticAMD", "25", "avx2"),
    # Emerald Rapids (the same cores) and Granite Rapids (the next generation of cores) match too.
    Family("intel-sapphire-rapids", "GenuineIntel", "6", "amx_tile"),
    Family("intel-skylake-server", "GenuineIntel", "6", "avx512f"),
    Family("intel", "GenuineIntel", "6", ""),
)


@dataclass(frozen=True)
class Machine:
    """The machine, settings and torch version for which measured times are valid.

    device: "cpu" or "cuda".
    processor: the model name of the CPU or GPU.
    family: a name in FAMILIES; for a GPU its compute capability; otherwise the architecture.
    isa: the instruction set that the kernels use, which FUSEDOPS_CPU_ISA can lower.
    threads: torch's number of threads; 1 on a GPU.
    torch: the version of torch.
    """

    device: str
    processor: str
    family: str
    isa: str
    threads: int
    torch: str

    @property
    def vendor(self) -> str:
        """The first word of the family, such as "amd" or "intel"."""
        return self.family.partition("-")[0]

    @property
    def slug(self) -> str:
        """The name of the machine's table file, without its suffix."""
        name = f"{self.device} {self.processor} {self.isa} {count_of(self.threads)}"
        return re.sub(r"[^a-z0-9.]+", "-", f"{name} torch {self.torch}".lower())

    def kind_mismatch(self, other: Machine) -> tuple[bool, ...]:
        """Returns for each property that defines the kind of a machine whether `other` has another
        one. The properties are family, vendor, instruction set, and whether there is one thread or
        several, in the order of their importance."""
        return (
            self.family != other.family,
            self.vendor != other.vendor,
            self.isa != other.isa,
            (self.threads == 1) != (other.threads == 1),
        )

    def distance(self, other: Machine) -> tuple[float, ...]:
        """Returns for each of the other properties how much `other`, a machine of the same kind,
        differs: the number of threads, the processor and the version of torch, in the order of
        their importance."""
        threads = abs(math.log(self.threads / other.threads))
        return threads, self.processor != other.processor, self.torch != other.torch

    def __str__(self) -> str:
        where = f"{self.processor} ({self.family}, {self.isa})"
        return f"{where}, {count_of(self.threads)}, torch {self.torch}"


def count_of(threads: int) -> str:
    """Returns a number of threads in words."""
    return "1 thread" if threads == 1 else f"{threads} threads"


def here(device: torch.device) -> Machine:
    """Returns the description of the machine for a device of this process. All builds of one
    version of torch, such as +cpu, generate the same code."""
    torch_version = str(torch.__version__).partition("+")[0]
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        capability = "sm{}{}".format(*torch.cuda.get_device_capability(device))
        return Machine("cuda", name, f"cuda-{capability}", capability, 1, torch_version)
    processor, family = _processor()
    isa = importlib.import_module("fusedops.ops.registration.libraries").cpu_isa()
    return Machine("cpu", processor, family, isa, torch.get_num_threads(), torch_version)


@functools.cache
def _processor() -> tuple[str, str]:
    """Returns the name and the family of the CPU."""
    facts = cpuinfo()
    name = facts.get("model name") or platform.processor() or platform.machine()
    numbers = [facts[field] for field in ("cpu family", "model", "stepping") if field in facts]
    if numbers:  # several processors may have the same name in a virtual machine
        name = f"{name} {'/'.join(numbers)}"
    return name, family_of(facts)


def family_of(facts: dict[str, str]) -> str:
    """Returns the family of the processor that has these fields in /proc/cpuinfo, or its
    architecture if it belongs to no family in FAMILIES."""
    flags = facts.get("flags", "").split()
    for family in FAMILIES:
        ids = (facts.get("vendor_id"), facts.get("cpu family"))
        if ids == (family.vendor_id, family.cpu_family) and family.flag in (*flags, ""):
            return family.name
    return platform.machine() or "unknown"


def cpuinfo() -> dict[str, str]:
    """Returns the fields of the first processor in /proc/cpuinfo, or {} if there is no such
    file."""
    file = Path("/proc/cpuinfo")
    text = file.read_text() if file.exists() else ""
    fields = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in fields}
