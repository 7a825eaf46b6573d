"""The C interface on a GPU: on the memory of torch's tensors, on torch's current stream."""

import ctypes

import pytest
import torch

import fusedops
from fusedops.ops.registration import libraries

C_LIBRARY = libraries.LIB_DIR / "libfusedops_c_cuda.so"


def call(name: str, *args) -> None:
    library = ctypes.CDLL(str(C_LIBRARY))
    library.fusedops_last_error.restype = ctypes.c_char_p

    def converted(arg):
        if isinstance(arg, torch.Tensor):
            assert arg.is_cuda and arg.is_contiguous() and arg.dtype == torch.float32
            return ctypes.c_void_p(arg.data_ptr())
        return ctypes.c_float(arg) if isinstance(arg, float) else arg

    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    assert getattr(library, name)(*map(converted, args), stream) == 0, library.fusedops_last_error()


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (2, 8, 64, 100), (1, 1, 2, 70_000)])
def test_softmax_has_the_bits_of_the_operators(shape):
    scores, grad = torch.randn(2, *shape, device="cuda")
    mask = torch.zeros(shape[0], shape[3], device="cuda")
    mask[-1, shape[3] // 2 :] = -1e8
    expected = fusedops.masked_softmax(scores, mask[:, None, None], masked_rows="zero")
    call("fusedops_attn_softmax", scores, mask, *shape, False)
    assert torch.equal(scores, expected)
    expected = torch.ops.fusedops.softmax_backward(grad, scores, -1, torch.float32)
    call("fusedops_attn_softmax_bw", grad, scores, scores.numel() // shape[3], shape[3])
    assert torch.equal(grad, expected)


@pytest.mark.parametrize("rows, cols", [(5, 7), (3000, 512), (3, 70_000)])
def test_layernorm_and_its_gradients_are_those_of_float64(rows, cols):
    x, grad = torch.randn(2, rows, cols, device="cuda")
    gamma, betta = torch.randn(2, cols, device="cuda")
    out, grad_x = torch.empty(2, rows, cols, device="cuda")
    variances, means = torch.empty(2, rows, device="cuda")
    grad_gamma, grad_betta = torch.empty(2, cols, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        call("fusedops_layernorm", out, variances, means, x, gamma, betta, rows, cols, 1e-5)
        saved = (x, gamma, variances, means)
        grads = (grad_gamma, grad_betta, grad_x)
        call("fusedops_layernorm_bw", *grads, grad, *saved, rows, cols)
    torch.cuda.synchronize()
    assert torch.equal(out, fusedops.layer_norm(x, (cols,), gamma, betta, 1e-5))
    leaves = [t.double().requires_grad_() for t in (gamma, betta, x)]
    torch.nn.functional.layer_norm(leaves[2], (cols,), *leaves[:2], 1e-5).backward(grad.double())
    for ours, leaf in zip(grads, leaves, strict=True):
        torch.testing.assert_close(ours.double(), leaf.grad, rtol=1e-5, atol=1e-4)
