"""Reads the mask that a graph computes: the columns that each row sees, as bounds where they follow
from positions, and as bool tensors where nothing is known.

The calls that build a mask are interpreted with the values of `positions.py` and `choices.py`, from
aranges to comparisons, and on through logic, fills and casts. A tensor that is a graph input or a
buffer has unknown elements, but can be a bound: `keys <= position[:, None]` ends each row at a
position that the graph reads.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fusedops.graph.analysis import storages
from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.masks import choices
from fusedops.graph.analysis.masks.choices import Choice, Chosen, Number
from fusedops.graph.analysis.masks.picks import Pick, at, indices_of, pick_of, viewed
from fusedops.graph.analysis.masks.positions import (
    COLUMNS,
    ROWS,
    Affine,
    Bound,
    Condition,
    Document,
    Leaf,
    Logical,
    Search,
    Truth,
    Within,
    at_most_zero,
    both,
    column_of_zero,
    either,
    inverse,
    resolved,
    without_short_dims,
)
from fusedops.graph.analysis.modes import is_barrier
from fusedops.graph.analysis.steps import call_of, reduced_dims, same_shape, upstream
from fusedops.graph.analysis.values import number, rounded, value
from fusedops.graph.analysis.views import Axes, axes_of
from fusedops.graph.analysis.writes import written

#: A mask is read if at most this many calls build it.
_MAX_CALLS = 96
_INTEGERS = (torch.int64, torch.int32)


@dataclass(frozen=True)
class Quotient:
    """dividend // divisor, where the divisor is above 0."""

    dividend: Affine
    divisor: int


@dataclass(frozen=True)
class Magnitude:
    """The absolute value of a number."""

    signed: Affine


@dataclass(frozen=True)
class Ascending:
    """An integer tensor whose elements never decrease along a dimension.

    numbers: a tensor that rises by one from each column to the next, where the elements of the
        tensor that this is, or of which it has elements, are equal; None if there is none.
    """

    node: Node
    dim: int
    numbers: Node | None = None


Known = Number | Truth | Choice | Affine | Quotient | Magnitude | Ascending


@dataclass(frozen=True)
class Mask:
    """What a mask hides.

    visible: what holds for the columns that a row sees.
    added: the number that is added to hidden scores; None for a bool mask.
    calls: the calls that compute the mask from other tensors.
    """

    visible: tuple[Bound | Leaf, ...]
    added: Number | None
    calls: frozenset[Node]

    @property
    def bounds(self) -> tuple[Bound, ...]:
        return tuple(part for part in self.visible if isinstance(part, Bound))

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        return tuple(part for part in self.visible if isinstance(part, Leaf))


def read_bool(mask: Node, hides: bool, reader: Node) -> Mask | None:
    """A bool mask, True for hidden columns if `hides` and else for visible ones, as `reader` sees
    it; None if nothing is known of it."""
    known = _Interpreter().read(mask)
    if not isinstance(known, (Truth, bool)):
        return None
    return _mask(mask, inverse(known) if hides else known, None, reader)


def read_added(addend: Node, reader: Node) -> Mask | None:
    """A mask that is added to scores: 0 for visible columns, and another number for hidden ones."""
    known = _Interpreter().read(addend)
    if not isinstance(known, Choice) or 0 not in (known.yes, known.no):
        return None
    visible = known if known.yes == 0 else known.swapped
    return _mask(addend, visible.truth, visible.no, reader)


def why_unknown(mask: Node) -> str:
    """Why a mask is not known as bounds of rows."""
    calls = upstream(mask, until=set()) or {mask}
    read = {node for call in calls for node in (call, *call.all_input_nodes)}
    given = [node for node in sorted(read) if node.op in ("placeholder", "get_attr")]
    tensors = [node.name for node in given if isinstance(value(node), torch.Tensor)]
    if tensors:
        return f"the mask depends on the elements of {', '.join(tensors[:3])}"
    return "the mask is not known to leave each row one interval of columns"


