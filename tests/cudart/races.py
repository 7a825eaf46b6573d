"""Two threads that launch one kernel with more and with less shared memory, thousands of times.

``python -m cudart.races LIBRARY`` prints how many launches failed in each. It imports no torch, so
that it runs under ThreadSanitizer.
"""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from simt import families
from simt.cases.spatial import SpatialCase

from .library import HOPPER, Args, Cuda


def softmax_over_dim(dim_size: int) -> SpatialCase:
    """A softmax whose strips lie in dynamic shared memory, of as many bytes as dim_size needs."""
    return SpatialCase("spatial_softmax_forward", "float32", "float32", 1, dim_size, 64, 4)


def failed_launches(cuda: Cuda, times: int) -> list[int]:
    cases = [softmax_over_dim(dim_size) for dim_size in (1000, 300)]
    prepared = [families.prepare(cuda, case, families.inputs(case)) for case in cases]
    cuda.execute(False)

    def failed(args: Args) -> int:
        cuda.use_device(HOPPER)
        return cuda.failed_launches(args, times, len(prepared))

    with ThreadPoolExecutor(len(prepared)) as pool:
        return list(pool.map(failed, [each.args for each in prepared]))


if __name__ == "__main__":
    # ThreadSanitizer remembers few accesses, and what is read once is read in the first launch.
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(20):
            print(failed_launches(Cuda(Path(folder), Path(sys.argv[1])), 100))
