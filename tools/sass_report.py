#!/usr/bin/env python3
"""Reports on the machine code of the CUDA kernels, a row for each kernel and architecture.

    python tools/sass_report.py [--arch 80 90 100 120] [--all] [--csv FILE]
    python tools/sass_report.py --check            # the gates; exit code 1 where one is broken
    python tools/sass_report.py --write-budget     # after a change that is meant to move them

It needs nvcc, but no GPU.

Gates: no kernel has spills or a stack. Every load and store of a hot kernel is 128 bits wide, but
for the few that sass_budget.csv lists (a row's mean and rstd, partials of columns and of rows,
16-bit results of float vectors, masks of bytes, operands with one value for a row, dropout's seed).
Its registers and bytes in flight keep the budget in that file. Hot kernels are those of 16-byte
vectors of float, half or bfloat16.

Model: every thread runs the loop that moves most bytes once, or the whole kernel where no loop
moves any. The model has the time that a warp keeps each resource busy; the longest is the predicted
limiter.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "csrc" / "cuda").glob("*.cu"))
BUDGET = Path(__file__).with_name("sass_budget.csv")
PIP_INSTALL = "pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"

WARP_LANES = 32
SCHEDULERS = 4  # of a multiprocessor; each issues one instruction of a warp a clock
REGISTERS = 65536  # of a multiprocessor
REGISTER_UNIT = 8  # registers are handed out to threads by eights
BLOCK_RESERVED_BYTES = 1024  # of shared memory, which the runtime takes for each block
MUFU_LANES = 16  # exponentials and reciprocals a multiprocessor starts in a clock
# From a load to its use on a busy memory system; an idle one takes about 0.6 us.
LATENCY = 0.8e-6
# The share of the datasheet's clock and bandwidth that lasts: a copy on an H200 moves 4.3 of
# 4.8 TB/s.
SUSTAINED = 0.9


@dataclass(frozen=True)
class Chip:
    """A GPU of an architecture, by its datasheet and the CUDA programming guide's limits."""

    name: str
    multiprocessors: int
    boost_clock: float  # Hz
    peak_bandwidth: float  # bytes a second
    max_threads: int  # of a multiprocessor, as are the next two
    max_blocks: int
    shared_bytes: int

    @property
    def clock(self) -> float:
        return SUSTAINED * self.boost_clock

    @property
    def bandwidth(self) -> float:
        """Bytes a second that one multiprocessor gets."""
        return SUSTAINED * self.peak_bandwidth / self.multiprocessors

    @property
    def needed_in_flight(self) -> float:
        """Bytes in flight a multiprocessor that keep the memory busy (Little's law)."""
        return self.bandwidth * LATENCY


CHIPS = {
    "80": Chip("A100", 108, 1.41e9, 2.04e12, 2048, 32, 164 * 1024),
    "90": Chip("H200", 132, 1.98e9, 4.8e12, 2048, 32, 228 * 1024),
    "100": Chip("B200", 148, 1.97e9, 8.0e12, 2048, 32, 228 * 1024),
    "120": Chip("RTX 5090", 170, 2.41e9, 1.79e12, 1536, 24, 100 * 1024),
}


# --- instructions ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Instruction:
    """One line of SASS."""

    address: int
    opcode: str  # LDG.E.NA.128
    operands: str

    _WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16, "256": 32}
    _WITHOUT_RESULT = ("STG", "STS", "STL", "BRA", "RED", "BAR", "EXIT")

    @property
    def name(self) -> str:
        return self.opcode.partition(".")[0]

    @property
    def bytes(self) -> int:
        """Bytes of global memory that the instruction moves for a thread."""
        if self.name not in ("LDG", "STG"):
            return 0
        widths = (self._WIDTHS.get(part) for part in self.opcode.split("."))
        return next((width for width in widths if width), 4)

    @property
    def loop_start(self) -> int | None:
        """Where a jump backwards leads."""
        target = re.search(r"0x([0-9a-f]+)", self.operands) if self.name == "BRA" else None
        return int(target[1], 16) if target and int(target[1], 16) < self.address else None

    def loaded_registers(self) -> dict[int, int]:
        """The registers that a load from global memory will fill, and the bytes of each."""
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
    """The instructions of every function in the output of `cuobjdump -sass`."""
    pattern = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;]*);")
    functions: dict[str, list[Instruction]] = {}
    body: list[Instruction] = []
    for line in text.splitlines():
        if function := re.match(r"\s*Function : (\S+)", line):
            body = functions.setdefault(function[1], [])
        elif (found := pattern.match(line)) and found[2] != "NOP":
            body.append(Instruction(int(found[1], 16), found[2], found[3].strip()))
    return functions


