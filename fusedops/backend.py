"""The torch.compile backend, and the same rewrite for plain `torch.compile`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch._inductor.config as inductor_config
from torch.fx import GraphModule

from fusedops.graph.passes import PASSES, with_ours, without_ours


def backend(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile with Inductor after replacing softmax, log_softmax, layer_norm and rms_norm.

    `torch.compile(model, backend="fusedops", mode=..., options=...)` finds it by entry point; no
    import of fusedops is needed.

    Args:
        gm, example_inputs: a graph captured by Dynamo, and its inputs.
        mode: Inductor's modes, see `torch._inductor.list_mode_options`.
        options: Inductor's options, see `torch._inductor.list_options`; they win over `mode`. A
            `pre_grad_custom_pass` or `post_grad_custom_post_pass`, given here or set in Inductor's
            config, runs before ours.

    Returns:
        The compiled graph, a function of the same inputs.

    Raises:
        RuntimeError: `mode` or an option is unknown.

    Source: the backend "inductor" of :func:`torch.compile`.
    """
    # The object behind torch.compile(backend="inductor"): it checks and merges mode and options.
    inductor = torch._TorchCompileInductorWrapper(mode, options, dynamic=None)
    for option in PASSES:
        existing = inductor.config.get(option, getattr(inductor_config, option))
        inductor.config[option] = with_ours(existing, option)
    compiled: Callable[..., Any] = inductor(gm, example_inputs)
    return compiled


def enable() -> None:
    """From now on, plain `torch.compile(model)` replaces softmaxes and norms as the backend does.

    A custom pass already in Inductor's config keeps running, before ours. Calling it
    again changes nothing. What is compiled already stays as it is.

    Source: the custom passes of Inductor, `torch._inductor.custom_graph_pass.CustomGraphPass`.
    """
    for option in PASSES:
        setattr(inductor_config, option, with_ours(getattr(inductor_config, option), option))


def disable() -> None:
    """Undo `enable()`: Inductor's config is again what it was. Harmless where it never ran.

    Source: as for :func:`enable`.
    """
    for option in PASSES:
        setattr(inductor_config, option, without_ours(getattr(inductor_config, option)))


@contextmanager
def patch() -> Iterator[None]:
    """`enable()` for a block. The compilation, at the first call, must happen inside it.

    Source: `torch._inductor.config.patch`, with the passes of :func:`enable`.
    """
    passes = {name: with_ours(getattr(inductor_config, name), name) for name in PASSES}
    with inductor_config.patch(passes):
        yield
