"""Lets ops in compiled graphs write their result over an input that nothing else needs any more.

before    y = fusedops.softmax(x, -1)       x: computed in this graph and used by nothing else
after     _, y = auto_functionalized(fusedops.softmax_, input=x, dim=-1)

Attention scores are such an x, and so is the gradient from the matrix product after the softmax:
each reuse lowers the peak memory by one tensor of queries x keys. The logits of a language model
are one too: the forward graph has computed them and *donates* them to the backward graph, where the
gradient of the cross entropy is written over them. This also saves time: for rows of 50,257
classes, the page faults of a newly allocated gradient take longer than the kernel.

The pass runs on the forward or backward graph that Inductor is about to lower. Inductor checks the
lifetimes again, and copies x if a later node reads it. In eager mode nothing is reused, because an
op cannot know who else refers to its input.
"""

from __future__ import annotations

import operator
import sys
from collections import defaultdict
from types import FrameType
from typing import Any

import torch
from torch._inductor.utils import get_donated_idxs
from torch.fx import Graph, Node

from fusedops.graph.analysis.calls import named_arguments
from fusedops.graph.analysis.storages import storage
from fusedops.ops.registration.libraries import OPS

_ops = torch.ops.fusedops

#: Functional op -> the variant that writes its result into the first argument (with _ at its end).
IN_PLACE = {
    getattr(_ops, op).default: getattr(_ops, f"{op}_").default for op in OPS if f"{op}_" in OPS
}


def reuse_memory(graph: Graph) -> None:
    """Edits ``graph``: runs ops in place whose input nothing else needs."""
    donated = _donated(graph)
    holders = defaultdict(set)
    for node in graph.nodes:
        holders[storage(node)].add(node)
    for node in list(graph.nodes):
        in_place = IN_PLACE.get(node.target) if node.op == "call_function" else None
        if in_place is None:
            continue
        source = node.args[0]
        sharing = holders[storage(source)]
        if _has_layout_of(source, node) and _is_only_for(node, sharing, donated):
            _run_in_place(graph, node, in_place, not donated.isdisjoint(sharing))


def _has_layout_of(source: Node, result: Node) -> bool:
    """Returns whether `result` fits into the memory of `source`: both are contiguous, with the same
    dtype and shape."""
    x, y = source.meta.get("val"), result.meta.get("val")
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
        return False
    same = x.dtype == y.dtype and x.shape == y.shape
    return same and x.is_contiguous() and y.is_contiguous()


def _donated(graph: Graph) -> set[Node]:
    """Returns those inputs of a backward graph whose memory the forward graph has allocated, and
    which nothing but the backward graph refers to."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    # get_donated_idxs gives indices for a forward graph too, but the inputs of that belong to the
    # caller. Only a backward graph has inputs with "tangents" in their name, by which torch's
    # partitioner recognises the gradients of outputs too.
    is_backward = any("tangents" in str(node.target) for node in inputs)
    if not is_backward or _is_body_of_region():
        return set()
    return {inputs[index] for index in get_donated_idxs() or ()}


def _is_body_of_region() -> bool:
    """Returns whether Inductor runs the pass on the body of a torch.compiler.nested_compile_region,
    whose inputs have names as those of a backward graph, but belong to the graph around it. Only
    the stack tells: Inductor's function calls itself for the bodies, before the graph itself."""
    frame: FrameType | None = sys._getframe()
    calls = 0
    while frame is not None:
        calls += frame.f_code.co_name == "_recursive_post_grad_passes"
        frame = frame.f_back
    return calls > 1


def _is_only_for(node: Node, holders: set[Node], donated: set[Node]) -> bool:
    """Returns whether the memory that ``holders`` share is allocated in this graph, or donated to
    it, and read only by ``node``."""
    return all(
        (holder.op == "call_function" or holder in donated)
        and holders.union([node]).issuperset(holder.users)
        for holder in holders
    )


def _run_in_place(graph: Graph, node: Node, in_place: Any, is_donated: bool) -> None:
    """Replaces `node` by the functionalised form of the in-place op. Inductor lowers this to the
    op in place, and copies the input first if something reads it later. For donated memory the op
    itself is called, because Inductor would lower the functionalised form to the op and a copy of
    the memory onto itself."""
    result, arguments = node.args[0], _arguments_of(node, in_place)
    assert isinstance(result, Node)
    with graph.inserting_before(node):
        if is_donated:
            graph.call_function(in_place, (), arguments).meta["val"] = None
        else:
            functional = torch.ops.higher_order.auto_functionalized
            both = graph.call_function(functional, (in_place,), arguments)
            both.meta["val"] = (None, node.meta["val"])
            result = graph.call_function(operator.getitem, (both, 1))
            result.meta.update(node.meta)
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _arguments_of(node: Node, in_place: Any) -> dict[str, Any]:
    """Returns the arguments of `node`, by name, that the in-place op has too."""
    named = named_arguments(node.target, node.args, node.kwargs)
    names = [argument.name for argument in in_place._schema.arguments]
    return {name: value for name, value in named.items() if name in names}
