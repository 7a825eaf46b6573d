"""``python -m aarch64.instructions``, in tests/: how many instructions kernels run for an element.

qemu writes down every instruction that a kernel runs, of rows of two lengths. The difference is
what the columns cost, without what rows and calls do. ARM's vectors are half as long as AVX2's:
the last columns divide by twice the instructions of AVX2, which would be as many a vector.

``avx2.csv`` has the counts of AVX2. ``--write`` counts them anew, after ``make .venv/.built-isas``.
"""

from __future__ import annotations

import argparse
import csv
import functools
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from simt import families
from simt.cases.cross_entropy import CrossEntropyCase
from simt.cases.masked import MaskedCase
from simt.cases.norm import NormCase
from simt.cases.rows import Case

from .build import HERE, build_driver, kernels
from .driver import Processor, shared_memory

AVX2 = HERE / "avx2.csv"
SETS = ("default", "bf16")
ROWS, COLS = 4, 2048
#: Bytes of code in an instruction set's library, at most.
_CODE_BYTES = 1 << 24
DTYPES = ("float32", "bfloat16", "float16")


def cases() -> Iterator[tuple[str, families.AnyCase]]:
    """The kernels, by name."""
    for dtype in DTYPES:
        size = {"rows": ROWS, "cols": COLS, "width": 1}
        yield f"softmax {dtype}", Case("softmax_forward", dtype, dtype, **size)
        yield f"log_softmax {dtype}", Case("softmax_forward", dtype, dtype, **size, log=True)
        yield f"softmax backward {dtype}", Case("softmax_backward", dtype, dtype, **size)
        yield f"layer_norm {dtype}", NormCase("norm_forward", dtype, **size)
        yield f"layer_norm backward {dtype}", NormCase("norm_backward", dtype, **size)
        adds = NormCase("norm_forward", dtype, **size, adds=True, kind="rms", bias=False)
        yield f"add_rms_norm {dtype}", adds
        masked = MaskedCase("masked_softmax_forward", dtype, dtype, (1, 1, ROWS), COLS, 1)
        yield f"masked_softmax {dtype}", replace(masked, mask="bool 1011", scale=0.125)
        for way in ("forward", "backward"):
            name = f"cross_entropy_{way}"
            yield f"{name} {dtype}", CrossEntropyCase(name, dtype, ROWS, COLS)


def executed(machine: str, isa: str, case: families.AnyCase) -> Counter[int]:
    """How often each instruction of the kernels' library runs, by its address in it."""
    base = _base(machine, isa)
    with tempfile.NamedTemporaryFile() as log:
        logged = ("-singlestep", "-d", "exec,nochain", "-D", log.name)
        options = (*logged, "-dfilter", f"{base:#x}+{_CODE_BYTES:#x}")
        shared_memory().clear()
        processor = Processor(isa, machine=machine, options=options)
        assert (processor.isa, processor.base) == (isa, base)
        families.run(processor, case)
        processor.close()
        found = re.findall(r"\[\w+/(\w+)/", Path(log.name).read_text())
    return Counter(int(address, 16) - base for address in found)


def _base(machine: str, isa: str) -> int:
    processor = Processor(isa, machine=machine)
    processor.close()
    return processor.base


def columns(machine: str, isa: str, case: families.AnyCase) -> Counter[int]:
    """How often each instruction runs for COLS columns more."""
    more = executed(machine, isa, replace(case, cols=2 * COLS))
    more.subtract(executed(machine, isa, case))
    return more


def an_element(counts: Counter[int]) -> float:
    return counts.total() / (ROWS * COLS)


def hot_code(counts: Counter[int]) -> list[str]:
    """The instructions that run for every sixteenth vector at least."""
    hot = {address for address, count in counts.items() if count >= ROWS * COLS / 64}
    return [text for address, text in disassembly() if address in hot]


@functools.cache
def disassembly() -> list[tuple[int, str]]:
    command = ("aarch64-linux-gnu-objdump", "-d", "--no-show-raw-insn", str(kernels("aarch64")))
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = re.findall(r"^ *(\w+):\t(.*)$", text, re.MULTILINE)
    return [(int(address, 16), code) for address, code in lines]


def avx2() -> dict[str, float]:
    """AVX2's instructions an element, by the kernel."""
    with AVX2.open() as file:
        return {kernel: float(count) for kernel, count in csv.reader(file)}


def write() -> None:
    build_driver("x86_64")
    with AVX2.open("w") as file:
        for name, case in cases():
            count = an_element(columns("x86_64", "avx2", case))
            csv.writer(file, lineterminator="\n").writerow((name, f"{count:.3f}"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="count AVX2's again")
    if parser.parse_args().write:
        write()
    print(f"{'instructions an element':34}{'avx2':>8}{'default':>8}{'bf16':>8}   of 2 * avx2")
    for name, case in cases():
        counts = [an_element(columns("aarch64", isa, case)) for isa in SETS]
        ratios = "".join(f"{count / avx2()[name] / 2:8.2f}" for count in counts)
        print(f"{name:34}" + "".join(f"{n:8.2f}" for n in (avx2()[name], *counts)) + ratios)


if __name__ == "__main__":
    main()
