"""Has helpers for the rules that fuse a dropout."""

from __future__ import annotations

import torch
import torch._inductor.config as inductor_config

from fusedops.graph.analysis import storages
from fusedops.graph.analysis.calls import Call
from fusedops.graph.rule import SAVED, OpCall


def is_active(dropout: Call) -> bool:
    """Returns whether a dropout drops anything, and makes a new tensor."""
    arguments = dropout.arguments
    is_on = arguments["train"] is True and bool(arguments["p"])
    return is_on and not storages.is_in_place(dropout)


def wants_eagers_numbers() -> bool:
    """Returns whether compiled code has to use the random numbers of eager mode, as Inductor's
    setting fallback_random asks for. No op does."""
    return bool(inductor_config.fallback_random)


def draws_own_numbers(dropout: Call) -> bool:
    """Returns whether an op may replace a dropout."""
    return is_active(dropout) and not wants_eagers_numbers()


def drawn_seed(device: torch.device) -> OpCall:
    """Returns the call that draws a seed for the op's random numbers, from the generator that
    eager's dropout uses. Inductor must save the seed: if it drew another one for the backward pass,
    the gradient would have another mask than the output."""
    limits = (-(2**63), 2**63 - 1)
    dtype_and_device = {"dtype": torch.int64, "device": device}
    return OpCall(torch.ops.aten.randint.low, (*limits, ()), dtype_and_device, meta=SAVED)
