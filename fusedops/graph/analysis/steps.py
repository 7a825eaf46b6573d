"""Has helpers that walk from node to node, for rules that match several nodes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from typing import Any, TypeVar

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fusedops.graph.analysis import storages
from fusedops.graph.analysis.calls import Call, as_call
from fusedops.graph.analysis.nodes import packet, users
from fusedops.graph.analysis.values import (
    are_equal,
    constant,
    dtype_of,
    is_readable,
    known_size,
    rounded,
    value,
)
from fusedops.graph.analysis.writes import written

aten = torch.ops.aten

Result = TypeVar("Result")


def call_of(node: Any, *kinds: str) -> Call | None:
    """Returns the normal form of `node`, or None if there is none, if it has a refusal, or if its
    kind is not one of `kinds`; without `kinds`, any kind will do."""
    call = as_call(node) if isinstance(node, Node) else None
    fits = call is not None and call.refusal is None and (not kinds or call.kind in kinds)
    return call if fits else None


def operand_of(node: Any, *kinds: str) -> Any:
    """Returns the input of `node`, if `node` is a call of one of these kinds, else None."""
    call = call_of(node, *kinds)
    return call.input if call else None


def before(node: Any, kind: str) -> Any:
    """Returns the input of `node`, if `node` is a call of that kind, else `node` itself."""
    call = call_of(node, kind)
    return call.input if call else node


def output_of(node: Any, index: int, *kinds: str) -> Call | None:
    """Returns the call of one of these kinds, which has several outputs, if `node` is the output
    with that index; else None."""
    item = call_of(node, "item")
    is_output = item is not None and item.arguments["index"] == index
    return call_of(item.input, *kinds) if item and is_output else None


def read_once(read: Callable[[Call], Result]) -> Callable[[Call], Result]:
    """Makes a reader compute its result for a call once for all rules."""

    @functools.wraps(read)
    def cached(call: Call) -> Result:
        if read not in call.cache:
            call.cache[read] = read(call)
        result: Result = call.cache[read]
        return result

    return cached


def only_user(node: Node, *kinds: str) -> Call | None:
    """Returns `call_of(user, *kinds)` for the node's only user; None if it has none or several."""
    return call_of(users(node)[0], *kinds) if len(users(node)) == 1 else None


def tensor_and_number(call: Call) -> tuple[Any, Any]:
    """Returns the two operands of a sum or product; if one of them is a number, it comes last."""
    first, other = call.operands
    # `number` is not called here: reading a symbol makes it a constant of the compiled graph.
    return (other, first) if is_number(first) and not is_number(other) else (first, other)


def scaling(call: Call) -> tuple[Any, Any]:
    """Returns the tensor and the number of a product of the two, or of a quotient of the first by
    the second. Other calls than "mul" and "div" have no such operands."""
    return tensor_and_number(call) if call.kind == "mul" else call.operands


def factor_of(call: Call) -> float | None:
    """Returns the number by which a call multiplies the tensor that `scaling` finds, or None if it
    is not known, or is 0."""
    factor = known_number(scaling(call)[1])
    return factor if call.kind == "mul" or not factor else 1 / factor


def known_number(argument: Any) -> float | None:
    """Returns an operand as a float if `is_number` accepts it, else None. Reading a symbol makes it
    a constant of the compiled graph."""
    python_number = number(argument)
    return None if python_number is None else float(python_number)


def is_number(argument: Any) -> bool:
    """Returns whether an operand is a number that can be known when the graph is compiled: a Python
    number, a symbol that depends on no size, or a tensor made from a number."""
    recorded = value(argument)
    if isinstance(recorded, torch.Tensor):
        return number(argument) is not None
    return is_readable(recorded)


def number(argument: Any) -> int | float | None:
    """Returns an operand as a Python number: `constant(argument)`, or for a tensor without
    dimensions the number that it is made from. Returns None if it is not known."""
    if isinstance(value(argument), torch.Tensor):
        return _tensor_number(argument) if isinstance(argument, Node) else None
    return constant(argument)


#: The functions that make a tensor from a number, and those that copy or alias one unchanged.
_TENSOR_OF_NUMBER = {torch.tensor, torch.scalar_tensor, aten.scalar_tensor}
_FULL = {torch.full, aten.full}
_UNCHANGED = {aten.lift_fresh_copy, aten.lift_fresh, aten.detach, aten.detach_, aten.clone}


