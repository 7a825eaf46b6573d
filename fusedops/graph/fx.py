"""Defines `fusedops.rewrite`, which rewrites graphs of `torch.fx.symbolic_trace`."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from fusedops.graph.rewriting.report import publish
from fusedops.graph.rewriting.rewriter import rewrite_module


def rewrite(graph_module: GraphModule, *example_inputs: Any) -> GraphModule:
    """Replaces softmaxes, norms and cross entropies in a `torch.fx.symbolic_trace` graph by
    operators of fusedops.

    Args:
        graph_module: changed in place.
        example_inputs: one value for each input of the graph. Only the shapes, dtypes and devices
            of tensors are used; nothing is computed. The rewritten graph is for these shapes
            alone, since sizes that scales and masks depend on become constants: for other shapes,
            trace and rewrite the model again. Inputs that are numbers may differ between calls.

    Returns: `graph_module`.

    Raises:
        TypeError: `graph_module` is not a GraphModule, or an example input is missing or of the
            wrong type.

    Source: :func:`torch.fx.symbolic_trace`.
    """
    if not isinstance(graph_module, GraphModule):
        raise TypeError(
            f"fusedops.rewrite: graph_module is of type {type(graph_module).__name__}, wanted a "
            "torch.fx.GraphModule; trace the model with torch.fx.symbolic_trace, or use "
            'torch.compile(model, backend="fusedops")'
        )
    _check_example_inputs(graph_module, example_inputs)
    _propagate(graph_module, example_inputs)
    publish(rewrite_module(graph_module))
    return graph_module


def _check_example_inputs(graph_module: GraphModule, example_inputs: tuple[Any, ...]) -> None:
    """Raises TypeError if there are more example inputs than the graph takes, or too few."""
    placeholders = graph_module.graph.find_nodes(op="placeholder")
    # The args of a placeholder hold its default value, if it has one.
    required = sum(not node.args for node in placeholders)
    if not required <= len(example_inputs) <= len(placeholders):
        names = ", ".join(node.name for node in placeholders)
        raise TypeError(
            f"fusedops.rewrite: got {len(example_inputs)} example_inputs, the graph takes "
            f"{len(placeholders)} ({names}); pass one value for each"
        )


def _propagate(graph_module: GraphModule, example_inputs: tuple[Any, ...]) -> None:
    """Runs the graph on fake tensors, which records a value in the metadata of each node."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        _Propagate(graph_module, mode).propagate(*example_inputs)
    except (AttributeError, TypeError) as error:
        types = ", ".join(type(value).__name__ for value in example_inputs)
        raise TypeError(
            f"fusedops.rewrite: the graph does not run on example_inputs of the types {types}: "
            f"{str(error).partition(chr(10))[0]}; pass the values that the model is called with"
        ) from error


class _Propagate(FakeTensorProp):
    """Also records numbers and shapes, which FakeTensorProp does not put into `meta["val"]`.
    Numbers among the example inputs, and those computed from them, are not recorded, because the
    next call may pass others."""

    def __init__(self, graph_module: GraphModule, mode: FakeTensorMode) -> None:
        super().__init__(graph_module, mode)
        self._given: set[Node] = set()

    def run_node(self, node: Node) -> Any:
        result = super().run_node(node)
        if isinstance(result, torch.Tensor):
            return result
        if node.op == "placeholder" or not self._given.isdisjoint(node.all_input_nodes):
            self._given.add(node)
            node.meta["val"] = _without_numbers(node.meta.get("val"))
        elif isinstance(result, (int, float, torch.Size)):
            node.meta["val"] = result
        return result


def _without_numbers(recorded: Any) -> Any:
    return map_aggregate(recorded, lambda one: one if isinstance(one, torch.Tensor) else None)
