"""Decomposed layer_norm, and the norm of the Annotated Transformer.

before    mean = x.mean(-1, keepdim=True)
          var = (x - mean).pow(2).mean(-1, keepdim=True)        or x.var(-1, unbiased=False, ...)
          y = weight * ((x - mean) / torch.sqrt(var + eps)) + bias         or * torch.rsqrt(...)
after     y, mean, rstd = torch.ops.fusedops.layer_norm(x, normalized_shape, weight, bias, eps)

before    y = weight * (x - mean) / (x.std(-1, keepdim=True) + eps) + bias
after     y, mean, rstd = torch.ops.fusedops.std_norm(x, normalized_shape, weight, bias, eps)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch.fx import Node

from fusedops.graph.availability import KERNEL_DTYPES
from fusedops.graph.ir.dialect import Call, number, users, value
from fusedops.graph.ir.steps import (
    call_of,
    has_shape,
    is_number,
    known_size,
    last_dims,
    only_user,
    other_operand,
    same_value,
    tensor_and_number,
    upstream,
    widened,
)
from fusedops.graph.rules.norms import (
    base_of_square,
    centred,
    item_of_var_mean,
    refuse_norm_decomposed,
)
from fusedops.graph.rules.rule import Match, OpCall, Rule, op_of


@dataclass(frozen=True)
class _Scale:
    """The factor 1 / sqrt(var + eps) of the op "layer_norm", or 1 / (std + eps) of "std_norm";
    `input` is the tensor whose variance it is."""

    op: str
    input: Node
    dims: tuple[int, ...]
    eps: Any


@dataclass(frozen=True)
class _Chain:
    """The part of a norm that has been matched so far. computed_in: `input`, cast to the dtype of
    the computation."""

    scale: _Scale
    input: Node
    computed_in: Node
    last: Node
    weight: Node | None = None
    bias: Node | None = None

    @property
    def normalized_shape(self) -> list[Any]:
        return [value(self.input).shape[dim] for dim in self.scale.dims]

    @property
    def nodes(self) -> tuple[Node, ...]:
        ends = {node for node in (self.input, self.weight, self.bias) if node is not None}
        return tuple(sorted(upstream(self.last, until=ends)))


class LayerNormDecomposed(Rule):
    """A decomposed layer_norm or std_norm."""

    def match(self, call: Call) -> Match | None:
        core = _normalised(call)
        if core is None:
            return None
        # The longest chain whose result has the dtype of the input, cast or not.
        ends = [(chain, _input_of(chain)) for chain in _continued(core)]
        chain, input = next(((c, i) for c, i in reversed(ends) if i), (core, None))
        sizes = chain.normalized_shape
        arguments = {
            "input": input or chain.input,
            "normalized_shape": [known_size(size) for size in sizes],
            "weight": chain.weight,
            "bias": chain.bias,
            "eps": number(chain.scale.eps),
        }
        obstacle = _obstacle(chain) if input else "no op supports its combination of dtypes"
        op = chain.scale.op
        return Match(
            Call(op, op, chain.last, arguments, obstacle), op, {chain.last: 0}, chain.nodes
        )

    def guard(self, match: Match) -> str | None:
        return refuse_norm_decomposed(match)

    def emit(self, match: Match) -> Iterator[OpCall]:
        yield op_of(match)


def _obstacle(chain: _Chain) -> str | None:
    nodes = set(chain.nodes)
    shared = any(not nodes.issuperset(users(node)) for node in nodes - {chain.last})
    return "something else uses an intermediate result" if shared else None


def _normalised(call: Call) -> _Chain | None:
    """(x - mean) / sqrt(var + eps) or an equivalent, whose quotient or product is `call`."""
    if call.kind not in ("mul", "div") or call.obstacle:
        return None
    first, other = call.arguments["input"], call.arguments["other"]
    pairs = ((first, other),) if call.kind == "div" else ((first, other), (other, first))
    for numerator, factor in pairs:
        scale = _divisor(factor) if call.kind == "div" else _inverse_root(factor)
        if scale is not None:
            return _chain(call.node, numerator, scale)
    return None


def _chain(last: Node, numerator: Any, scale: _Scale) -> _Chain | None:
    found, weight = centred(numerator), None
    if found is None:  # weight * (x - mean) / ..., from left to right
        product = call_of(numerator, "mul")
        operands = (product.arguments["input"], product.arguments["other"]) if product else ()
        centre = next((n for n in operands if centred(n) is not None), None)
        found = centred(centre)
        weight = other_operand(product, centre) if product and centre else None
    if found is None or found[1] != scale.dims or not same_value(found[0], scale.input):
        return None
    input = widened(scale.input)[1]
    chain = _Chain(scale, input, scale.input, last)
    if weight is None:
        return chain
    return replace(chain, weight=weight) if _is_affine(weight, chain) else None


# --- statistics -----------------------------------------------------------------------------------


def _divisor(node: Any) -> _Scale | None:
    """sqrt(var + eps), or std + eps."""
    root = call_of(node, "sqrt") or _power(node, 0.5)
    if root is not None:
        return _shifted_variance(root.arguments["input"])
    shifted = call_of(node, "add")
    deviation, eps = tensor_and_number(shifted) if shifted else (None, None)
    std = call_of(deviation, "std") or _unbiased_root(deviation)
    if std is None or not is_number(eps) or std.arguments["correction"] != 1:
        return None
    return _scale("std_norm", std, eps)


def _unbiased_root(node: Any) -> Call | None:
    root = call_of(node, "sqrt")
    return call_of(root.arguments["input"], "var") if root else None


def _inverse_root(node: Any) -> _Scale | None:
    """rsqrt(var + eps), or 1 / sqrt(var + eps)."""
    root = call_of(node, "rsqrt") or _power(node, -0.5)
    if root is not None:
        return _shifted_variance(root.arguments["input"])
    inverse = call_of(node, "reciprocal")
    if inverse is not None:
        return _divisor(inverse.arguments["input"])
    quotient = call_of(node, "div")
    if quotient is not None and quotient.arguments["input"] in (1, 1.0):
        return _divisor(quotient.arguments["other"])
    product = call_of(node, "mul")  # export decomposes 1 / x into reciprocal(x) * 1
    if product is None or product.arguments["other"] not in (1, 1.0):
        return None
    return _inverse_root(product.arguments["input"])


def _power(node: Any, exponent: float) -> Call | None:
    call = call_of(node, "pow")
    return call if call is not None and call.arguments["exponent"] == exponent else None


def _shifted_variance(node: Any) -> _Scale | None:
    shifted = call_of(node, "add")
    variance, eps = tensor_and_number(shifted) if shifted else (None, None)
    if not is_number(eps):
        return None
    call = item_of_var_mean(variance, 0) or call_of(variance, "var")
    if call is not None:
        return _scale("layer_norm", call, eps) if call.arguments["correction"] == 0 else None
    mean = call_of(variance, "mean")
    squared = call_of(mean.arguments["input"]) if mean else None
    if mean is None or squared is None:
        return None
    centre = centred(base_of_square(squared))
    if centre is None or last_dims(mean, value(squared.node)) != centre[1]:
        return None
    return _Scale("layer_norm", *centre, eps)


def _scale(op: str, statistic: Call, eps: Any) -> _Scale | None:
    input = statistic.arguments["input"]
    dims = last_dims(statistic, value(input))
    return _Scale(op, input, dims, eps) if dims else None


# --- weight, bias and casts -----------------------------------------------------------------------


def _continued(chain: _Chain | None) -> Iterator[_Chain]:
    """The chain, then the chain extended by each cast, weight or bias that follows."""
    while chain is not None:
        yield chain
        step = only_user(chain.last)
        chain = _step(chain, step) if step else None


def _step(chain: _Chain, step: Call) -> _Chain | None:
    longer = replace(chain, last=step.node)
    if step.kind == "cast":
        return longer
    operand = other_operand(step, chain.last)
    if step.kind not in ("mul", "add") or not _is_affine(operand, chain):
        return None
    if step.kind == "mul" and chain.weight is None and chain.bias is None:
        return replace(longer, weight=operand)
    return replace(longer, bias=operand) if step.kind == "add" and chain.bias is None else None


def _is_affine(operand: Any, chain: _Chain) -> bool:
    fits = isinstance(operand, Node) and has_shape(operand, chain.normalized_shape)
    return fits and value(operand).dtype in KERNEL_DTYPES


def _input_of(chain: _Chain) -> Node | None:
    """The input, cast or not, with which the op's output has eager's dtype; None if neither."""
    candidates = (chain.input, chain.computed_in)
    return next((n for n in candidates if value(n).dtype == value(chain.last).dtype), None)
