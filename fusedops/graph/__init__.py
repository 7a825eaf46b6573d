"""Finds softmaxes, norms and cross entropies in a captured graph and replaces them by our ops.

One set of rules serves torch IR (Dynamo, `fx.symbolic_trace`) and ATen IR (`torch.export`):

analysis/   finds what a graph computes: calls in normal form, values, writes, memory, modes, masks
readers/    recognises parts of softmaxes and norms, for several rules
rules/      has one rewrite in each file; its `__init__.py` shows how to write one
policy/     estimates whether a replacement pays on this machine
rewriting/  replaces the softmaxes and norms that the rules find, or reports why one stays
memory/     runs after Inductor's own passes: lets ops write in place, and drops unused outputs

`passes.py`, `fx.py` and `explain.py` are the entry points. Nothing here imports a kernel: the ops
are referred to as `torch.ops.fusedops.*`.
"""

from __future__ import annotations

from fusedops.graph.fx import rewrite
from fusedops.graph.passes import Pass, ReusePass
from fusedops.graph.rewriting.report import Report, Site
from fusedops.graph.rewriting.rewriter import rewrite_graph, rewrite_module

__all__ = ["Pass", "Report", "ReusePass", "Site", "rewrite", "rewrite_graph", "rewrite_module"]
