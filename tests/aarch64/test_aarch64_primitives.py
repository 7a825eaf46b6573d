"""The primitives of arm.h are those of portable.h, under qemu."""

import subprocess

import pytest

from .build import COMPILER, EMULATOR, HERE, NEEDS_TOOLS, ROOT

pytestmark = NEEDS_TOOLS

#: The namespace of each instruction set, and what the compiler calls it.
SETS = {"default": ("default_", "armv8-a"), "bf16": ("bf16", "armv8.2-a+bf16")}
FLAGS = ("-std=c++17", "-O1", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-w")


@pytest.mark.parametrize("isa", SETS)
def test_a_primitive_of_arm_has_the_results_of_the_portable_one(isa, tmp_path):
    namespace, architecture = SETS[isa]
    macros = (f"-DFUSEDOPS_CPU_ISA={namespace}", "-DFUSEDOPS_VECTOR_BYTES=16")
    sources = (f"-I{ROOT / 'csrc'}", HERE / "primitives.cpp", "-o", tmp_path / "primitives")
    compiler = (COMPILER["aarch64"], *FLAGS, f"-march={architecture}", *macros, *sources)
    subprocess.run(list(map(str, compiler)), check=True)
    program = [*EMULATOR["aarch64"], str(tmp_path / "primitives")]
    result = subprocess.run(program, capture_output=True, text=True)
    assert (result.stdout, result.returncode) == ("", 0)
