"""Defines the interface of rewrite rules.

A rule finds a site, which is one softmax, norm, cross entropy or dropout with the calls around it
that an op replaces too, and it emits the calls that take the site's place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node
from torch.utils.checkpoint import CheckpointPolicy

from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.values import dtype_of
from fusedops.graph.availability import kernels_take

UNKNOWN_ROW = "the length of its rows is not known at compile time"


#: The `meta` of a call whose result Inductor must save for the backward pass.
SAVED = {"recompute": CheckpointPolicy.MUST_SAVE}


@dataclass(frozen=True)
class OpCall:
    """A call to insert into the graph. It calls an op, `operator.getitem` or a function that
    computes a size. `args` may contain graph nodes, parameters of modules (`ModuleAttribute`) and
    other `OpCall`s; `kwargs` are plain values. `meta` has entries for the node's `meta`."""

    op: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)


def viewed(operand: Node | OpCall) -> Node:
    """Returns the node from which `operand` is computed: `operand` itself, or if it is an `OpCall`,
    the first argument of its innermost call. All calls in an operand are views or elementwise."""
    while isinstance(operand, OpCall):
        operand = operand.args[0]
    return operand


def nodes_of(arguments: Any) -> Iterator[Node]:
    """Yields the nodes among arguments, also those inside of calls to insert and of lists."""
    for argument in arguments:
        if isinstance(argument, Node):
            yield argument
        elif isinstance(argument, OpCall):
            yield from nodes_of(argument.args)
        elif isinstance(argument, (list, tuple)):
            yield from nodes_of(argument)


#: Says what replaces a node. An int is the index of one of the op's outputs, None stands for the
#: op's single output, and a function computes the replacement from the op's call.
Output = int | None | Callable[[OpCall], OpCall]


@dataclass(frozen=True)
class Match:
    """A site that a rule recognised, before any decision and before any edit.

    call: the site's computation. Its `name` is that of the op that would replace it, and its
        `arguments` are those that the op is called with.
    results: the nodes that would be replaced. Each maps to the index of the op's output that
        replaces it, to None if the op has a single output, or to a function that computes what
        replaces it from the op's call.
    nodes: the calls that the op replaces, in program order. Those that other calls use too remain
        in the graph.
    insert_before: the node before which the op is inserted; by default the node of `call`.
    mask_calls: the calls that compute masks which the op does not need. They are erased once the
        last site that uses them has been replaced.
    any_strides: whether nothing depends on the strides of the results, so that the op's may differ.
    note: a text for the report that says what the op cannot take over, and why.
    order: the permutation of the input's dimensions that the op needs; None if it needs none.
    """

    call: Call
    results: Mapping[Node, Output]
    nodes: tuple[Node, ...]
    insert_before: Node | None = None
    mask_calls: frozenset[Node] = frozenset()
    any_strides: bool = False
    note: str = ""
    order: tuple[int, ...] | None = None

    @property
    def op(self) -> str:
        """The name of the op that would replace the site."""
        return self.call.name

    @property
    def place(self) -> Node:
        """The node before which the op is inserted."""
        return self.insert_before or self.call.node


def schema_of(call: OpCall) -> torch.FunctionSchema:
    """Returns the schema of the op that is called."""
    assert isinstance(call.op, torch._ops.OpOverload)
    return call.op._schema


def arguments_by_name(call: OpCall) -> dict[str, Any]:
    """Returns the arguments of an op's call by name."""
    names = [argument.name for argument in schema_of(call).arguments]
    return dict(zip(names, call.args, strict=False))


def ordered_arguments(op: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of an op by name, in its order: those of them that are given, and for
    the others the defaults."""
    schema = getattr(torch.ops.fusedops, op).default._schema
    return {each.name: given.get(each.name, each.default_value) for each in schema.arguments}


class Rule(ABC):
    """One rewrite. Finding a site, refusing it and emitting the replacement are separate methods,
    so that the rewriter and the policy can refuse a site in between.

    name: the rule's name in settings and reports.
    """

    name: str

    @abstractmethod
    def match(self, call: Call) -> Match | None:
        """Returns the site that is found from `call`, or None if the rule does not apply."""

    def refusal(self, match: Match) -> str | None:
        """Returns why this rule must not replace the site, or None. This method refuses norms of
        rows whose length is not known at compile time, and inputs whose dtype no kernel takes."""
        row = match.call.arguments.get("normalized_shape")
        if isinstance(row, list) and any(size is None for size in row):
            return UNKNOWN_ROW
        dtype = dtype_of(viewed(match.call.input))
        return None if kernels_take(dtype) else f"unsupported dtype {dtype}"

    def emit(self, match: Match) -> OpCall:
        """Returns the call of the match's op, with its input permuted if the op needs another order
        of dimensions. The arguments of `match.call` have to be those of the op, in the op's order.
        """
        op, arguments = getattr(torch.ops.fusedops, match.op).default, match.call.arguments
        if match.order is not None:
            permuted = (arguments["input"], list(match.order))
            arguments = arguments | {"input": OpCall(torch.ops.aten.permute.default, permuted)}
        return OpCall(op, tuple(arguments.values()))
