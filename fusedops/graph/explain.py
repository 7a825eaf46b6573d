"""`fusedops.explain`: which sites of a model are replaced, which are not, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._dynamo.eval_frame import OptimizedModule, innermost_fn
from torch.fx import GraphModule

from fusedops.graph.rewriting.report import Report
from fusedops.graph.rewriting.rewriter import rewrite_module


def explain(fn_or_module: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Report:
    """Say what `torch.compile(fn_or_module, backend="fusedops")` does, site by site.

    Runs the model once on the given inputs, captured by Dynamo and rewritten but not compiled, so
    that neither Inductor nor a warm cache has a part in it. Every graph counts, also where the
    capture breaks into several. Dynamo is reset before and after: models compiled earlier in the
    process compile again at their next call.

    Args:
        fn_or_module: the model, compiled or not, or a function.
        args, kwargs: what to call it with.

    Returns: a `Report` with one `Site` a row; `print(report)` is a table.

    Raises:
        TypeError: `fn_or_module` cannot be called.

    Source: `torch._dynamo.explain`, which tells of graph breaks as this does of sites.
    """
    if not callable(fn_or_module):
        raise TypeError(
            f"fusedops.explain: fn_or_module is a {type(fn_or_module).__name__}, wanted a module "
            "or a function; its arguments come behind it"
        )
    model = _uncompiled(fn_or_module)
    names = _module_names(model)
    reports = []

    def record(graph_module: GraphModule, example_inputs: list[torch.Tensor]) -> GraphModule:
        reports.append(rewrite_module(graph_module, names, show=True))
        return graph_module

    torch._dynamo.reset()
    try:
        torch.compile(model, backend=record)(*args, **kwargs)
    finally:
        torch._dynamo.reset()
    return sum(reports, Report())


def _uncompiled(model: Callable[..., Any]) -> Callable[..., Any]:
    return model._orig_mod if isinstance(model, OptimizedModule) else innermost_fn(model)


def _module_names(model: Callable[..., Any]) -> dict[str, str]:
    """Dotted paths by identity: behind a graph break Dynamo's own start at the inner frame."""
    root = getattr(model, "__self__", model)  # of a bound method, its module
    if not isinstance(root, nn.Module):
        return {}
    return {str(id(module)): name for name, module in root.named_modules()}
