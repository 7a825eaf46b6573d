"""Fused softmax and LayerNorm kernels that torch.compile and torch.export put into any model.

- ``torch.compile(model, backend="fusedops")``, or :func:`enable` / :func:`patch` with plain
  ``torch.compile``; ``fusedops.export.rewrite`` for exported programs, :func:`rewrite` for plain FX
  graphs; :func:`explain` tells what was replaced and why the rest was not.
- :func:`softmax`, :func:`log_softmax`, :func:`layer_norm`: the ops as functions.
- ``torch.ops.fusedops.*``: the ops themselves.
"""

import sys
from pathlib import Path

try:
    from fusedops import config, export, graph, ops
    from fusedops.backend import disable, enable, patch
    from fusedops.functional import layer_norm, log_softmax, softmax
    from fusedops.graph import rewrite
    from fusedops.graph.explain import explain
except (ImportError, ValueError):
    # "-m" stands there while `python -m fusedops` is being located: `python -m fusedops env` must
    # start, to report what is wrong.
    if sys.argv[0] != "-m":
        raise

__version__ = (Path(__file__).parent / "VERSION").read_text().strip()

__all__ = [
    "config",
    "disable",
    "enable",
    "explain",
    "export",
    "graph",
    "layer_norm",
    "log_softmax",
    "ops",
    "patch",
    "rewrite",
    "softmax",
]
