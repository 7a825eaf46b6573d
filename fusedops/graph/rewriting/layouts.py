"""Gives the results of an op the strides of eager mode.

The ops write contiguous tensors. Elementwise calls, and therefore softmaxes and norms that consist
of such calls, keep the order that the dimensions of their input have in memory. An op that replaces
them gets its inputs in this order, and the result is permuted back, which copies nothing:

    before    y = rms_norm(x)     x and y are [batch, heads, length, features], but in memory a
                                  projection has written the heads of one position side by side
    after     y = fusedops.rms_norm(x.permute(0, 2, 1, 3)).permute(0, 2, 1, 3)

A result is copied if the op cannot run on its inputs in eager's order, for example because the
features of a norm are not adjacent in it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fusedops.graph.analysis.values import are_equal, bytes_of, lasting_strides, value
from fusedops.graph.rewriting.evaluation import Evaluation
from fusedops.graph.rule import Match, OpCall, Output, arguments_by_name

aten = torch.ops.aten

#: The calls that give an output of the op another layout without copying it.
VIEWS = (aten.permute.default, aten.as_strided.default)

#: The dimensions of a tensor in the order that they have in memory, the innermost last.
Order = tuple[int, ...]


@dataclass(frozen=True)
class Replacement:
    """The calls that replace a site, which is a softmax or norm with the calls that are fused.

    call: the call of the op.
    results: replaced node that has users -> the call whose result replaces it.
    evaluation: the values of these calls.
    copied_bytes: how many bytes are read and written to give the results eager's strides.
    """

    call: OpCall
    results: Mapping[Node, OpCall]
    evaluation: Evaluation
    copied_bytes: int = 0


def replacements(call: OpCall, match: Match, evaluation: Evaluation) -> Iterator[Replacement]:
    """Yields the replacement by `call` on its inputs as they are. Then, unless the rule has
    permuted the input itself, yields the replacements by `call` on permuted inputs, one for each
    order that the dimensions of a result have in eager's memory. The results have eager's strides,
    unless these leave gaps in memory."""
    used = {old: index for old, index in match.results.items() if old.users}
    if match.order is not None:
        replacement = _with_results(call, match.order, used, evaluation)
        # If the permuted input is not contiguous, the op copies it.
        input = evaluation.value(arguments_by_name(call)["input"])
        copied = 0 if input.is_contiguous() else 2 * bytes_of(input)
        yield replace(replacement, copied_bytes=replacement.copied_bytes + copied)
        return
    yield _with_results(call, None, used, evaluation)
    orders = (memory_order(value(old)) for old in used)
    possible = (_possible_order(call, order, evaluation) for order in orders if order is not None)
    for order in dict.fromkeys(order for order in possible if order is not None):
        yield _with_results(_permuted(call, order, evaluation), order, used, evaluation)


def memory_order(tensor: torch.Tensor) -> Order | None:
    """Returns the dimensions of a tensor in the order that they have in memory, the innermost last.
    Returns None if there are gaps between its elements, or if some elements share memory."""
    remaining, order = list(range(tensor.dim())), []
    stride: int | torch.SymInt = 1
    while remaining:
        inner = _next_dim(tensor, remaining, stride)
        if inner is None:
            return None
        remaining.remove(inner)
        order.append(inner)
        size = tensor.size(inner)
        stride = stride * (max(size, 1) if isinstance(size, int) else size)
    return tuple(reversed(order))


def _next_dim(tensor: torch.Tensor, dims: Sequence[int], stride: int | torch.SymInt) -> int | None:
    """Returns the next dimension from the inside, which is the last of `dims` with that stride, one
    of size 1 if possible. If none has the stride, returns the last dimension of size 1, where the
    stride is arbitrary, or None if there is no such dimension."""
    fitting = {d for d in dims if _equal(tensor.stride(d), stride)}
    ones = {d for d in dims if _equal(tensor.size(d), 1)}
    return max(ones & fitting or fitting or ones, default=None)


def _equal(a: Any, b: Any) -> bool:
    """Returns whether two sizes or strides are known to be equal, without adding a guard."""
    return statically_known_true(a == b)


# --- the op's call --------------------------------------------------------------------------------

#: The arguments that have the shape of the result.
_FULL = {"input", "residual"}
#: The arguments of masked softmaxes that broadcast to the shape of the result.
_BROADCAST = {"mask", "bias"}
#: The arguments of masked softmaxes that have one value for each row. They broadcast to the shape
#: of the result without its last dimension.
_PER_ROW = {"start", "end", "sinks"}
#: The arguments that mean the same in any order of the input's dimensions, as long as the last
#: dimensions, of which `_fixed_dims` gives the number, stay the last ones.
_UNMOVED = set(
    "normalized_shape weight bias weights biases eps weight_offset rounds_normalized scale causal "
    "diagonal lower_diagonal mask_value zero_masked_rows softcap dtype p seed".split()
)
_KNOWN = _FULL | _BROADCAST | _PER_ROW | _UNMOVED | {"inputs", "dim", "stack_dim"}


def _possible_order(call: OpCall, order: Order, evaluation: Evaluation) -> Order | None:
    """Returns `order`, changed so that the dimensions which the op needs as its last ones stay the
    last. Returns None if no dimension moves, or if it is not known whether the op computes the same
    with permuted inputs."""
    arguments = arguments_by_name(call)
    fixed = _fixed_dims(arguments, evaluation)
    if fixed is None:
        return None
    stack = _stack_dim(arguments, order)
    of_input = [d for d in range(len(order)) if d != stack]
    last = of_input[len(of_input) - fixed :]
    possible = [*(d for d in order if d != stack and d not in last), *last]
    if stack is not None:
        possible.insert(order.index(stack), stack)
    return tuple(possible) if possible != sorted(possible) else None


def _fixed_dims(arguments: Mapping[str, Any], evaluation: Evaluation) -> int | None:
    """Returns how many dimensions of the op's input have to stay the last ones if the input is
    permuted, or None if that is not known."""
    if not _KNOWN.issuperset(arguments):
        return None
    if "dim" in arguments:
        return 0
    if "causal" in arguments:
        return 2 if arguments["causal"] or arguments.get("lower_diagonal") is not None else 1
    # The shape may be a node: torch.fx records x.shape[-1:] as one.
    row = arguments.get("normalized_shape")
    return None if row is None else len(evaluation.value(row))


def _stack_dim(arguments: Mapping[str, Any], order: Order) -> int | None:
    """Returns the dimension of the result along which inputs are stacked, or None."""
    return arguments["stack_dim"] % len(order) if "stack_dim" in arguments else None


def _permuted(call: OpCall, order: Order, evaluation: Evaluation) -> OpCall:
    """Returns `call` with its inputs permuted, so that their dimensions are in the order
    `order`."""
    arguments = arguments_by_name(call)
    stack = _stack_dim(arguments, order)
    # The inputs lack the dimension `stack`, so that in them each later dimension is one lower.
    of_input = tuple(d - (stack is not None and d > stack) for d in order if d != stack)

    def moved(name: str, argument: Any) -> Any:
        """Returns what the argument of that name has to be for the permuted inputs."""
        if name in _FULL:
            return _permute(argument, of_input)
        if name == "inputs":
            return [_permute(each, of_input) for each in argument]
        # Only masked softmaxes have `causal`. The bias of a norm is a parameter, and stays.
        if name in _BROADCAST and argument is not None and "causal" in arguments:
            return _permuted_broadcast(argument, of_input, evaluation)
        if name in _PER_ROW and argument is not None:
            return _permuted_broadcast(argument, of_input[:-1], evaluation)
        if name == "dim":
            return of_input.index(argument % len(of_input))
        return order.index(stack) if name == "stack_dim" and stack is not None else argument

    return replace(call, args=tuple(moved(name, argument) for name, argument in arguments.items()))


def _permuted_broadcast(argument: Any, order: Order, evaluation: Evaluation) -> Any:
    """Returns an argument, which broadcasts to the input, permuted as the input is."""
    rank = evaluation.value(argument).dim()
    missing = len(order) - rank
    if order[:missing] == tuple(range(missing)):
        return _permute(argument, tuple(d - missing for d in order[missing:]))
    for _ in range(missing):
        argument = OpCall(aten.unsqueeze.default, (argument, 0))
    return _permute(argument, order)


# --- its results ----------------------------------------------------------------------------------


def _with_results(
    new: OpCall, order: Order | None, used: Mapping[Node, Output], evaluation: Evaluation
) -> Replacement:
    """Returns the replacement by `new`, whose inputs are in the order `order` (None for unchanged),
    with results in eager's order and strides. `used` has the replaced nodes that have users, and
    which of the op's outputs replaces each."""
    results, copied_bytes = {}, 0
    for old, which in used.items():
        output = _selected(new, which)
        restored = _restored(output, order, value(old), evaluation)
        results[old] = _with_size_one_strides(restored, value(old), new, evaluation)
        copied_bytes += is_copied(results[old]) * 2 * bytes_of(value(old))
    return Replacement(new, results, evaluation, copied_bytes)


