"""The tests in tests/ops of cross_entropy and linear_cross_entropy, with tensors on a GPU."""

import pytest
import torch
from oracle import same_bits
from test_cross_entropy import (  # noqa: F401
    test_classes_that_are_innermost_in_memory_give_the_bits_of_the_last_dimension,
    test_losses_and_gradients_are_those_of_torch_in_float64,
    test_means_over_no_rows_are_nan_and_sums_are_zero,
    test_the_gradient_in_place_has_the_bits_of_the_one_that_is_not,
    test_what_torch_has_not_is_the_definition,
)
from test_linear_cross_entropy import (  # noqa: F401
    gradients,
    problem,
    test_a_mean_over_no_rows_is_nan_and_gradients_are_zeros,
    test_ignored_rows_are_not_read,
    test_loss_and_gradients,
    test_settings,
    test_strided_tensors,
)

import fusedops

pytestmark = pytest.mark.usefixtures("tensors_on_gpu")


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_step_of_linear_cross_entropy_has_the_same_bits_again(reduction):
    x, w, _, target = problem(9000, torch.bfloat16)  # more than one chunk

    def loss(x, w):
        return fusedops.linear_cross_entropy(x, w, target, reduction=reduction)

    first = gradients(loss, x, w)
    for _ in range(5):
        assert all(map(same_bits, first, gradients(loss, x, w)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_classes_of_an_odd_number_give_the_gradients_of_float64(dtype):
    """The logits of a chunk are further apart than they are long."""
    x, w = torch.randn(5000, 64).to(dtype), (torch.randn(50257, 64) / 8).to(dtype)
    target = torch.randint(0, 50257, (5000,))
    ours = gradients(lambda x, w: fusedops.linear_cross_entropy(x, w, target), x, w)
    exact = gradients(
        lambda x, w: torch.nn.functional.cross_entropy(x @ w.t(), target), x.double(), w.double()
    )
    for actual, wanted in zip(ours, exact, strict=True):
        error = (actual.double() - wanted).norm() / wanted.norm()
        assert error < (2e-5 if dtype == torch.float32 else 8e-3)