def _mask(node: Node, visible: Logical, added: Number | None, reader: Node) -> Mask | None:
    parts: Condition | None = () if visible is True else None
    if isinstance(visible, Truth):
        parts = visible.when_true
    if parts is None:
        return None
    known = resolved(parts)
    operands = set(_operands(known))
    if node in operands:
        return None
    calls = upstream(node, until=operands)
    if _written_before_read(calls, operands, reader):
        return None
    tensors = (call for call in calls if isinstance(value(call), torch.Tensor))
    return Mask(known, added, frozenset(call for call in tensors if not written(call)))


def _operands(parts: Iterable[Bound | Leaf]) -> Iterator[Node]:
    """The nodes that a condition refers to."""
    for part in parts:
        for term in [part.node] if isinstance(part, Leaf) else part.limit.terms:
            yield from (term.keys, term.rows) if isinstance(term, Search) else (term,)


def _is_unwritten(*nodes: Node) -> bool:
    """Whether nothing writes into a tensor that these depend on before it has been read."""
    calls = {call for node in nodes for call in upstream(node, until=set())}
    return not _written_before_read(calls, set(), nodes[0])


def _written_before_read(calls: set[Node], operands: set[Node], reader: Node) -> bool:
    """Whether something writes into the memory of a tensor before a call that reads it has run.
    The operands are read by `reader`."""
    reads = [(node, call) for call in calls for node in call.all_input_nodes]
    reads += [(node, reader) for node in operands]
    return any(node < writer < call for node, call in reads for writer in storages.writers_of(node))


class _Interpreter:
    """What is known of the tensors that a mask consists of."""

    def __init__(self) -> None:
        self.known: dict[Node, Known | None] = {}

    def read(self, argument: Any) -> Known | None:
        if not isinstance(argument, Node):
            return argument if isinstance(argument, (int, float)) else None
        if argument not in self.known:
            many = len(self.known) >= _MAX_CALLS
            self.known[argument] = None  # for the calls that it reads, if there are too many
            self.known[argument] = _unknown(argument) if many else self._interpreted(argument)
        return self.known[argument]

    def _interpreted(self, node: Node) -> Known | None:
        found = value(node)
        if isinstance(found, (int, float)):
            return found
        if isinstance(found, torch.SymInt):
            return Affine(terms={node: 1})
        if not isinstance(found, torch.Tensor):
            return None
        if is_barrier(node):  # what is known are constants, which have no gradient in any mode
            return self.read(node.args[0])
        if found.dim() == 0 and (single := number(node)) is not None:
            return single
        call = call_of(node)
        step = _STEPS.get(call.kind) if call else None
        known = step(self, call) if step and call else None
        return _unknown(node) if known is None else _fitted(known, node)

    def operands(self, call: Call) -> tuple[Known | None, Known | None]:
        first, other = (self.read(call.arguments.get(name)) for name in ("input", "other"))
        return first, other

    def position(self, argument: Any) -> Known | None:
        """As `read`, but where a tensor has one number for each row, other than the row's index
        plus a number, it is a term."""
        known = _as_affine(self.read(argument))
        if not isinstance(argument, Node) or isinstance(known, (Truth, Choice, float)):
            return known
        tensor, term = value(argument), Affine(terms={argument: 1})
        if not isinstance(tensor, torch.Tensor) or tensor.dtype not in _INTEGERS:
            return known
        if term.varies_over_columns or (isinstance(known, Affine) and known.is_index):
            return known
        return term

    def affine(self, argument: Any) -> Affine | None:
        known = _as_affine(self.read(argument))
        return known if isinstance(known, Affine) else None

    def pick(self, node: Node) -> Pick:
        return pick_of(self.affine, node)


def _as_affine(known: Known | None) -> Known | None:
    return Affine(known) if type(known) is int else known


def _is_chosen(known: Known | None) -> TypeGuard[Chosen]:
    return isinstance(known, (int, float, Truth, Choice))


def _unknown(node: Node) -> Known | None:
    tensor = value(node)
    if not isinstance(tensor, torch.Tensor):
        return None
    if tensor.dtype == torch.bool:
        return Truth(None, None).completed(node)
    return Affine(terms={node: 1}) if tensor.dtype in _INTEGERS else None