def hottest_part(body: Sequence[Instruction]) -> Sequence[Instruction]:
    """The loop that moves most bytes, or the whole kernel where no loop moves any."""
    loops = [
        [i for i in body if jump.loop_start <= i.address <= jump.address]
        for jump in body
        if jump.loop_start is not None
    ]
    hottest = max(loops, key=moved_bytes, default=[])
    return hottest if moved_bytes(hottest) else body


def moved_bytes(body: Iterable[Instruction]) -> int:
    return sum(instruction.bytes for instruction in body)


def bytes_in_flight(body: Iterable[Instruction]) -> int:
    """The most bytes that a thread has requested before it uses the first of them."""
    pending: dict[int, int] = {}
    most = 0
    for instruction in body:
        if instruction.read_registers() & pending.keys():
            pending = {}
        pending |= instruction.loaded_registers()
        most = max(most, sum(pending.values()))
    return most


# --- kernels --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kernel:
    """The columns of the report for a kernel on an architecture."""

    arch: str
    name: str
    registers: int
    spills: int  # loads and stores of local memory
    stack: int
    threads: int  # the most that a block may have
    warps: int  # that a multiprocessor holds
    loads: int
    narrow_loads: int  # of less than 128 bits
    stores: int
    narrow_stores: int
    instructions: int  # of the hottest part, as is instructions_per_byte
    instructions_per_byte: float
    kb_in_flight: int  # of a multiprocessor
    limiter: str
    share_of_bandwidth: float  # that the limiter leaves

    @property
    def is_hot(self) -> bool:
        scalar, _, rest = self.name.partition("<")[2].partition(", ")
        width = re.search(r"\b\d+\b", rest)
        size = {"bf16": 2, "half": 2, "float": 4}.get(scalar, 0)
        return width is not None and size * int(width[0]) == 16

    @property
    def allocated_registers(self) -> int:
        return round_up(self.registers, REGISTER_UNIT)


@dataclass(frozen=True)
class Usage:
    """The resources of a multiprocessor that a launch takes."""

    registers: int
    stack: int
    shared_bytes: int
    threads: int

    def warps(self, chip: Chip) -> int:
        """The warps that a multiprocessor holds, in whole blocks."""
        warps_a_block = self.threads // WARP_LANES
        registers_a_block = round_up(self.registers, REGISTER_UNIT) * self.threads
        blocks = min(
            chip.max_blocks,
            chip.max_threads // self.threads,
            REGISTERS // registers_a_block,
            chip.shared_bytes // (self.shared_bytes + BLOCK_RESERVED_BYTES),
        )
        return blocks * warps_a_block


def round_up(value: int, step: int) -> int:
    return math.ceil(value / step) * step


def seconds_a_warp(body: Sequence[Instruction], in_flight: int, chip: Chip) -> dict[str, float]:
    """How long a warp keeps each resource of a multiprocessor busy."""
    moved = moved_bytes(body) * WARP_LANES
    exponentials = sum(i.name == "MUFU" for i in body)
    shuffles = sum(i.name == "SHFL" for i in body)
    return {
        "memory": moved / chip.bandwidth,
        "issue": len(body) / SCHEDULERS / chip.clock,
        "mufu": exponentials * WARP_LANES / MUFU_LANES / chip.clock,
        "shuffle": shuffles / chip.clock,
        # Stores count as loads do: a block stores its row after it has loaded it.
        "latency": moved * LATENCY / in_flight if in_flight else 0.0,
    }


def analyse(arch: str, name: str, body: Sequence[Instruction], usage: Usage) -> Kernel:
    chip, part = CHIPS[arch], hottest_part(body)
    loads = [i.bytes for i in body if i.name == "LDG"]
    stores = [i.bytes for i in body if i.name == "STG"]
    warps = usage.warps(chip)
    in_flight = bytes_in_flight(body) * WARP_LANES * warps
    times = seconds_a_warp(part, in_flight, chip)
    limiter = max(times, key=times.__getitem__)
    return Kernel(
        arch=arch,
        name=name,
        registers=usage.registers,
        spills=sum(i.name in ("LDL", "STL") for i in body),
        stack=usage.stack,
        threads=usage.threads,
        warps=warps,
        loads=len(loads),
        narrow_loads=sum(size < 16 for size in loads),
        stores=len(stores),
        narrow_stores=sum(size < 16 for size in stores),
        instructions=len(part),
        instructions_per_byte=len(part) / max(1, moved_bytes(part)),
        kb_in_flight=in_flight // 1024,
        limiter=limiter,
        share_of_bandwidth=times["memory"] / times[limiter],
    )


