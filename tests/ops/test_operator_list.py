"""csrc/ops/operators.def is the one list of operators: all that is registered is what it says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch
from torch._library.simple_registry import singleton as registry

from fusedops.ops.registration import libraries

CSRC = Path(__file__).parents[2] / "csrc"
#: A line for each operator that the preprocessor makes of the list.
ENTRY = re.compile(r'(OPERATOR|OPERATOR_WITH_VARIANT) <(\w+)>((?:\s*"[^"]*")+);')
MACROS = [
    f"-D{kind}(name,function,schema)={kind} <name>schema;"
    for kind in ("OPERATOR", "OPERATOR_WITH_VARIANT")
]


def entries() -> list[tuple[str, str, str]]:
    """Macro, name and schema of every operator of the list."""
    command = ["c++", "-E", "-P", "-x", "c++", f"-I{CSRC}", *MACROS, CSRC / "ops/operators.def"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [
        (macro, name, "".join(re.findall(r'"([^"]*)"', quoted)))
        for macro, name, quoted in ENTRY.findall(text)
    ]


ENTRIES = entries()
#: The schema of every operator of the list, no-autograd variants among them.
LISTED = {name: schema for _, name, schema in ENTRIES} | {
    f"_{name}": schema for macro, name, schema in ENTRIES if macro == "OPERATOR_WITH_VARIANT"
}


def test_python_knows_the_operators_of_the_list_and_no_others():
    assert set(libraries.OPS) == set(LISTED)
    assert len(LISTED) >= 59  # the file was read: a new operator needs no change here


@pytest.mark.parametrize("op", libraries.OPS)
def test_the_registered_schema_is_the_one_of_the_list(op):
    registered = getattr(torch.ops.fusedops, op).default._schema
    assert registered == torch._C.parse_schema(f"fusedops::{op}{LISTED[op]}")


@pytest.mark.parametrize("op", libraries.OPS)
def test_every_operator_has_a_kernel_and_a_fake_kernel(op):
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"fusedops::{op}", "CPU")
    assert registry.find(f"fusedops::{op}").fake_impl.kernel is not None


def test_operators_with_a_variant_are_those_that_the_list_says():
    marked = {name for macro, name, _ in ENTRIES if macro == "OPERATOR_WITH_VARIANT"}
    assert set(libraries.OPS_WITH_VARIANT) == marked
