"""Extreme sizes: results that no memory holds, diagonals beyond the scores, large stacks."""

import pytest
import torch
from oracle import same_bits

import fusedops

ops = torch.ops.fusedops
#: 2^42 rows of five columns, whose elements are all the same one in memory.
TALL = torch.zeros(1, 1).expand(2**42, 5)

HUGE = {
    "softmax": lambda t: fusedops.softmax(t, -1),
    "log_softmax": lambda t: fusedops.log_softmax(t, -1),
    "softmax_apply": lambda t: fusedops.softmax_apply(t, t[:, :1], t[:, :1], -1),
    "masked_softmax": lambda t: fusedops.masked_softmax(t),
    "masked_softmax_dropout": lambda t: fusedops.masked_softmax_dropout(t, p=0.5),
    "dropout": lambda t: fusedops.dropout(t),
    "layer_norm": lambda t: fusedops.layer_norm(t, [5]),
    "std_norm": lambda t: fusedops.std_norm(t, [5]),
    "rms_norm": lambda t: fusedops.rms_norm(t, [5]),
    "add_layer_norm": lambda t: fusedops.add_layer_norm(t, t, [5]),
    "add_rms_norm": lambda t: fusedops.add_rms_norm(t, t, [5]),
    "stack_softmax": lambda t: fusedops.stack_softmax([t, t], -1),
    "stack_log_softmax": lambda t: fusedops.stack_log_softmax([t], -1),
    "stack_layer_norm": lambda t: fusedops.stack_layer_norm([t], [5]),
    "softmax_backward": lambda t: ops.softmax_backward(t, t, -1, t.dtype),
}


@pytest.mark.parametrize("name", HUGE)
def test_a_result_that_no_memory_holds_is_named_with_its_size(name):
    with pytest.raises(
        RuntimeError,
        match=rf"{name}: no memory is left on cpu for a torch.float32 of shape \[.*\d{{13}}.*\], "
        r"\S+e\+1\d bytes",
    ):
        HUGE[name](TALL)


def test_a_result_whose_bytes_no_integer_holds_is_named_with_its_size():
    vast = torch.zeros(1, dtype=torch.float64).expand(2**62)
    with pytest.raises(RuntimeError, match=r"no memory is left .* 3.68935e\+19 bytes"):
        fusedops.softmax(vast.view(2**32, 2**30), -1)
    with pytest.raises(RuntimeError, match=r"stack_softmax: no memory .* of shape \[1000, 4611"):
        fusedops.stack_softmax([torch.zeros(1, 1).expand(2**62, 1)] * 1000, -1)


def test_rows_beyond_32_bits_are_refused_also_on_meta():
    for device in ("cpu", "meta"):
        wide = torch.zeros(1, 1, device=device).expand(2, 2**31)
        for call in (
            lambda t: fusedops.softmax(t, -1),
            lambda t: fusedops.softmax(t[0], 0),
            lambda t: fusedops.masked_softmax(t),
            lambda t: fusedops.dropout(t),
            lambda t: fusedops.layer_norm(t, [2**31]),
            lambda t: fusedops.stack_softmax([t], -1),
        ):
            with pytest.raises(RuntimeError, match="a row has 2147483648 elements; at most 2"):
                call(wide)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0,), (2, 0, 4), (2**30, 0, 2**30)])
def test_no_elements_give_no_elements(shape):
    x = torch.empty(shape)
    for dim in range(-len(shape), len(shape)):
        assert fusedops.softmax(x, dim).shape == shape
        assert fusedops.softmax_(x.clone(), dim).shape == shape
        y = torch.empty(shape)
        assert ops.softmax_backward(x, y, dim, torch.float32).shape == shape
    assert fusedops.masked_softmax(x).shape == shape


@pytest.mark.parametrize("diagonal", [2**63 - 1, 2**63 - 2, 2**62, 6, 5, 4])
def test_a_diagonal_behind_the_last_column_hides_nothing(diagonal):
    x, y = torch.randn(4, 5), torch.randn(4, 5)
    given = (None, 1.0, True, None, None, None)
    assert same_bits(ops.masked_softmax(x, *given, diagonal), ops.masked_softmax(x, *given, 4))
    hidden = (y, x, None, 1.0, True, torch.float32)
    assert same_bits(
        ops.masked_softmax_backward(*hidden, diagonal), ops.masked_softmax_backward(*hidden, 4)
    )


@pytest.mark.parametrize("diagonal", [-(2**63), -(2**63) + 1, -(2**62), -5, -4])
def test_a_diagonal_before_the_first_row_hides_everything(diagonal):
    x = torch.randn(4, 5)
    y = ops.masked_softmax(x, None, 1.0, True, None, None, None, diagonal, True)
    assert not y.any()
    assert not ops.masked_softmax_backward(x, x, None, 1.0, True, torch.float32, diagonal).any()


@pytest.mark.parametrize("diagonal", [2**63 - 1, -(2**63)])
def test_second_derivatives_take_any_diagonal(diagonal):
    g, y = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True).unbind()
    bounded = 4 if diagonal > 0 else -3
    found, want = (
        torch.autograd.grad(
            ops.masked_softmax_backward(g, y, None, 0.5, True, torch.float64, d).square().sum(),
            (g, y),
        )
        for d in (diagonal, bounded)
    )
    torch.testing.assert_close(found, want)
