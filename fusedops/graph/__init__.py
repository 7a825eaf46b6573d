"""Finds softmax, log_softmax, layer_norm and rms_norm in a captured graph and puts our ops there.

One set of rules for torch IR (Dynamo, `fx.symbolic_trace`) and ATen IR (`torch.export`):
`dialect.py` knows the spellings, `rules/` the rewrites, `rewriter.py` how to edit safely.
Nothing here imports a kernel; the ops are referred to as `torch.ops.fusedops.*`.
"""

from __future__ import annotations

from fusedops.graph.fx import rewrite
from fusedops.graph.passes import Pass, ReusePass
from fusedops.graph.report import Report, Site
from fusedops.graph.rewriter import rewrite_graph, rewrite_module

__all__ = ["Pass", "Report", "ReusePass", "Site", "rewrite", "rewrite_graph", "rewrite_module"]
