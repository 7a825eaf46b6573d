"""A repair of Inductor's C++ code generator, without which compiled training can corrupt memory.

torch 2.10 to 2.13 generate a wrong index where a scatter that adds (the gradient of an embedding,
`index_put(accumulate=True)`, `scatter_add`) is tiled over two dimensions and runs on several
threads: the offset inside the tile is added twice, so values land in other elements, some of them
behind the end of the tensor. Torch 2.14 has the same repair (pytorch/pytorch#191837). Plain
Inductor is as wrong, but seldom tiles so: a value has to be read in two layouts, as the gradient of
a position bias is that two attention layers share. Our ops stop Inductor from fusing the products
of those layouts away, so we meet the case where plain Inductor does not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch._inductor.config as inductor_config

#: The first version that generates the right index.
_REPAIRED_IN = (2, 14)


def repair_tiled_scatter() -> None:
    """Replace `CppTile2DKernel.store` where this torch has the defect. A second call does nothing.

    Holds for the process, plain Inductor included.
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
            # This adds the offset inside the tile by itself; `original` adds it before too.
            CppVecKernel.store(self, name, index, value, mode)
        else:
            original(self, name, index, value, mode)

    CppTile2DKernel.store = store  # type: ignore[method-assign]  # which is the repair
