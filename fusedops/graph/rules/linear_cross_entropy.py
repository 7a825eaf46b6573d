"""Fuses a cross entropy with the linear layer before it, so that the logits of only one chunk of
rows are in memory at a time.

before    loss = F.cross_entropy(F.linear(x, weight).float().view(-1, classes), target.view(-1))
after     scale = 1 / (target != -100).sum()
          loss = torch.ops.fusedops.linear_cross_entropy(x, weight, target, scale=scale)

The rule applies only if the setting `fuse` has "linear_cross_entropy=always". There are two reasons
why it is not on by default. It saves memory rather than time, since without it the gradient of the
cross entropy is written over the logits. And the op multiplies one chunk of rows after the other,
so that its results differ in their last bits from those of one product of all rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from fusedops import config
from fusedops.graph.analysis import storages
from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.nodes import is_private
from fusedops.graph.analysis.steps import call_of
from fusedops.graph.analysis.values import value
from fusedops.graph.readers.losses import Loss, log_sums, read_logits, read_loss
from fusedops.graph.readers.scores import Scores
from fusedops.graph.rule import Match, OpCall, Rule, nodes_of
from fusedops.graph.rules.cross_entropy import as_dtype, counted_rows, row_weights, wide_dtype

aten = torch.ops.aten


class LinearCrossEntropy(Rule):
    """Replaces a mean or sum of cross entropies of a linear layer's results, which nothing else may
    use."""

    name = "linear_cross_entropy"

    def match(self, call: Call) -> Match | None:
        loss = read_loss(call) if config.active().asks_for(self.name) else None
        if loss is None or loss.refusal or loss.reduction == "none" or log_sums(loss):
            return None
        logits = read_logits(loss.logits, loss.nodes)
        linear = call_of(logits.input, "linear")
        nodes = (logits.input, *logits.nodes, *loss.nodes)
        is_rows = loss.are_classes_last and logits.scale == 1
        if linear is None or not is_private(nodes, loss.last) or not is_rows:
            return None
        return _match(loss, logits, linear, tuple(sorted(nodes)))

    def refusal(self, match: Match) -> str | None:
        site, ours = match.call.node, set(match.nodes)
        saved = (match.call.arguments[name] for name in ("input", "linear_weight", "linear_bias"))
        if any(storages.is_written_after(node, site, ours) for node in nodes_of(saved)):
            return "an operand is written in place after the loss, whose backward pass reads it"
        return super().refusal(match)


def _match(loss: Loss, logits: Scores, linear: Call, nodes: tuple[Node, ...]) -> Match:
    """Returns the match of a loss and of the linear layer that computes its logits. The input of
    the layer is reshaped to a matrix, and the target to a vector, as the op takes them."""
    weight = linear.arguments["weight"]
    rows = [-1, value(weight).shape[-1]]
    target = OpCall(aten.reshape.default, (loss.target, [-1]))
    counted = counted_rows(loss, target)
    weights = row_weights(loss, target, counted)
    arguments = {
        "input": OpCall(aten.reshape.default, (linear.input, rows)),
        "linear_weight": weight,
        "target": target,
        "linear_bias": linear.arguments.get("bias"),
        "row_weights": weights,
        "scale": _scale(loss, counted if weights is None else weights),
        "ignore_index": loss.ignore_index,
        "label_smoothing": loss.label_smoothing,
        "z_loss": 0.0,
        "softcap": logits.softcap,
    }
    site = Call("linear_cross_entropy", "linear_cross_entropy", loss.last, arguments)
    results = {loss.last: lambda op: as_dtype(op, loss)}
    return Match(site, results, nodes)


def _scale(loss: Loss, counts: Any) -> OpCall | None:
    """Returns the call that computes the factor by which the op multiplies the sum of the losses:
    1 / count for their mean. Returns None for a sum, which needs no factor."""
    if loss.reduction == "sum":
        return None
    count = OpCall(aten.sum.default, (counts,))
    return OpCall(aten.reciprocal.default, (OpCall(aten.to.dtype, (count, wide_dtype(loss))),))
