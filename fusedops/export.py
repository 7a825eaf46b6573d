"""The same rewrite for `torch.export`."""

from __future__ import annotations

import copy

from torch.export import ExportedProgram
from torch.fx import GraphModule

from fusedops.graph.availability import require_ops
from fusedops.graph.report import publish
from fusedops.graph.rewriter import rewrite_module


def rewrite(exported_program: ExportedProgram) -> ExportedProgram:
    """Replace softmax, log_softmax, layer_norm and rms_norm in an exported program.

    Args:
        exported_program: as `torch.export.export` gives it, or after `run_decompositions`. It is
            left as it is; parameters and constants are shared with the result.

    Returns: a new ExportedProgram, ready for `torch.export.save`, AOTInductor, or `.module()`.
        A process that loads it must have the ops: `import fusedops` first.

    Raises:
        TypeError: the argument is no ExportedProgram.
        RuntimeError: the kernel library did not load.
    """
    if not isinstance(exported_program, ExportedProgram):
        raise TypeError(
            f"fusedops.export.rewrite: exported_program is a {type(exported_program).__name__}, "
            "wanted a torch.export.ExportedProgram; pass the result of torch.export.export"
        )
    require_ops()
    graph_module = _copy(exported_program.graph_module)
    signature = copy.deepcopy(exported_program.graph_signature)
    # Keeps the output names in the signature in step where the last op of a model is replaced.
    with graph_module._set_replace_hook(signature.get_replace_hook()):
        publish(rewrite_module(graph_module))
    return exported_program._update(graph_module, signature)


def _copy(graph_module: GraphModule) -> GraphModule:
    copied = copy.deepcopy(graph_module)
    # The signature knows nodes by name, and copying renames those called like a builtin ("input").
    for node, twin in zip(graph_module.graph.nodes, copied.graph.nodes, strict=True):
        twin.name = node.name
    return copied
