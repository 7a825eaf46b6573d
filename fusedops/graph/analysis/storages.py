"""Finds which nodes share memory, by the storages that capture recorded, and which calls write into
it.

`record` reads once what the other functions need to know of the whole graph: a walk over the graph
for each softmax or norm in it would take time quadratic in the number of layers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch.fx import Graph, Node

from fusedops.graph.analysis.calls import Call, as_call, kind_of
from fusedops.graph.analysis.nodes import users
from fusedops.graph.analysis.values import are_equal, value
from fusedops.graph.analysis.writes import written

#: The identity of a storage, or None for a value without one.
Memory = int | None


@dataclass
class _Facts:
    """Holds what was read about the memory of a graph.

    eager_storage: maps the storage of a copy to that of the tensor which was copied, for calls that
        return their input in eager mode, but were captured as a copy.
    writers: the calls that write into memory, in program order.
    writers_of, holders: map each storage to the calls that write into it, and to the nodes that
        hold it.
    returned: the storages that the graph returns to its caller.
    """

    eager_storage: dict[Memory, Memory]
    writers: list[Node] = field(default_factory=list)
    writers_of: dict[Memory, list[Node]] = field(default_factory=lambda: defaultdict(list))
    holders: dict[Memory, list[Node]] = field(default_factory=lambda: defaultdict(list))
    returned: frozenset[Memory] = frozenset()


_FACTS: WeakKeyDictionary[Graph, _Facts] = WeakKeyDictionary()


def record(graph: Graph) -> None:
    """Records which nodes of a graph share memory and which calls write into it, for the other
    functions. Call it again after an edit that adds a node which writes into memory or returns its
    input. For other new nodes `record_node` suffices, which they need only if `holders_of` has to
    find them."""
    facts = _FACTS[graph] = _Facts(_eager_storage(graph))
    for node in graph.nodes:
        if node.op != "output":  # the output node reads memory, but holds none
            record_node(node)
        targets = written(node)
        if targets:
            facts.writers.append(node)
        for memory in dict.fromkeys(map(storage, targets)):
            facts.writers_of[memory].append(node)
    facts.returned = frozenset(map(storage, graph.output_node().all_input_nodes))


def _eager_storage(graph: Graph) -> dict[Memory, Memory]:
    """Maps the storage of each call that may return its input, but was captured as a copy, to the
    storage of that input."""
    returning = [node for node in graph.nodes if _returns_its_input(node)]
    pairs = (
        (_recorded_storage(node), _recorded_storage(node.all_input_nodes[0])) for node in returning
    )
    return {ours: theirs for ours, theirs in pairs if ours not in (None, theirs)}


def _returns_its_input(node: Node) -> bool:
    """Returns whether a call is a dropout that is not known to be active. Such a dropout may return
    its input itself, although the fake tensors that capture recorded have separate memory."""
    call = as_call(node) if kind_of(node) == "dropout" else None
    return call is not None and not (call.arguments["train"] is True and call.arguments["p"])


def record_node(node: Node) -> None:
    """Records which memory a node holds, for nodes that were added after `record`."""
    _facts(node.graph).holders[storage(node)].append(node)


def _facts(graph: Graph) -> _Facts:
    if graph not in _FACTS:
        record(graph)
    return _FACTS[graph]


def storage(node: Node) -> Memory:
    """Returns the identity of a tensor's memory, the same for all its views and inside `torch.func`
    transforms, or None if the value is not a strided tensor."""
    facts, memory = _FACTS.get(node.graph), _recorded_storage(node)
    while facts is not None and memory in facts.eager_storage:
        memory = facts.eager_storage[memory]
    return memory


def is_in_place(call: Call) -> bool:
    """Returns whether the result of a call is in the memory of its input."""
    return storage(call.node) == storage(call.input)


def _recorded_storage(node: Node) -> int | None:
    """Returns the identity of the storage that capture recorded for a node. For a dropout that
    returns its input in eager mode, capture may have recorded a copy (`_eager_storage`)."""
    tensor = value(node)
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        return None
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    address: int = tensor.untyped_storage()._cdata
    return address


def written_between(fused_nodes: Sequence[Node]) -> str | None:
    """Returns why `fused_nodes`, which are in program order, cannot all be computed at the place of
    the last one, or None if they can. They cannot if another node in between writes into memory
    that one of them has read, or if one of them writes into memory that another node reads."""
    ours = set(fused_nodes)
    first_reads: dict[Memory, Node] = {}
    for old in fused_nodes:
        for node in (old, *old.all_input_nodes):
            first_reads.setdefault(storage(node), old)
    for node in _writers_between(fused_nodes[0], fused_nodes[-1]):
        for target in written(node):
            if node in ours:
                conflicts = not _is_private(target, fused_nodes)
            else:
                conflicts = first_reads.get(storage(target), node) < node
            if conflicts:
                return "memory that it reads is written in place before its last call"
    return None


def _writers_between(first: Node, last: Node) -> list[Node]:
    writers = _facts(first.graph).writers
    between = writers[bisect_left(writers, first) : bisect_right(writers, last)]
    return [node for node in between if not node._erased]


def is_written_after(node: Node, place: Node, ours: set[Node]) -> bool:
    """Returns whether a call after `place` that is not in `ours` writes into a node's memory."""
    return any(place < writer for writer in writers_of(node) if writer not in ours)


