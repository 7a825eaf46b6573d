"""The devices and dtypes that the op library has kernels for."""

from __future__ import annotations

import torch

from fusedops.ops import _library

KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def has_kernels(device_type: str) -> bool:
    """Whether this build has kernels for tensors on `device_type` ("cpu", "cuda", ...)."""
    return _library.has_kernels(device_type)