def _fitted(known: Known, node: Node) -> Known:
    """A result as the value of a node, in its dtype. Indices of dimensions of size 1 are 0."""
    tensor = value(node)
    if isinstance(known, (Affine, Quotient, Magnitude)):
        long = _changed(known, lambda affine: without_short_dims(affine, tensor.shape))
        return known if long is None else long
    if isinstance(known, (int, float)):
        return rounded(known, tensor.dtype)
    if isinstance(known, Truth):
        is_bool = tensor.dtype == torch.bool
        return known.completed(node) if is_bool else Choice(known, 1, 0)
    if not isinstance(known, Choice):
        return known
    yes, no = (rounded(one, tensor.dtype) for one in (known.yes, known.no))
    fitted = choices.chosen(known.truth, yes, no)
    if tensor.dtype != torch.bool or not isinstance(fitted, Choice):
        return fitted
    return (fitted.truth if fitted.yes else fitted.truth.inverted).completed(node)


def _changed(
    known: Affine | Quotient | Magnitude, change: Callable[[Affine], Affine | None]
) -> Affine | Quotient | Magnitude | None:
    """A number with its affine part changed; None if `change` gives None."""
    if isinstance(known, Affine):
        return change(known)
    inner = change(known.dividend if isinstance(known, Quotient) else known.signed)
    if inner is None:
        return None
    return Quotient(inner, known.divisor) if isinstance(known, Quotient) else Magnitude(inner)


# --- constants ----------------------------------------------------------------------------------


def _arange(reader: _Interpreter, call: Call) -> Known | None:
    start, step = (_as_affine(reader.read(call.arguments[name])) for name in ("start", "step"))
    if not isinstance(start, Affine) or not isinstance(step, Affine) or step.terms:
        return None
    is_integer = value(call.node).dtype in _INTEGERS and not start.tensors
    return start + Affine(steps={COLUMNS: step.constant}) if is_integer else None


def _full(reader: _Interpreter, call: Call) -> Known | None:
    return number(call.arguments.get("fill_value"))


def _zeros(reader: _Interpreter, call: Call) -> Known | None:
    return 0


def _ones(reader: _Interpreter, call: Call) -> Known | None:
    return 1


# --- arithmetic ---------------------------------------------------------------------------------

Step = Callable[[_Interpreter, Call], Known | None]


def _arithmetic(compute: Callable[[Any, Any], Any]) -> Step:
    def step(reader: _Interpreter, call: Call) -> Known | None:
        a, b = reader.operands(call)
        if isinstance(a, (int, float, Truth, Choice)) and isinstance(
            b, (int, float, Truth, Choice)
        ):
            return choices.combined(compute, a, b)
        if value(call.node).dtype not in _INTEGERS:
            return None
        if compute is operator.mul:
            a, b = (b, a) if type(a) is int else (a, b)
            return a * b if isinstance(a, Affine) and type(b) is int else None
        x, y = _as_affine(a), _as_affine(b)
        affine: Affine | None = None
        if isinstance(x, Affine) and isinstance(y, Affine):
            affine = compute(x, y)
        return affine

    return step


def _floor_quotient(reader: _Interpreter, call: Call) -> Known | None:
    dividend, divisor = reader.operands(call)
    if not isinstance(dividend, Affine) or not isinstance(divisor, int):
        return None
    return Quotient(dividend, divisor) if divisor > 0 else None


def _magnitude(reader: _Interpreter, call: Call) -> Known | None:
    signed = reader.read(call.arguments["input"])
    return Magnitude(signed) if isinstance(signed, Affine) else None


