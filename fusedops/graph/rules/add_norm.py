"""Fuses a residual connection with the norm after it and the dropout of the branch.

before    h = residual + F.dropout(branch, p, training)
          y = torch.layer_norm(h, normalized_shape, weight, bias, eps)
after     y, h, mean, rstd = torch.ops.fusedops.add_layer_norm(
              branch, residual, normalized_shape, weight, bias, eps, p, seed)

The norm can be any that another rule finds. There may be a reshape between sum and norm. Branch and
residual may have different dtypes, as under autocast. The op converts both to the dtype of the sum,
so that a cast of the branch, before or after its dropout, is fused too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.nodes import users
from fusedops.graph.analysis.steps import call_of, is_widening, same_shape
from fusedops.graph.analysis.values import are_equal, value
from fusedops.graph.availability import KERNEL_DTYPES
from fusedops.graph.readers.dropout import drawn_seed, draws_own_numbers
from fusedops.graph.rule import Match, OpCall, Output, Rule, nodes_of, ordered_arguments

#: The index of the sum among the op's results, which are the norm, the sum and the statistics.
_SUM = 1


@dataclass(frozen=True)
class _Residual:
    """The sum branch + residual, where the branch is the summand that may have a dropout.

    branch: this summand before its dropout, and before casts that the op does not need.
    nodes: the fused nodes in program order; the last one is the input of the norm.
    p: the probability of the dropout; 0 if there is none.
    """

    branch: Node | OpCall
    residual: Node | OpCall
    nodes: tuple[Node, ...]
    p: float = 0.0

    @property
    def sum(self) -> Node:
        return self.nodes[-1]


class AddNorm(Rule):
    """Replaces a norm that another rule finds, together with the sum and the dropout before it."""

    def __init__(self, norm: Rule) -> None:
        self.norm, self.name = norm, f"add_{norm.name}"

    def match(self, call: Call) -> Match | None:
        norm = self.norm.match(call)
        if norm is None or norm.call.refusal or self.norm.refusal(norm):
            return None
        residual = _residual(norm) if norm.op in ("layer_norm", "rms_norm") else None
        return _with_residual(norm, residual) if residual else None


def _with_residual(norm: Match, residual: _Residual) -> Match | None:
    """Returns the match of the norm and the sum before it. Returns None if another user of the sum
    comes before one of the op's operands, because the op would have to stand between the two."""
    op = f"add_{norm.op}"
    given = norm.call.arguments | {
        "input": residual.branch,
        "residual": residual.residual,
        "p": residual.p,
        "seed": drawn_seed(value(residual.sum).device) if residual.p else None,
    }
    arguments = ordered_arguments(op, given)
    indices = {old: index for old, index in norm.results.items() if isinstance(index, int)}
    # The sum comes before the statistics, whose indices are therefore one higher than the norm's.
    results: dict[Node, Output] = {old: index + (index >= _SUM) for old, index in indices.items()}
    remaining = _remaining(norm)
    others = [user for user in users(residual.sum) if user not in norm.nodes or user in remaining]
    if others:
        results[residual.sum] = _SUM
    # The op computes the sum, and must therefore come before all other users of the sum.
    insert_before = min([norm.call.node, *others])
    operands = nodes_of(arguments.values())
    if any(node.op != "placeholder" and not node < insert_before for node in operands):
        return None
    site = Call(op, op, norm.call.node, arguments)
    return Match(site, results, (*residual.nodes, *norm.nodes), insert_before)


def _remaining(norm: Match) -> set[Node]:
    """Returns the nodes of the norm that remain in the graph because they have other users."""
    remaining: set[Node] = set()
    for node in reversed(norm.nodes):
        inner = node is not norm.call.node and node not in norm.results
        if inner and not (set(norm.nodes) - remaining).issuperset(users(node)):
            remaining.add(node)
    return remaining


def _residual(norm: Match) -> _Residual | None:
    """Returns the sum that is normalised, directly or after a reshape, or None if the norm's input
    is something else."""
    total = norm.call.input
    view = call_of(total, "reshape")
    if view is None:
        return _sum(total)
    inner, rank = view.input, len(value(norm.call.arguments["normalized_shape"]))
    residual = _sum(inner) if isinstance(inner, Node) and users(inner) == [total] else None
    if residual is None or not are_equal(value(inner).shape[-rank:], value(total).shape[-rank:]):
        return None
    branch, summand = (
        OpCall(torch.ops.aten.reshape.default, (operand, _shape(view)))
        for operand in (residual.branch, residual.residual)
    )
    return _Residual(branch, summand, (*residual.nodes, total), residual.p)


def _shape(view: Call) -> Any:
    """Returns the shape of a reshape, which the model passes as one argument or as several. The
    result may be a node, since torch.fx records x.shape as a node."""
    shape = view.arguments["shape"]
    if isinstance(shape, (list, tuple)) and isinstance(value(shape[0]), (list, tuple)):
        shape = shape[0]
    return shape if isinstance(shape, Node) else list(shape)


def _sum(node: Any) -> _Residual | None:
    """Returns the residual connection that `node` is. Returns None unless `node` is a sum of two
    floating-point tensors of its own shape, whose dtypes promote to its dtype."""
    call = call_of(node, "add")
    if call is None:
        return None
    first, other = call.operands
    if not all(isinstance(n, Node) and same_shape(n, node) for n in (first, other)):
        return None
    if not _adds_to(first, other, node):
        return None
    if first is other:
        return _Residual(first, other, (node,))
    # The branch is the operand with a dropout or, without one, with more casts to fuse.
    candidates = (_from_branch(first, other, node), _from_branch(other, first, node))
    return max(candidates, key=lambda residual: (residual.p, len(residual.nodes)))


def _adds_to(first: Node, other: Node, total: Node) -> bool:
    """Returns whether the op would give the sum of two tensors the dtype of `total`."""
    dtypes = [value(node).dtype for node in (first, other)]
    are_supported = all(dtype in KERNEL_DTYPES for dtype in dtypes)
    return are_supported and torch.promote_types(*dtypes) == value(total).dtype


def _from_branch(branch: Node, residual: Node, total: Node) -> _Residual:
    """Returns the sum together with the dropout and the lossless casts that compute `branch`, as
    far as nothing else uses their results."""
    nodes: tuple[Node, ...] = (total,)
    node, p = branch, 0.0
    while (call := call_of(node)) is not None and users(node) == [nodes[0]]:
        if call.kind == "dropout" and not p and draws_own_numbers(call):
            p = float(call.arguments["p"])
        elif not _is_unneeded_cast(call, residual, total):
            break
        nodes, node = (node, *nodes), call.input
    return _Residual(node, residual, nodes, p)


def _is_unneeded_cast(call: Call, residual: Node, total: Node) -> bool:
    """Returns whether `call` is a cast whose input the op can take in place of its result: the cast
    loses nothing, and the op adds its input to `residual` in the dtype of `total` anyway."""
    is_lossless = call.kind == "cast" and is_widening(call)
    return is_lossless and _adds_to(call.input, residual, total)
