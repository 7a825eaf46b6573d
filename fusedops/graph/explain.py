"""Defines `fusedops.explain`, which reports the softmaxes and norms of a model (its sites): which
of them are replaced, which are not, and why."""

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
    breaks, all graphs are reported. A module in training mode is judged with its backward pass, one
    in `eval()` without. Dynamo is reset before and after: models that were compiled earlier in the
    process are compiled again at their next call.

    Args:
        fn_or_module: the model, compiled or not, or a function.
        args, kwargs: the arguments to call it with.

    Returns: a `Report` with one `Site` for each softmax or norm; `print(report)` shows the time
        that the replacements should save, then each site, with the reason if it is not replaced.

    Raises:
        TypeError: `fn_or_module` cannot be called, or not with these arguments.

    Source: `torch._dynamo.explain`, which reports graph breaks in the same way.
    """
    if not callable(fn_or_module):
        raise TypeError(
            f"fusedops.explain: fn_or_module is of type {type(fn_or_module).__name__}, wanted a "
            "module or a function; pass its arguments after it"
        )
    model = _uncompiled(fn_or_module)
    names = _module_names(model)
    reports = []

    def record(graph_module: GraphModule, example_inputs: list[torch.Tensor]) -> GraphModule:
        reports.append(rewrite_module(graph_module, names, show=True))
        return graph_module

    trains, mode = _mode(model)
    torch._dynamo.reset()
    try:
        with torch.set_grad_enabled(trains):
            torch.compile(model, backend=record)(*args, **kwargs)
    except TypeError as error:
        if _fits(model, args, kwargs):
            raise
        raise TypeError(
            f"fusedops.explain: {error}; pass the arguments as to the model, {_how_to_pass(args)}"
        ) from None
    finally:
        torch._dynamo.reset()
    return sum(reports, Report(mode=mode))


def _fits(model: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    """Returns whether a model's signature accepts the arguments; True if it has no signature."""
    try:
        signature = inspect.signature(model.forward if isinstance(model, nn.Module) else model)
    except (TypeError, ValueError):  # functions in C may have no signature
        return True
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _how_to_pass(args: tuple[Any, ...]) -> str:
    """Says how to pass arguments that do not fit: a dict or a tuple of them has to be unpacked."""
    if len(args) == 1 and isinstance(args[0], Mapping):
        return "a batch in a dict as explain(model, **batch)"
    if len(args) == 1 and isinstance(args[0], (tuple, list)):
        return "several as explain(model, *inputs)"
    return "as explain(model, x, mask=mask)"


def _uncompiled(model: Callable[..., Any]) -> Callable[..., Any]:
    return model._orig_mod if isinstance(model, OptimizedModule) else innermost_fn(model)


def _mode(model: Callable[..., Any]) -> tuple[bool, str]:
    """Returns whether the model is run with gradients, and the mode that the report names. If the
    caller has disabled gradients, the mode is "inference"; else a module's `training` flag decides
    both. For a function, whose modules may differ, gradients are on and the mode is ""."""
    if not torch.is_grad_enabled():
        return False, "inference"
    root = _root(model)
    if root is None:
        return True, ""
    return root.training, "training" if root.training else "inference"


def _root(model: Callable[..., Any]) -> nn.Module | None:
    """Returns the model, or the module of a bound method, or None for other functions."""
    root = getattr(model, "__self__", model)
    return root if isinstance(root, nn.Module) else None


def _module_names(model: Callable[..., Any]) -> dict[str, str]:
    """Maps `str(id(module))` to the dotted path of the module, for each module in the model.
    Dynamo's own paths are not used, because after a graph break they start at the inner frame."""
    root = _root(model)
    modules = root.named_modules() if root is not None else ()
    return {str(id(module)): name for name, module in modules}