def _cumulative_sum(reader: _Interpreter, call: Call) -> Known | None:
    """Ones give positions, and numbers that are not negative an ascending sequence."""
    added, dim = reader.read(call.arguments["input"]), call.arguments["dim"]
    tensor = value(call.node)
    if tensor.dtype not in _INTEGERS or type(dim) is not int or tensor.dim() == 0:
        return None
    dim = dim % tensor.dim() - tensor.dim()
    if isinstance(added, int):
        return Affine(int(added), {dim: int(added)}) if added else 0
    least = min(added.yes, added.no) if isinstance(added, Choice) else 0
    if not isinstance(added, (Truth, Choice)) or least < 0:
        return None
    return Ascending(call.node, dim, _without_jumps(call) if dim == COLUMNS else None)


def _without_jumps(count: Call) -> Node | None:
    """The tensor x of (x.diff(prepend=...) != 1).cumsum(-1): where the sum stays the same, x rises
    by one."""
    jumps = call_of(count.arguments["input"], "ne")
    differences = call_of(jumps.arguments["input"], "diff") if jumps else None
    if jumps is None or differences is None or _differenced_dim(differences) != COLUMNS:
        return None
    x: Node = differences.arguments["input"]
    known = number(jumps.arguments["other"]) == 1 and same_shape(x, count.node)
    return x if known and differences.arguments.get("append") is None else None


def _differenced_dim(call: Call) -> int | None:
    """The dimension along which a call subtracts from each element the one before it."""
    given, dim = value(call.arguments["input"]), call.arguments.get("dim", -1)
    once = call.arguments.get("n", 1) == 1 and type(dim) is int and given.dim() > 0
    return dim % given.dim() - given.dim() if once else None


def _differences(reader: _Interpreter, call: Call) -> Known | None:
    """Those of numbers that rise evenly are all the same."""
    dim, given = _differenced_dim(call), reader.affine(call.arguments["input"])
    if dim is None or given is None or given.tensors or call.arguments.get("append") is not None:
        return None
    step = given.steps.get(dim, 0)
    before = given + Affine(-step, {dim: -step})
    prepended = call.arguments.get("prepend")
    one_more = same_shape(call.arguments["input"], call.node)
    is_even = prepended is None or (one_more and reader.affine(prepended) == before)
    return step if is_even else None


def _count_below(reader: _Interpreter, call: Call) -> Known | None:
    """How many of some boundaries are below each of ascending numbers."""
    boundaries = call.arguments.get("sorted_sequence", call.arguments.get("boundaries"))
    if not isinstance(boundaries, Node) or value(boundaries).dim() != 1:
        return None
    return _ascending_as(reader, call.arguments["input"], call.node)


def _count_reached(reader: _Interpreter, call: Call) -> Known | None:
    """How many limits each column has reached, as in (columns >= limits[:, None]).sum(0)."""
    reached = reader.read(call.arguments["input"])
    parts = reached.when_true if isinstance(reached, Truth) else None
    dims = reduced_dims(call, value(call.arguments["input"]))
    rank = value(call.arguments["input"]).dim()
    if not parts or not dims or rank - 1 in dims or value(call.node).dtype not in _INTEGERS:
        return None
    ascends = all(isinstance(part, Bound) and part.is_start for part in parts)
    return Ascending(call.node, COLUMNS) if ascends else None


def _repeated(reader: _Interpreter, call: Call) -> Known | None:
    """Ascending numbers, or without any the indices of `repeats`, each of which is repeated."""
    given, repeats = call.arguments.get("input"), call.arguments.get("repeats")
    if given is None or repeats is None:
        return Ascending(call.node, COLUMNS)
    return _ascending_as(reader, given, call.node) if value(given).dim() == 1 else None


def _ascending_as(reader: _Interpreter, given: Any, node: Node) -> Ascending | None:
    """A tensor whose elements ascend along the dimension along which those of another one do."""
    known = reader.affine(given)
    if known is None or known.tensors or value(node).dtype not in _INTEGERS:
        return None
    dims = [dim for dim, step in known.steps.items() if step > 0]
    return Ascending(node, dims[0]) if len(dims) == len(known.steps) == 1 else None


# --- comparisons --------------------------------------------------------------------------------

_RELATIONS = {name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}
_MIRRORED = {"gt": "lt", "ge": "le"}