def _tensor_number(node: Node) -> int | float | None:
    """Returns the number in torch.tensor(2.0), torch.full((), 2.0), a constant that export lifted,
    or a copy of one of these. Returns None for other tensors, and if a call may write into the
    tensor or a view of it."""
    tensor, target = value(node), packet(node)
    changed = any(packet(writer) not in _UNCHANGED for writer in storages.writers_of(node))
    if tensor.dim() > 0 or tensor.is_complex() or changed:
        return None
    if target in _UNCHANGED:
        return _tensor_number(node.all_input_nodes[0])
    if target in _TENSOR_OF_NUMBER or target in _FULL:
        # The number is argument 1 of full, after the shape, and argument 0 of the other functions.
        fill = node.args[target in _FULL] if len(node.args) > (target in _FULL) else None
        return rounded(fill, tensor.dtype) if isinstance(fill, (int, float)) else None
    recorded = getattr(tensor, "constant", None)  # it is set for a constant that export has lifted
    return None if recorded is None else recorded.item()


def difference(node: Any) -> tuple[Any, Any] | None:
    """Returns a and b, if `node` is a - b, also written as a + (-b) or -(b - a); else None."""
    call = call_of(node, "sub", "add", "neg")
    if call is None:
        return None
    if call.kind == "sub":
        return call.operands
    if call.kind == "neg":
        inner = call_of(call.input, "sub")
        return inner.orders[1] if inner else None
    for minuend, negated in call.orders:
        if (negation := call_of(negated, "neg")) is not None:
            return minuend, negation.input
    return None


def reduced_dims(reduction: Call, reduced: torch.Tensor) -> tuple[int, ...] | None:
    """Returns the dimensions over which a call reduces the tensor `reduced`, in ascending order.
    Returns None if they are not known, if the call names none and `reduced` is no vector, or if the
    call also changes the dtype."""
    argument, rank = reduction.arguments.get("dim"), reduced.dim()
    if rank == 0 or reduction.arguments.get("dtype") not in (None, reduced.dtype):
        return None
    if rank == 1 and argument in (None, [], ()):
        return (0,)
    dims = _known_dims(argument, rank)
    return tuple(sorted(dims)) if dims and len(set(dims)) == len(dims) else None


def inserts_dims(index: Any) -> bool:
    """Returns whether an index only inserts dimensions of size 1, as in x[..., None]."""
    indices = index if isinstance(index, tuple) else (index,)
    return None in indices and all(i in (None, ..., slice(None)) for i in indices)


def has_keepdim_shape(node: Any, input: Any, dims: Sequence[int]) -> bool:
    """Returns whether a node has the shape of `input` with size 1 in the dimensions `dims`; if
    `input` is a vector, a node without dimensions counts too."""
    sizes = enumerate(value(input).shape)
    kept = has_shape(node, [1 if dim in dims else size for dim, size in sizes])
    return kept or (value(input).dim() == 1 and has_shape(node, []))


#: For each kind of permutation the arguments that name its dimensions.
_DIMS = {
    "permute": ("dims",),
    "transpose": ("dim0", "dim1"),
    "movedim": ("source", "destination"),
}


def permutation(node: Any) -> tuple[int, ...] | None:
    """Returns for each dimension of a permutation's result the dimension of its input, or None if
    `node` is no permutation, or one of unknown dimensions."""
    call = call_of(node, *_DIMS)
    if call is None:
        return None
    rank = value(node).dim()
    argument_dims = [_known_dims(call.arguments.get(name), rank) for name in _DIMS[call.kind]]
    dims = [each for each in argument_dims if each is not None]
    if len(dims) < len(argument_dims):
        return None
    # Each dimension of this tensor has its own index as its size.
    indices = torch.empty(tuple(range(rank)), device="meta")
    arguments = chain(*dims) if call.kind == "transpose" else dims
    return tuple(getattr(torch, call.kind)(indices, *arguments).shape)


def _known_dims(argument: Any, rank: int) -> tuple[int, ...] | None:
    """Returns the dimension or dimensions that an argument names, counted from 0, or None if one is
    not known."""
    dims = [
        constant(dim) for dim in (argument if isinstance(argument, (list, tuple)) else (argument,))
    ]
    wrapped = [dim % rank for dim in dims if isinstance(dim, int)]
    return tuple(wrapped) if len(wrapped) == len(dims) else None


def view_chain(node: Any) -> tuple[tuple[Node, ...], Any]:
    """Returns the chain of views that ends in `node`, the last first, and the chain's input. Each
    view keeps the order of the elements, such as one that adds or drops dimensions of size 1."""
    views: tuple[Node, ...] = ()
    while (call := call_of(node, "reshape", "unsqueeze", "squeeze", "item")) is not None:
        if call.kind == "item" and not inserts_dims(call.arguments["index"]):
            break
        views, node = (*views, node), call.input
    return views, node


