"""What the rules that take a dropout in have in common."""

from __future__ import annotations

import torch
import torch._inductor.config as inductor_config

from fusedops.graph import aliasing
from fusedops.graph.dialect import Call
from fusedops.graph.rule import New


def draws_own_numbers(dropout: Call) -> bool:
    """Whether a dropout drops anything, and its random numbers may be others than eager's."""
    given = dropout.arguments
    if given["train"] is not True or not given["p"] or inductor_config.fallback_random:
        return False
    return aliasing.storage(dropout.node) != aliasing.storage(given["input"])  # not in place


def drawn_seed(device: torch.device) -> New:
    """A key for the op's own random numbers, from the generator that eager's dropout draws from."""
    limits = (-(2**63), 2**63 - 1)
    dtype_and_device = {"dtype": torch.int64, "device": device}
    return New(torch.ops.aten.randint.low, (*limits, ()), dtype_and_device)
