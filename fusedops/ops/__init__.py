"""Registers the custom ops ``torch.ops.fusedops.*``: importing this package loads its modules, each
of which registers some of them."""

import importlib
import pkgutil

import torch

if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 10):
    raise ImportError(
        f"fusedops needs torch >= 2.10, this is {torch.__version__}; run: pip install -U torch"
    )

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
