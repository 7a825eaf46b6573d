"""The operators of torch for CUDA, on the stand-in: ``python -m cudart.operators``.

It prints each operator once its results are right. It is a process of its own, because torch keeps
what the library registers. Whether kernels are right is not the question here, but whether they get
the arguments of the call: so results are compared with those of the operators on the CPU.
"""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path
from typing import Any

import torch
from op_bad_calls import Arguments, valid_arguments
from torch.utils._pytree import tree_leaves, tree_map_only

from fusedops.ops.registration import libraries

from . import build
from .library import AMPERE, HOPPER, Cuda

ops = torch.ops.fusedops


def moved(values: Any, device: str) -> Any:
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), values)


def tensors(*values: Any) -> list[torch.Tensor]:
    return [leaf.cpu() for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def use_own_stream(cuda: Cuda, device: int) -> None:
    """Makes a new stream the current one of torch for a device. Results are only read after the
    work of that stream, so that a launch in another one would not be seen."""
    cuda.use_device(device)
    cuda.cuda.cudart_use_stream(device, ctypes.c_void_p(cuda.stream()))


def current_device(cuda: Cuda) -> int:
    device = ctypes.c_int()
    cuda.check(cuda.cuda.cudaGetDevice(ctypes.byref(device)))
    return device.value


def check(cuda: Cuda, op: str, arguments: Arguments) -> None:
    """Calls an operator with tensors of a device that is not the current one."""
    on_device = moved(arguments, f"cuda:{AMPERE}")
    results, wanted = (getattr(ops, op)(**given) for given in (on_device, arguments))
    assert {launch.device for launch in cuda.launches()} == {AMPERE}
    assert current_device(cuda) == HOPPER
    # The arguments too, because some operators write into them.
    ours, theirs = tensors(results, on_device), tensors(wanted, arguments)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def check_error(cuda: Cuda) -> None:
    """A launch that is refused is an error of torch."""
    cuda.describe_kernels(threads=1)
    try:
        ops.softmax(torch.zeros(3, 5).to(f"cuda:{AMPERE}"), -1)
    except RuntimeError as error:
        assert str(error).startswith("CUDA error: "), error
    else:
        raise AssertionError("the refused launch was no error")


def main() -> None:
    torch.cuda._lazy_init = lambda: None  # which would refuse, because this torch has no CUDA
    with tempfile.TemporaryDirectory() as folder:
        cuda = Cuda(Path(folder), build.torch_library())
        use_own_stream(cuda, AMPERE)
        cuda.use_device(HOPPER)
        for op in libraries.OPS:
            check(cuda, op, valid_arguments(op))
            print(op)
        check_error(cuda)


if __name__ == "__main__":
    main()
