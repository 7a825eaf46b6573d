"""The same rewrite for `torch.export`, and packages for AOTInductor, which run without Python."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config as inductor_config
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from fusedops.graph.availability import has_kernels
from fusedops.graph.passes import with_ours
from fusedops.graph.rewriting.report import publish
from fusedops.graph.rewriting.rewriter import rewrite_module

__all__ = ["package", "rewrite"]

_REUSE = "post_grad_custom_post_pass"


def rewrite(exported_program: ExportedProgram) -> ExportedProgram:
    """Replace softmax, log_softmax, layer_norm and rms_norm in an exported program.

    Args:
        exported_program: as `torch.export.export` gives it, or after `run_decompositions`. It is
            left as it is; parameters and constants are shared with the result.

    Returns: a new ExportedProgram, ready for `torch.export.save`, :func:`package`, or `.module()`.
        A process that loads it must have the ops: `import fusedops` first.

    Raises:
        TypeError: the argument is no ExportedProgram.

    Source: :func:`torch.export.export`, whose programs it takes.
    """
    if not isinstance(exported_program, ExportedProgram):
        raise TypeError(
            f"fusedops.export: exported_program is a {type(exported_program).__name__}, "
            "wanted a torch.export.ExportedProgram; pass the result of torch.export.export"
        )
    graph_module = _copy(exported_program.graph_module)
    signature = copy.deepcopy(exported_program.graph_signature)
    # Keeps the output names in the signature in step where the last op of a model is replaced.
    with graph_module._set_replace_hook(signature.get_replace_hook()):
        publish(rewrite_module(graph_module))
    for node in our_nodes(graph_module):
        _leave_out_infinity(node)
    return exported_program._update(graph_module, signature)


def package(
    exported_program: ExportedProgram,
    path: str | os.PathLike[str],
    *,
    inductor_configs: dict[str, Any] | None = None,
) -> str:
    """Rewrite an exported program and compile it ahead of time, into a package for inference.

    The package is machine code that calls our ops through torch's dispatcher: it runs in C++
    without Python, where the program is linked to ``fusedops::fusedops``, and in Python after
    `import fusedops`. It belongs to the version of torch and the kind of device that it was
    compiled with.

    Args:
        exported_program: as for :func:`rewrite`; rewritten already is fine. It needs its example
            inputs, which `torch.export.export` puts there. Dimensions that are dynamic stay so.
        path: the package to write; ends in ``.pt2``, in a folder that exists.
        inductor_configs: Inductor's options, see `torch._inductor.list_options`. A
            `post_grad_custom_post_pass`, given here or set in Inductor's config, runs before ours,
            which lets softmaxes write over their scores.

    Returns: the path; `torch._inductor.aoti_load_package`, or in C++
        `torch::inductor::AOTIModelPackageLoader`, loads it.

    Raises:
        TypeError: `exported_program` is no ExportedProgram, or `path` no path.
        ValueError: `path` does not end in ``.pt2``.
        FileNotFoundError: the folder of `path` does not exist.
        RuntimeError: the program calls our ops on a device that this build has no kernels for.
        AttributeError: an option that Inductor does not have.

    Source: `torch._inductor.aoti_compile_and_package`.
    """
    path = _checked_path(path)
    program = rewrite(exported_program)
    _check_devices(program)
    configs = dict(inductor_configs or {})
    configs[_REUSE] = with_ours(configs.get(_REUSE, getattr(inductor_config, _REUSE)), _REUSE)
    return torch._inductor.aoti_compile_and_package(
        program, package_path=path, inductor_configs=configs
    )


def _copy(graph_module: GraphModule) -> GraphModule:
    copied = copy.deepcopy(graph_module)
    # The signature knows nodes by name, and copying renames those called like a builtin ("input").
    for node, own in zip(graph_module.graph.nodes, copied.graph.nodes, strict=True):
        own.name = node.name
    return copied


def our_nodes(graph_module: GraphModule) -> Iterator[Node]:
    """The calls of our ops, those in regions of no_grad or autocast included."""
    for body in graph_module.modules():
        for node in body.graph.nodes if isinstance(body, GraphModule) else ():
            if isinstance(node.target, OpOverload) and node.target.namespace == "fusedops":
                yield node


def _leave_out_infinity(node: Node) -> None:
    """A mask_value of -inf becomes None, which means the same. AOTInductor writes arguments as
    JSON, infinity as the text "-Infinity", and refuses to read that as a number (torch 2.13)."""
    assert isinstance(node.target, OpOverload)  # one of `our_nodes`
    names = [argument.name for argument in node.target._schema.arguments]
    if "mask_value" not in names:
        return
    position = names.index("mask_value")
    if node.args[position : position + 1] == (-math.inf,):
        node.update_arg(position, None)
    elif node.kwargs.get("mask_value") == -math.inf:
        node.update_kwarg("mask_value", None)


def _checked_path(path: str | os.PathLike[str]) -> str:
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(
            f"fusedops.export.package: path is a {type(path).__name__}, wanted a str or a Path in "
            ".pt2"
        )
    folder = Path(path).parent
    if Path(path).suffix != ".pt2":
        raise ValueError(f"fusedops.export.package: path is {str(path)!r}, wanted one in .pt2")
    if not folder.is_dir():
        raise FileNotFoundError(
            f"fusedops.export.package: path is {str(path)!r}, but there is no folder "
            f"{str(folder)!r}; create it"
        )
    return os.fspath(path)


def _check_devices(program: ExportedProgram) -> None:
    for node in our_nodes(program.graph_module):
        device = node.all_input_nodes[0].meta["val"].device.type
        if not has_kernels(device):
            raise RuntimeError(
                f"fusedops.export.package: {node.target} is called on {device} tensors, which this "
                "build has no kernels for; `python -m fusedops env` says why. Export the model on "
                "another device"
            )
