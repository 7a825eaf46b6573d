"""Lets torch find the operators by name in a process that has not imported fusedops.

`import torch` calls :func:`register` through the entry point group "torch.backends", PyTorch's
mechanism for extensions that load without an import (TORCH_DEVICE_BACKEND_AUTOLOAD=0 switches all
of them off). It does not import fusedops, which happens only when an operator is first looked up,
as `torch.export.load` does for the nodes of a program. This module is not part of the package,
because to import it torch would then import the whole package.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch


class _NotImported(torch._ops._OpNamespace):
    """``torch.ops.fusedops`` before the import. It is an ordinary namespace from then on."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # inspection looks for names like __wrapped__
            return super().__getattr__(name)
        self.__class__ = torch._ops._OpNamespace  # type: ignore[assignment]
        try:
            importlib.import_module("fusedops")
        except BaseException:
            self.__class__ = _NotImported
            raise
        return getattr(self, name)


def register() -> None:
    """Prepares the namespace, unless fusedops is being imported, which itself imports torch."""
    if "fusedops" not in sys.modules:
        torch.ops.fusedops.__class__ = _NotImported