def _comparison(reader: _Interpreter, call: Call) -> Known | None:
    a, b = reader.operands(call)
    if _is_chosen(a) and _is_chosen(b):
        return choices.combined(_RELATIONS[call.kind], a, b)
    names = ("other", "input") if call.kind in _MIRRORED else ("input", "other")
    x, y = (reader.position(call.arguments.get(name)) for name in names)
    kind = _MIRRORED.get(call.kind, call.kind)
    if kind in ("eq", "ne"):
        equal = _equal(reader, x, y)
        if isinstance(equal, Truth):
            equal = _with_known_column(equal, *reader.operands(call))
        return inverse(equal) if equal is not None and kind == "ne" else equal
    known = _ordered(kind, x, y)
    if known is not None:
        return known
    x, y = (reader.affine(call.arguments.get(name)) for name in names)
    return _ordered_in_document(reader, kind, x - y, call.node) if x and y else None


def _ordered(kind: str, x: Any, y: Any) -> Logical | None:
    return _at_most(x, y) if kind == "le" else _less(x, y)


def _ordered_in_document(
    reader: _Interpreter, kind: str, difference: Affine, node: Node
) -> Truth | None:
    """A comparison of a row's and a column's numbers, such as position_ids[:, None, :] <=
    position_ids[:, :, None], which differ as indices do if they are in the same document."""
    tensors = [term for term in difference.tensors if isinstance(term, Node)]
    columns = [term for term in tensors if Affine(terms={term: 1}).varies_over_columns]
    rows = [term for term in tensors if term not in columns]
    if len(columns) != 1 or len(rows) != 1 or len(difference.tensors) != 2:
        return None
    document = _document(reader.pick(rows[0]), reader.pick(columns[0]))
    step = difference.terms[columns[0]]
    if document is None or difference.terms[rows[0]] != -step:
        return None
    numbers = Affine(terms={columns[0]: step, rows[0]: -step})
    known = _ordered(kind, difference - numbers + document.difference * step, Affine())
    return _within(document, known, node) if isinstance(known, Truth) else None


def _document(rows: Pick, columns: Pick) -> Document | None:
    """The document of the elements of one tensor that two others have."""
    same = rows.source is columns.source and rows.places[:-1] == columns.places[:-1]
    return Document(rows.source, rows.places, columns.places) if same and rows.places else None


def _within(document: Document, known: Truth, node: Node) -> Truth:
    """What is known of `node` in a document."""

    def limited(condition: Condition | None, otherwise: Leaf) -> Condition | None:
        bounds = [part for part in condition or () if isinstance(part, Bound)]
        return tuple(Within(document, bound, otherwise) for bound in bounds) or None

    leaves = Leaf(node), Leaf(node, negated=True)
    return Truth(limited(known.when_true, leaves[0]), limited(known.when_false, leaves[1]))


def _with_known_column(equal: Truth, x: Known | None, y: Known | None) -> Truth:
    """Where quotients are equal, with the column in which their dividends are."""
    if not isinstance(x, Quotient) or not isinstance(y, Quotient) or x.divisor != y.divisor:
        return equal
    leaves = column_of_zero(x.dividend - y.dividend)
    bounds = [part for part in equal.when_true or () if isinstance(part, Bound)]
    return replace(equal, when_true=tuple(replace(bound, leaves=leaves) for bound in bounds))


def _less(x: Any, y: Any) -> Logical | None:
    if isinstance(y, Affine):
        return _at_most(x, y - 1)
    return _at_most(x + 1, y) if isinstance(x, Affine) else None


def _at_most(x: Any, y: Any) -> Logical | None:
    """x <= y, if that is one interval of columns or the opposite."""
    if isinstance(x, Affine) and isinstance(y, Affine):
        return at_most_zero(x - y)
    if isinstance(x, Quotient) and isinstance(y, Affine):
        return at_most_zero(x.dividend - y * x.divisor + (1 - x.divisor))
    if isinstance(x, Affine) and isinstance(y, Quotient):
        return at_most_zero(x * y.divisor - y.dividend)
    if isinstance(x, Magnitude) and isinstance(y, Affine):
        return _all_of(at_most_zero(x.signed - y), at_most_zero(-x.signed - y))
    if isinstance(x, Affine) and isinstance(y, Magnitude):
        smaller = _at_most(y, x - 1)
        return None if smaller is None else inverse(smaller)
    return None


