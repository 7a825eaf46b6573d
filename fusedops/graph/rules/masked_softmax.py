"""Fuses a softmax over the last dimension with the scale, soft cap, bias and mask before it and the
dropout after it.

before    s = torch.matmul(q, k) * scale
          s = torch.tanh(s / cap) * cap             or without this
          s = s + bias
          s = s.masked_fill(mask == 0, value)       or s + mask, torch.where(mask, s, value)
          y = torch.softmax(s, -1)
          y = y.masked_fill(mask == 0, 0)           or without this
          y = F.dropout(y, p, training)
after     s = torch.matmul(q, k)
          y = torch.ops.fusedops.masked_softmax(
              s, mask != 0, scale, causal, value, bias, softcap=cap
          )
          y, _ = torch.ops.fusedops.masked_softmax_dropout(..., p, seed, bias)
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_and

from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.selections import filled_number, fillings
from fusedops.graph.analysis.steps import call_of, only_user, same_value
from fusedops.graph.analysis.values import value
from fusedops.graph.availability import KERNEL_DTYPES
from fusedops.graph.readers import intervals
from fusedops.graph.readers.dropout import drawn_seed, draws_own_numbers
from fusedops.graph.readers.scores import Operand, Scores, read_scores
from fusedops.graph.readers.sinks import Sink, read_sink
from fusedops.graph.readers.softmax_chain import (
    ZEROES,
    SoftmaxChain,
    loses_range,
    read_softmax,
    with_zeroed_rows,
)
from fusedops.graph.readers.softmax_decomposed import read_softmax_decomposed
from fusedops.graph.rule import Match, OpCall, Rule, ordered_arguments, viewed


class MaskedSoftmax(Rule):
    """Replaces a softmax over the last dimension that has a scale, soft cap, bias, mask, sink or
    dropout."""

    name = "masked_softmax"

    def match(self, call: Call) -> Match | None:
        chain = _last_dim_softmax(call)
        if chain is None:
            return None
        chain, sink = read_sink(chain) or (chain, None)
        scores = read_scores(chain, has_sink=sink is not None)
        refusal = ZEROES if chain.zeroes_hidden_rows and not scores.hides_by_infinity else None
        chain, scores = _with_zeroed_columns(_with_last_cast(chain, scores), scores)
        dropout = only_user(chain.last, "dropout")
        dropout = dropout if dropout and draws_own_numbers(dropout) else None
        # The model sets exponentials to 0 by a mask that, as read_scores found, the op cannot take.
        if chain.hidden is not None and not scores.is_masked:
            return None
        is_plain = not (scores.nodes or chain.hidden or chain.zeroes_hidden_rows)
        if is_plain and dropout is None and sink is None:
            return None
        nodes = tuple(sorted({*scores.nodes, *chain.nodes, *([dropout.node] if dropout else [])}))
        op = _op(chain, dropout, sink)
        arguments = _arguments(op, scores, chain, dropout, sink)
        site = Call(op, op, nodes[-1], arguments, refusal)
        return Match(
            site,
            {nodes[-1]: None if op == "masked_softmax" else 0},
            nodes,
            mask_calls=scores.mask_calls | (sink.calls if sink else frozenset()),
            any_strides=sink is not None and sink.is_joined and dropout is None,
            note="; ".join(scores.notes),
        )


def _last_dim_softmax(call: Call) -> SoftmaxChain | None:
    """Returns the softmax that `call` computes, if it is over the last dimension and the op takes
    its dtypes; else None."""
    if call.refusal is not None:
        return None
    chain = read_softmax(call) or read_softmax_decomposed(call)
    if chain is None or chain.refusal or chain.op != "softmax" or not isinstance(chain.dim, int):
        return None
    input, result = value(chain.input), value(chain.last)
    if not isinstance(input, torch.Tensor) or not isinstance(result, torch.Tensor):
        return None
    is_supported = input.dtype in KERNEL_DTYPES and result.dtype in KERNEL_DTYPES
    last = input.dim() > 0 and chain.dim % input.dim() == input.dim() - 1
    # The model converts the scores to this dtype after the scale and masks, but the op would
    # convert its input before them, where large scores may become infinite. symbolic_trace records
    # the dtype of another tensor as a node, which may stand for any dtype.
    converts = chain.dtype is not None and (
        isinstance(chain.dtype, Node) or loses_range(input.dtype, chain.dtype)
    )
    return with_zeroed_rows(chain) if is_supported and last and not converts else None


def _with_last_cast(chain: SoftmaxChain, scores: Scores) -> SoftmaxChain:
    """Returns `chain` including the cast of its float32 result back to the dtype of the scores, if
    there is one. Such casts occur under autocast, where the scores have 16 bits, and a float32 mask
    makes the softmax compute in float32."""
    cast = only_user(chain.last, "cast")
    dtype = value(scores.input).dtype
    if cast is None or cast.arguments["dtype"] != dtype or value(chain.last).dtype != torch.float32:
        return chain
    return replace(chain, dtype=None, nodes=(*chain.nodes, cast.node))


def _with_zeroed_columns(chain: SoftmaxChain, scores: Scores) -> tuple[SoftmaxChain, Scores]:
    """Returns `chain` including the call that fills what the scores' only mask hides with 0, if
    there is one, as in the attention of ESPnet and NeMo, and scores whose hidden columns are -inf.
    The call makes zeros of rows that see no column; in others the probability of hidden columns is
    0 already, unless no visible score is much above the number that the mask fills in."""
    zeroing = only_user(chain.last, "masked_fill", "where")
    if zeroing is None or value(zeroing.node).dtype != value(chain.last).dtype:
        return chain, scores
    if len(scores.masked_nodes) != 1 or chain.hidden is not None:
        return chain, scores
    (masked,) = map(call_of, scores.masked_nodes)
    hiding = [how for _, fill, *how in fillings(masked) if filled_number(fill) is not None]
    for input, fill, *how in fillings(zeroing):
        is_zeroed = input is chain.last and filled_number(fill) == 0
        if is_zeroed and any(_hide_the_same(how, other) for other in hiding):
            nodes = (*chain.nodes, zeroing.node)
            zeroed = replace(chain, nodes=nodes, zeroes_hidden_rows=True)
            return zeroed, replace(scores, mask_value=-math.inf)
    return chain, scores


def _hide_the_same(how: list[Any], other: list[Any]) -> bool:
    """Returns whether two fillings are of the same elements, which `fillings` describes by a
    condition and whether it is filled where that holds."""
    (condition, where_true), (other_condition, other_where_true) = how, other
    return where_true == other_where_true and same_value(condition, other_condition)


def _op(chain: SoftmaxChain, dropout: Call | None, sink: Sink | None) -> str:
    if sink is not None and sink.may_need_gradient(chain.last):
        return "masked_softmax_sinks"
    return "masked_softmax_dropout" if dropout else "masked_softmax"


def _arguments(
    op: str, scores: Scores, chain: SoftmaxChain, dropout: Call | None, sink: Sink | None
) -> dict[str, Any]:
    """Returns the op's arguments by name, in the op's order. The last ones, from zero_masked_rows
    on, are left out if all of them have their defaults."""
    operands = [scores.visible, *scores.addends] if scores.visible else [*scores.addends]
    mask, bias = map(_with_adjacent_values, (*operands, None, None)[:2])
    result, input = value(chain.last), value(scores.input)
    given = intervals.arguments(scores.bounds, scores.input) | {
        "input": scores.product or scores.input,
        "mask": mask,
        "scale": scores.scale,
        "mask_value": scores.mask_value,
        "p": float(dropout.arguments["p"]) if dropout else 0.0,
        "seed": drawn_seed(input.device) if dropout else None,
        "bias": bias,
        "dtype": None if input.dtype == result.dtype else result.dtype,
        "zero_masked_rows": chain.zeroes_hidden_rows,
        "sinks": sink.operand(result) if sink else None,
        "softcap": scores.softcap,
    }
    arguments = ordered_arguments(op, given)
    first, *rest = [*arguments][[*arguments].index("zero_masked_rows") :]
    if arguments[first] or any(arguments[name] is not None for name in rest):
        return arguments
    return {name: arguments[name] for name in arguments if name not in (first, *rest)}


def _with_adjacent_values(operand: Operand | None) -> Operand | None:
    """Returns a mask or bias, or a copy of it if the values of a row are not adjacent in memory, as
    in a position bias stored with the heads last. Returns None if there is none. Without the copy
    the op would make one at every call. With the copy in the graph, Inductor computes the operand
    in the new layout, once for all layers that share it."""
    # An operand that is an elementwise call has the layout of that call's first operand.
    tensor = None if operand is None else value(viewed(operand))
    if tensor is None or tensor.dim() == 0:
        return operand
    if not statically_known_true(sym_and(tensor.size(-1) > 1, tensor.stride(-1) > 1)):
        return operand
    return OpCall(
        torch.ops.aten.clone.default, (operand,), {"memory_format": torch.contiguous_format}
    )