def _selected(new: OpCall, which: Output) -> OpCall:
    """Returns the result of the call `new` that `which`, a value of `Match.results`, stands for:
    the call itself for None, an item of its tuple for an index, and for a function what the
    function returns for the call."""
    if which is None:
        return new
    return OpCall(operator.getitem, (new, which)) if isinstance(which, int) else which(new)


def is_copied(result: OpCall) -> bool:
    """Returns whether a result of a replacement is a copy of the op's output."""
    while result.op in VIEWS:
        result = result.args[0]
    return result.op is aten.clone.default


def _restored(
    output: OpCall, order: Order | None, eager: torch.Tensor, evaluation: Evaluation
) -> OpCall:
    """Returns `output`, whose dimensions are in the order `order`, permuted back to eager's order.
    If the permuted tensor has other strides than `eager` in dimensions of other sizes than 1, it is
    copied, unless eager's strides leave gaps in memory, which a copy cannot have."""
    tensor, rank = evaluation.value(output), eager.dim()
    if tensor.dim() != rank:  # the rewriter refuses a replacement with such a result
        return output
    order = order or tuple(range(rank))
    back: OpCall = _permute(output, _inverse(order))
    memory = memory_order(eager)
    if memory is None or _agree([tensor.stride(d) for d in _inverse(order)], eager):
        return back
    adjacent = _permute(output, tuple(order.index(d) for d in memory))
    copy: OpCall = _permute(OpCall(aten.clone.default, (adjacent,), _CONTIGUOUS), _inverse(memory))
    return copy