def _equal(reader: _Interpreter, x: Any, y: Any) -> Logical | None:
    for keys, rows in ((x, y), (y, x)):
        if isinstance(keys, Ascending) and keys.dim == COLUMNS and isinstance(rows, Affine):
            return _found(reader, keys, rows)
    if isinstance(x, Magnitude) or isinstance(y, Magnitude):
        return None
    return _all_of(_at_most(x, y), _at_most(y, x))


def _found(reader: _Interpreter, keys: Ascending, rows: Affine) -> Truth | None:
    """Where ascending keys are equal to the number of the row."""
    row = next(iter(rows.terms), None)
    if not isinstance(row, Node) or rows != Affine(terms={row: 1}):
        return None
    if not _can_search(keys.node, row) or not _is_unwritten(keys.node, row):
        return None
    document = _document(reader.pick(row), reader.pick(keys.node))
    leaves = column_of_zero(document.difference) if document else None
    start, end = (Affine(terms={Search(keys.node, row, right): 1}) for right in (False, True))
    bounds = (Bound(start, True, leaves), Bound(end, False, leaves))
    if document is None or keys.numbers is None:
        return Truth(bounds, None)
    return Truth((*bounds, replace(document, numbers=keys.numbers)), None)


def _can_search(keys: Node, rows: Node) -> bool:
    """Whether torch.searchsorted takes these keys and rows, once the rows are along the columns."""
    sorted_keys, numbers = value(keys), value(rows)
    if not isinstance(numbers, torch.Tensor) or sorted_keys.dtype != numbers.dtype:
        return False
    if not sorted_keys.dim() == numbers.dim() > 1:
        return False
    pairs = zip(sorted_keys.shape[:-2], numbers.shape[:-2], strict=True)
    one_row = statically_known_true(sorted_keys.shape[ROWS] == 1)
    return one_row and all(statically_known_true(m == n) for m, n in pairs)


def _all_of(a: Logical | None, b: Logical | None) -> Logical | None:
    return None if a is None or b is None else both(a, b)


# --- logic --------------------------------------------------------------------------------------


def _logic(connect: Callable[[Logical, Logical], Logical]) -> Step:
    def step(reader: _Interpreter, call: Call) -> Known | None:
        a, b = reader.operands(call)
        if not isinstance(a, (Truth, bool)) or not isinstance(b, (Truth, bool)):
            return None
        return connect(a, b)

    return step


def _negation(reader: _Interpreter, call: Call) -> Known | None:
    known = reader.read(call.arguments["input"])
    if isinstance(known, (Truth, bool)):
        return inverse(known)
    if not _is_chosen(known) or value(call.node).dtype != torch.bool:
        return None
    return choices.combined(operator.eq, known, 0)


def _where(reader: _Interpreter, call: Call) -> Known | None:
    condition = reader.read(call.arguments.get("condition"))
    return _selected(condition, *reader.operands(call))


def _masked_fill(reader: _Interpreter, call: Call) -> Known | None:
    mask, fill, input = (reader.read(call.arguments.get(n)) for n in ("mask", "value", "input"))
    return _selected(mask, fill, input)


def _selected(condition: Any, yes: Any, no: Any) -> Known | None:
    if not isinstance(condition, (Truth, bool)) or not (_is_chosen(yes) and _is_chosen(no)):
        return None
    return choices.selected(condition, yes, no)


def _triangle(sign: int) -> Step:
    """tril (1) or triu (-1)."""

    def step(reader: _Interpreter, call: Call) -> Known | None:
        known = reader.read(call.arguments["input"])
        diagonal = _as_affine(reader.read(call.arguments.get("diagonal", 0)))
        if not isinstance(diagonal, Affine) or value(call.node).dim() < 2:
            return None
        distance = Affine(steps={COLUMNS: 1, ROWS: -1}) - diagonal
        return _selected(at_most_zero(distance * sign), known, 0)

    return step