# --- tools ----------------------------------------------------------------------------------------


class ReportError(RuntimeError):
    """There is no report; the message says why, and what to do."""


class MissingTool(ReportError):
    """A program that the report needs is missing; the message says how to get it."""


def find_nvcc() -> str | None:
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    folders = [os.path.join(home, "bin") for home in homes if home]
    return os.environ.get("CUDACXX") or shutil.which("nvcc") or find_in(folders, "nvcc")


def find_in(folders: Iterable[str], name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join(folders))


def tool_environment() -> dict[str, str]:
    """PATH with the toolkit's folder and those of NVIDIA's pip packages: cuobjdump looks for
    nvdisasm there."""
    folders = [os.environ.get("PATH", "")]
    if nvcc := find_nvcc():
        folders.append(str(Path(nvcc).resolve().parent))
    packages = Path(sysconfig.get_path("purelib"), "nvidia")
    folders += map(str, sorted(packages.glob("cu*/bin"), reverse=True))
    return os.environ | {"PATH": os.pathsep.join(folders)}


def find_disassembler() -> tuple[str, dict[str, str]]:
    """cuobjdump, and the environment in which it finds nvdisasm."""
    environment = tool_environment()
    found = {tool: find_in([environment["PATH"]], tool) for tool in ("cuobjdump", "nvdisasm")}
    if missing := [tool for tool, path in found.items() if path is None]:
        raise MissingTool(f"found no {' and no '.join(missing)}: {PIP_INSTALL}")
    return found["cuobjdump"], environment


def run(*command: str | Path, **options) -> str:
    """The output of the command. Raises ReportError where it cannot be run or fails."""
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout
    except OSError as error:
        raise MissingTool(f"{command[0]}: {error.strerror}") from error
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout).strip().splitlines() or ["nothing"]
        raise ReportError(
            f"{command[0]} failed with exit code {error.returncode} and said: {said[0]}"
        ) from error


def compile_cubin(source: Path, arch: str, folder: Path) -> Path:
    """Compiles with those flags of csrc/cuda/CMakeLists.txt that change code."""
    nvcc = find_nvcc()
    if nvcc is None:
        raise MissingTool("nvcc not found: install the CUDA toolkit, or set CUDACXX or CUDA_HOME")
    cubin = folder / f"{source.stem}.sm_{arch}.cubin"
    includes = [f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'csrc' / 'include'}"]
    flags = ["-std=c++17", "-O3", "-DNDEBUG", "--expt-relaxed-constexpr", f"-arch=sm_{arch}"]
    run(nvcc, *flags, *includes, "-cubin", "-o", cubin, source)
    return cubin


def read_cubin(cubin: Path, arch: str) -> list[Kernel]:
    cuobjdump, environment = find_disassembler()
    dump = partial(run, cuobjdump, env=environment)
    bodies = parse_sass(dump("-sass", cubin))
    usages = parse_usage(dump("-res-usage", cubin), dump("-elf", cubin))
    names = demangle(list(bodies))
    if unknown := [names[key] for key in bodies if key not in usages]:
        raise ReportError(
            f"{cubin.name}: {cuobjdump} tells neither registers nor launch bounds of {unknown[0]}"
        )
    return [analyse(arch, names[key], body, usages[key]) for key, body in bodies.items()]


