"""The tests in tests/ops of the kernels of cross entropy, with the operators on a GPU."""

import pytest
import test_cross_entropy_kernels
import torch
from test_cross_entropy_kernels import *  # noqa: F403

# No kernel can raise an error, and torch's number of threads is the CPU's.
del test_a_target_out_of_range_is_named  # noqa: F821
del test_threads_change_no_bit  # noqa: F821
# The CPU adds up the logits for label smoothing in double, a GPU in float (docs/losses.md).
del test_a_common_offset_costs_no_digits  # noqa: F821
del test_logits_that_are_equal_cancel_whatever_their_size  # noqa: F821


def on_gpu(tensor):
    """A copy of the tensor with its strides and its alignment."""
    moved = torch.empty(0, dtype=tensor.dtype, device="cuda")
    storage = tensor.untyped_storage().cuda()
    return moved.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


class OnGpu:
    """The operators on copies of their arguments on the GPU; results come back to the CPU."""

    def __getattr__(self, name):
        def call(*args):
            moved = [on_gpu(a) if isinstance(a, torch.Tensor) else a for a in args]
            results = getattr(torch.ops.fusedops, name)(*moved)
            if name.endswith("_"):
                return args[0].copy_(moved[0])
            if isinstance(results, torch.Tensor):
                return results.cpu()
            return [result.cpu() for result in results]

        return call


@pytest.fixture(autouse=True)
def operators_run_on_the_gpu(monkeypatch):
    monkeypatch.setattr(test_cross_entropy_kernels, "ops", OnGpu())


@pytest.mark.parametrize("dtype", test_cross_entropy_kernels.DTYPES.values())
@pytest.mark.parametrize("cols", [7, 5000, 70_001])
def test_logits_that_are_equal_cancel_without_smoothing(dtype, cols):
    equal = test_cross_entropy_kernels.test_logits_that_are_equal_cancel_whatever_their_size
    equal(dtype, cols, smoothing=0.0)


def test_a_common_offset_of_1000_costs_no_digits():
    test_cross_entropy_kernels.test_a_common_offset_costs_no_digits(1000, 2**-14)


@pytest.mark.parametrize("wrong", [-1, 200])
def test_a_class_out_of_range_makes_its_row_nan_and_no_other(wrong):
    x, target = torch.randn(50, 200), torch.zeros(50, dtype=torch.int64)
    target[3] = wrong
    losses = test_cross_entropy_kernels.forward(x, target)[0]
    assert losses[3].isnan() and losses.isnan().sum() == 1
