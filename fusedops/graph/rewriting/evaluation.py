"""Runs the calls that a rewrite inserts on the fake tensors that capture recorded, and inserts
them."""

from __future__ import annotations

from typing import Any

from torch.fx import Node
from torch.fx.node import map_aggregate

from fusedops.graph.analysis import modes
from fusedops.graph.analysis.calls import ModuleAttribute
from fusedops.graph.analysis.nodes import annotate
from fusedops.graph.analysis.values import fake_mode, value
from fusedops.graph.rule import OpCall


class Evaluation:
    """Holds the values of the arguments and calls that replace one softmax or norm, and the nodes
    of the calls that have been inserted.

    Each call is run once: its value decides whether the replacement is accepted, and becomes the
    metadata of the node that is inserted for the call. A call that occurs in the arguments of
    several others is inserted once.
    """

    def __init__(self, site: Node) -> None:
        self._site = site
        self._mode = fake_mode(site)
        # The keys are ids of calls. The calls are kept, so that no other object gets the same id.
        self._run: dict[int, tuple[OpCall, Any]] = {}
        self._inserted: dict[int, Node] = {}

    def value(self, argument: Any) -> Any:
        """Returns the fake tensor or other value of a node, a module's attribute or a call to
        insert. Any other argument is returned unchanged."""
        if isinstance(argument, ModuleAttribute):
            return self._mode.from_tensor(argument.tensor)
        if not isinstance(argument, OpCall):
            return value(argument)
        if id(argument) not in self._run:
            args = map_aggregate(argument.args, self.value)
            with self._mode, modes.evaluating(self._site):
                self._run[id(argument)] = argument, argument.op(*args, **argument.kwargs)
        return self._run[id(argument)][1]

    def insert(self, call: OpCall) -> Node:
        """Inserts a call at the graph's insertion point, after the calls among its arguments, and
        returns the call's node."""
        if id(call) not in self._inserted:
            args = map_aggregate(call.args, self._operand)
            node = self._site.graph.call_function(call.op, args, call.kwargs)
            annotate(node, self.value(call), like=self._site)
            node.meta |= call.meta
            self._inserted[id(call)] = node
        return self._inserted[id(call)]

    def _operand(self, argument: Any) -> Any:
        """Returns the node of an argument that is a call or a module's attribute. Any other
        argument is returned unchanged."""
        if isinstance(argument, OpCall):
            return self.insert(argument)
        if isinstance(argument, ModuleAttribute):
            read = self._site.graph.get_attr(argument.target)
            annotate(read, self.value(argument), like=self._site)
            return read
        return argument
