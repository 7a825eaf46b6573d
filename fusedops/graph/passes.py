"""Registers the rewriter and the memory passes as Inductor's custom passes. If the user has set
custom passes too, those run first."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch._inductor.config as inductor_config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph

from fusedops import config
from fusedops.graph.availability import has_kernels
from fusedops.graph.inductor import repair_dtypes, repair_scatters
from fusedops.graph.kernel_calls import call_kernels
from fusedops.graph.memory.merged_results import separate_merged_results
from fusedops.graph.memory.relu_masks import read_views_of_relus
from fusedops.graph.memory.reuse import reuse_memory
from fusedops.graph.memory.saved_seeds import save_seeds
from fusedops.graph.memory.table_gradients import separate_rows
from fusedops.graph.memory.unused_outputs import drop_unused_outputs, use_no_autograd_variants
from fusedops.graph.policy import costs
from fusedops.graph.rewriting.report import publish
from fusedops.graph.rewriting.rewriter import rewrite_graph

GraphPass = Callable[[Graph], Any]


class _Pass(CustomGraphPass):
    """A custom pass of fusedops. The first one to be created installs the workarounds for bugs of
    Inductor that `inductor.py` describes, and direct calls of our kernels (`kernel_calls.py`)."""

    def __init__(self) -> None:
        repair_scatters(_runs_ours)
        repair_dtypes()
        call_kernels(_runs_ours)

    def uuid(self) -> str:
        """Returns the pass's part of Inductor's cache key: all that its result depends on, which is
        sources, available kernels, settings and policy tables."""
        devices = [device for device in ("cpu", "cuda") if has_kernels(device)]
        settings = dataclasses.astuple(config.active())
        return f"fusedops-{_sources_digest()}-{devices}-{settings}-{costs.identity()}"


class Pass(_Pass):
    """Replaces softmaxes and norms by our ops, as Inductor's `pre_grad_custom_pass`.

    From torch 2.12 on, Inductor looks into its caches before it runs a pass that has a `uuid`. With
    a warm cache the pass is then not called, and nothing is counted or logged, except with the
    option `pre_grad_pass_timing="early"`, which the backend and `fusedops.enable` set.
    """

    def __call__(self, graph: Graph) -> None:
        publish(rewrite_graph(graph))


class JointPass(_Pass):
    """Makes torch save the seeds of random numbers for the backward pass, and not the masks of
    relus, and adds up the gradients of small tables without sharing memory among threads. It is
    Inductor's `joint_custom_post_pass`, which runs on forward and backward pass in one graph."""

    def __call__(self, graph: Graph) -> None:
        save_seeds(graph)
        read_views_of_relus(graph)
        separate_rows(graph)


class ReusePass(_Pass):
    """Separates merged results, drops unused outputs, lets ops write into memory that nothing else
    needs, and calls ops in their no-autograd variants. It is Inductor's
    `post_grad_custom_post_pass`, which runs on forward and backward graphs."""

    def __call__(self, graph: Graph) -> None:
        separate_merged_results(graph)
        drop_unused_outputs(graph)
        reuse_memory(graph)
        use_no_autograd_variants(graph)


#: Option of Inductor that takes a custom pass -> the class of our pass for it.
PASSES: dict[str, type[_Pass]] = {
    "pre_grad_custom_pass": Pass,
    "joint_custom_post_pass": JointPass,
    "post_grad_custom_post_pass": ReusePass,
}


#: The option that says when Inductor runs its pre-grad passes; torch has it from 2.12 on.
_TIMING = "pre_grad_pass_timing"


def options_with_ours(current: Callable[[str], Any]) -> dict[str, Any]:
    """Returns Inductor's options with our passes added; `current` returns the present value of the
    option with a given name.

    From torch 2.12 on, a timing of "default" becomes "early": the rewrite then runs before Inductor
    looks into its caches, so that it is logged and counted with a warm cache too. With a warm cache
    12 layers of BERT start in 8 s, of which the rewrite takes 0.2 s.
    """
    options = {name: with_ours(current(name), name) for name in PASSES}
    if hasattr(inductor_config, _TIMING) and current(_TIMING) == "default":
        options[_TIMING] = "early"
    return options


def options_without_ours(current: Callable[[str], Any]) -> dict[str, Any]:
    """Returns Inductor's options without our passes. If there were any, the timing "early" becomes
    "default" again."""
    options = {name: without_ours(current(name)) for name in PASSES}
    had_ours = any(options[name] is not current(name) for name in PASSES)
    if had_ours and hasattr(inductor_config, _TIMING) and current(_TIMING) == "early":
        options[_TIMING] = "default"
    return options


class Chain(CustomGraphPass):
    """Runs `existing`, which is one pass or a list of them as Inductor accepts it, then `ours`."""

    def __init__(
        self, existing: GraphPass | list[GraphPass] | tuple[GraphPass, ...], ours: _Pass
    ) -> None:
        self.existing, self.ours = existing, ours

    def __call__(self, graph: Graph) -> None:
        for graph_pass in _as_tuple(self.existing):
            graph_pass(graph)
        self.ours(graph)

    def uuid(self) -> tuple[Any, ...] | None:
        """Returns the uuids of all passes, or None, which disables the caches, if one has none."""
        passes = (*_as_tuple(self.existing), self.ours)
        uuids = [p.uuid() if isinstance(p, CustomGraphPass) else None for p in passes]
        return None if None in uuids else tuple(uuids)


def _is_ours(graph_pass: Any) -> bool:
    return isinstance(graph_pass, (_Pass, Chain))


def _runs_ours() -> bool:
    """Returns whether Inductor's options for the graph that it compiles now have a pass of ours."""
    return any(
        _is_ours(graph_pass)
        for name in PASSES
        for graph_pass in _as_tuple(getattr(inductor_config, name))
    )


def with_ours(existing: Any, option: str) -> Any:
    """Returns `existing`, the value of one of Inductor's options in PASSES, followed by our pass.
    If it has a pass of ours already, it stays as it is."""
    if any(map(_is_ours, _as_tuple(existing))):
        return existing
    ours = PASSES[option]()
    return Chain(existing, ours) if _as_tuple(existing) else ours


def without_ours(existing: Any) -> Any:
    """Returns `existing`, the value of one of Inductor's options, without our passes; None if it is
    a pass of ours."""
    if isinstance(existing, Chain):
        return existing.existing
    if isinstance(existing, _Pass):
        return None
    if any(isinstance(graph_pass, _Pass) for graph_pass in _as_tuple(existing)):
        return type(existing)(p for p in existing if not isinstance(p, _Pass))
    return existing


def _as_tuple(passes: Any) -> tuple[GraphPass, ...]:
    if passes is None:
        return ()
    return tuple(passes) if isinstance(passes, (list, tuple)) else (passes,)


@functools.cache
def _sources_digest() -> str:
    """Returns a hash of the source files that a compiled graph depends on: the passes, and the ops
    whose formulas and rules are traced into the graph. Policy tables have a hash of their own."""
    import fusedops  # at the top this would be a circular import

    package = Path(__file__).parents[1]
    folders = ("graph", "ops", "integrations/dtensor")
    files = [file for folder in folders for file in package.glob(f"{folder}/**/*.py")]
    files += [package / "config.py", package / "reference.py", package / "graph/kernel_calls.h"]
    digest = hashlib.sha256(getattr(fusedops, "__version__", "").encode())
    for file in sorted(files):
        digest.update(file.read_bytes())
    return digest.hexdigest()