def parse_usage(resources: str, elf: str) -> dict[str, Usage]:
    """From `cuobjdump -res-usage`, and launch bounds from the ELF sections `.nv.info.<kernel>`."""
    threads = {}
    for section in re.split(r"\n\.nv\.info\.", elf)[1:]:
        bound = re.search(r"EIATTR_MAX_THREADS\s+Format:\s*\S+\s+Value:\s*0x([0-9a-f]+)", section)
        if bound:
            threads[section.split()[0]] = int(bound[1], 16)
    usages = {}
    for key, line in re.findall(r"Function (\S+):\s+(REG:.*)", resources):
        of = {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", line)}
        if key not in threads:
            continue
        usages[key] = Usage(of["REG"], of["STACK"] + of["LOCAL"], of["SHARED"], threads[key])
    return usages


def demangle(keys: Sequence[str]) -> dict[str, str]:
    """Readable names by symbol, as in `softmax_forward_registers<bf16, bf16, 8, 4>`."""
    lines = run("c++filt", input="\n".join(keys)).splitlines()
    short = {"__nv_bfloat16": "bf16", "__half": "half", "void ": "", "fusedops::cuda::": ""}
    names = {}
    for key, line in zip(keys, lines, strict=True):
        names[key] = line.partition("(")[0]
        for long_form, short_form in short.items():
            names[key] = names[key].replace(long_form, short_form)
    return names


def kernels_of(architectures: Sequence[str], library: Path | None = None) -> list[Kernel]:
    """The kernels of a library that was built for all these architectures; otherwise compiles every
    source for each of them, one at a time on each CPU."""
    find_disassembler()  # a missing one is reported before a minute of compiling
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(os.cpu_count()) as pool:
        folder = Path(name)
        cubins = [] if library is None else extract_cubins(library, architectures, folder)
        if {arch for _, arch in cubins} != {*architectures}:
            jobs = [(source, arch, folder) for arch in architectures for source in SOURCES]
            cubins = list(pool.map(compile_job, jobs))
        kernels = list(pool.map(lambda job: read_cubin(*job), cubins))
    found = [kernel for of_cubin in kernels for kernel in of_cubin]
    return sorted(found, key=lambda kernel: (int(kernel.arch), kernel.name))


def compile_job(job: tuple[Path, str, Path]) -> tuple[Path, str]:
    return compile_cubin(*job), job[1]


def extract_cubins(
    library: Path, architectures: Sequence[str], folder: Path
) -> list[tuple[Path, str]]:
    """The cubins in a library for these architectures, each with its architecture."""
    cuobjdump, environment = find_disassembler()
    run(cuobjdump, "-xelf", "all", library.resolve(), env=environment, cwd=folder)
    found = [(path, path.suffixes[-2].removeprefix(".sm_")) for path in folder.glob("*.cubin")]
    return [(path, arch) for path, arch in sorted(found) if arch in architectures]


# --- gates ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Budget:
    """The limits of a hot kernel, and the bytes in flight that it must have."""

    arch: str
    kernel: str
    registers: int
    kb_in_flight: int
    narrow_loads: int
    narrow_stores: int

    @classmethod
    def of(cls, kernel: Kernel) -> Budget:
        return cls(
            kernel.arch,
            kernel.name,
            kernel.allocated_registers,
            kernel.kb_in_flight,
            kernel.narrow_loads,
            kernel.narrow_stores,
        )


def read_budget(path: Path = BUDGET) -> dict[tuple[str, str], Budget]:
    """The budgets by architecture and kernel. Raises ReportError where the file is missing or
    damaged."""
    try:
        with path.open(newline="") as file:
            rows = [
                Budget(row.pop("arch"), row.pop("kernel"), **{key: int(row[key]) for key in row})
                for row in csv.DictReader(file)
            ]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ReportError(
            f"{path} cannot be read: {type(error).__name__}: {error}; run --write-budget"
        ) from error
    return {(row.arch, row.kernel): row for row in rows}


def local_memory_failures(kernels: Iterable[Kernel]) -> Iterator[str]:
    """Kernels with spills or a stack."""
    for kernel in kernels:
        if kernel.spills or kernel.stack:
            yield (
                f"sm_{kernel.arch} {kernel.name}: {kernel.spills} spills, "
                f"{kernel.stack} bytes of stack, wanted none"
            )


def budget_failures(
    kernels: Iterable[Kernel], budget: dict[tuple[str, str], Budget]
) -> Iterator[str]:
    """Hot kernels that are not in the table, or worse than it allows."""
    for kernel in kernels:
        if not kernel.is_hot:
            continue
        allowed = budget.get((kernel.arch, kernel.name))
        if allowed is None:
            yield f"sm_{kernel.arch} {kernel.name}: not in {BUDGET.name}; run --write-budget"
            continue
        now = Budget.of(kernel)
        for column in ("registers", "narrow_loads", "narrow_stores"):
            if getattr(now, column) > getattr(allowed, column):
                yield _worse(now, allowed, column, "at most")
        if now.kb_in_flight < allowed.kb_in_flight:
            yield _worse(now, allowed, "kb_in_flight", "at least")


def _worse(now: Budget, allowed: Budget, column: str, relation: str) -> str:
    actual, limit = getattr(now, column), getattr(allowed, column)
    return f"sm_{now.arch} {now.kernel}: {column} is {actual}, wanted {relation} {limit}"


# --- output ---------------------------------------------------------------------------------------

COLUMNS = {
    "kernel": lambda k: k.name,
    "regs": lambda k: k.registers,
    "spill": lambda k: k.spills,
    "stack": lambda k: k.stack,
    "threads": lambda k: k.threads,
    "warps": lambda k: k.warps,
    "ld128": lambda k: f"{k.loads - k.narrow_loads}/{k.loads}",
    "st128": lambda k: f"{k.stores - k.narrow_stores}/{k.stores}",
    "instr": lambda k: k.instructions,
    "instr/B": lambda k: f"{k.instructions_per_byte:.2f}",
    "KB": lambda k: k.kb_in_flight,
    "limiter": lambda k: k.limiter,
    "of bandwidth": lambda k: f"{k.share_of_bandwidth:.0%}",
}


def print_tables(kernels: Sequence[Kernel]) -> None:
    for arch in dict.fromkeys(kernel.arch for kernel in kernels):
        chip = CHIPS[arch]
        print(
            f"\nsm_{arch} as on a {chip.name}: {chip.needed_in_flight / 1024:.0f} KB in flight a "
            f"multiprocessor keep {SUSTAINED * chip.peak_bandwidth / 1e12:.1f} TB/s busy"
        )
        of_arch = [kernel for kernel in kernels if kernel.arch == arch]
        rows = [[str(cell(kernel)) for cell in COLUMNS.values()] for kernel in of_arch]
        widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
        for first, *rest in [list(COLUMNS), *rows]:
            cells = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
            print(first.ljust(widths[0]), *cells, sep="  ")


def write_csv(kind: type[Kernel | Budget], rows: Sequence[Kernel | Budget], path: Path) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(kind)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {key: f"{v:.4g}" if isinstance(v, float) else v for key, v in vars(row).items()}
        for row in rows
    )
    path.write_text(text.getvalue())


