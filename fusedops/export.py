"""Rewrites the graphs of `torch.export`, and makes AOTInductor packages of them, which run without
Python."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config as inductor_config
from torch._ops import OpOverload
from torch.export import ExportedProgram, ModuleCallEntry
from torch.fx import GraphModule, Node

from fusedops.graph.availability import has_kernels
from fusedops.graph.inductor import repair_dtypes
from fusedops.graph.passes import with_ours
from fusedops.graph.rewriting.report import publish
from fusedops.graph.rewriting.rewriter import rewrite_module

__all__ = ["package", "rewrite"]

#: The option of Inductor that takes our pass which lets softmaxes overwrite their scores.
_REUSE = "post_grad_custom_post_pass"


def rewrite(exported_program: ExportedProgram) -> ExportedProgram:
    """Replaces softmaxes, norms and cross entropies in an exported program by our ops.

    Args:
        exported_program: the result of `torch.export.export`, or of `run_decompositions`. It is not
            changed; the result shares its parameters and constants.

    Returns: a new ExportedProgram, ready for `torch.export.save`, :func:`package`, or `.module()`.
        A process that loads it needs fusedops installed.

    Raises:
        TypeError: the argument is not an ExportedProgram.

    Source: :func:`torch.export.export`, whose programs it takes.
    """
    _check_program("rewrite", exported_program)
    # A bug of torch's AOTInductor (`graph/inductor.py`) would otherwise show if the caller compiles
    # the result with torch's own function instead of package().
    repair_dtypes()
    graph_module = _copy(exported_program.graph_module)
    signature = copy.deepcopy(exported_program.graph_signature)
    calls = copy.deepcopy(exported_program.module_call_graph)
    # The hook updates the names of outputs in the signature when the rewriter replaces the node
    # that computes an output.
    with graph_module._set_replace_hook(signature.get_replace_hook()), _kept(graph_module, calls):
        publish(rewrite_module(graph_module))
    for node in our_nodes(graph_module):
        _replace_infinity(node)
    return ExportedProgram(
        root=graph_module,
        graph=graph_module.graph,
        graph_signature=signature,
        state_dict=exported_program.state_dict,
        range_constraints=copy.deepcopy(exported_program.range_constraints),
        module_call_graph=calls,
        example_inputs=exported_program.example_inputs,
        constants=exported_program.constants,
        verifiers=exported_program.verifiers,
    )


def package(
    exported_program: ExportedProgram,
    path: str | os.PathLike[str],
    *,
    inductor_configs: dict[str, Any] | None = None,
) -> str:
    """Rewrites an exported program and compiles it ahead of time, into a package for inference.

    The package is machine code that calls our kernels, on CUDA through torch's dispatcher. It runs
    in a C++ program without Python if that is linked to ``fusedops::fusedops``, and in Python after
    `import fusedops`. It works only with the torch version and the device type that it was compiled
    for.

    Args:
        exported_program: as for :func:`rewrite`; it may be rewritten already. It needs its example
            inputs, which `torch.export.export` records. Dynamic dimensions stay dynamic.
        path: the package to write; ends in ``.pt2``, in a folder that exists.
        inductor_configs: Inductor's options, see `torch._inductor.list_options`. A
            `post_grad_custom_post_pass`, given here or set in Inductor's config, runs before ours,
            which makes softmaxes overwrite their scores where possible.

    Returns: the path; `torch._inductor.aoti_load_package`, or in C++
        `torch::inductor::AOTIModelPackageLoader`, loads it.

    Raises:
        TypeError: `exported_program` is not an ExportedProgram, or `path` is not a path.
        ValueError: `path` does not end in ``.pt2``.
        FileNotFoundError: the folder of `path` does not exist.
        RuntimeError: the program calls our ops on a device that this build has no kernels for.
        AttributeError: an option that Inductor does not have.

    Source: `torch._inductor.aoti_compile_and_package`.
    """
    path = _checked_path(path)
    _check_program("package", exported_program)
    program = rewrite(exported_program)
    _check_devices(program)
    configs = dict(inductor_configs or {})
    configs[_REUSE] = with_ours(configs.get(_REUSE, getattr(inductor_config, _REUSE)), _REUSE)
    return torch._inductor.aoti_compile_and_package(
        program, package_path=path, inductor_configs=configs
    )


def _copy(graph_module: GraphModule) -> GraphModule:
    """Returns a copy that shares parameters, constants and fake tensors with the original.
    `copy.deepcopy` of the whole module would copy these too, and it fails on fake tensors once
    `torch.export.unflatten` has run."""
    graph = copy.deepcopy(graph_module.graph)
    # Copying renames nodes that are named like a builtin of Python, such as "input". The signature
    # refers to nodes by name, so that they get their names back.
    for node, copied_node in zip(graph_module.graph.nodes, graph.nodes, strict=True):
        copied_node.name = node.name
    copied = GraphModule(graph_module, graph)
    copied.meta.update(graph_module.meta)
    for name, body in graph_module.named_children():
        if isinstance(body, GraphModule):
            setattr(copied, name, _copy(body))
    return copied


@contextmanager
def _kept(graph_module: GraphModule, calls: Sequence[ModuleCallEntry]) -> Iterator[None]:
    """Keeps the values that `calls` name, which are the inputs and outputs of modules whose
    signatures torch.export preserves. Inside of the `with` block these values are results of the
    graph, so that the rewriter keeps them. After it `calls` has the names of the nodes that compute
    them now."""
    signatures = [call.signature for call in calls if call.signature]
    specs: list[Any] = [spec for call in signatures for spec in (*call.inputs, *call.outputs)]
    nodes = {node.name: node for node in graph_module.graph.nodes}
    named = [spec for spec in specs if getattr(spec, "name", None) in nodes]
    output = graph_module.graph.output_node()
    results: Any = output.args[0]
    output.args = ((*results, *(nodes[spec.name] for spec in named)),)
    yield
    values: Any = output.args[0]
    output.args = (values[: len(results)],)
    for spec, node in zip(named, values[len(results) :], strict=True):
        spec.name = node.name


def our_nodes(graph_module: GraphModule) -> Iterator[Node]:
    """Yields the nodes that call our ops, including those in subgraphs, such as the bodies of
    no_grad or autocast regions."""
    for body in graph_module.modules():
        for node in body.graph.nodes if isinstance(body, GraphModule) else ():
            if isinstance(node.target, OpOverload) and node.target.namespace == "fusedops":
                yield node


def _replace_infinity(node: Node) -> None:
    """Replaces a mask_value of -inf by None, which means the same to the op. AOTInductor of torch
    2.13 writes the arguments of ops as JSON, with infinity as the string "-Infinity", and fails to
    read this back."""
    assert isinstance(node.target, OpOverload)  # `our_nodes` yields only such nodes
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.name == "mask_value" and node.args[position : position + 1] == (-math.inf,):
            node.update_arg(position, None)
    if node.kwargs.get("mask_value") == -math.inf:
        node.update_kwarg("mask_value", None)


def _check_program(function: str, exported_program: object) -> None:
    if not isinstance(exported_program, ExportedProgram):
        raise TypeError(
            f"fusedops.export.{function}: exported_program is of type "
            f"{type(exported_program).__name__}, wanted a torch.export.ExportedProgram; pass the "
            "result of torch.export.export"
        )


def _checked_path(path: str | os.PathLike[str]) -> str:
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(
            f"fusedops.export.package: path is of type {type(path).__name__}, wanted a str or a "
            "Path in .pt2"
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
