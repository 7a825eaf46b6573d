"""Recognises the cross entropy of each row of logits with a class. Models write it as one call, as
an element of a log_softmax, and as a logsumexp minus a logit. Also recognises what models do to the
logits before: casts, views of the rows, a scale, and a soft cap, which bounds them by a tanh."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fusedops.graph.analysis import modes
from fusedops.graph.analysis.calls import Call, ModuleAttribute
from fusedops.graph.analysis.nodes import is_private, users
from fusedops.graph.analysis.steps import (
    before,
    before_view_chain,
    call_of,
    difference,
    has_shape,
    is_lossless,
    reduced_dims,
    same_shape,
    same_value,
    upstream,
)
from fusedops.graph.analysis.values import constant, value
from fusedops.graph.availability import KERNEL_DTYPES
from fusedops.graph.readers.elements import SELECTIONS, Element, read_element
from fusedops.graph.readers.scores import Scores, through_factor
from fusedops.graph.readers.softmax_chain import SoftmaxChain, read_softmax
from fusedops.graph.readers.softmax_decomposed import read_log_sum, read_softmax_decomposed
from fusedops.graph.rule import OpCall, viewed

aten = torch.ops.aten


@dataclass(frozen=True)
class Loss:
    """The cross entropies of rows of logits, or what a model reduces them to.

    logits: a tensor whose dimension `dim` has the classes.
    target: the class of each row.
    nodes: the calls that compute the loss, in program order; the last one is the result.
    ignore_index: the class whose rows do not count; None if all rows count.
    is_log_probability: whether the result is the negative of the losses, as if log_softmax(x)
        is gathered at the target.
    refusal: why no op computes it, or None.
    """

    logits: Node
    dim: int
    target: Node | OpCall
    nodes: tuple[Node, ...]
    weight: Node | ModuleAttribute | None = None
    ignore_index: int | None = None
    reduction: str = "none"
    label_smoothing: float = 0.0
    is_log_probability: bool = False
    refusal: str | None = None

    @property
    def are_classes_last(self) -> bool:
        rank: int = value(self.logits).dim()
        return self.dim % max(rank, 1) == rank - 1

    @property
    def last(self) -> Node:
        return self.nodes[-1]


def read_loss(call: Call) -> Loss | None:
    """Returns the loss that ends in `call`, or None."""
    if call.kind in ("cross_entropy", "nll_loss"):
        return _read_call(call)
    readers = {"sum": _read_one_hot, **dict.fromkeys(SELECTIONS, _read_selected)}
    find = readers.get(call.kind, _read_difference)
    return None if call.refusal else find(call)


# --- calls ----------------------------------------------------------------------------------------

#: The reductions of ATen's losses, by their numbers.
_REDUCTIONS = ("none", "mean", "sum")


def _read_call(call: Call) -> Loss | None:
    """Returns the loss that F.cross_entropy(x, target) or F.nll_loss(F.log_softmax(x, 1), target)
    computes. Returns None if x or target is not a tensor, or if nll_loss reads no log_softmax."""
    arguments = call.arguments
    logits, target = value(arguments["input"]), value(arguments["target"])
    if not isinstance(logits, torch.Tensor) or not isinstance(target, torch.Tensor):
        return None
    reduction = arguments["reduction"]
    loss = Loss(
        arguments["input"],
        1 if logits.dim() > 1 else 0,
        arguments["target"],
        (call.node,),
        arguments["weight"],
        arguments["ignore_index"],
        _REDUCTIONS[reduction] if isinstance(reduction, int) else reduction,
        arguments.get("label_smoothing", 0.0),
        refusal=call.refusal or _unsupported(arguments),
    )
    return loss if call.kind == "cross_entropy" else _before_nll_loss(loss)


def _unsupported(arguments: dict[str, Any]) -> str | None:
    """Returns why the op does not compute a call of a loss with these arguments, or None."""
    target, smoothing = value(arguments["target"]), arguments.get("label_smoothing", 0.0)
    weight = arguments["weight"]
    tensor = weight.tensor if isinstance(weight, ModuleAttribute) else value(weight)
    if arguments["size_average"] is not None or arguments["reduce"] is not None:
        return "size_average and reduce are deprecated"
    if target.dtype != torch.int64:
        is_floating = target.dtype.is_floating_point
        return f"the target {'has class probabilities' if is_floating else f'is {target.dtype}'}"
    if arguments["ignore_index"] is None or smoothing is None:
        return "ignore_index or label_smoothing is not a number known at compile time"
    if tensor is not None and smoothing:
        return "label smoothing with class weights"
    return "the class weights require grad" if tensor is not None and tensor.requires_grad else None


def _before_nll_loss(loss: Loss) -> Loss | None:
    """Returns the loss of an nll_loss together with the log_softmax that it reads, or None if it
    reads something else."""
    chain = _log_softmax(loss.logits, loss.last)
    if chain is None or not _is_over(chain, loss.dim):
        return None
    return replace(loss, logits=chain.input, nodes=(*chain.nodes, *loss.nodes))


def _log_softmax(node: Any, reader: Node) -> SoftmaxChain | None:
    """Returns the log_softmax that ends in `node`, perhaps with a cast. Returns None if `node` has
    users other than `reader`, or if the cross entropy op would not compute the log_softmax: with a
    refusal, with masks, or in another precision."""
    if not isinstance(node, Node) or users(node) != [reader]:
        return None
    cast = call_of(node, "cast")
    for candidate in (node, cast.input if cast else None):
        call = call_of(candidate)
        chain = (read_softmax(call) or read_softmax_decomposed(call)) if call else None
        if chain is not None and chain.last is node:
            fits = chain.op == "log_softmax" and not (chain.refusal or chain.needs_masks)
            # The op computes in the precision of its input, and has no argument for another.
            is_precise = chain.dtype is None or is_lossless(value(chain.input).dtype, chain.dtype)
            return chain if fits and is_precise else None
    return None


def _is_over(chain: SoftmaxChain, dim: int) -> bool:
    """Returns whether a softmax is over the dimension `dim` of its input."""
    rank = value(chain.input).dim()
    return isinstance(chain.dim, int) and chain.dim % max(rank, 1) == dim % max(rank, 1)


# --- the element of a log_softmax -----------------------------------------------------------------


def _read_selected(call: Call) -> Loss | None:
    """Returns the loss that a call computes which selects the element of each row's class from
    log_softmax(x, -1), or None."""
    element = read_element(call)
    chain = _log_softmax(element.rows, element.reader) if element else None
    if element is None or chain is None or not _is_over(chain, -1):
        return None
    return _loss_if_private(call, chain.input, element, is_log_probability=True)


def _loss_if_private(
    call: Call, logits: Node, element: Element, is_log_probability: bool
) -> Loss | None:
    """Returns the loss that `call` and the calls before it compute from `logits` and the classes
    of `element`, or None if something else uses one of the calls before it."""
    until = {logits, viewed(element.target), *element.places}
    nodes, target = tuple(sorted(upstream(call.node, until))), element.target_among(logits)
    loss = Loss(logits, -1, target, nodes, is_log_probability=is_log_probability)
    return loss if is_private(nodes, call.node) else None


def _read_one_hot(call: Call) -> Loss | None:
    """Returns the loss that (log_softmax(x, -1) * one_hot(target, classes)).sum(-1) computes, or
    None for another sum."""
    product = call_of(call.input, "mul")
    if product is None or users(product.node) != [call.node]:
        return None
    dims = reduced_dims(call, value(product.node))
    if dims != (value(product.node).dim() - 1,) or call.arguments.get("keepdim"):
        return None
    for logarithm, hot in product.orders:
        chain = _log_softmax(logarithm, product.node)
        target = _one_hot_target(hot, chain.input) if chain else None
        if chain is None or target is None or not _is_over(chain, -1):
            continue
        if same_shape(product.node, chain.input):  # no logarithm is repeated
            element = Element(logarithm, product.node, target)
            return _loss_if_private(call, chain.input, element, is_log_probability=True)
    return None


def _one_hot_target(node: Any, logits: Node) -> Node | None:
    """Returns the target, if `node` is F.one_hot(target, classes), cast or not, with as many
    classes as the logits; else None."""
    call = call_of(before(node, "cast"), "one_hot")
    classes = constant(call.arguments.get("num_classes")) if call else None
    if call is None or not statically_known_true(classes == value(logits).shape[-1]):
        return None
    target: Node = call.input
    return target


# --- logsumexp(x) - x[target] ---------------------------------------------------------------------


def _read_difference(call: Call) -> Loss | None:
    """Returns the loss that logsumexp(x, -1) - x.gather(-1, target.unsqueeze(-1)).squeeze(-1), or
    the negative of this, computes; None for another difference."""
    operands = difference(call.node)
    if operands is None or not isinstance(value(call.node), torch.Tensor):
        return None
    for total, element, is_log_probability in ((*operands, False), (*operands[::-1], True)):
        loss = _of_parts(call, total, element, is_log_probability)
        if loss is not None:
            return loss
    return None


def _of_parts(call: Call, total: Any, selected: Any, is_log_probability: bool) -> Loss | None:
    """Returns the loss, if `total` is logsumexp(x, -1) and `selected` is x.gather(-1,
    target.unsqueeze(-1)).squeeze(-1), else None. Both may be of x - max(x), which has the losses of
    x."""
    selection = call_of(before_view_chain(selected), *SELECTIONS)
    element = read_element(selection) if selection else None
    summed, logits = _written_out(total) or (_summed_logits(total),) * 2
    if element is None or logits is None:
        return None
    if not same_value(summed, element.rows):
        return None
    if not all(has_shape(node, value(call.node).shape) for node in (total, selected)):
        return None
    return _loss_if_private(call, logits, element, is_log_probability)


def _written_out(total: Any) -> tuple[Node, Node] | None:
    """Returns y and x, if `total` is logsumexp(y, -1), written as several calls, and y is x or x -
    max(x); else None."""
    log_sum = read_log_sum(total)
    if log_sum is None or log_sum.refusal or log_sum.dim != value(log_sum.input).dim() - 1:
        return None
    return log_sum.input, log_sum.logits


def _summed_logits(total: Any) -> Node | None:
    """Returns x, if `total` is logsumexp(x, -1), or the stack of logsumexp(x[i], -1) for all i;
    else None."""
    call = call_of(before_view_chain(total), "logsumexp", "stack")
    if call is not None and call.kind == "logsumexp":
        logits: Node = call.input
        return logits if reduced_dims(call, value(logits)) == (value(logits).dim() - 1,) else None
    if call is None or constant(call.arguments.get("dim", 0)) != 0:
        return None
    parts = [call_of(_summed_logits(part), "item") for part in call.arguments["tensors"]]
    sources = [part.input if part else None for part in parts]
    if not isinstance(sources[0], Node) or any(source is not sources[0] for source in sources):
        return None
    places = [part.arguments["index"] for part in parts if part]
    is_whole = statically_known_true(value(sources[0]).shape[0] == len(places))
    return sources[0] if is_whole and places == list(range(len(places))) else None


# --- logsumexp beside a loss ----------------------------------------------------------------------


def log_sums(loss: Loss) -> list[Node]:
    """Returns the calls that compute the logsumexp of a loss's logits, but are not part of the
    loss. A model needs them for a z-loss, for example."""
    rank = value(loss.logits).dim()
    calls = (call_of(user, "logsumexp") for user in users(loss.logits))
    return [
        call.node
        for call in calls
        if call is not None
        and call.node not in loss.nodes
        and modes.are_alike(call.node, loss.last)
        and reduced_dims(call, value(loss.logits)) == (loss.dim % max(rank, 1),)
    ]


# --- before the logits ----------------------------------------------------------------------------


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
    source, result = value(call.input), value(call.node)
    if call.kind not in ("same", "reshape") or not isinstance(source, torch.Tensor):
        return None
    has_rows = source.dim() > 0 and result.dim() > 0
    if not has_rows or not statically_known_true(source.shape[-1] == result.shape[-1]):
        return None
    return replace(read, input=call.input)


def _is_safe(read: Scores, step: Call) -> bool:
    """Returns whether the loss's op takes the dtype of `read.input`, and computes `step` in float64
    if and only if the model does."""
    dtype, result = value(read.input).dtype, value(step.node).dtype
    return dtype in KERNEL_DTYPES and (result == torch.float64) == (dtype == torch.float64)