_CONTIGUOUS = {"memory_format": torch.contiguous_format}


def _permute(argument: Any, order: Order) -> Any:
    if order == tuple(range(len(order))):
        return argument
    return OpCall(aten.permute.default, (argument, list(order)))


def _inverse(order: Order) -> Order:
    return tuple(order.index(d) for d in range(len(order)))


def _agree(strides: Sequence[Any], eager: torch.Tensor) -> bool:
    """Returns whether `strides` are known to be eager's in all dimensions of other sizes than 1."""
    triples = zip(strides, eager.stride(), eager.shape, strict=True)
    return all(_equal(size, 1) or _equal(ours, theirs) for ours, theirs, size in triples)


def _with_size_one_strides(
    result: OpCall, eager: torch.Tensor, call: OpCall, evaluation: Evaluation
) -> OpCall:
    """Returns `result` with eager's strides also in dimensions of size 1, such as the batch of
    x[:, -1:]. This takes as_strided, since `_restored` can only permute or copy. Returns
    `result` unchanged if the strides already agree or differ in other dimensions, if all sizes are
    recorded as numbers (`lasting_strides`), or if no tensor of the call has a stride that is
    wanted."""
    tensor = evaluation.value(result)
    # The rewriter refuses a replacement with other strides in dimensions of other sizes than 1.
    if tensor.dim() != eager.dim() or not _agree(tensor.stride(), eager):
        return result
    if are_equal(lasting_strides(tensor), lasting_strides(eager)):
        return result
    arguments = arguments_by_name(call)
    sources = [
        result,
        *(arguments[name] for name in _FULL if name in arguments),
        *arguments.get("inputs", ()),
    ]
    wanted = [_stride(stride, sources, evaluation) for stride in eager.stride()]
    if None in wanted:
        return result
    sizes = [
        size if isinstance(size, int) else OpCall(aten.sym_size.int, (result, d))
        for d, size in enumerate(eager.shape)
    ]
    return OpCall(aten.as_strided.default, (result, sizes, wanted))


def _stride(wanted: Any, sources: Sequence[Any], evaluation: Evaluation) -> int | OpCall | None:
    """Returns the stride `wanted` as a number, or if it is symbolic, as a call that reads it from
    one of the `sources`; None if none of these has such a stride."""
    if isinstance(wanted, int):
        return wanted
    for source in sources:
        for d, stride in enumerate(evaluation.value(source).stride()):
            if _equal(stride, wanted):
                return OpCall(aten.sym_stride.int, (source, d))
    return None
