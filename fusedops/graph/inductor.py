"""A workaround for a bug in Inductor's C++ code generator that can corrupt memory in training.

torch 2.10 to 2.13 generate a wrong index where an accumulating scatter (the gradient of an
embedding, `index_put(accumulate=True)`, `scatter_add`) is tiled over two dimensions and runs on
several threads: the offset inside the tile is added twice, so that values are written to other
elements, some of them past the end of the tensor. torch 2.14 has the same fix
(pytorch/pytorch#191837). Plain Inductor has the bug too, but rarely tiles in this way: a value has
to be read in two layouts, as the gradient of a position bias is that two attention layers share.
Our ops are fusion barriers that keep both layouts in the graph, so that compiled graphs with them
have the case more often.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch._inductor.config as inductor_config

#: The first version of torch that generates the right index.
_REPAIRED_IN = (2, 14)


def repair_tiled_scatter() -> None:
    """Replaces `CppTile2DKernel.store` if this torch has the bug. A second call does nothing.

    The replacement applies to the whole process, also to plain Inductor.
    """
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < _REPAIRED_IN:
        _replace_store()


@functools.cache
def _replace_store() -> None:
    from torch._inductor.codegen.cpp import CppTile2DKernel, CppVecKernel

    original: Callable[..., None] = CppTile2DKernel.store

    @functools.wraps(original)
    def store(self: Any, name: str, index: Any, value: Any, mode: Any = None) -> None:
        is_parallel = inductor_config.cpp.dynamic_threads or self.num_threads != 1
        is_transposed = self.need_vec_transpose(self.rename_indexing(index))
        if mode == "atomic_add" and is_parallel and not is_transposed:
            # CppVecKernel.store adds the offset inside the tile; `original` would add it twice.
            CppVecKernel.store(self, name, index, value, mode)
        else:
            original(self, name, index, value, mode)

    CppTile2DKernel.store = store  # type: ignore[method-assign]
