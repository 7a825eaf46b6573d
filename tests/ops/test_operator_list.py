"""csrc/ops/operators.def is the one list of operators: all that is registered is what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch._library.simple_registry import singleton as registry

from fusedops.ops import _library

LIST = Path(__file__).parents[2] / "csrc" / "ops" / "operators.def"
ENTRY = re.compile(
    r'^(OPERATOR|OPERATOR_WITH_VARIANT)\(\s*(\w+), [\w:]+,((?:\s*"[^"]*")+)\)$', re.M
)


def listed() -> dict[str, str]:
    """The schema of every operator of the list, no-autograd variants among them."""
    schemas = {}
    for kind, name, quoted in ENTRY.findall(LIST.read_text()):
        schema = "".join(re.findall(r'"([^"]*)"', quoted))
        schemas[name] = schema
        if kind == "OPERATOR_WITH_VARIANT":
            schemas[f"_{name}"] = schema
    return schemas


LISTED = listed()


def test_python_knows_the_operators_of_the_list_and_no_others():
    assert set(_library.OPS) == set(LISTED)
    assert len(LISTED) >= 59  # the file was read: a new operator needs no change here


@pytest.mark.parametrize("op", _library.OPS)
def test_the_registered_schema_is_the_one_of_the_list(op):
    registered = getattr(torch.ops.fusedops, op).default._schema
    assert registered == torch._C.parse_schema(f"fusedops::{op}{LISTED[op]}")


@pytest.mark.parametrize("op", _library.OPS)
def test_every_operator_has_a_kernel_and_a_fake_kernel(op):
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"fusedops::{op}", "CPU")
    assert registry.find(f"fusedops::{op}").fake_impl.kernel is not None


def test_operators_with_a_variant_are_those_that_the_list_says():
    marked = {name for kind, name, _ in ENTRY.findall(LIST.read_text()) if "VARIANT" in kind}
    assert set(_library.OPS_WITH_VARIANT) == marked
