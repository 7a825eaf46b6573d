"""Describes launches on a GPU for `python -m fusedops env`: their plans, clusters and refusals."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import torch

from fusedops.cli.problems import Report
from fusedops.ops.registration import libraries

#: The columns of a bfloat16 row that csrc/cuda/launch/plans.def gives clusters of 16 blocks, and of
#: 8 where a GPU refuses 16. Other lengths have clusters of other sizes, but none of more blocks.
CLUSTER_COLS = 262_144
CLUSTER_BLOCKS = (16, 8)

_Visitor = ctypes.CFUNCTYPE(
    None, ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_int64
)


class Refusal(NamedTuple):
    """Launches that a device has refused in this process. Their rows were computed by other plans.

    launch: the name of the launch in csrc/launches.def.
    blocks: the number of blocks of a cluster.
    """

    device: int
    launch: str
    blocks: int
    error: int  # a cudaError_t
    times: int

    def __str__(self) -> str:
        clusters = f"{self.launch} in clusters of {self.blocks}"
        return f"{clusters}: {self.times} times, CUDA error {self.error}"


def refusals(library: ctypes.CDLL | None = None) -> list[Refusal]:
    """Returns the refused launches that `library` has counted, by default the package's own
    library."""
    found = []

    def visit(device: int, launch: bytes, blocks: int, error: int, times: int) -> None:
        found.append(Refusal(device, launch.decode(), blocks, error, times))

    asked = library or ctypes.CDLL(str(libraries.CUDA_KERNELS))
    asked.fusedops_cuda_refusals(_Visitor(visit))
    return found


def describe(device: int) -> Report | str:
    """Returns what is known about launches on a GPU, or why there are none."""
    if not libraries.has_kernels("cuda"):
        return f"none: {libraries.cuda_status()}"
    clusters = _clusters(device)  # a refusal of this launch is part of `refused` below
    refused = [str(refusal) for refusal in refusals() if refusal.device == device]
    return {
        "plans": _plans(device),
        "shared memory": f"{_shared_bytes(device) >> 10} KB a block",
        "clusters": clusters,
        "refused": "; ".join(refused) or None,
    }


def _plans(device: int) -> str:
    is_measured = "H100" in torch.cuda.get_device_name(device)
    others = "" if is_measured else "; this GPU was not measured"
    return f"of an H100 (csrc/cuda/launch/plans.def){others}"


def _shared_bytes(device: int) -> int:
    """Returns how many bytes of shared memory a block can have. Kernels over a dimension that is
    not the last keep a block's part of a tensor there if it fits (csrc/cuda/softmax/spatial.h)."""
    properties: Any = torch.cuda.get_device_properties(device)
    return int(properties.shared_memory_per_block_optin)


def _clusters(device: int) -> str:
    """Runs a softmax of one row that is so long that clusters compute it. Returns the size of the
    clusters that the GPU launched, or why it launches none."""
    if torch.cuda.get_device_capability(device) < (9, 0):
        return "none: they need capability 9.0"
    before = set(refusals())
    _launch_long_row(device)
    refused = {each.blocks for each in set(refusals()) - before if each.device == device}
    launched = [blocks for blocks in CLUSTER_BLOCKS if blocks not in refused]
    return f"of up to {launched[0]} blocks" if launched else "none: the GPU refuses them"


def _launch_long_row(device: int) -> None:
    row = torch.zeros(1, CLUSTER_COLS, dtype=torch.bfloat16, device=f"cuda:{device}")
    torch.ops.fusedops._softmax(row, -1)
    torch.cuda.synchronize(device)