def before_view_chain(node: Any) -> Any:
    """Returns the tensor before the order-keeping views that end in `node`."""
    return view_chain(node)[1]


def cast_chain(node: Any) -> tuple[tuple[Node, ...], Any]:
    """Returns the casts that end in `node`, the last first, and the input of the first cast. Only
    casts that lose nothing (`is_widening`) are part of the chain."""
    casts: tuple[Node, ...] = ()
    while (call := call_of(node, "cast")) is not None and is_widening(call):
        casts, node = (*casts, node), call.input
    return casts, node


def upstream(node: Node, until: set[Node]) -> set[Node]:
    """Returns `node` and all calls that its elements depend on, but neither the nodes in `until`
    nor what lies before those. Reads of attributes, such as a dtype, that only these calls use are
    part of the result."""
    calls: set[Node] = set()
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if current.op.startswith("call") and current not in until and current not in calls:
            calls.add(current)
            # The elements of x.type_as(y) do not depend on those of y.
            cast = call_of(current, "cast")
            waiting += [cast.input] if cast else current.all_input_nodes
    reads = (user for call in calls for user in call.users if user.target is getattr)
    return calls | {read for read in reads if calls.issuperset(read.users)}


def same_value(a: Any, b: Any, depth: int = 4) -> bool:
    """Returns whether two nodes are the same, or the same computation of the same nodes, at most
    `depth` calls deep. Two dropouts never are, because they draw different numbers, nor are calls
    that write into a tensor, or that read one into which another call has written meanwhile."""
    if a is b:
        return True
    x, y = call_of(a), call_of(b)
    if depth == 0 or x is None or y is None or x.kind != y.kind or x.kind == "dropout":
        return False
    if x.arguments.keys() != y.arguments.keys() or written(a) or written(b):
        return False
    last, inputs = max(a, b), {*a.all_input_nodes, *b.all_input_nodes}
    if any(node < writer < last for node in inputs for writer in storages.writers_of(node)):
        return False
    # logical_not and bitwise_not are one kind, and so are the two of `and` and of `or`. Of integers
    # they compute different results, and only the bitwise ones are integers again.
    if dtype_of(a) != dtype_of(b):
        return False
    return all(_same_argument(x.arguments[name], y.arguments[name], depth) for name in x.arguments)


def _same_argument(a: Any, b: Any, depth: int) -> bool:
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_same_argument, a, b, repeat(depth)))
    return same_value(a, b, depth - 1) if isinstance(a, Node) else bool(a == b)


#: Dtype that an op reads -> the dtypes in which the model may compute without a difference. float64
#: is left out for the narrower dtypes: an op that reads one of these, instead of a cast of it to
#: float64, computes in float32.
_LOSSLESS_CASTS = {
    torch.float16: (torch.float16, torch.float32),
    torch.bfloat16: (torch.bfloat16, torch.float32),
    torch.float32: (torch.float32,),
    torch.float64: (torch.float64,),
}


def is_widening(cast: Call) -> bool:
    """Returns whether an op may read the input of a cast in place of the cast's result."""
    return is_lossless(value(cast.input).dtype, cast.arguments["dtype"])


def is_lossless(dtype: torch.dtype, converted: torch.dtype) -> bool:
    """Returns whether an op may read numbers of `dtype` where the model reads them in `converted`:
    the conversion loses nothing, and the op computes in that precision anyway."""
    return converted in _LOSSLESS_CASTS.get(dtype, ())


def same_shape(node: Any, other: Any) -> bool:
    """Returns whether two tensors are known to have the same shape, without adding a guard."""
    tensor = value(other)
    return isinstance(tensor, torch.Tensor) and has_shape(node, tensor.shape)


def has_shape(node: Any, shape: Sequence[Any]) -> bool:
    """Returns whether a node is a tensor known to have that shape, without adding a guard."""
    tensor = value(node)
    return isinstance(tensor, torch.Tensor) and are_equal(tensor.shape, shape)


def known_count(tensor: torch.Tensor, dims: Iterable[int]) -> int | None:
    """Returns the number of elements over some dimensions, or None where that would add a guard."""
    sizes = [known_size(tensor.shape[dim]) for dim in dims]
    known = [size for size in sizes if size is not None]
    return math.prod(known) if len(known) == len(sizes) else None


def broadcasts(node: Any, to: Any) -> bool:
    """Returns whether a tensor is known to broadcast to the shape of another on the same device,
    without adding a guard."""
    a, b = value(node), value(to)
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor) or a.dim() > b.dim():
        return False
    pairs = zip(reversed(a.shape), reversed(b.shape), strict=False)
    fits = all(statically_known_true(m == 1) or statically_known_true(m == n) for m, n in pairs)
    return fits and a.device == b.device
