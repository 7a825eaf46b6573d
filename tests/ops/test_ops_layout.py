"""Any strides, offsets and alignments give right values; contiguous rows are read in place."""

from functools import partial

import pytest
import torch
from oracle import DTYPES, same_bits
from with_gradients import softmax_with_gradient

import fusedops
from fusedops import reference

SEED = torch.tensor(1)
LAYOUTS = {
    "contiguous": lambda x: x,
    "row slice": lambda x: x[:, 3:40],
    "misaligned": lambda x: x.flatten()[1 : 1 + 8 * 45].view(8, 45),
    "split view": lambda x: x.view(8, 2, -1)[:, 1],
    "every other row": lambda x: x[::2],
    "every other column": lambda x: x[:, ::2],
    "transposed": lambda x: x.t(),
    "expanded rows": lambda x: x[:1].expand(6, -1),
    "expanded columns": lambda x: x[:, :1].expand(-1, 70),
    "one column": lambda x: x[:, :1],
    "rank 4": lambda x: x.view(2, 2, 2, -1).permute(2, 0, 1, 3),
    "heads": lambda x: x.view(8, 9, 10).transpose(0, 1),
    "all but the last of a sequence": lambda x: x.view(4, 2, 90)[:, :-1],
    "groups of rows": lambda x: x.view(2, 4, 90)[:, 1:4, 5:70],
    "groups of groups": lambda x: x.view(2, 2, 2, 90)[:, :, 1:, 1:][::2],
}


def source(dtype):
    torch.manual_seed(0)
    return torch.randn(8, 90).to(dtype)


