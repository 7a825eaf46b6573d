"""Defines the torch.compile backend "fusedops", and the functions that make plain `torch.compile`
do the same rewrite."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
import torch._inductor.config as inductor_config
from torch.fx import GraphModule

from fusedops import _arguments, config
from fusedops.graph.passes import options_with_ours, options_without_ours


def backend(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Replaces softmaxes, norms and cross entropies by our ops, and compiles with Inductor.

    `torch.compile(model, backend="fusedops", mode=..., options=...)` finds this function through an
    entry point, without an import of fusedops. `backend=fusedops.backend` is the same.

    Args:
        gm, example_inputs: a graph captured by Dynamo, and its inputs.
        mode: Inductor's modes, see `torch._inductor.list_mode_options`.
        options: Inductor's options, see `torch._inductor.list_options`; they take precedence over
            `mode`. A `pre_grad_custom_pass`, `joint_custom_post_pass` or
            `post_grad_custom_post_pass`, given here or set in Inductor's config, runs before ours.

    Returns:
        The compiled graph, a function of the same inputs.

    Raises:
        RuntimeError: `mode` or an option is unknown.

    Source: the backend "inductor" of :func:`torch.compile`.
    """
    if options:
        _check_options(options)
    # torch.compile(backend="inductor") uses this object, which checks and merges mode and options.
    inductor = torch._TorchCompileInductorWrapper(mode, options, dynamic=None)
    inductor.config |= options_with_ours(
        lambda name: inductor.config.get(name, getattr(inductor_config, name))
    )
    compiled: Callable[..., Any] = inductor(gm, example_inputs)
    return compiled


def _check_options(options: Mapping[str, Any]) -> None:
    """Raises an error that names an unknown option and the nearest known one. Inductor's own error
    would list all known options."""
    known = torch._inductor.list_options()
    for name in options:
        if name.replace("-", "_") in known:
            continue
        if hasattr(config.Config, name):
            raise RuntimeError(
                f"fusedops: options has {name!r}, a setting of fusedops, wanted options of "
                f"Inductor; set it with fusedops.config.{name} or fusedops.config.patch({name}=...)"
            )
        raise RuntimeError(
            f"fusedops: options has {name!r}, wanted options of Inductor, which "
            f"torch._inductor.list_options() lists{_arguments.did_you_mean(name, known)}"
        )


class _Module(ModuleType):
    """Makes this module callable, so that `backend=fusedops.backend`, which names the module, works
    like the function `backend` in it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        return backend(*args, **kwargs)


sys.modules[__name__].__class__ = _Module


def enable() -> None:
    """Makes plain `torch.compile(model)` replace what the backend "fusedops" replaces.

    A custom pass that is set in Inductor's config keeps running, before ours. A second call changes
    nothing. Models that are already compiled do not change.

    Source: the custom passes of Inductor, `torch._inductor.custom_graph_pass.CustomGraphPass`.
    """
    _set_options(options_with_ours(_option))


def disable() -> None:
    """Removes our passes from Inductor's config: those of `enable()`, and also a
    `fusedops.graph.Pass` that was set there by hand. Other passes stay.

    Inductor's pre-grad passes, which `enable()` makes run early, get their default timing back.

    Source: as for :func:`enable`.
    """
    _set_options(options_without_ours(_option))


@contextmanager
def patch() -> Iterator[None]:
    """Does what `enable()` does, for a `with` block. The first call of the compiled model, which
    compiles it, must be inside the block.

    Source: `torch._inductor.config.patch`, with the passes of :func:`enable`.
    """
    with inductor_config.patch(options_with_ours(_option)):
        yield


def _option(name: str) -> Any:
    return getattr(inductor_config, name)


def _set_options(options: Mapping[str, Any]) -> None:
    for name, setting in options.items():
        setattr(inductor_config, name, setting)
