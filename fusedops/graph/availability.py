"""What the op library can do, as the rewriter sees it; imported here alone, and late."""

from __future__ import annotations

import torch

KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def require_ops() -> None:
    """Make `torch.ops.fusedops` exist. Raises RuntimeError, naming the fix, where it cannot."""
    try:
        from fusedops.ops import _library  # noqa: F401
    except (ImportError, OSError) as error:
        raise RuntimeError(
            f"fusedops: the kernel library did not load ({error}); build it with "
            "`pip install --no-build-isolation .` and check it with `python -m fusedops env`"
        ) from error


def has_kernels(device_type: str) -> bool:
    """Does this build have kernels for tensors on `device_type` ("cpu", "cuda", ...)?"""
    from fusedops.ops import _library

    return _library.has_kernels(device_type)
