"""Has helpers for the rules that fuse a dropout."""

from __future__ import annotations

import torch
import torch._inductor.config as inductor_config

from fusedops.graph.analysis import storages
from fusedops.graph.analysis.calls import Call
from fusedops.graph.rule import SAVED, OpCall


def draws_own_numbers(dropout: Call) -> bool:
    """Returns whether an op may replace a dropout: it has to be active, to make a new tensor, and
    to be free to use other random numbers than eager mode. With Inductor's setting fallback_random
    it is not, since that asks for eager's numbers."""
    arguments = dropout.arguments
    if arguments["train"] is not True or not arguments["p"] or inductor_config.fallback_random:
        return False
    return not storages.is_in_place(dropout)


def drawn_seed(device: torch.device) -> OpCall:
    """Returns the call that draws a seed for the op's random numbers, from the generator that
    eager's dropout uses. Inductor must save the seed: if it drew another one for the backward pass,
    the gradient would have another mask than the output."""
    limits = (-(2**63), 2**63 - 1)
    dtype_and_device = {"dtype": torch.int64, "device": device}
    return OpCall(torch.ops.aten.randint.low, (*limits, ()), dtype_and_device, meta=SAVED)