# --- views --------------------------------------------------------------------------------------


def _view(reader: _Interpreter, call: Call) -> Known | None:
    known, axes = reader.read(call.arguments.get("input")), axes_of(call)
    if known is None or axes is None:
        return _gathered(reader, call) if call.kind in ("item", "index") else None
    if isinstance(known, (int, float)):
        return known
    if isinstance(known, Truth):
        return _truth_view(known, axes)
    if isinstance(known, Choice):
        return replace(known, truth=_truth_view(known.truth, axes))
    if isinstance(known, Ascending):
        dims = (dim for dim, (old, _) in axes.items() if old == known.dim)
        return next((replace(known, node=call.node, dim=dim) for dim in dims), None)
    return _changed(known, lambda affine: viewed(reader.affine, affine, axes))


def _truth_view(truth: Truth, axes: Axes) -> Truth:
    parts = (truth.when_true, truth.when_false)
    return Truth(*(part if part is None or _stays(part, axes) else None for part in parts))


def _stays(condition: Condition, axes: Axes) -> bool:
    """Whether a view leaves the dimensions that a condition refers to in place."""
    parts = [part.otherwise if isinstance(part, Within) else part for part in condition]
    known = [part for part in parts if not isinstance(part, Document)]
    ranks = [2 if isinstance(part, Bound) and part.limit.steps else 1 for part in known]
    tensors = [value(node) for node in _operands(known)]
    ranks += [tensor.dim() for tensor in tensors if isinstance(tensor, torch.Tensor)]
    return all(axes.get(dim) == (dim, 0) for dim in range(-max(ranks), 0))


def _gathered(reader: _Interpreter, call: Call) -> Known | None:
    """A tensor indexed by positions, as in segments[batch, keys]."""
    known, places = reader.read(call.arguments["input"]), indices_of(reader.affine, call)
    if places is None:
        return None
    if isinstance(known, (int, float)):
        return known
    if isinstance(known, Affine):
        return None if known.tensors else at(known, places)
    return _ascending_at(known, places, call.node) if isinstance(known, Ascending) else None


def _ascending_at(known: Ascending, places: Sequence[Affine], node: Node) -> Ascending | None:
    """The elements of an ascending tensor at these places."""
    steps = places[known.dim].steps
    others = {dim for place in places if place is not places[known.dim] for dim in place.steps}
    dims = [dim for dim, step in steps.items() if step > 0 and dim not in others]
    ascends = len(dims) == len(steps) == 1
    return Ascending(node, dims[0], known.numbers) if ascends else None


def _cast(reader: _Interpreter, call: Call) -> Known | None:
    known = reader.read(call.arguments["input"])
    if _is_chosen(known):
        if value(call.node).dtype == torch.bool and not isinstance(known, Truth):
            return choices.combined(operator.ne, known, 0)
        return known
    kept = {value(node).dtype for node in (call.arguments["input"], call.node)} <= {*_INTEGERS}
    return known if kept and not isinstance(known, Ascending) else None


_STEPS: dict[str, Step] = {
    "arange": _arange,
    "full": _full,
    "zeros": _zeros,
    "ones": _ones,
    "add": _arithmetic(operator.add),
    "sub": _arithmetic(operator.sub),
    "mul": _arithmetic(operator.mul),
    "floordiv": _floor_quotient,
    "abs": _magnitude,
    "cumsum": _cumulative_sum,
    "diff": _differences,
    "bucketize": _count_below,
    "sum": _count_reached,
    "repeat_interleave": _repeated,
    **dict.fromkeys(_RELATIONS, _comparison),
    "and": _logic(both),
    "or": _logic(either),
    "not": _negation,
    "where": _where,
    "masked_fill": _masked_fill,
    "tril": _triangle(1),
    "triu": _triangle(-1),
    "cast": _cast,
    **dict.fromkeys(
        ("same", "detach", "expand", "unsqueeze", "reshape", "slice", "item", "index"), _view
    ),
}
