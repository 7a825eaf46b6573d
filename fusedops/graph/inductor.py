"""Workarounds for two bugs of Inductor that corrupt memory or results of compiled programs.

The first bug is a wrong index. torch 2.10 to 2.13 generate it where an accumulating scatter (the
gradient of an embedding, `index_put(accumulate=True)`, `scatter_add`) is tiled over two dimensions
and runs on several threads: the offset inside the tile is added twice, so that values are written
to other elements, some of them past the end of the tensor. torch 2.14 is fixed as in this module
(pytorch/pytorch#191837). Plain Inductor has the bug too, but it tiles in this way only where a
value is read in two layouts, such as the gradient of a position bias that two layers share.
Inductor cannot fuse across our ops, so that both layouts stay in the graph more often. The method
with the bug is replaced when the first of our passes is made. The new method behaves like the
original in graphs that are compiled without our passes, even concurrently, and with the setting
`repair_inductor="never"`.

The second bug is a wrong dtype. AOTInductor packages of torch 2.10 and 2.11 hold the dtype
arguments of custom ops as the numbers of `torch.export`'s files (float32 is 7), but read them as
those of `c10::ScalarType` (7 is float64). The op then returns another dtype than the one that the
code after it was compiled for. torch 2.12 reads the numbers that it wrote. Only the arguments of
our ops are changed.
"""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
import torch._inductor.config as inductor_config

from fusedops import config

log = logging.getLogger("fusedops")

_TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
#: The first versions of torch without the two bugs above: the index of tiled scatters, and the
#: dtypes of custom ops in packages.
_SCATTER_REPAIRED_IN = (2, 14)
_DTYPE_REPAIRED_IN = (2, 12)

#: The numbers of `c10::ScalarType`, which never change, for the dtypes that our ops take.
_C10_NUMBERS = {torch.float16: 5, torch.float32: 6, torch.float64: 7, torch.bfloat16: 15}


def repair_scatters(is_ours: Callable[[], bool]) -> None:
    """Replaces the method that generates the wrong index, if this torch has the bug. The new method
    changes only the code of graphs that are compiled while `is_ours()` returns True. A second call
    with the same function does nothing."""
    if _TORCH < _SCATTER_REPAIRED_IN:
        _replace_store(is_ours)


def repair_dtypes() -> None:
    """Makes packages hold the dtype arguments of our ops as AOTInductor reads them, if this torch
    has the bug. A second call does nothing."""
    if _TORCH < _DTYPE_REPAIRED_IN:
        _replace_serializer()


@functools.cache
def _replace_store(is_ours: Callable[[], bool]) -> None:
    """Lets CppTile2DKernel.store add the offset inside the tile once instead of twice."""
    from torch._inductor.codegen.cpp import CppTile2DKernel, CppVecKernel

    original: Callable[..., None] = CppTile2DKernel.store

    @functools.wraps(original)
    def store(self: Any, name: str, index: Any, value: Any, mode: Any = None) -> None:
        is_parallel = inductor_config.cpp.dynamic_threads or self.num_threads != 1
        is_transposed = self.need_vec_transpose(self.rename_indexing(index))
        # Transposed stores, and those of a single thread, have the right index.
        is_wrong = mode == "atomic_add" and is_parallel and not is_transposed
        if is_wrong and is_ours() and config.active().repair_inductor == "always":
            _say_once()
            # CppVecKernel.store adds the offset inside the tile; `original` would add it twice.
            CppVecKernel.store(self, name, index, value, mode)
        else:
            original(self, name, index, value, mode)

    CppTile2DKernel.store = store  # type: ignore[method-assign]


@functools.cache
def _say_once() -> None:
    log.info(
        "in sums by index, Inductor of torch %s adds an offset twice, and writes outside of "
        "tensors (pytorch/pytorch#191837): in the graphs that it compiles, fusedops generates the "
        'right index; fusedops.config.repair_inductor = "never" switches this off',
        torch.__version__,
    )


@functools.cache
def _replace_serializer() -> None:
    """Lets packages hold the dtypes of our ops' calls as numbers of `c10::ScalarType`."""
    from torch._export.serde.serialize import _TORCH_TO_SERIALIZE_DTYPE
    from torch._inductor import extern_node_serializer

    c10_numbers = {_TORCH_TO_SERIALIZE_DTYPE[dtype]: n for dtype, n in _C10_NUMBERS.items()}
    original: Callable[[Any], Any] = extern_node_serializer.serialize_extern_kernel_node

    @functools.wraps(original)
    def serialize(extern_kernel_node: Any) -> Any:
        serialized = copy.deepcopy(original(extern_kernel_node))
        if serialized.node.target.startswith("fusedops::"):
            for argument in (named.arg for named in serialized.node.inputs):
                if argument.type == "as_scalar_type":
                    argument.as_scalar_type = c10_numbers[argument.as_scalar_type]
        return serialized

    extern_node_serializer.serialize_extern_kernel_node = serialize
