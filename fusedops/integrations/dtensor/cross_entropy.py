"""Cross entropy of logits whose classes are divided among ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from fusedops.integrations.dtensor.partition import Partition, Result, sum_of_parts
from fusedops.integrations.dtensor.softmax import merged, own_statistics

_ROWS, _CLASSES = 0, 1
_OF_ROWS, _OF_LOGITS = Result((_ROWS,)), Result((_ROWS, _CLASSES))


def cross_entropy(
    input: DTensor, target: torch.Tensor, ignore_index: int = -100, reduction: str = "mean"
) -> DTensor:
    r"""Cross entropy of logits and class indices: :math:`\log \sum_j e^{x_j} - x_t` of each row.

    Where the classes are divided among ranks, no rank has a whole row of logits or probabilities:
    forward, each rank sends three numbers a row (maximum, sum, the target's logit) by one
    all-gather, and backward none. Saved for the derivative are the logits and two numbers a row.

    Args:
        input: logits, ``[rows, classes]``; float32, bfloat16, float16 or float64. Rows and classes
            may be sharded, each over any dimensions of the mesh.
        target: int64 ``[rows]``, a class for each row; a DTensor, or a plain tensor that is the
            same on all ranks.
        ignore_index: rows with this target do not count.
        reduction: "mean" over the rows that count, "sum" or "none".

    Returns:
        A DTensor, of no dimension, or ``[rows]`` for "none"; float64 for a float64 ``input``, else
        float32. Differentiable once.

    Raises:
        TypeError: ``input`` is not a DTensor.
        RuntimeError: shapes other than the above, a ``target`` that is not int64 or on another
            mesh.
        ValueError: an unknown ``reduction``.

    Source: :func:`torch.nn.functional.cross_entropy`; Shoeybi et al., "Megatron-LM" (2019), for the
    division of the classes.
    """
    _check(input, target, reduction)
    mesh = input.device_mesh
    part = Partition(mesh, tuple(input.shape), tuple(map(_divided, input.placements)))
    logits = input.redistribute(mesh, part.placements(_OF_LOGITS))
    rows = part.placements(_OF_ROWS)
    if not isinstance(target, DTensor):
        target = DTensor.from_local(target, mesh, [Replicate()] * mesh.ndim, run_check=False)
    target = target.redistribute(mesh, rows)
    counts: Any = target != ignore_index
    local = _RowLosses.apply(*(t.to_local() for t in (logits, target, counts)), part)
    losses = DTensor.from_local(
        local, mesh, rows, run_check=False, shape=target.shape, stride=target.stride()
    )
    return _reduced(losses, counts, reduction)


def _reduced(losses: Any, counts: Any, reduction: str) -> DTensor:
    result: DTensor = losses if reduction == "none" else losses.sum()
    return result / counts.sum() if reduction == "mean" else result


def _divided(placement: Placement) -> int | None:
    return placement.dim % 2 if type(placement) is Shard else None


class _RowLosses(torch.autograd.Function):
    """The losses of this rank's rows, from its part of their logits."""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, target: torch.Tensor, counts: torch.Tensor, part: Partition
    ) -> torch.Tensor:
        own_max, own_sum = own_statistics(logits, _CLASSES)
        at, is_here = _own_classes(logits, target, counts, part)
        picked = logits.gather(_CLASSES, at) if logits.shape[_CLASSES] else own_max
        own_logit = torch.where(is_here, picked.to(own_max.dtype), 0)
        *statistics, logits_of_target = part.all_gather((own_max, own_sum, own_logit), (_CLASSES,))
        max, sum = merged(*statistics)
        logit = sum_of_parts(logits_of_target)
        ctx.part = part
        ctx.save_for_backward(logits, target, counts, max, sum)
        losses = (sum.log() + (max - logit)).squeeze(_CLASSES)
        return losses.masked_fill(~counts, 0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        logits, target, counts, max, sum = ctx.saved_tensors
        rows = grad.masked_fill(~counts, 0).unsqueeze(_CLASSES)
        gradient = torch.ops.fusedops.softmax_apply.default(logits, max, sum, _CLASSES, max.dtype)
        gradient = gradient * rows
        if logits.shape[_CLASSES]:
            at, is_here = _own_classes(logits, target, counts, ctx.part)
            gradient.scatter_add_(_CLASSES, at, torch.where(is_here, -rows, 0))
        return gradient.to(logits.dtype), None, None, None


def _own_classes(
    logits: torch.Tensor, target: torch.Tensor, counts: torch.Tensor, part: Partition
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row's target among this rank's classes, and whether it is one of them."""
    index = target - part.start(_CLASSES)
    is_here = counts & (index >= 0) & (index < logits.shape[_CLASSES])
    return torch.where(is_here, index, 0).unsqueeze(_CLASSES), is_here.unsqueeze(_CLASSES)


def _check(input: Any, target: Any, reduction: str) -> None:
    function = "cross_entropy"
    if not isinstance(input, DTensor):
        raise TypeError(
            f"{function}: input is {type(input).__name__}, wanted a DTensor; for a plain tensor "
            "use torch.nn.functional.cross_entropy"
        )
    if input.dim() != 2:
        raise RuntimeError(
            f"{function}: input has shape {list(input.shape)}, wanted [rows, classes]; make it "
            "with .flatten(0, -2)"
        )
    if target.dtype != torch.int64 or target.shape != input.shape[:1]:
        raise RuntimeError(
            f"{function}: target is {target.dtype} of shape {list(target.shape)}, wanted "
            f"torch.int64 of shape {list(input.shape[:1])}, a class for each row"
        )
    if isinstance(target, DTensor) and target.device_mesh != input.device_mesh:
        raise RuntimeError(
            f"{function}: target is on {target.device_mesh}, wanted {input.device_mesh}, which "
            "input is on; redistribute it through .full_tensor() and distribute_tensor"
        )
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction is {reduction!r}, wanted 'mean', 'sum' or 'none'")
