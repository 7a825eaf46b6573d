"""Computes dropout where each rank has some of the rows: the op itself, and the factors for other
ops that have dropout.

The kernels number the rows of the tensor that they get, and their random numbers depend on these
row numbers. A rank that has only some rows of a tensor therefore calls the op without dropout, and
multiplies by the factors that the kernel would draw for these rows of the whole tensor (csrc/args.h
defines them). So any placement drops the same elements, and nothing is sent. Drawing with torch's
functions takes some 30 passes over int64 tensors with a quarter as many elements as the rank's
part. A row that is divided among ranks is gathered.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from fusedops.integrations.dtensor.call import Call, Rule
from fusedops.integrations.dtensor.partition import Partition, Result, Space
from fusedops.reference import philox


def drops(call: Call) -> bool:
    """Whether a call has dropout."""
    return "seed" in call and call["p"] > 0


def draws_for_part(call: Call, part: Partition) -> bool:
    """Whether a call has dropout, and each rank has only some of the rows, so that the rank has to
    draw its random numbers itself."""
    return drops(call) and any(dim is not None for dim in part.divided)


def multiplier(call: Call, part: Partition, like: torch.Tensor, row_dim_count: int) -> torch.Tensor:
    """Returns the factors of dropout for ``like``, which is this rank's part: 0 for an element that
    is dropped, 1 / (1 - p) for others.

    row_dim_count: how many of the last dimensions a row consists of. No rank has only a part of a
        row.
    """
    outer_dim_count = len(part.sizes) - row_dim_count
    cols = math.prod(part.sizes[outer_dim_count:])
    words = philox(call["seed"].reshape(()), _row_numbers(part, like, outer_dim_count), cols)
    threshold = min(int(call["p"] * 2**32 + 0.5), 2**32 - 1)
    kept = (words >= threshold).view(like.shape)
    wide = torch.promote_types(like.dtype, torch.float32)
    return kept.to(wide) * (1 / (1 - call["p"]) if call["p"] < 1 else 0.0)


def _row_numbers(part: Partition, like: torch.Tensor, outer_dim_count: int) -> torch.Tensor:
    """Returns for each of this rank's rows its number in the whole tensor."""
    numbers = torch.zeros((), dtype=torch.int64, device=like.device)
    for dim in range(outer_dim_count):
        start = part.start(dim) if dim in part.divided else 0
        of_part = torch.arange(start, start + like.shape[dim], device=like.device)
        numbers = numbers.unsqueeze(-1) * part.sizes[dim] + of_part
    return numbers.reshape(-1)


# --- the op -------------------------------------------------------------------------------------


def _space(call: Call) -> Space:
    """Returns the Space that describes a call. Where elements are dropped, every rank needs whole
    rows."""
    sizes = tuple(call["input"].shape)
    every = tuple(range(len(sizes)))
    row = frozenset(every[-1:] if drops(call) else ())
    return Space(sizes, {"input": every}, (Result(every),), ("input",), row)


def _local(call: Call, part: Partition, local: dict[str, Any]) -> torch.Tensor:
    """Returns the results for a rank's part."""
    if not draws_for_part(call, part):
        result: torch.Tensor = call.run(local)
        return result
    input: torch.Tensor = local["input"].relu() if call["relu"] else local["input"]
    return input * multiplier(call, part, input, row_dim_count=1)


RULES = {"dropout": Rule(_space, _local)}
