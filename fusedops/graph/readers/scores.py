"""Recognises the scale, soft cap, bias, masks and casts that models apply to attention scores
before a softmax.

The calls are read from the softmax back to the scores. Each function `_through_*` reads one call:
given what follows the call (`Scores`), it returns the same with the call included and the call's
input as the new `input`. It returns None if the op cannot compute the call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.fx import Node

from fusedops.graph.analysis import masks, storages
from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.masks import Mask
from fusedops.graph.analysis.masks.positions import Bound
from fusedops.graph.analysis.nodes import users
from fusedops.graph.analysis.products import is_product, unscaled
from fusedops.graph.analysis.selections import fillings, selection
from fusedops.graph.analysis.steps import (
    broadcasts,
    call_of,
    cast_chain,
    factor_of,
    is_number,
    is_widening,
    number,
    same_shape,
    scaling,
    tensor_and_number,
)
from fusedops.graph.analysis.values import constant, rounded, value
from fusedops.graph.availability import KERNEL_DTYPES
from fusedops.graph.readers import intervals
from fusedops.graph.readers.softmax_chain import SoftmaxChain
from fusedops.graph.rule import OpCall

aten = torch.ops.aten
Operand = Node | OpCall


@dataclass(frozen=True)
class Scores:
    """The input of a softmax: scale * input + addends where `visible`, else `mask_value`. With a
    soft cap, softcap * tanh(scale * input / softcap) stands in place of scale * input.

    nodes: the calls that compute this, in program order.
    bounds: limits of the columns that each row sees; `visible` does not repeat them.
    mask_calls: the calls that compute masks that `bounds` replace.
    mask_adds_finite: whether a mask adds a finite number, so that hidden scores may still differ.
    mask_absorbs_scores: whether that number is so large that all hidden scores are rounded to it,
        and no gradient is needed.
    keeps_finite_masks: whether masks that add a finite number stay tensors.
    masked_nodes: those of the nodes whose masks are `bounds` or part of `visible`.
    has_sink: whether each row has one more score, whose probability is dropped. Beside it, hidden
        columns have probability 0 even in a row that sees no column.
    notes: for each mask that is not, or not entirely, read as bounds, why it is not.
    product: a matrix product to insert as the input. It is set if `input` is a baddbmm, which also
        computes the scale or adds the mask.
    """

    input: Node
    nodes: tuple[Node, ...] = ()
    scale: float = 1.0
    addends: tuple[Operand, ...] = ()
    visible: Operand | None = None
    mask_value: float = -math.inf
    softcap: float | None = None
    bounds: tuple[Bound, ...] = ()
    mask_calls: frozenset[Node] = frozenset()
    mask_adds_finite: bool = False
    mask_absorbs_scores: bool = False
    keeps_finite_masks: bool = False
    masked_nodes: frozenset[Node] = frozenset()
    has_sink: bool = False
    notes: tuple[str, ...] = ()
    product: OpCall | None = None

    @property
    def is_masked(self) -> bool:
        return self.visible is not None or bool(self.bounds)

    @property
    def hides_by_infinity(self) -> bool:
        """Whether hidden columns, if there are any, are -inf, so that the op can tell a row that is
        -inf as a whole from one that is a finite number as a whole."""
        return not self.is_masked or self.mask_value == -math.inf


def read_scores(chain: SoftmaxChain, has_sink: bool) -> Scores:
    """Returns the scores that the softmax reads, with as many of the calls before it as the op can
    fuse. `has_sink` says whether each row has one more score, whose probability is dropped."""
    keeps = chain.zeroes_hidden_rows  # where an added number hides a row, the row is not zeros
    scores = _read(chain, Scores(chain.input, has_sink=has_sink, keeps_finite_masks=keeps))
    if not scores.mask_adds_finite:
        return scores
    if not _may_be_hidden(chain.input, scores.mask_value, scores.masked_nodes):
        return scores
    # A mask that was not read may hide all columns that a row sees. In the model, the row's other
    # columns still have their scores, to which a number was added.
    return _read(chain, Scores(chain.input, has_sink=has_sink, keeps_finite_masks=True))


def _read(chain: SoftmaxChain, scores: Scores) -> Scores:
    """Returns `scores`, whose input is that of the softmax, with the calls that the op can fuse."""
    if (hidden := chain.hidden) is not None:
        masked = _filled(scores, hidden.node, scores.input, hidden.mask, -math.inf, hidden.hides)
        scores = masked or scores
    while scores.product is None:
        call = call_of(scores.input)
        kinds = _STEPS if scores.softcap is None else _UNDER_A_CAP
        extended = _STEPS[call.kind](scores, call) if call and call.kind in kinds else None
        if call is None or extended is None:
            break
        ours = {*scores.nodes, *chain.nodes, call.node}
        unshared = ours.issuperset(users(call.node))
        extended = replace(extended, nodes=(*extended.nodes, call.node))
        if (extended.bounds, extended.visible) != (scores.bounds, scores.visible):
            extended = replace(extended, masked_nodes=extended.masked_nodes | {call.node})
        if not unshared or not _is_safe(extended, call, chain):
            break
        scores = extended
    return scores


def _is_safe(scores: Scores, step: Call, chain: SoftmaxChain) -> bool:
    """Returns whether the op can fuse the call `step`, whose input is `scores.input`. The op has to
    take the dtype and shape of this input, and no call in between may write into memory that the
    fused calls read."""
    wide = torch.float64
    dtype = value(step.node).dtype
    # The model computes in float64, but the op would in float32.
    narrows = dtype == wide and value(chain.last).dtype != wide
    is_supported = value(scores.input).dtype in KERNEL_DTYPES and not narrows
    if not is_supported or not same_shape(scores.input, step.node):
        return False
    return storages.written_between((*sorted(scores.nodes), *chain.nodes)) is None


def _through_cast(scores: Scores, call: Call) -> Scores | None:
    return replace(scores, input=call.input) if is_widening(call) else None


def _through_factor(scores: Scores, call: Call) -> Scores | None:
    """Includes a product with a number, or a quotient by one. Returns None for others, or if the
    number or the product of all factors is infinite, NaN or 0."""
    input, factor = scaling(call)[0], factor_of(call)
    if not isinstance(input, Node) or not factor or not math.isfinite(factor):
        return None
    scale = scores.scale * factor
    # The op rounds the scale to the precision of its sums. There it must neither overflow nor
    # become 0, since an infinite scale times a score of 0, and 0 times an infinite score, are NaN.
    precision = torch.promote_types(value(input).dtype, torch.float32)
    in_range = rounded(abs(scale), precision) not in (0, math.inf)
    return replace(scores, input=input, scale=scale) if in_range else None


#: The least and greatest soft cap that the op takes for inputs of any dtype. Both the cap and its
#: reciprocal are normal numbers in float32, in which the op computes except for float64.
_LEAST_CAP, _GREATEST_CAP = 2.0**-126, 2.0**126


def _through_tanh(scores: Scores, call: Call) -> Scores | None:
    """Includes a tanh whose result is multiplied by a number, the soft cap. The number stays in the
    scale too, since cap * tanh(x) is cap * tanh(scale * x / cap) with scale = cap. A tanh without a
    factor is no soft cap but an activation, which Inductor fuses with its neighbours."""
    cap = abs(scores.scale)
    if cap == 1 or not _LEAST_CAP <= cap <= _GREATEST_CAP:
        return None
    return replace(scores, input=call.input, softcap=cap)


def _through_add(scores: Scores, call: Call) -> Scores | None:
    """Includes the sum scores + bias or scores + mask, in either order, or scores + 0."""
    input, other = tensor_and_number(call)
    if is_number(other) and isinstance(input, Node):
        return replace(scores, input=input) if number(other) == 0 else None
    pairs = [pair for pair in ((input, other), (other, input)) if _is_addend(*reversed(pair))]
    if not pairs:
        return None

    # Which operand is the scores, and which the bias or mask? The scores have the shape of the sum.
    # If both operands have it, the one that a matrix product computes is taken for the scores.
    def preference(pair: tuple[Node, Node]) -> tuple[bool, bool]:
        return same_shape(pair[1], pair[0]), not _has_product(pair[0])

    input, addend = min(pairs, key=preference)
    mask = masks.read_added(addend, call.node)
    hidden = _with_added_mask(scores, call, input, mask) if mask else None
    added = hidden or _added(scores, input, addend)
    return _noted(added, _MAY_SEE_NOTHING) if mask and not hidden and added else added


#: The note about an added mask that the op reads as a tensor instead of bounds.
_MAY_SEE_NOTHING = "the mask adds a number, which rows that see no column may keep apart"


def _noted(scores: Scores, note: str) -> Scores:
    return replace(scores, notes=tuple(dict.fromkeys((*scores.notes, note))))


def _through_sub(scores: Scores, call: Call) -> Scores | None:
    """Includes the difference scores - bias."""
    input, other = call.operands
    if not _is_addend(other, input) or same_shape(other, input):
        return None
    return _added(scores, input, OpCall(aten.neg.default, (other,)))


def _through_baddbmm(scores: Scores, call: Call) -> Scores | None:
    """Includes a baddbmm, which computes beta * input + alpha * batch1 @ batch2."""
    arguments = call.arguments
    alpha, beta = (constant(arguments.get(name, 1)) for name in ("alpha", "beta"))
    if scores.scale != 1 or not alpha or not beta or not _is_addend(arguments["input"], call.node):
        return None
    addend = (
        arguments["input"] if beta == 1 else OpCall(aten.mul.Tensor, (arguments["input"], beta))
    )
    extended = _added(scores, call.node, addend)
    product = OpCall(aten.bmm.default, (arguments["batch1"], arguments["batch2"]))
    return replace(extended, scale=float(alpha), product=product) if extended else None


def _is_addend(addend: Any, input: Any) -> bool:
    nodes = isinstance(addend, Node) and isinstance(input, Node)
    return nodes and broadcasts(addend, input) and value(addend).dtype in KERNEL_DTYPES


def _has_product(node: Any) -> bool:
    """Returns whether a node is a matrix product, or computed from one by calls of the kinds that
    this module reads."""
    while (call := call_of(node := unscaled(node))) is not None and call.kind in _STEPS:
        node = call.input
    return is_product(node)


def _added(scores: Scores, input: Node, addend: Operand) -> Scores | None:
    """Returns the scores of `input` + `addend`. Returns None if the op has no operand left for the
    addend: it has two, one for a mask and one for a bias. Also returns None if the model multiplies
    the sum by the scale and the addend is as large as the scores, since the addend would have to be
    multiplied by the scale in another pass."""
    if len(scores.addends) == (1 if scores.visible is not None else 2):
        return None
    # The model computes scale * (input + addend), but the op scale * input + addend.
    if scores.scale != 1:
        if isinstance(addend, Node) and same_shape(addend, input):
            return None
        addend = OpCall(aten.mul.Tensor, (addend, scores.scale))
    return replace(scores, input=input, addends=(*scores.addends, addend))


def _through_selection(scores: Scores, call: Call) -> Scores | None:
    """Includes torch.where(visible, scores, number) or torch.where(hidden, number, scores). The
    latter is the same as scores.masked_fill(hidden, number)."""
    for input, fill, condition, hides in fillings(call):
        if is_number(fill):
            return _filled(scores, call.node, input, condition, fill, hides)
    return None


def _filled(
    scores: Scores, node: Node, input: Any, mask: Any, fill: Any, hides: bool
) -> Scores | None:
    """Returns the scores of `input` with the number `fill` wherever the bool tensor `mask` equals
    `hides`, which `node` computes, or None if the op cannot compute them."""
    if not isinstance(input, Node) or not isinstance(mask, Node) or not is_number(fill):
        return None
    if (fill_number := number(fill)) is None:
        return None
    fill = rounded(fill_number, value(node).dtype) * scores.scale
    if scores.addends or not fill < math.inf or not broadcasts(mask, input):
        return None
    if value(mask).dtype != torch.bool or (scores.is_masked and fill != scores.mask_value):
        return None
    scores = replace(scores, mask_absorbs_scores=False)
    known_mask = masks.read_bool(mask, hides, node)
    extended = _bounded(scores, input, known_mask, fill) if known_mask else None
    if extended is not None:
        return extended
    scores = _noted(replace(scores, input=input, mask_value=fill), masks.why_unknown(mask))
    if hides:
        scores, mask = _inverted(scores, mask)
    extended = replace(scores, visible=_and(mask, scores.visible))
    return extended if _keeps_values(extended) else None


def _and(mask: Operand, other: Operand | None) -> Operand:
    return mask if other is None else OpCall(aten.logical_and.default, (mask, other))


def _bounded(scores: Scores, input: Node, mask: Mask, fill: float) -> Scores | None:
    """Returns the scores of `input` with the number `fill` where `mask` hides columns. The mask's
    bounds are added to `bounds`, and its bool tensors to `visible`. Returns None if the op cannot
    compute these scores."""
    visible = scores.visible
    for leaf in mask.leaves:
        if not broadcasts(leaf.node, input):
            return None
        scores = _noted(scores, masks.why_unknown(leaf.node))
        operand = OpCall(aten.logical_not.default, (leaf.node,)) if leaf.negated else leaf.node
        visible = _and(operand, visible)
    extended = replace(
        scores,
        input=input,
        visible=visible,
        mask_value=fill,
        bounds=(*scores.bounds, *mask.bounds),
        mask_calls=scores.mask_calls | mask.calls,
    )
    fits = visible is None or len(extended.addends) < 2
    return extended if fits and _keeps_values(extended) else None


#: A mask that adds a number hides columns if the number is at most this, so that no score that
#: occurs outweighs it. Models add -inf, -1e9 or the lowest number of the dtype, -65504 in float16.
_HIDING = -3e4


def _with_added_mask(scores: Scores, call: Call, input: Node, mask: Mask) -> Scores | None:
    """Returns the scores with a mask that fills hidden columns, in place of the mask that adds a
    number to them, or None if values would change.

    Adding -inf has the same result as filling. Adding a finite number has another result in a row
    that sees no column: the row's scores still differ and have gradients, unless the number is so
    large that the sums are rounded to it.
    """
    assert mask.added is not None  # it is None only for a bool mask
    fill = rounded(mask.added, value(call.node).dtype) * scores.scale
    if not fill <= _HIDING or (scores.is_masked and fill != scores.mask_value):
        return None
    finite = scores.mask_adds_finite or fill > -math.inf
    if finite and scores.keeps_finite_masks:
        return None
    absorbs = not scores.is_masked and _absorbs_scores(call.node, fill)
    return _bounded(
        replace(scores, mask_adds_finite=finite, mask_absorbs_scores=absorbs), input, mask, fill
    )


def _may_be_hidden(scores: Node, limit: float, known_masks: frozenset[Node]) -> bool:
    """Returns whether one of the calls that may be read as part of the scores hides some of the
    scores by `limit` or a lower number, or adds a tensor that may contain such numbers. The calls
    `known_masks` do not count."""
    waiting, seen = [(scores, limit)], set[Node]()
    while waiting:
        node, least = waiting.pop()
        call = call_of(node)
        if call is None or call.kind not in _STEPS or node in seen:
            continue
        seen.add(node)
        addends, numbers = _addends_and_masks(call)
        if any(hiding <= least for hiding in numbers) and node not in known_masks:
            return True
        if len(addends) > 1 and any(map(_is_from_outside, addends)):
            return True
        waiting += [(operand, least / _factor(call)) for operand in addends]
    return False


def _is_from_outside(addend: Node) -> bool:
    """Returns whether a tensor is, or is a view of, an input or a buffer of the graph, into which a
    caller may have put -inf. What is trained is finite."""
    holders = storages.holders_of(cast_chain(addend)[1])
    return any(
        each.op in ("placeholder", "get_attr")
        and _is_floating(each)
        and not (value(each).requires_grad or isinstance(value(each), nn.Parameter))
        for each in holders
    )


def _addends_and_masks(call: Call) -> tuple[list[Node], list[float]]:
    """Returns the floating inputs of a call that is read as part of the scores, without those that
    are known as masks, and the numbers that these masks add, or with which the call fills."""
    inputs = [each for each in call.node.all_input_nodes if _is_floating(each)]
    if (selected := selection(call)) is not None:
        return inputs, [float(number(fill) or 0) for fill in selected[1:] if is_number(fill)]
    if call.kind not in ("add", "baddbmm"):
        return inputs, []
    read = {each: masks.read_added(each, call.node) for each in inputs}
    added = [mask.added for mask in read.values() if mask is not None and mask.added is not None]
    return [each for each, mask in read.items() if mask is None], added


def _is_floating(node: Node) -> bool:
    tensor = value(node)
    return isinstance(tensor, torch.Tensor) and tensor.is_floating_point()


def _factor(call: Call) -> float:
    """Returns the positive number by which a call multiplies its input; 1 for other calls."""
    factor = factor_of(call) if call.kind in ("mul", "div") else None
    return factor if factor is not None and 0 < factor < math.inf else 1.0


def _absorbs_scores(sum: Node, fill: float) -> bool:
    """Returns whether `fill` plus any score that occurs is rounded to `fill`, and `sum` needs no
    gradient. Only in Dynamo's graphs is it known that no gradient is needed, because Dynamo
    captures again for inputs that require grad."""
    # `fill` is finite in float32, and the sum of -2^126 and a score below 2^101 is rounded to
    # -2^126.
    absorbs = torch.finfo(torch.float32).min <= fill <= -(2.0**126)
    return absorbs and "example_value" in sum.meta and not value(sum).requires_grad


def _keeps_values(scores: Scores) -> bool:
    """Returns whether the op computes eager's values even in rows that see no column, or whether
    there are no such rows."""
    if not scores.mask_adds_finite or scores.mask_absorbs_scores or scores.has_sink:
        return True
    return scores.visible is None and intervals.every_row_sees(scores.bounds, scores.input)


def _inverted(scores: Scores, mask: Node) -> tuple[Scores, Operand]:
    """Returns the scores and the inverse of a mask. If the mask is ~visible, the inverse is the
    tensor `visible`, and the call of ~ is added to the nodes that the op replaces."""
    call = call_of(mask, "not")
    if call is not None and value(call.input).dtype == torch.bool:
        return replace(scores, nodes=(*scores.nodes, mask)), call.input
    return scores, OpCall(aten.logical_not.default, (mask,))


_STEPS = {
    "cast": _through_cast,
    "mul": _through_factor,
    "div": _through_factor,
    "add": _through_add,
    "sub": _through_sub,
    "baddbmm": _through_baddbmm,
    "masked_fill": _through_selection,
    "where": _through_selection,
    "tanh": _through_tanh,
}
#: The kinds of calls that are read inside the tanh of a soft cap. The op has no bias and no mask
#: there, so that these are only casts and factors.
_UNDER_A_CAP = ("cast", "mul", "div")


def through_factor(scores: Scores, call: Call) -> Scores | None:
    """Returns the scores with `call` included, if it is a cast, a factor or a soft cap; else
    None."""
    kinds = _UNDER_A_CAP if scores.softcap is not None else (*_UNDER_A_CAP, "tanh")
    return _STEPS[call.kind](scores, call) if call.kind in kinds else None
