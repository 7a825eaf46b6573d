"""`fusedops.explain`: which sites of a model are replaced, which are not, and why."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch._dynamo.eval_frame import OptimizedModule, innermost_fn
from torch.fx import GraphModule

from fusedops.graph.rewriting.report import Report
from fusedops.graph.rewriting.rewriter import rewrite_module


def explain(fn_or_module: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Report:
    """Reports what `torch.compile(fn_or_module, backend="fusedops")` replaces, site by site.

    The model is captured by Dynamo, rewritten, and run once on the given inputs. It is not
    compiled, so that neither Inductor nor a warm cache changes the report. If there are graph
    breaks, all graphs are reported. Dynamo is reset before and after: models that were compiled
    earlier in the process are compiled again at their next call.

    Args:
        fn_or_module: the model, compiled or not, or a function.
        args, kwargs: the arguments to call it with.

    Returns: a `Report` with one `Site` for each softmax or norm; `print(report)` shows a table.

    Raises:
        TypeError: `fn_or_module` cannot be called, or not with these arguments.

    Source: `torch._dynamo.explain`, which reports graph breaks in the same way.
    """
    if not callable(fn_or_module):
        raise TypeError(
            f"fusedops.explain: fn_or_module is a {type(fn_or_module).__name__}, wanted a module "
            "or a function; pass its arguments after it"
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
    except TypeError:
        _check_arguments(model, args, kwargs)
        raise
    finally:
        torch._dynamo.reset()
    return sum(reports, Report())


def _check_arguments(model: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """Raises if a call that failed does not fit the model's signature."""
    call = model.forward if isinstance(model, nn.Module) else model
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):  # of a function in C
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as problem:
        name = getattr(model, "__name__", type(model).__name__)
        given = ", ".join([*(type(arg).__name__ for arg in args), *(f"{key}=" for key in kwargs)])
        raise TypeError(
            f"fusedops.explain: {name}{signature} does not take ({given}): {problem}; pass the "
            f"arguments as to the model, {_as_to_the_model(args)}"
        ) from None


def _as_to_the_model(args: tuple[Any, ...]) -> str:
    if len(args) == 1 and isinstance(args[0], Mapping):
        return "a batch in a dict as explain(model, **batch)"
    if len(args) == 1 and isinstance(args[0], (tuple, list)):
        return "several as explain(model, *inputs)"
    return "as explain(model, x, mask=mask)"


def _uncompiled(model: Callable[..., Any]) -> Callable[..., Any]:
    return model._orig_mod if isinstance(model, OptimizedModule) else innermost_fn(model)


def _module_names(model: Callable[..., Any]) -> dict[str, str]:
    """Dotted paths of the modules by identity. Dynamo's own paths are not used, because after a
    graph break they start at the inner frame."""
    root = getattr(model, "__self__", model)  # the module of a bound method
    if not isinstance(root, nn.Module):
        return {}
    return {str(id(module)): name for name, module in root.named_modules()}
