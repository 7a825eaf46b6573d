"""Says for which devices, dtypes and classes of tensors there are kernels or rules."""

from __future__ import annotations

import torch
from torch._library.simple_registry import find_torch_dispatch_rule
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from fusedops.ops.checks import FLOATING
from fusedops.ops.registration.libraries import has_kernels as has_kernels

KERNEL_DTYPES = FLOATING


def kernels_take(dtype: torch.dtype | None) -> bool:
    """Returns whether kernels take an argument of this dtype, which is None for one that is no
    tensor."""
    return dtype is None or dtype in KERNEL_DTYPES


def ops_take(tensor: torch.Tensor) -> bool:
    """Returns whether the ops take a tensor of this class: a plain one, or one of a subclass that
    they have rules for, such as DTensor."""
    if not is_traceable_wrapper_subclass(tensor):
        return True
    softmax = torch.ops.fusedops.softmax.default
    return find_torch_dispatch_rule(softmax, type(tensor)) is not None
