"""The torch.compile backend, and the same rewrite for plain `torch.compile`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch._inductor.config as inductor_config
from torch.fx import GraphModule

from fusedops.graph.availability import require_ops
from fusedops.graph.passes import with_rewriter, without_rewriter


def backend(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile with Inductor after replacing softmax, log_softmax and layer_norm.

    `torch.compile(model, backend="fusedops", mode=..., options=...)` finds it by entry point; no
    import of fusedops is needed.

    Args:
        gm, example_inputs: a graph captured by Dynamo, and its inputs.
        mode: Inductor's modes, see `torch._inductor.list_mode_options`.
        options: Inductor's options, see `torch._inductor.list_options`; they win over `mode`. A
            `pre_grad_custom_pass`, given here or set in Inductor's config, runs before ours.

    Raises:
        RuntimeError: the kernel library did not load, or `mode` or an option is unknown.
    """
    require_ops()
    # The object behind torch.compile(backend="inductor"): it checks and merges mode and options.
    inductor = torch._TorchCompileInductorWrapper(mode, options, dynamic=None)
    existing = inductor.config.get("pre_grad_custom_pass", inductor_config.pre_grad_custom_pass)
    inductor.config["pre_grad_custom_pass"] = with_rewriter(existing)
    return inductor(gm, example_inputs)


def enable() -> None:
    """From now on, plain `torch.compile(model)` replaces softmax, log_softmax and layer_norm.

    A `pre_grad_custom_pass` already in Inductor's config keeps running, before ours. Calling it
    again changes nothing. What is compiled already stays as it is. Raises RuntimeError where the
    kernel library did not load.
    """
    require_ops()
    inductor_config.pre_grad_custom_pass = with_rewriter(inductor_config.pre_grad_custom_pass)


def disable() -> None:
    """Undo `enable()`: Inductor's config is again what it was. Harmless where it never ran."""
    inductor_config.pre_grad_custom_pass = without_rewriter(inductor_config.pre_grad_custom_pass)


@contextmanager
def patch() -> Iterator[None]:
    """`enable()` for a block. The compilation, at the first call, must happen inside it."""
    require_ops()
    rewriting = with_rewriter(inductor_config.pre_grad_custom_pass)
    with inductor_config.patch(pre_grad_custom_pass=rewriting):
        yield
