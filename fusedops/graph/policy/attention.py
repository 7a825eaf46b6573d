"""Tells which attention Inductor's pass fuse_attention runs as scaled_dot_product_attention (SDPA).

The pass has a list of patterns, which differ between inference and training: how the scores are
scaled, whether a mask is added, and how the heads were separated. What is said here was tried on
torch 2.10 and 2.13 on a CPU, in float32 and bfloat16, with heads in front, transposed as in models
of Hugging Face, and taken from one projection as in timm.

Source: `torch._inductor.fx_passes.fuse_attention`.
"""

from __future__ import annotations

import functools

import torch
from torch.fx import Node

from fusedops.graph.analysis.calls import kind_of
from fusedops.graph.analysis.nodes import packet
from fusedops.graph.analysis.products import VIEWS, feeds_products, is_product, unscaled
from fusedops.graph.analysis.values import dtype_of, hints, stride_hints, value
from fusedops.graph.rule import Match, viewed

#: Arguments of our op that no pattern has.
_OTHERS = ("bias", "lower_diagonal", "start", "end", "sinks", "softcap", "causal")


def becomes_sdpa(match: Match, is_trained: bool) -> bool:
    """Returns whether Inductor runs a softmax and the two matrix products around it as SDPA."""
    arguments = match.call.arguments
    if not match.op.startswith(("softmax", "masked_softmax")):
        return False
    if any(arguments.get(name) not in (None, False) for name in _OTHERS):
        return False
    if match.op == "masked_softmax_dropout" and value(match.call.node).device.type == "cpu":
        return False
    scores, mask = _scores_and_mask(match)
    if not (is_product(scores) and feeds_products(next(iter(match.results)))):
        return False
    product = unscaled(scores)
    if is_trained and any(dtype_of(node) != dtype_of(product) for node in match.nodes):
        return False
    scalings = _scalings(product)
    if mask is not None and (dtype_of(mask) == torch.bool or "mul" in scalings):
        return False
    return _is_known(product, scalings, is_trained)


def _scores_and_mask(match: Match) -> tuple[Node, Node | None]:
    """Returns the scores, and the mask if there is one, which a plain softmax gets as a sum."""
    scores, mask = viewed(match.call.arguments["input"]), match.call.arguments.get("mask")
    if mask is not None:
        return scores, viewed(mask)
    summands = scores.all_input_nodes if kind_of(scores) == "add" else []
    if len(summands) == 2 and any(map(is_product, summands)):
        scores, mask = sorted(summands, key=is_product, reverse=True)
    return scores, mask


def _scalings(product: Node) -> set[str]:
    """Returns the kinds of the calls that scale a product, perhaps after views and casts."""
    kinds = set()
    for user in product.users:
        kind = kind_of(user)
        kinds |= {kind} & {"mul", "div"}
        if kind in VIEWS or kind == "cast":
            kinds |= _scalings(user)
    return kinds


def _is_known(product: Node, scalings: set[str], is_trained: bool) -> bool:
    """Returns whether a pattern has such scores: the product of queries and keys, and the kinds of
    the calls that scale it."""
    query = _with_heads(product.all_input_nodes[0])
    is_transposed = kind_of(query) in ("transpose", "permute")
    if not scalings:
        is_bmm = value(query).dim() == 3 and "bmm" in str(packet(product))
        return not is_trained and (is_bmm or (is_transposed and _has_pattern(27)))
    if value(query).dim() != 4:
        return False
    if _is_merged(value(query)):
        return True
    if is_transposed and scalings == {"div"}:
        return True
    return not is_trained and scalings == {"mul"} and _has_pattern(28)


@functools.cache
def _has_pattern(number: int) -> bool:
    """Returns whether this torch has a pattern. torch 2.10 has 24 of them, torch 2.13 has 30."""
    # The import takes a while, and a process that compiles nothing does not need it.
    from torch._inductor.fx_passes import fuse_attention

    return hasattr(fuse_attention, f"_sfdp_pattern_{number}")


def _with_heads(query: Node) -> Node:
    """Returns the queries before the views by which a product of batches takes them."""
    node = query
    while value(node).dim() == 3 and kind_of(node) in ("reshape", "expand", "same"):
        node = node.all_input_nodes[0]
    return query if value(node).dim() == 3 else node


def _is_merged(query: torch.Tensor) -> bool:
    """Returns whether batch and heads are like one dimension in memory. A product then takes the
    queries without a copy, and patterns differ in these copies. Queries whose sizes had no value at
    capture count as such, because a look at their layout could not be guarded."""
    sizes, strides = hints(query), stride_hints(query)
    if sizes is None or strides is None:
        return True
    batches, heads = sizes[:2]
    return 1 in (batches, heads) or strides[0] == heads * strides[1]
