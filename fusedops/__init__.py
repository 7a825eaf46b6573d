"""Fused softmax and LayerNorm kernels that torch.compile and torch.export put into any model.

- ``torch.compile(model, backend="fusedops")``, or :func:`enable` / :func:`patch` with plain
  ``torch.compile``; ``fusedops.export.rewrite`` for exported programs, :func:`rewrite` for plain FX
  graphs; :func:`explain` reports what is replaced, and why the rest is not.
- :func:`softmax`, :func:`softmax_`, :func:`log_softmax`, :func:`masked_softmax`,
  :func:`masked_softmax_dropout`, :func:`layer_norm`, :func:`std_norm`, :func:`rms_norm`,
  :func:`l2_norm`, :func:`spatial_layer_norm`, :func:`spatial_rms_norm`, :func:`add_layer_norm`,
  :func:`add_rms_norm`, :func:`dropout`, :func:`cross_entropy`, :func:`linear_cross_entropy`: the
  ops as functions.
- :func:`softmax_stats`, :func:`merge_softmax_stats`, :func:`softmax_apply`: a softmax of rows that
  are split into segments, on several devices or ranks.
- :func:`stack_softmax`, :func:`stack_log_softmax`, :func:`stack_layer_norm`: the ops on several
  tensors, with the results stacked.
- ``fusedops.nn``: the ops as modules; :func:`replace_modules` puts them into a model.
- :func:`parallel_stack`: runs independent functions concurrently and stacks their results.
- ``torch.ops.fusedops.*``: the ops themselves.
"""

import importlib
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

#: The error with which the imports below failed; only `python -m fusedops` goes on without them.
_failure: Exception | None = None


def _is_run_as_module() -> bool:
    """Whether this import is part of `python -m fusedops`, which imports the package first.

    During that import sys.argv[0] is "-m". The name of the module is in sys.orig_argv, after an
    option that ends in m, because one-letter options may be combined, as in `python -Im fusedops`.
    """
    options = pairwise(sys.orig_argv)
    named = any(
        first[:1] == "-" and first[-1:] == "m" and last == "fusedops" for first, last in options
    )
    return sys.argv[0] == "-m" and (named or "-mfusedops" in sys.orig_argv)


try:
    from fusedops import config, functional, nn, ops
    from fusedops.functional import *
    from fusedops.integrations.first_use import import_rules_on_first_use
    from fusedops.parallel import parallel_stack

    import_rules_on_first_use()
except Exception as error:
    # `python -m fusedops env` must start nevertheless, to report what is wrong.
    if not _is_run_as_module():
        raise
    _failure = error

if TYPE_CHECKING:
    from fusedops import export, graph
    from fusedops.backend import disable, enable, patch
    from fusedops.graph.explain import explain
    from fusedops.graph.fx import rewrite
    from fusedops.replacement import replace_modules

_version_file = Path(__file__).parent / "VERSION"
__version__ = _version_file.read_text().strip() if _version_file.exists() else "unknown"

#: The value of CMAKE_PREFIX_PATH with which a C++ project's find_package(fusedops) succeeds.
cmake_prefix_path = str(Path(__file__).parent)

__all__ = [
    "cmake_prefix_path",
    "config",
    "disable",
    "enable",
    "explain",
    "export",
    "graph",
    "nn",
    "ops",
    "parallel_stack",
    "patch",
    "replace_modules",
    "rewrite",
]
if _failure is None:
    __all__ += functional.__all__

# These need torch's compiler, which takes 1.6 s to import, and are imported when first used.
_LAZY = {
    "backend": "fusedops.backend",
    "disable": "fusedops.backend",
    "enable": "fusedops.backend",
    "explain": "fusedops.graph.explain",
    "export": "fusedops.export",
    "graph": "fusedops.graph",
    "patch": "fusedops.backend",
    "replace_modules": "fusedops.replacement",
    "rewrite": "fusedops.graph.fx",
}


def __getattr__(name: str) -> Any:
    if _failure is not None and not name.startswith("_"):
        raise ImportError(f"fusedops could not be imported: {_failure}") from _failure
    if name not in _LAZY:
        raise AttributeError(f"module 'fusedops' has no attribute {name!r}{_suggestion(name)}")
    module = importlib.import_module(_LAZY[name])
    value = module if _LAZY[name] == f"fusedops.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def _suggestion(name: str) -> str:
    """Returns "; did you mean ...?" with the name of the API that is most like ``name``, or "". A
    name with a capital may be that of a module of fusedops.nn."""
    if name.startswith("_") or _failure is not None:  # Python looks for names like __path__
        return ""
    from fusedops._arguments import did_you_mean

    modules = [f"nn.{module}" for module in vars(nn) if module[0].isupper()]
    return did_you_mean(name, modules if name[0].isupper() else __all__)
