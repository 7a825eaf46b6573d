"""Computes the cross entropy of rows of logits, or the log-probability of a class, in one pass over
the logits.

before    loss = F.cross_entropy(logits.float().view(-1, classes), target.view(-1))
after     losses, lse, lse_error = torch.ops.fusedops.cross_entropy(logits, target, -100)
          loss = losses.sum() / (target != -100).sum()

before    y = torch.log_softmax(logits, -1).gather(-1, target.unsqueeze(-1))
after     losses, lse, lse_error = torch.ops.fusedops.cross_entropy(logits, target, None)
          y = -losses.unsqueeze(-1)

The op takes the logits from before casts, views, a scale and a soft cap. A logsumexp of the same
logits, as in a z-loss, is its second output. Class weights, ignored rows and reductions become
calls on one number for each row, which Inductor fuses.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fusedops.graph.analysis import modes, storages
from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.steps import has_shape
from fusedops.graph.analysis.values import sizes_are_symbols, value
from fusedops.graph.readers.losses import Loss, log_sums, read_logits, read_loss
from fusedops.graph.readers.scores import Scores
from fusedops.graph.rule import Match, OpCall, Output, Rule, viewed

aten = torch.ops.aten


class CrossEntropy(Rule):
    """Replaces a cross entropy, or the element of a log_softmax at the class of each row."""

    name = "cross_entropy"

    def match(self, call: Call) -> Match | None:
        loss = read_loss(call)
        return None if loss is None else _match(loss)

    def refusal(self, match: Match) -> str | None:
        logits, site = viewed(match.call.input), match.call.node
        if refusal := super().refusal(match):
            return refusal
        if storages.is_written_after(logits, site, {*match.nodes}):
            return "the logits are written in place after the loss, which the backward pass reads"
        made_elsewhere = modes.has_left_inference_mode(site, logits)
        return "the logits were made in inference mode" if made_elsewhere else None


def _match(loss: Loss) -> Match:
    """Returns the site of a loss, with the calls that make its logits, and at most one logsumexp of
    the same logits. Further logsumexps stay in the graph: if a model returns two of them, they must
    not share the memory of the op's one output, and Inductor would remove a copy of that output."""
    beside = [] if loss.refusal else _before_target(loss, log_sums(loss))[:1]
    is_last = loss.are_classes_last
    logits = read_logits(loss.logits, {*loss.nodes, *beside}) if is_last else Scores(loss.logits)
    refusal = loss.refusal or (None if is_last else _not_adjacent(loss))
    arguments = {
        "input": logits.input if is_last else _with_classes_last(loss),
        "target": loss.target,
        "ignore_index": loss.ignore_index,
        "label_smoothing": loss.label_smoothing,
        "scale": logits.scale,
        "softcap": logits.softcap,
        "reads_ignored": bool(beside),
    }
    is_reshaped = not has_shape(logits.input, value(loss.logits).shape)
    if logits.input is not loss.logits and not refusal and is_reshaped:
        rows = value(logits.input).shape[:-1]
        arguments["target"] = _shaped(loss.target, _sizes(rows, (logits.input,)))
    nodes = tuple(sorted({*logits.nodes, *loss.nodes, *beside}))
    results: dict[Node, Output] = {loss.last: partial(_result, loss)}
    results |= {node: partial(_log_sum, loss, node) for node in beside}
    shapes = (_sizes(value(node).shape, _sources(loss, logits.input)) for node in results)
    if any(None in sizes for sizes in shapes):
        refusal = refusal or "a size of its result is that of no dimension of the logits or target"
    site = Call("cross_entropy", "cross_entropy", loss.last, arguments, refusal)
    return Match(site, results, nodes, insert_before=min(results))


def _before_target(loss: Loss, beside: Sequence[Node]) -> list[Node]:
    """Returns those of the logsumexps `beside` that come after the loss's target and class weights,
    so that one op, inserted before them, can compute them and the loss."""
    operands = [node for node in (viewed(loss.target), loss.weight) if isinstance(node, Node)]
    return [node for node in beside if all(operand < node for operand in operands)]


def _not_adjacent(loss: Loss) -> str | None:
    """Returns why the op cannot read the classes of a row without a copy of the logits, or None."""
    stride = value(loss.logits).stride(loss.dim)
    is_adjacent = statically_known_true(stride == 1)
    return None if is_adjacent else "the classes of a row are not adjacent in memory"


def _with_classes_last(loss: Loss) -> OpCall:
    rank = value(loss.logits).dim()
    dims = [*(dim for dim in range(rank) if dim != loss.dim), loss.dim]
    return OpCall(aten.permute.default, (loss.logits, dims))


