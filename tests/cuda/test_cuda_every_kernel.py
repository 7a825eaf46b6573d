"""Every kind of kernel on small data, for compute-sanitizer, which is slow."""

import pytest
import torch
from lengths import ONE_OF_EACH_KERNEL
from with_gradients import backward

import fusedops

# The dtypes of the input, and of softmax's output and layer_norm's parameters.
DTYPES = {
    "float32": (torch.float32, torch.float32),
    "bfloat16": (torch.bfloat16, torch.bfloat16),
    "float16 and float32": (torch.float16, torch.float32),
    "float64": (torch.float64, torch.float64),
}


def assert_close(actual, expected):
    tolerance = 20 * torch.finfo(actual.dtype).eps
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("cols", ONE_OF_EACH_KERNEL)
@pytest.mark.parametrize("dtype, wider", DTYPES.values(), ids=DTYPES)
def test_forward_and_backward_agree_with_eager(dtype, wider, cols):
    # Five short rows do not fill their last block. Each tensor has its own memory.
    x, grad = (torch.randn(5, cols, device="cuda").to(t) for t in (dtype, wider))
    w, b = (torch.randn(cols, device="cuda").to(wider) for _ in range(2))
    for op in ("softmax", "log_softmax"):
        y = getattr(fusedops, op)(x, -1, wider)
        assert_close(y, getattr(torch, op)(x, -1, dtype=wider))
        ours = getattr(torch.ops.fusedops, f"{op}_backward")
        aten = getattr(torch.ops.aten, f"_{op}_backward_data")
        assert_close(ours(grad, y, -1, dtype), aten(grad, y, -1, wider).to(dtype))
    normalised = fusedops.layer_norm(x, [cols], w, b)
    assert_close(normalised, torch.layer_norm(x.to(wider), [cols], w, b).to(dtype))
    gradients = backward(x, w, b, grad.to(dtype))
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("cols", ONE_OF_EACH_KERNEL)
@pytest.mark.parametrize("dtype, wider", DTYPES.values(), ids=DTYPES)
def test_norms_after_a_residual_agree_with_the_separate_calls(dtype, wider, cols):
    x, r = (torch.randn(5, cols, device="cuda").to(dtype).requires_grad_() for _ in range(2))
    w, b = (torch.randn(cols, device="cuda").to(wider).requires_grad_() for _ in range(2))
    y, s = fusedops.add_layer_norm(x, r, [cols], w, b)
    assert_close(s, x + r)
    assert_close(y, fusedops.layer_norm(s.detach(), [cols], w, b))
    z, t = fusedops.add_rms_norm(x, r, [cols], w, 1e-6, variant="gemma", p=0.5)
    assert_close(z, fusedops.rms_norm(t.detach(), [cols], w, 1e-6, variant="gemma"))
    (y + s + z + t).sum().backward()
    assert all(leaf.grad.isfinite().all() for leaf in (x, r, w, b))


@pytest.mark.parametrize("cols", ONE_OF_EACH_KERNEL)
@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("p", [0.0, 0.5])
def test_a_branch_of_16_bits_beside_a_float32_residual_agrees_with_the_separate_calls(
    narrow, p, cols
):
    x = torch.randn(5, cols, device="cuda").to(narrow).requires_grad_()
    r = torch.randn(5, cols, device="cuda").requires_grad_()
    seed = torch.tensor(3, device="cuda")
    y, s = fusedops.add_layer_norm(x, r, [cols], p=p, seed=seed)
    _, wide = fusedops.add_layer_norm(x.float(), r, [cols], p=p, seed=seed)
    assert_close(s, wide)
    assert_close(y, fusedops.layer_norm(s.detach(), [cols]))
    found = torch.autograd.grad((y + s).sum(), (x, r))
    assert [gradient.dtype for gradient in found] == [narrow, torch.float32]
    assert all(gradient.isfinite().all() for gradient in found)


@pytest.mark.parametrize("cols", ONE_OF_EACH_KERNEL)
@pytest.mark.parametrize("dtype, wider", DTYPES.values(), ids=DTYPES)
def test_masked_softmax_agrees_with_the_chain(dtype, wider, cols):
    x = torch.randn(5, cols, device="cuda").to(dtype).requires_grad_()
    mask, bias = torch.rand(5, cols, device="cuda") < 0.9, torch.randn(cols, device="cuda")
    bias = bias.to(dtype)
    options = {"bias": bias, "causal": True, "mask_value": -1e4, "dtype": wider}
    y = fusedops.masked_softmax(x, mask, **options)
    hidden = ~mask | torch.ones_like(mask).triu(1)
    chain = torch.softmax((x.to(wider) + bias).masked_fill(hidden, -1e4), -1)
    assert_close(y, chain)
    (ours,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert ours.isfinite().all()
    dropped = fusedops.masked_softmax_dropout(x, mask, p=0.5, **options)
    dropped.sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("cols", ONE_OF_EACH_KERNEL)
@pytest.mark.parametrize("dtype, wider", DTYPES.values(), ids=DTYPES)
def test_dropout_has_the_values_of_the_cpu(dtype, wider, cols):
    x, seed = torch.randn(5, cols).to(dtype), torch.tensor(3)
    for relu in (False, True):
        ours = torch.ops.fusedops.dropout(x.cuda(), 0.3, seed.cuda(), relu)
        assert torch.equal(ours.cpu(), torch.ops.fusedops.dropout(x, 0.3, seed, relu))


# Kept in registers, in shared memory of up to 48 KB and of more, and loaded twice.
@pytest.mark.parametrize(
    "rows, lanes",
    [(1, 2), (7, 33), (9, 1024), (200, 24), (300, 8), (700, 64), (3000, 3), (4000, 8)],
)
@pytest.mark.parametrize("dtype, wider", DTYPES.values(), ids=DTYPES)
def test_softmax_over_another_dimension_agrees_with_eager(dtype, wider, rows, lanes):
    x = torch.randn(3, rows, lanes, device="cuda").to(dtype)
    y = fusedops.softmax(x, 1, wider)
    assert_close(y, torch.softmax(x, 1, dtype=wider))
    ours = torch.ops.fusedops.softmax_backward(torch.ones_like(y), y, 1, dtype)
    assert ours.isfinite().all()
