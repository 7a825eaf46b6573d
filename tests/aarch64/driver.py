"""The kernels for ARM under qemu, from Python: its arrays are in memory that both share."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import tempfile
from ctypes import c_int, c_long, c_size_t, c_void_p

from simt.emulator.library import Args, Emulator, op_of

from .build import EMULATOR, SHARED_ADDRESS, driver

#: Flags of FPSR: a result was denormal or rounded from one, and an operand was.
UNDERFLOW, DENORMAL_OPERAND = 0x08, 0x80
_MEMORY_BYTES = 1 << 28


class _Memory:
    """A file's memory at SHARED_ADDRESS, of which arrays are cut; named as the emulator's library.
    Nothing is reused before `clear`."""

    def __init__(self) -> None:
        self.file = tempfile.NamedTemporaryFile()
        os.ftruncate(self.file.fileno(), _MEMORY_BYTES)
        map_at = ctypes.CDLL(None, use_errno=True).mmap
        map_at.restype = c_void_p
        map_at.argtypes = [c_void_p, c_size_t, c_int, c_int, c_int, c_long]
        fixed = 0x100000  # MAP_FIXED_NOREPLACE
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        given = (protection, mmap.MAP_SHARED | fixed, self.file.fileno(), 0)
        assert map_at(SHARED_ADDRESS, _MEMORY_BYTES, *given) == SHARED_ADDRESS
        self.clear()

    def clear(self) -> None:
        self._end = SHARED_ADDRESS

    def simt_allocate(self, size: int, misalignment: int) -> int:
        address = (self._end + 255) // 256 * 256 + misalignment
        self._end = address + size
        assert self._end <= SHARED_ADDRESS + _MEMORY_BYTES
        return address

    def simt_free(self, address: int) -> None:
        pass


_memory = None


def shared_memory() -> _Memory:
    global _memory
    _memory = _memory or _Memory()
    return _memory


class Processor(Emulator):
    """A process that runs launches on the CPU, with the cases of the CUDA emulator."""

    def __init__(
        self,
        isa: str,
        threads: int = 1,
        flush: bool = False,
        machine: str = "aarch64",
        options: tuple[str, ...] = (),
    ) -> None:
        self.library = shared_memory()
        program = driver(machine)
        command = [*EMULATOR[machine], *options, program, self.library.file.name]
        variables = {"FUSEDOPS_CPU_ISA": isa, "OMP_NUM_THREADS": str(threads)}
        self._process = subprocess.Popen(
            [*map(str, command), *(["flush"] if flush else [])],
            env=os.environ | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.isa, base = self._process.stdout.readline().split()
        self.base, self.flags = int(base), 0

    def close(self) -> None:
        self._process.communicate()

    def _ask(self, verb: str, args: Args) -> int:
        address = self.library.simt_allocate(ctypes.sizeof(args), 0)
        ctypes.memmove(address, ctypes.byref(args), ctypes.sizeof(args))
        self._process.stdin.write(f"{verb} {op_of(args)} {address}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the driver ended with {self._process.wait()}"
        return int(answer)

    def launch(self, args: Args) -> None:
        self.flags = self._ask("launch", args)

    def workspace_bytes(self, args: Args) -> int:
        return self._ask("workspace", args)

    def ends_of_launch_shapes(self, args: Args, step: int, last: int) -> list[int]:
        """The lengths after which a row has other loops: a tile, two, those that groups of short
        rows have, chunks, and segments of long rows."""
        return [n for n in (8, 16, 64, 256, 1024, 4096, 65_536) if n <= last and n % step == 0]

    def use_clusters(self, use: bool) -> None:
        """A CPU has none."""