def output_file(text: str) -> Path:
    """A type for argparse, so that an unusable file is refused before a minute of compiling."""
    path = Path(text)
    if not text or path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted a file that can be written")
    return path


class Parser(argparse.ArgumentParser):
    """A parser that refuses in one line, without the list of all options above it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = Parser(description=__doc__.partition("\n")[0])
    parser.add_argument("--arch", nargs="+", choices=list(CHIPS), default=list(CHIPS))
    parser.add_argument("--all", action="store_true", help="kernels that are not hot too")
    parser.add_argument("--csv", type=output_file, metavar="FILE", help="write every column there")
    parser.add_argument("--check", action="store_true", help="fail where a gate is broken")
    parser.add_argument("--write-budget", action="store_true", help=f"write {BUDGET.name} anew")
    args = parser.parse_args(argv)
    args.arch = list(dict.fromkeys(args.arch))
    if args.write_budget and args.arch != list(CHIPS):
        parser.error("--write-budget writes all architectures: leave --arch out")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 where a gate is broken or there is no report."""
    args = parse_arguments(argv)
    try:
        return report(args)
    except (ReportError, OSError) as error:
        print(f"sass_report: {error}", file=sys.stderr)
        return 1


def report(args: argparse.Namespace) -> int:
    """Compiles, prints and writes; with --check it checks the gates too."""
    budget = read_budget() if args.check and not args.write_budget else {}
    kernels = kernels_of(args.arch)
    shown = [kernel for kernel in kernels if args.all or kernel.is_hot]
    print_tables(shown)
    if args.csv:
        write_csv(Kernel, shown, args.csv)
    if args.write_budget:
        write_csv(Budget, [Budget.of(kernel) for kernel in kernels if kernel.is_hot], BUDGET)
        budget = read_budget()
    if not args.check:
        return 0
    failures = [*local_memory_failures(kernels), *budget_failures(kernels, budget)]
    print(*failures, f"{len(kernels)} kernels, {len(failures)} failures", sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
