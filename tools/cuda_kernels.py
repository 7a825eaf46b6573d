#!/usr/bin/env python3
"""Prints the CUDA kernels of the package, from their lists; needs no GPU and no build.

    python tools/cuda_kernels.py              # counts by family and dtypes
    python tools/cuda_kernels.py --all        # and each kernel, as the emulator and nvcc name it

csrc/cuda/*/kernels.h lists the kernel templates, and csrc/cuda/launch/plans.def the dtypes and
plans for which they are instantiated.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

CUDA = Path(__file__).parents[1] / "csrc" / "cuda"
#: Dtype -> the bytes of an element.
BYTES = {"double": 8, "float": 4, "Half": 2, "BFloat16": 2}
#: Dtype -> its name in the symbols of a library, where that is another one.
SYMBOLS = {"Half": "__half", "BFloat16": "__nv_bfloat16"}
#: A line of plans.def: its pass, kind of vectors, scope, elements of a thread and threads of a
#: block.
Plan = tuple[str, str, str, int, int]


def macros(path: Path, *names: str) -> Iterator[tuple[str, list[str]]]:
    """Yields each use of these macros in a file, as the macro's name and its arguments."""
    text = re.sub(r"//.*|#define.*|\\\n.*", "", path.read_text())
    for name, arguments in re.findall(rf"^({'|'.join(names)})\(([^()]*)\)", text, re.MULTILINE):
        yield name, [word.strip() for word in arguments.split(",")]


def plans() -> Iterator[Plan]:
    """Yields the lines of plans.def. A number that a line does not have is 0."""
    names = ("REGISTERS", "CLUSTER", "SEGMENTS", "LOOPED", "SPATIAL")
    for name, words in macros(CUDA / "launch/plans.def", *names):
        scope = f"k{name.capitalize()}"
        if name == "SPATIAL":
            yield "kSpatial", words[0], scope, 0, 0
        else:
            numbers = [int(word) for word in words[2:]]
            elements = numbers[1] if len(numbers) > 1 else numbers[0] if numbers else 0
            yield words[0], words[1], scope, elements, numbers[2] if name == "REGISTERS" else 0


def widths(vectors: str, dtype: str) -> list[int]:
    """Returns how many elements a vector of a dtype may have, given the kind `vectors` of
    plans.def. The rules are those of width_in() in launch/plan.h and of find_kernel() in
    launch/kernels.h."""
    item = BYTES[dtype]
    if vectors == "kDoubles" or item == 8:
        return [1] if vectors == "kDoubles" and item == 8 else []
    if vectors in ("kWide16", "kWide32"):
        return [16 // item] if vectors == f"kWide{8 * item}" else []
    return [2, 1] if vectors == "kUnaligned" and item == 2 else [1]


def instances(words: list[str]) -> Iterator[str]:
    """Yields the kernels that one line of kernels.h stands for. `words` are its macro arguments."""
    _, pass_, scope, template, *parameters = words
    for _, (dtype,) in macros(CUDA / "launch/plans.def", "DTYPE"):
        for plan_pass, vectors, plan_scope, elements, threads in PLANS:
            if (plan_pass, plan_scope) != (pass_, scope):
                continue
            for width in widths(vectors, dtype):
                # Stack kernels exist for 16-byte vectors only: see find_in_plan() in
                # launch/kernels.h.
                if "_stack_" in template and width * BYTES[dtype] < 16:
                    continue
                values = {
                    "T": SYMBOLS.get(dtype, dtype),
                    "kWidth": width,
                    "kVectors": elements // width,
                    "kThreads": threads,
                }
                spelled = (str(values.get(word, TERMS.get(word, word))) for word in parameters)
                yield f"{template}<{', '.join(spelled)}>"


def terms() -> dict[str, int]:
    """Returns the constants of scores.h by name. They are bits that say which terms, such as a
    bias, are added to the scores of a masked softmax."""
    text = (CUDA / "masked_softmax/scores.h").read_text()
    found = {name: int(value) for name, value in re.findall(r"\b(k\w+Terms?) = (\d+)\b", text)}
    return found | {"kCappedTerms": found["kAllTerms"] | found["kCapTerm"]}


PLANS = list(plans())
TERMS = terms()


def kernels(family: str) -> set[str]:
    """Returns the kernels of csrc/cuda/<family>/kernels.h."""
    found: set[str] = set()
    names = ("KERNEL", "TILE_KERNEL", "ACCUMULATOR_KERNEL", "FLOAT_KERNEL")
    for name, words in macros(CUDA / family / "kernels.h", *names):
        if name == "KERNEL":
            found.update(instances(words))
        elif name == "TILE_KERNEL":
            found.update(instances([*words[:4], "T", "kWidth", "kVectors", *words[4:]]))
        else:
            dtypes = ("float", "double") if name == "ACCUMULATOR_KERNEL" else ("float",)
            found.update(f"{words[1]}<{dtype}>" for dtype in dtypes)
    return found


def families() -> list[str]:
    return sorted(
        path.parent.name for path in CUDA.glob("*/kernels.h") if path.parent.name != "launch"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="cuda_kernels.py", description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="print each kernel")
    options = parser.parse_args()
    total = 0
    for family in families():
        found = kernels(family)
        total += len(found)
        print(f"{len(found):4} {family}")
        dtypes = Counter(re.match(r"\w+<(\w+)", name)[1] for name in found)
        for dtype, count in sorted(dtypes.items()):
            print(f"{count:9} {dtype}")
        if options.all:
            print(*(f"          {name}" for name in sorted(found)), sep="\n")
    print(f"{total:4} kernels")


if __name__ == "__main__":
    main()