# --- from losses to the result --------------------------------------------------------------------


def _result(loss: Loss, op: OpCall) -> OpCall:
    """Returns the losses that `op` computes, weighted and reduced as the model does, in the dtype
    and shape of the model's result."""
    losses = OpCall(operator.getitem, (op, 0))
    if loss.is_log_probability:
        losses = OpCall(aten.neg.default, (losses,))
    counted = counted_rows(loss, op.args[1])
    weights = row_weights(loss, op.args[1], counted)
    if weights is not None:
        losses = OpCall(aten.mul.Tensor, (losses, weights))
    if loss.reduction == "none":
        return _as_result(losses, loss, loss.last, op)
    total = OpCall(aten.sum.default, (losses,))
    if loss.reduction == "mean":
        count = OpCall(aten.sum.default, (counted if weights is None else weights,))
        total = OpCall(aten.div.Tensor, (total, count))
    return as_dtype(total, loss)


def counted_rows(loss: Loss, target: Any) -> OpCall:
    """Returns the call that computes which rows count: a bool tensor that is False where the target
    is `ignore_index`."""
    return OpCall(aten.ne.Scalar, (target, loss.ignore_index))


def row_weights(loss: Loss, target: Any, counted: OpCall) -> OpCall | None:
    """Returns the call that computes each row's weight, which is the weight of the row's class, or
    0 for an ignored row. Returns None if the loss has no class weights."""
    if loss.weight is None:
        return None
    classes = OpCall(aten.where.ScalarOther, (counted, target, 0))
    weights = OpCall(aten.index.Tensor, (loss.weight, [classes]))
    weights = OpCall(aten.to.dtype, (weights, wide_dtype(loss)))
    return OpCall(aten.where.ScalarOther, (counted, weights, 0.0))


def _log_sum(loss: Loss, node: Node, op: OpCall) -> OpCall:
    """Returns the op's second output in place of `node`, the logsumexp of the same logits."""
    return _as_result(OpCall(operator.getitem, (op, 1)), loss, node, op)


def _as_result(computed: OpCall, loss: Loss, old: Node, op: OpCall) -> OpCall:
    """Returns `computed`, which has one number for each row, in the shape and dtype of `old`, the
    node that it replaces."""
    logits = op.args[0]
    rows = value(logits).shape[:-1] if isinstance(logits, Node) else None
    if rows is not None and has_shape(old, (*rows, 1)):
        computed = OpCall(aten.unsqueeze.default, (computed, -1))
    elif rows is None or not has_shape(old, rows):
        computed = _shaped(computed, _sizes(value(old).shape, _sources(loss, viewed(logits))))
    return as_dtype(computed, loss, old)


def as_dtype(computed: OpCall, loss: Loss, old: Node | None = None) -> OpCall:
    """Casts `computed`, which has the op's dtype, to the dtype of `old`, by default of the loss."""
    dtype = value(old or loss.last).dtype
    return computed if dtype == wide_dtype(loss) else OpCall(aten.to.dtype, (computed, dtype))


def wide_dtype(loss: Loss) -> torch.dtype:
    """Returns the dtype of the op's losses: float32, or float64 for float64 logits."""
    return torch.promote_types(value(loss.logits).dtype, torch.float32)


def _shaped(tensor: Any, sizes: Sequence[Any]) -> OpCall:
    return OpCall(aten.reshape.default, (tensor, list(sizes)))


def _sources(loss: Loss, logits: Node) -> tuple[Node, ...]:
    """Returns the nodes of whose dimensions `_sizes` may read the sizes of a result."""
    return loss.logits, viewed(loss.target), logits


def _sizes(shape: Sequence[Any], sources: Sequence[Node]) -> list[Any]:
    """Returns the sizes for a reshape to `shape`: [-1] for a vector, and otherwise the shape
    itself, except that sizes which may change between calls are read from `sources` in the graph.
    Among several dimensions of the same size, the one with the same index is preferred. None stands
    for a symbolic size that no dimension of `sources` has."""
    if len(shape) == 1:
        return [-1]
    return [_size(size, dim, sources) for dim, size in enumerate(shape)]


def _size(size: Any, place: int, sources: Sequence[Node]) -> Any:
    """Returns the element of `_sizes` for `size`, the size of dimension `place`."""
    is_number = isinstance(size, int)
    if is_number and sizes_are_symbols(value(sources[0])):
        return size
    found = [
        OpCall(aten.sym_size.int, (source, dim))
        for source in sources
        for dim, each in enumerate(value(source).shape)
        if statically_known_true(each == size)
    ]
    return min(found, key=lambda read: read.args[1] != place, default=size if is_number else None)
