"""What the rules that take a dropout in have in common."""

from __future__ import annotations

import torch
import torch._inductor.config as inductor_config

from fusedops.graph.ir import aliasing
from fusedops.graph.ir.dialect import Call
from fusedops.graph.rules.rule import OpCall


def draws_own_numbers(dropout: Call) -> bool:
    """Whether a dropout drops anything, and its random numbers may be others than eager's."""
    given = dropout.arguments
    if given["train"] is not True or not given["p"] or inductor_config.fallback_random:
        return False
    return aliasing.storage(dropout.node) != aliasing.storage(given["input"])  # not in place


def drawn_seed(device: torch.device) -> OpCall:
    """A key for the op's own random numbers, from the generator that eager's dropout draws from."""
    limits = (-(2**63), 2**63 - 1)
    dtype_and_device = {"dtype": torch.int64, "device": device}
    return OpCall(torch.ops.aten.randint.low, (*limits, ()), dtype_and_device)
