"""Recognises what models do to logits before a loss: casts, views of the rows, a scale, and a soft
cap, which bounds them by a tanh."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.nodes import users
from fusedops.graph.analysis.steps import call_of
from fusedops.graph.analysis.values import value
from fusedops.graph.availability import KERNEL_DTYPES
from fusedops.graph.readers.scores import Scores, through_factor


def read_logits(logits: Node, readers: Iterable[Node]) -> Scores:
    """Returns the tensor, scale and soft cap from which the model computes `logits`. The tensor has
    the same rows in its last dimension, but the dimensions before it may differ. `readers` are the
    calls of the loss: what another call uses too is not traced further back.

    For the shifted logits of a language model, the copy that makes them contiguous is skipped:

        before    shifted = logits[:, :-1].contiguous();  flat = shifted.view(-1, classes)
        after     logits[:, :-1], whose rows the op reads where they are
    """
    read = Scores(logits)
    ours = set(readers)
    while (call := call_of(read.input)) is not None:
        further = through_factor(read, call) or _through_view(read, call)
        ours.add(call.node)
        if further is None or not ours.issuperset(users(call.node)) or not _is_safe(further, call):
            break
        read = replace(further, nodes=(call.node, *read.nodes))
    return read


def _through_view(read: Scores, call: Call) -> Scores | None:
    """Returns `read` with the logits before a copy, or before a view that keeps the last dimension;
    None if `call` is neither."""
    source, result = value(call.arguments.get("input")), value(call.node)
    if call.kind not in ("same", "reshape") or not isinstance(source, torch.Tensor):
        return None
    has_rows = source.dim() > 0 and result.dim() > 0
    if not has_rows or not statically_known_true(source.shape[-1] == result.shape[-1]):
        return None
    return replace(read, input=call.arguments["input"])


def _is_safe(read: Scores, step: Call) -> bool:
    """Returns whether the loss's op takes the dtype of `read.input`, and computes `step` in float64
    if and only if the model does."""
    dtype, result = value(read.input).dtype, value(step.node).dtype
    return dtype in KERNEL_DTYPES and (result == torch.float64) == (dtype == torch.float64)
