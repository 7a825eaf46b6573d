"""Decomposed rms_norm, as in Llama, T5 and Gemma, which round at different places.

before    h = x.to(torch.float32)
          h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
          y = weight * h.to(x.dtype)                      Llama; T5 where weight has 16 bits
          y = weight * h                                  T5 with a float32 weight
          y = (h * (1.0 + weight.float())).to(x.dtype)    Gemma
after     y, rstd = torch.ops.fusedops.rms_norm(x, normalized_shape, weight, eps, offset, rounds)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from fusedops.graph.ir.dialect import Call, as_call, constant, number, value
from fusedops.graph.ir.steps import (
    call_used_once,
    has_shape,
    known_size,
    last_dims,
    only_user,
    other_operand,
    tensor_and_number,
    widened,
)
from fusedops.graph.rules.norms import base_of_square, centred, refuse_norm_decomposed
from fusedops.graph.rules.rule import Match, OpCall, Rule, op_of

_NARROW = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class _Chain:
    """The part of an rms_norm that has been matched so far, beginning at the mean square.

    computed_in: `input`, cast to the dtype of the computation.
    nodes: the matched calls, each the only user of the one before.
    casts: casts of inputs; the op reads their inputs instead.
    rounded_to: the 16-bit dtype of a cast between the normalised value and the weight.
    """

    input: Node
    computed_in: Node
    dims: tuple[int, ...]
    eps: Any
    nodes: tuple[Node, ...]
    casts: tuple[Node, ...]
    rounded_to: torch.dtype | None = None
    weight: Node | None = None
    weight_offset: float = 0.0

    @property
    def last(self) -> Node:
        return self.nodes[-1]


class RmsNormDecomposed(Rule):
    """A decomposed rms_norm."""

    def match(self, call: Call) -> Match | None:
        chain = _normalised(call) if call.kind == "rsqrt" else None
        if chain is None:
            return None
        # The longest chain whose result has the dtype of the input, cast or not.
        ends = [(chain, _input_of(chain)) for chain in _continued(chain)]
        chain, input = next(((c, i) for c, i in reversed(ends) if i), (chain, None))
        obstacle = None if input else _why_no_input(chain)
        arguments = {
            "input": input or chain.input,
            "normalized_shape": [known_size(value(chain.input).shape[dim]) for dim in chain.dims],
            "weight": chain.weight,
            "eps": number(chain.eps),
            "weight_offset": chain.weight_offset,
            "rounds_normalized": chain.rounded_to is not None,
        }
        site = Call("rms_norm", "rms_norm", chain.last, arguments, obstacle)
        return Match(site, "rms_norm", {chain.last: 0}, tuple(sorted({*chain.nodes, *chain.casts})))

    def guard(self, match: Match) -> str | None:
        return refuse_norm_decomposed(match)

    def emit(self, match: Match) -> Iterator[OpCall]:
        yield op_of(match)


def _normalised(rsqrt: Call) -> _Chain | None:
    """The chain x * rsqrt(mean(x^2, dims, keepdim=True) + eps), found from its rsqrt."""
    shifted = call_used_once(rsqrt.arguments["input"], "add")
    if shifted is None:
        return None
    mean_node, eps = tensor_and_number(shifted)
    mean = call_used_once(mean_node, "mean")
    squared = call_used_once(mean.arguments["input"]) if mean else None
    if mean is None or squared is None:
        return None
    computed_in = base_of_square(squared)
    product = only_user(rsqrt.node, "mul")
    if computed_in is None or product is None or centred(computed_in):  # centred: a layer_norm
        return None
    dims = last_dims(mean, value(computed_in))
    casts, input = widened(computed_in)
    other_casts, other_input = widened(other_operand(product, rsqrt.node))
    # eps is read last because reading it makes it a constant of the compiled graph.
    if dims is None or other_input is not input or number(eps) is None:
        return None
    nodes = (squared.node, mean.node, shifted.node, rsqrt.node, product.node)
    return _Chain(input, computed_in, dims, eps, nodes, casts + other_casts)


def _continued(chain: _Chain | None) -> Iterator[_Chain]:
    """The chain, then the chain extended by each cast or weight that follows."""
    while chain is not None:
        yield chain
        step = only_user(chain.last)
        if step is None:
            return
        longer = replace(chain, nodes=(*chain.nodes, step.node))
        if step.kind == "cast":
            chain = _after_cast(longer, value(chain.last).dtype, step.arguments["dtype"])
        elif step.kind == "mul" and chain.weight is None:
            chain = _after_weight(longer, other_operand(step, chain.last))
        else:
            return


def _after_cast(chain: _Chain, given: torch.dtype, result: torch.dtype) -> _Chain | None:
    if given == result:
        return chain
    if given in _NARROW:  # the op would round only once
        return None
    if chain.weight is None and result in _NARROW:
        return replace(chain, rounded_to=result)
    return chain


def _after_weight(chain: _Chain, weight: Any) -> _Chain | None:
    """The chain extended by `weight`, if that has the normalized shape. A number that is added to
    the weight becomes its offset."""
    normalized_shape = [value(chain.input).shape[dim] for dim in chain.dims]
    if not isinstance(weight, Node) or not has_shape(weight, normalized_shape):
        return None
    casts: tuple[Node, ...] = ()
    offset = 0.0
    call = as_call(weight)
    if call is not None and call.kind == "add" and call.obstacle is None:
        base, other = tensor_and_number(call)
        if isinstance(base, Node) and (added := constant(other)) is not None:
            casts, weight, offset = (weight,), base, float(added)
    more_casts, weight = widened(weight)
    casts += more_casts
    return replace(chain, weight=weight, weight_offset=offset, casts=chain.casts + casts)


def _input_of(chain: _Chain) -> Node | None:
    """The input, cast or not, with which the op's output has eager's dtype; None if neither."""
    result = value(chain.last).dtype
    if chain.rounded_to not in (None, result) or value(chain.computed_in).dtype in _NARROW:
        return None
    candidates = (chain.input, chain.computed_in)
    return next((node for node in candidates if value(node).dtype == result), None)


def _why_no_input(chain: _Chain) -> str:
    dtype = value(chain.computed_in).dtype
    if dtype in _NARROW:
        return f"it is computed in {dtype}, which rounds at every step"
    return "no op supports its combination of dtypes"
