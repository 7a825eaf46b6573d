"""Inserts calls into a graph whose nodes have recorded values."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_aggregate

from fusedops.graph.analysis.nodes import annotate
from fusedops.graph.analysis.values import fake_mode, value


def insert_call(site: Node, op: Any, *args: Any, **kwargs: Any) -> Node:
    """Inserts a call before the node `site`, and records its value, which `op` computes from the
    recorded values of its arguments."""
    with fake_mode(site):
        result = op(*map_aggregate(args, value), **kwargs)
    with site.graph.inserting_before(site):
        node = site.graph.call_function(op, args, kwargs)
    annotate(node, result, like=site)
    return node


def sizes_of(site: Node, tensor: Node) -> list[Any]:
    """Returns the sizes of a tensor: numbers, and for symbols nodes that are inserted before
    `site`."""
    return [
        size if isinstance(size, int) else insert_call(site, torch.ops.aten.sym_size.int, tensor, d)
        for d, size in enumerate(value(tensor).shape)
    ]


def replace(site: Node, new: Node) -> None:
    """Puts a node in the place of another one, which is erased."""
    site.replace_all_uses_with(new)
    site.graph.erase_node(site)
