"""The custom ops ``torch.ops.fusedops.*``: importing this module loads and registers them."""

import torch

if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 10):
    raise ImportError(
        f"fusedops needs torch >= 2.10, this is {torch.__version__}; run: pip install -U torch"
    )

from fusedops.ops import (  # noqa: E402
    masked_softmax,
    masked_softmax_sinks,
    nested,
    norm,
    norm_composites,
    softmax,
    softmax_composites,
    softmax_stats,
    stack,
)

__all__ = [
    "masked_softmax",
    "masked_softmax_sinks",
    "nested",
    "norm",
    "norm_composites",
    "softmax",
    "softmax_composites",
    "softmax_stats",
    "stack",
]
