"""Computes the cross entropy of DTensors, also where the classes are divided among ranks.

Where they are divided, no rank has a whole row of logits or probabilities. In the forward pass each
rank sends three numbers for each row by one all-gather: lse, which is the logsumexp of its part of
the logits, the rounding error of lse, and the loss if the rank has the row's class. In the backward
pass it sends nothing. With label smoothing, which needs the mean of the logits too, the classes are
gathered.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch.distributed.tensor import DTensor, Replicate

from fusedops.functional import cross_entropy as cross_entropy_of_plain
from fusedops.integrations.dtensor.call import Call, Rule
from fusedops.integrations.dtensor.partition import Dims, Partition, Result, Space, sum_of_parts
from fusedops.ops.cross_entropy import ignored_rows

ops = torch.ops.fusedops

#: This stands for the loss of a row whose class another rank has. No loss has this value, since a
#: loss is at least 0.
_ELSEWHERE = -1.0


def cross_entropy(
    input: DTensor,
    target: torch.Tensor,
    ignore_index: int = -100,
    reduction: Literal["mean", "sum", "none"] = "mean",
) -> DTensor:
    r"""Computes the cross entropy of logits and class indices, for each row
    :math:`\log \sum_j e^{x_j} - x_t`.

    This function does what ``fusedops.cross_entropy`` does, with the classes in the last dimension.
    Unlike ``fusedops.cross_entropy`` it also takes a plain tensor as ``target``.

    Args:
        input: logits, ``[..., classes]``; float32, bfloat16, float16 or float64. Rows and classes
            may be sharded, each over any dimensions of the mesh.
        target: int64, int32 or uint8, of ``input``'s shape without the classes: a class for each
            row; a DTensor, or a plain tensor that is the same on all ranks. Where the classes are
            divided, the loss of a class out of range is NaN.
        ignore_index: rows with this target do not count.
        reduction: "mean" over the rows that count, "sum" or "none".

    Returns:
        A DTensor, of no dimension, or of ``target``'s shape for "none"; float64 for a float64
        ``input``, else float32. Twice differentiable.

    Raises:
        TypeError: ``input`` is not a DTensor.
        RuntimeError: as ``fusedops.cross_entropy``, or a ``target`` on another mesh.
        ValueError: an unknown ``reduction``.

    Source: :func:`torch.nn.functional.cross_entropy`; Shoeybi et al., "Megatron-LM" (2019), for the
    division of the classes.
    """
    if not isinstance(input, DTensor):
        raise TypeError(
            f"cross_entropy: input is {type(input).__name__}, wanted a DTensor; for a plain tensor "
            "use fusedops.cross_entropy"
        )
    if not isinstance(target, DTensor):
        mesh = input.device_mesh
        target = DTensor.from_local(target, mesh, [Replicate()] * mesh.ndim, run_check=False)
    loss: Any = cross_entropy_of_plain(
        input, target, ignore_index=ignore_index, reduction=reduction, dim=-1
    )
    result: DTensor = loss
    return result


# --- the ops ------------------------------------------------------------------------------------


def _space(call: Call) -> Space:
    """Returns the Space that describes a call. With label smoothing every rank needs all
    classes."""
    sizes = tuple(call["input"].shape)
    every = tuple(range(len(sizes)))
    rows, classes = every[:-1], frozenset(every[-1:])
    names = ("target", "losses", "lse", "lse_error", "grad_losses", "grad_lse")
    tensors: dict[str, Dims] = {"input": every, **dict.fromkeys(names, rows)}
    results = tuple(Result(tensors.get(name, every)) for name in call.results)
    undivided = classes if call["label_smoothing"] else frozenset[int]()
    return Space(sizes, tensors, results, ("input",), classes, undivided)


def _split_forward(call: Call, part: Partition, local: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """Returns the losses of whole rows, their lse and its rounding error. Takes one all-gather."""
    target, ignore_index = local["target"], call["ignore_index"]
    classes = call["input"].dim() - 1
    lse, error, loss = part.all_gather(_local_losses(part, local), (classes,))
    precise = lse.double() + error.double()
    total = precise.logsumexp(0)
    losses = _merged_losses(precise, loss.double(), total)
    ignored = ignored_rows(target, ignore_index)
    losses = losses.masked_fill(ignored, 0)
    if not call["reads_ignored"]:
        total = total.masked_fill(ignored, 0)
    rounded = total.to(lse.dtype)
    left = (total - rounded).masked_fill(~total.isfinite(), 0)
    return losses, rounded, left


def _local_losses(part: Partition, local: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """Returns three tensors about this rank's part of each row: the part's lse, the rounding error
    of lse, and the loss that the row's class has within the part, or _ELSEWHERE if the class is in
    another part."""
    logits, target = local["input"], local["target"]
    columns = logits.shape[-1]
    if columns == 0:
        wide = torch.promote_types(logits.dtype, torch.float32)
        values = (-math.inf, 0.0, _ELSEWHERE)
        return tuple(logits.new_full(target.shape, value, dtype=wide) for value in values)
    index = _index(part, local)
    is_here = (index >= 0) & (index < columns) & ~ignored_rows(target, local["ignore_index"])
    # For the op, rows whose class is elsewhere are ignored rows (class -1). The last argument,
    # reads_ignored, makes it compute their lse nevertheless.
    column = index.masked_fill(~is_here, -1)
    settings = (-1, 0.0, local["scale"], local["softcap"])
    losses, lse, error = ops.cross_entropy.default(logits, column, *settings, True)
    return lse, error, losses.masked_fill(~is_here, _ELSEWHERE)


def _merged_losses(lse: torch.Tensor, loss: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """Returns the losses of whole rows from the lse and the losses of their parts, which lie along
    the first dimension. `total` is the lse of whole rows.

    Let z be the logit of the row's class. The row's loss is log(1 + x), where x is the sum of
    e^loss - 1 for the part that has the class, and e^(lse - z) for each other part. If x is below
    1, expm1 and log1p keep its digits; otherwise the loss is computed as total - z.
    """
    is_here = loss != _ELSEWHERE
    logit = sum_of_parts((lse - loss).masked_fill(~is_here, 0))
    others = torch.where(is_here, loss.expm1(), (lse - logit).exp())
    excess = sum_of_parts(others)
    losses = torch.where(excess < 1, excess.log1p(), total - logit)
    return losses.masked_fill(~is_here.any(0), math.nan)


def _index(part: Partition, local: dict[str, Any]) -> torch.Tensor:
    """Returns each row's class as an index into this rank's part. The index is out of range if
    another rank has the class."""
    index: torch.Tensor = local["target"].to(torch.int64) - part.start(local["input"].dim() - 1)
    return index


def _split_backward(call: Call, part: Partition, local: dict[str, Any]) -> torch.Tensor:
    """Returns the gradient of this rank's logits, which the op computes. The op gets the classes
    and ignore_index as indices into this rank's part."""
    if local["input"].shape[-1] == 0:
        empty: torch.Tensor = local["input"].clone()
        return empty
    index, ignored = _index(part, local), call["ignore_index"]
    if ignored is not None:
        ignored -= part.start(local["input"].dim() - 1)
    moved = local | {"target": index, "ignore_index": ignored}
    gradient: torch.Tensor = ops.cross_entropy_backward.default(*moved.values())
    return gradient


RULES = {
    "cross_entropy": Rule(_space, None, _split_forward),
    "cross_entropy_backward": Rule(_space, None, _split_backward),
    "cross_entropy_backward_": Rule(_space, None, _split_backward, "input"),
}