def close(actual, exact, dtype):
    tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(actual.double(), exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_a_softmax_over_any_dim_takes_any_layout(layout, dtype):
    x = LAYOUTS[layout](source(dtype))
    for dim in range(x.dim()):
        y = fusedops.softmax(x, dim)
        assert y.is_contiguous()
        close(y, reference.softmax(x, dim), dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_a_layer_norm_over_any_shape_takes_any_layout(layout, dtype):
    x = LAYOUTS[layout](source(dtype))
    for rank in range(1, x.dim() + 1):
        shape = list(x.shape[-rank:])
        y = fusedops.layer_norm(x, shape)
        assert y.is_contiguous()
        close(y, reference.layer_norm(x, shape), dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_may_have_any_layout(layout):
    x = LAYOUTS[layout](source(torch.float64)).detach().requires_grad_()
    grad = torch.randn(2, *x.shape, dtype=torch.float64)[1]
    for ours, theirs in (
        (fusedops.softmax(x, -1), torch.softmax(x, -1)),
        (fusedops.log_softmax(x, 0), torch.log_softmax(x, 0)),
        (fusedops.layer_norm(x, [x.shape[-1]]), torch.layer_norm(x, [x.shape[-1]])),
    ):
        actual, expected = (torch.autograd.grad(y, x, grad)[0] for y in (ours, theirs))
        # One column has no variance: its zero gradient is the difference of numbers of order rstd.
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("columns", [slice(0, 32), slice(16, 48), slice(1, 33)])
def test_weights_may_be_strided_or_misaligned(columns):
    x = torch.randn(4, 32)
    w, b = torch.randn(2, 64)[:, columns]
    close(fusedops.layer_norm(x, [32], w, b), reference.layer_norm(x, [32], w, b), torch.float32)
    w, b = torch.randn(2, 64)[:, ::2]
    close(fusedops.layer_norm(x, [32], w, b), reference.layer_norm(x, [32], w, b), torch.float32)


def allocated(call):
    """How many bytes a call asks torch's allocator for."""
    with torch.profiler.profile(profile_memory=True) as profile:
        call()
    return sum(max(event.self_cpu_memory_usage, 0) for event in profile.events())


NOT_COPIED = ["row slice", "misaligned", "split view", "every other row", "expanded rows"]
NOT_COPIED += ["all but the last of a sequence", "groups of rows"]


@pytest.mark.parametrize("layout", NOT_COPIED)
def test_rows_in_evenly_spaced_groups_are_read_where_they_lie(layout):
    """A call allocates one output, statistics and sum, and nothing else."""
    x = LAYOUTS[layout](source(torch.float32))
    rows, cols = x.shape[:-1].numel(), x.shape[-1]
    _, mean, rstd = torch.ops.fusedops.layer_norm(x, [cols], None, None, 1e-5)
    only_input = [True, False, False]
    calls = {
        lambda: torch.ops.fusedops.softmax(x, -1): 0,
        lambda: torch.ops.fusedops.softmax_backward(x, x, -1, x.dtype): 0,
        lambda: fusedops.masked_softmax(x, causal=True): 0,
        lambda: torch.ops.fusedops.dropout(x, 0.5, SEED): 0,
        lambda: torch.ops.fusedops.layer_norm(x, [cols], None, None, 1e-5): 2 * rows * 4,
        lambda: torch.ops.fusedops.layer_norm_backward(
            x, x, [cols], mean, rstd, None, None, only_input
        ): 0,
        lambda: torch.ops.fusedops.rms_norm(x, [cols], None, 1e-5): rows * 4,
        lambda: torch.ops.fusedops.add_rms_norm(x, x, [cols], None, 1e-5): (x.numel() + rows) * 4,
    }
    for call, others in calls.items():
        assert allocated(call) == x.numel() * 4 + others


def test_a_softmax_over_another_dimension_transposes_and_copies_nothing():
    x = torch.randn(16, 500, 64)
    backward = torch.ops.fusedops.softmax_backward
    for call in (
        lambda: fusedops.softmax(x, 1),
        lambda: fusedops.log_softmax(x[:, 3:300], 1),
        lambda: fusedops.softmax(x[..., :48], 1),
        lambda: backward(x, x, 1, x.dtype),
        lambda: fusedops.softmax(x, 0),
    ):
        assert allocated(call) == call().nbytes


def test_inputs_are_left_as_they_are():
    x, w, b = torch.randn(6, 40), torch.randn(40), torch.randn(40)
    before = [t.clone() for t in (x, w, b)]
    fusedops.softmax(x, 0)
    fusedops.log_softmax(x, 1)
    fusedops.layer_norm(x, [40], w, b)
    assert all(torch.equal(a, t) for a, t in zip(before, (x, w, b), strict=True))


@pytest.mark.parametrize("cols", [1000, 16 * 1024 * 1024])
def test_one_row_may_have_any_length(cols):
    x = torch.randn(cols)
    y = fusedops.softmax(x, 0)
    assert abs(y.double().sum().item() - 1) < 1e-6
    torch.testing.assert_close(y.double(), reference.softmax(x, 0), rtol=1e-5, atol=1e-12)


def mixed_sum(dtypes, x, grad):
    """The norm of a branch and a residual of two dtypes, their sum, and both gradients."""
    branch, residual = (t.to(dtype) for t, dtype in zip((x, grad), dtypes, strict=True))
    shape = x.shape[-1:]
    y, total, rstd = torch.ops.fusedops.add_rms_norm(branch, residual, shape, None, 1e-5)
    settings = ([True, True, False], 0.0, 0.0, None, *dtypes)
    given = (y, total, total, shape, rstd, None)
    return y, total, *torch.ops.fusedops.add_rms_norm_backward(*given, *settings)[:2]


MIXED = (torch.bfloat16, torch.float32), (torch.float16, torch.float32)
MIXED += ((torch.float32, torch.bfloat16),)
#: Each as a function of rows and of a gradient, that gives results of as many rows.
STREAMED = {
    "softmax": partial(softmax_with_gradient, "softmax"),
    "log_softmax": partial(softmax_with_gradient, "log_softmax"),
    "layer_norm": lambda x, grad: [fusedops.layer_norm(x, x.shape[-1:], x[0])],
    "dropout": lambda x, grad: [fusedops.dropout(x, seed=SEED)],
    "add_rms_norm": lambda x, grad: fusedops.add_rms_norm(
        x, grad, x.shape[-1:], x[0], p=0.5, seed=SEED
    ),
    **{f"add_rms_norm of {dtypes}": partial(mixed_sum, dtypes) for dtypes in MIXED},
}


@pytest.mark.parametrize("name", STREAMED)
@pytest.mark.parametrize("rows, cols", [(4096, 1024), (8, 1 << 20)])
def test_results_larger_than_the_cache_are_streamed_with_the_same_bits(name, rows, cols):
    """Those of all rows exceed the threshold of 16 MiB; those of the first rows alone do not."""
    x, grad = torch.randn(2, rows, cols)
    few, first = x[: rows // 64 + 1], grad[: rows // 64 + 1]
    for whole, part in zip(STREAMED[name](x, grad), STREAMED[name](few, first), strict=True):
        assert same_bits(whole[: len(few)], part)
