"""The ops as torch.library sees them, on a GPU: schemas, fakes, autograd, compilation."""

import pytest
import torch
from oracle import DTYPES

import fusedops  # noqa: F401 (registers the operators)

ops = torch.ops.fusedops
SHAPE = (3, 4, 8)


def calls(dtype):
    """An op and its arguments; those of forward ops with and without requires_grad."""
    x = torch.randn(SHAPE, dtype=dtype, device="cuda")
    w, b = torch.randn(2, 8, dtype=dtype, device="cuda")
    y = x.softmax(-1)
    for leaf in (x, x.clone().requires_grad_()):
        yield ops.softmax, (leaf, -1)
        yield ops.softmax, (leaf[..., ::2], 0)
        yield ops.log_softmax, (leaf.transpose(0, 1), 2)
        yield ops.layer_norm, (leaf, [8], w, b, 1e-5)
        yield ops.layer_norm, (leaf, [4, 8], None, None, 1e-5)
        yield ops.std_norm, (leaf, [8], w, b, 1e-6)
        yield ops.masked_softmax, (leaf, y[:1] > 0.1, 0.5, True, -1e4, x[:, :1])
        yield ops.dropout, (leaf, 0.3, torch.tensor(5).cuda())
        yield ops.masked_softmax_dropout, (leaf, None, 0.5, True, 0.0, 0.3, torch.tensor(5).cuda())
    yield ops.masked_softmax_backward, (x, y, y > 0.1, 0.5, True, dtype)
    yield ops.softmax_, (x.clone(), 1)
    yield ops.softmax_out, (x, -1, torch.empty_like(x))
    yield ops.softmax_backward, (x, y, -1, dtype)
    yield ops.log_softmax_backward, (x, y.log(), -1, dtype)
    _, mean, rstd = ops.layer_norm(x, [8], w, b, 1e-5)
    for mask in ([True, True, True], [True, False, True]):
        yield ops.layer_norm_backward, (x, x, [8], mean, rstd, w, b, mask)
        yield ops.std_norm_backward, (x, x, [8], mean, rstd, w, b, mask, 1e-6)


def mixed_calls():
    """Forward with 16-bit input and float32 output, and the backward of it."""
    x = torch.randn(SHAPE, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    yield ops.softmax, (x, -1, torch.float32)
    y = torch.randn(SHAPE, device="cuda").softmax(-1)
    yield ops.softmax_backward, (y, y, -1, torch.float16)
    yield ops.layer_norm, (x, [8], torch.randn(8, device="cuda"), None, 1e-5)
    yield ops.softmax, (torch.randn(0, 5, device="cuda"), -1)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_opcheck(dtype):
    for op, args in calls(dtype):
        torch.library.opcheck(op, args)


def test_opcheck_of_mixed_dtypes():
    for op, args in mixed_calls():
        torch.library.opcheck(op, args)