def writers_of(node: Node) -> list[Node]:
    """Returns the calls that write into the memory of a node, in program order."""
    writers = _facts(node.graph).writers_of.get(storage(node), [])
    return [writer for writer in writers if not writer._erased]


def holders_of(node: Node) -> list[Node]:
    """Returns the nodes that hold the same memory as a node, itself included."""
    holders = _facts(node.graph).holders.get(storage(node), [])
    return [holder for holder in holders if not holder._erased]


def is_returned(node: Node) -> bool:
    """Returns whether the graph returns the memory of a node to its caller."""
    return storage(node) in _facts(node.graph).returned


def written_before_read(calls: set[Node], operands: set[Node], reader: Node) -> bool:
    """Returns whether any tensor is written between the call that computes it and a call that reads
    it. Two kinds of reads count: those in which one of `calls` reads its inputs, and those in which
    `reader` reads the `operands`."""
    reads = [(node, call) for call in calls for node in call.all_input_nodes]
    reads += [(node, reader) for node in operands]
    return any(node < writer < call for node, call in reads for writer in writers_of(node))


def written_after_read(operand: Node, readers: set[Node], place: Node) -> bool:
    """Returns whether an operand of a new call at `place` has other elements there than those which
    `readers` have read, because another call writes into its memory between the first of these
    reads and `place`. If no reader uses the operand, the call that computes it counts as the first
    read."""
    writers = [call for call in writers_of(operand) if call < place and call not in readers]
    if not writers:
        return False
    first = min((user for user in users(operand) if user in readers), default=operand)
    return any(first < call for call in writers)


def live_nodes(graph: Graph) -> set[Node]:
    """Returns the nodes that the graph's outputs or side effects depend on."""
    writers = {*_facts(graph).writers}
    alive: set[Node] = set()
    for node in reversed(graph.nodes):
        if node.is_impure() or node in writers or not alive.isdisjoint(node.users):
            alive.add(node)
    return alive


def thread_writes(graph: Graph) -> None:
    """Edits `graph` so that calls read the result of the last in-place call on a tensor, instead of
    the tensor. Result and tensor are one object, which the graph does not show:

        before    t.exp_();        y = t / t.sum(-1, keepdim=True)
        after     e = t.exp_();    y = e / e.sum(-1, keepdim=True)
    """
    written_by: dict[Node, Node] = {}  # result of an in-place call -> the tensor that was written
    results: dict[Node, Node] = {}  # tensor -> the result of the last in-place call on it
    for node in graph.nodes:
        for read in node.all_input_nodes:
            last = results.get(written_by.get(read, read), read)
            if last is not read:
                node.replace_input_with(read, last)
        if _returns_what_it_writes(node):
            tensor = written_by.get(node.args[0], node.args[0])
            written_by[node], results[tensor] = tensor, node


def _returns_what_it_writes(node: Node) -> bool:
    """Returns whether a call writes its first argument as a whole and returns it."""
    first = node.args[0] if node.op.startswith("call") and node.args else None
    if not isinstance(first, Node) or written(node) != [first]:
        return False
    tensor, result = value(first), value(node)
    if not isinstance(tensor, torch.Tensor) or not isinstance(result, torch.Tensor):
        return False
    written_part, returned_part = (
        (*each.shape, *each.stride(), each.storage_offset()) for each in (tensor, result)
    )
    is_same_memory = storage(first) == storage(node) and tensor.dtype == result.dtype
    return is_same_memory and are_equal(written_part, returned_part)


def _is_private(target: Node, fused_nodes: Sequence[Node]) -> bool:
    """Returns whether the memory of `target` is allocated in this graph and read only by
    `fused_nodes`. The last of them may have other readers, which will read the op's new tensor."""
    holders = holders_of(target)
    allowed = {*holders, *fused_nodes}

    def is_private(holder: Node) -> bool:
        readers = (user for user in users(holder) if reads_memory(user, holder))
        return holder is fused_nodes[-1] or allowed.issuperset(readers)

    return all(holder.op.startswith("call") and is_private(holder) for holder in holders)


def reads_memory(call: Node, operand: Node) -> bool:
    """Returns whether a call may read the elements of an operand. `zeros_like(scores)` reads its
    shape and dtype alone, `mask.expand_as(scores)` its shape, and `mask.type_as(scores)` its
    dtype."""
    kind, first = kind_of(call), call.args[0] if call.args else operand
    is_model = kind in ("expand", "cast") and first is not operand
    return not (is_model or kind in ("full", "zeros", "ones"))
