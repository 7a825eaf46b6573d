"""The ops as torch.library sees them: schemas, fakes, autograd, vmap, export."""

import contextlib
import warnings
from collections import defaultdict

import pytest
import torch
from modes import Dispatched
from processes import run_python
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode

import fusedops

ops = torch.ops.fusedops


def norm_statistics(x, shape):
    _, mean, rstd = ops.layer_norm(x.detach(), shape, None, None, 1e-5)
    return mean, rstd


#: bias, dtype, diagonal and zero_masked_rows.
NOTHING = (None, None, 0, False)


def masked_samples(t):
    mask, bias = torch.rand(4, 8) < 0.7, torch.randn(3, 1, 8).to(t).requires_grad_(t.requires_grad)
    grad, y, seed = torch.randn_like(t), torch.softmax(t.detach(), -1), torch.tensor(5)
    yield ops.masked_softmax, (t, mask, 0.5, True, -1e4, bias)
    yield ops.masked_softmax, (t, bias, 0.5, False, 0.0)
    yield ops.masked_softmax_dropout, (t, mask, 0.5, True, -1e4, 0.3, seed, bias)
    yield ops._masked_softmax, (t.detach(), mask, 0.5, False, -1e4, None, torch.float32, -1, True)
    yield ops._masked_softmax_dropout, (t.detach(), bias.detach(), 0.5, True, 0.0, 0.3, seed)
    interval = (-2, torch.tensor([0, 0, 1, 5]), torch.tensor([[3], [8], [9]]).int())
    yield ops.masked_softmax, (t, mask, 0.5, True, -1e4, bias, None, 1, False, *interval)
    yield ops.masked_softmax_dropout, (t, None, 0.5, True, -1e4, 0.3, seed, *NOTHING, *interval)
    sinks = torch.randn(4).to(t).requires_grad_(t.requires_grad)
    for p, own in ((0.0, None), (0.3, seed)):
        given = (t, mask, 0.5, True, -1e4, p, own, bias, None, 1, False, *interval, sinks)
        yield ops.masked_softmax_sinks, given
        yield ops.masked_softmax_sinks, (*given, 2.0)
        of_sinks = 1 - y[..., 1:].sum(-1, dtype=torch.promote_types(t.dtype, torch.float32))
        given = (grad, y, of_sinks, mask, 0.5, True, p, own, t.dtype, 1, *interval)
        yield ops.masked_softmax_sinks_backward, given
    yield ops.masked_softmax, (t, mask, 0.5, True, -1e4, bias, None, 1, False, *interval, sinks)
    no_interval = (None, None, None, None)
    yield ops.masked_softmax, (t, mask, 0.5, True, -1e4, bias, *NOTHING[1:], *no_interval, 2.0)
    given = (t, mask, 0.5, True, -1e4, 0.3, seed, *NOTHING, *no_interval, 2.0)
    yield ops.masked_softmax_dropout, given
    yield ops.masked_softmax_backward, (grad, y, None, 0.5, True, t.dtype, 1, *interval)
    yield ops.masked_softmax_backward, (grad, y, mask, 0.5, True, t.dtype, 1)
    yield ops.masked_softmax_dropout_backward, (grad, y, None, 0.5, True, 0.3, seed, t.dtype)
    if not t.requires_grad:
        for op in (ops.softmax_out, ops.log_softmax_out):
            yield op, (t, 1, torch.empty_like(t))
        yield ops.softmax_, (t.clone(), 0)
        yield (
            ops.masked_softmax_out,
            (t, mask, 0.5, True, -1e4, bias.detach(), 0, False, torch.empty_like(t)),
        )


def norm_samples(t, w, b):
    r, grad, seed = torch.randn_like(t).requires_grad_(t.requires_grad), torch.randn_like(t), 7
    seed = torch.tensor(seed)
    yield ops.std_norm, (t, [8], w, b, 1e-6)
    yield ops.rms_norm, (t, [8], w, 1e-5, 1.0, True)
    yield ops.l2_norm, (t, [8], w, 1e-5)
    yield ops.add_layer_norm, (t, r, [8], w, b, 1e-5)
    yield ops.add_layer_norm, (t, r, [4, 8], None, None, 1e-5, 0.3, seed)
    yield ops.add_rms_norm, (t, r, [8], w, 1e-5, 1.0, False, 0.3, seed)
    plain = [v.detach() for v in (t, r, w, b)]
    _, *statistics = ops.std_norm(plain[0], [4, 8], None, None, 1e-6)
    yield ops._std_norm, (plain[0], [8], *plain[2:], 1e-6)
    yield ops._std_norm_output, (plain[0], [4, 8], None, None, 1e-6)
    yield ops._layer_norm_output, (plain[0], [8], *plain[2:], 1e-5)
    yield ops._rms_norm_output, (plain[0], [8], plain[2], 1e-5, 1.0, True)
    for mask in ([True, True, True], [False, True, False]):
        yield ops.std_norm_backward, (grad, t, [4, 8], *statistics, None, None, mask, 1e-6)
    _, rstd = ops.rms_norm(plain[0], [8], None, 1e-5)
    yield ops._rms_norm, (plain[0], [8], plain[2], 1e-5)
    for wants_sum in (True, False):
        yield ops._add_layer_norm, (*plain[:2], [8], *plain[2:], 1e-5, wants_sum)
        yield ops._add_rms_norm, (*plain[:2], [8], plain[2], 1e-5, wants_sum, 0.0, True, 0.2, seed)
    yield ops._l2_norm, (plain[0], [8], plain[2], 1e-5)
    yield ops._l2_norm_output, (plain[0], [8], plain[2], 1e-5)
    yield ops.l2_norm_backward, (grad, t, [8], rstd, w, [True, True], 1e-5)
    yield ops.rms_norm_backward, (grad, t, [8], rstd, w, [True, True], 1.0)
    yield ops.rms_norm_backward, (grad, t, [8], rstd, None, [True, False])
    statistics = norm_statistics(t, [8])
    for p, mask in ((0.0, [True] * 4), (0.3, [True] * 4), (0.3, [False, True, True, False])):
        given = (w, b, mask, p, seed if p else None)
        yield ops.add_layer_norm_backward, (grad, r, t, [8], *statistics, *given)
        yield ops.add_layer_norm_backward, (grad, None, t, [8], *statistics, *given)
        given = (w, mask[:3], 1.0, p, seed if p else None)
        yield ops.add_rms_norm_backward, (grad, r, t, [8], rstd, *given)


def spatial_norm_samples(t):
    w, b, grad = torch.randn(4).to(t), torch.randn(4).to(t), torch.randn_like(t)
    w, b = (p.requires_grad_(t.requires_grad) for p in (w, b))
    innermost = t.detach().transpose(1, 2).contiguous().transpose(1, 2)
    for x in (t, innermost.requires_grad_(t.requires_grad)):
        yield ops.spatial_layer_norm, (x, 1, w, b, 1e-5)
        yield ops.spatial_layer_norm, (x, 0, None, None, 1e-5)
        yield ops.spatial_rms_norm, (x, -2, w, 1e-5)
        plain = [v.detach() for v in (x, w, b)]
        _, mean, rstd = ops._spatial_layer_norm(plain[0], 1, None, None, 1e-5)
        yield ops._spatial_layer_norm_output, (plain[0], 1, *plain[1:], 1e-5)
        yield ops._spatial_rms_norm_output, (plain[0], 1, plain[1], 1e-5)
        for mask in ([True, True, True], [True, False, False], [False, True, False]):
            yield ops.spatial_layer_norm_backward, (grad, x, 1, mean, rstd, w, b, mask)
            yield ops.spatial_rms_norm_backward, (grad, x, 1, rstd, w, mask[:2])
        innermost_grad = grad.transpose(1, 2).contiguous().transpose(1, 2)
        yield ops.spatial_rms_norm_backward, (innermost_grad, x, 1, rstd, w, [True, True])


def statistics_samples(t):
    max, sum = ops.softmax_stats(t.detach(), 1)
    yield ops.softmax_stats, (t, 1)
    yield ops.softmax_apply, (t, max, sum, 1)
    sum = sum.clone().requires_grad_(t.requires_grad)
    yield ops.softmax_apply, (t, max, sum, 1, torch.float32)


def cross_entropy_samples(t):
    target = torch.tensor([[0, 1, 7, 2], [1, 3, 4, 5], [6, 6, 1, 0]])
    for settings in ((), (1, 0.1, 0.5, 2.0)):
        yield ops.cross_entropy, (t, target, *settings)
        yield ops.cross_entropy, (t, target.int(), *settings, *[True] * (len(settings) > 0))
        losses, lse, lse_error = ops.cross_entropy(t.detach(), target, *settings)
        grads = [torch.randn_like(lse).requires_grad_(t.requires_grad) for _ in range(2)]
        given = (t, target, losses, lse, lse_error)
        for both in (grads, (grads[0], None), (None, grads[1])):
            yield ops.cross_entropy_backward, (*given, *both, *settings)
        if not t.requires_grad:
            rest = (target.byte(), *given[2:], *grads, *settings)
            yield ops.cross_entropy_backward_, (t.clone(), *rest)
            yield ops._cross_entropy, (t, target, *settings)
            yield ops._cross_entropy_backward, (t, *rest)


def stack_samples(t, w, b):
    inputs, weights, biases = ([v, torch.randn_like(v)] for v in (t, w, b))
    for op in (ops.stack_softmax, ops.stack_log_softmax):
        yield op, (inputs, -1, 0)
        yield op, (inputs, 1, -1)
    if not t.requires_grad:
        yield ops._stack_softmax, (inputs, -1, 1)
        yield ops._stack_layer_norm, (inputs, [8], weights, biases, 1e-5, 0)
    yield ops.stack_layer_norm, (inputs, [8], weights, biases, 1e-5, 0)
    yield ops.stack_layer_norm, (inputs, [4, 8], [], [], 1e-5, 1)
    plain = [v.detach() for v in inputs]
    output, mean, rstd = ops.stack_layer_norm(plain, [8], [], [], 1e-5, 1)
    grad = torch.randn_like(output).requires_grad_(t.requires_grad)
    for mask in ([True, True, True], [True, True, False], [False, False, True]):
        given = (grad, inputs, [8], mean, rstd, weights, biases, 1, mask)
        yield ops.stack_layer_norm_backward, given
    yield ops.stack_layer_norm_backward, (grad, inputs, [8], mean, rstd, [], [], 1, [True] * 3)


def samples():
    x = torch.randn(3, 4, 8)
    for requires_grad in (False, True):
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            t = x.detach().clone().to(dtype).requires_grad_(requires_grad)
            w, b = torch.randn(2, 8, dtype=dtype).unbind()
            w, b = (p.clone().requires_grad_(requires_grad) for p in (w, b))
            yield ops.softmax, (t, -1)
            yield ops.softmax, (t, 0)
            yield ops.log_softmax, (t.transpose(0, 1), 2)
            yield ops.layer_norm, (t, [8], w, b, 1e-5)
            yield ops.layer_norm, (t, [4, 8], None, None, 1e-5)
            mean, rstd = norm_statistics(t, [8])
            args = (torch.randn_like(t), t, [8], mean, rstd, w, b)
            yield ops.layer_norm_backward, (*args, [True, True, True])
            yield ops.layer_norm_backward, (*args, [True, False, True])
            for op in (ops.softmax_backward, ops.log_softmax_backward):
                yield op, (torch.randn_like(t), torch.softmax(t.detach(), -1), -1, dtype)
            yield from masked_samples(t)
            yield from norm_samples(t, w, b)
            yield from spatial_norm_samples(t)
            yield from cross_entropy_samples(t)
            if dtype == torch.float32:
                yield from statistics_samples(t)
                yield from stack_samples(t, w, b)
    half = x.half().requires_grad_()
    yield ops.softmax, (half, -1, torch.float32)
    yield ops.softmax_backward, (x, torch.softmax(x, -1), -1, torch.float16)
    yield ops.layer_norm, (x.bfloat16(), [8], torch.randn(8), None, 1e-5)
    yield ops.softmax, (torch.randn(0, 5), -1)
    yield ops.softmax, (torch.randn(()), -1)
    yield ops.layer_norm, (torch.randn(0, 5), [5], None, None, 1e-5)
    yield ops.layer_norm, (x[..., ::2], [4], None, None, 1e-5)
    yield ops.spatial_layer_norm, (torch.randn(5), 0, torch.randn(5), None, 1e-5)


CALLS = defaultdict(list)
for op, args in samples():
    CALLS[op.default].append(args)


def records_a_gradient(args):
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in args)


@pytest.mark.parametrize("op", CALLS, ids=str)
def test_opcheck_finds_nothing_in_a_call(op):
    torch.library.opcheck(op, max(CALLS[op], key=records_a_gradient))


@pytest.mark.parametrize("op", CALLS, ids=str)
def test_schema_and_fake_are_right_for_every_call(op):
    for args in CALLS[op]:
        torch.library.opcheck(op, args, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("op", CALLS, ids=str)
def test_opcheck_finds_nothing_in_any_call(op):
    for args in CALLS[op]:
        torch.library.opcheck(op, args)


OP_INFO = {
    "softmax": lambda s: fusedops.softmax(s.input, *s.args, **s.kwargs),
    "log_softmax": lambda s: fusedops.log_softmax(s.input, *s.args, **s.kwargs),
    "nn.functional.layer_norm": lambda s: fusedops.layer_norm(s.input, *s.args, **s.kwargs),
    "nn.functional.rms_norm": lambda s: fusedops.rms_norm(s.input, *s.args, **s.kwargs),
}


@pytest.mark.parametrize(
    "info",
    [info for info in op_db if info.name in OP_INFO],
    ids=lambda info: f"{info.name} {info.variant_test_name}".strip(),
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_pytorchs_own_samples(info, dtype):
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float64: 1e-12}[dtype]
    samples = [s for s in info.sample_inputs("cpu", dtype) if s.kwargs.get("eps", 0) >= 0]
    assert len(samples) > 3
    for sample in samples:
        actual = OP_INFO[info.name](sample)
        assert actual.dtype == info.op(sample.input, *sample.args, **sample.kwargs).dtype
        exact = sample.transform(lambda v: v.double() if isinstance(v, torch.Tensor) else v)
        expected = info.op(exact.input, *exact.args, **exact.kwargs)
        torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance)


def test_vmap_is_the_loop_over_its_slices():
    x, w = torch.randn(4, 3, 6), torch.randn(6)
    expected = torch.stack([fusedops.softmax(t, 0) for t in x])
    torch.testing.assert_close(torch.vmap(lambda t: fusedops.softmax(t, 0))(x), expected)
    expected = torch.stack([fusedops.layer_norm(t, [6], w) for t in x])
    torch.testing.assert_close(torch.vmap(lambda t: fusedops.layer_norm(t, [6], w))(x), expected)


SLICES = torch.randn(4, 3, 6, 6)
OTHERS, WEIGHTS, SEED = torch.randn(4, 3, 6, 6), torch.randn(4, 6), torch.tensor(3)
STATISTICS = norm_statistics(SLICES, [6])
MASKS, BIASES = torch.rand(4, 6) < 0.8, torch.randn(4, 3, 1, 6)

# A function of one slice, and the batched tensors beside it.
BATCHED = {
    "softmax": (lambda x: fusedops.softmax(x, 0), ()),
    "softmax of rows": (lambda x: fusedops.softmax(x, -1), ()),
    "log_softmax": (lambda x: fusedops.log_softmax(x, 1), ()),
    "softmax_backward": (lambda x: ops.softmax_backward(x, x.exp(), -2, x.dtype), ()),
    "masked_softmax": (lambda x: fusedops.masked_softmax(x, MASKS[0], causal=True), ()),
    "its own masks": (lambda x, m: fusedops.masked_softmax(x, m, mask_value=-1.0), (MASKS,)),
    "masks and biases": (
        lambda x, m, b: fusedops.masked_softmax(x, m, bias=b, masked_rows="zero"),
        (MASKS, BIASES),
    ),
    "soft cap": (lambda x, b: fusedops.masked_softmax(x, bias=b, softcap=2.0), (MASKS.float(),)),
    "masked_softmax_backward": (
        lambda x, m: ops.masked_softmax_backward(x, x.exp(), m, 0.5, True, x.dtype),
        (MASKS,),
    ),
    "layer_norm": (lambda x: fusedops.layer_norm(x, [6, 6]), ()),
    "layer_norm, its own weights": (lambda x, w: fusedops.layer_norm(x, [6], w), (WEIGHTS,)),
    "std_norm": (lambda x: fusedops.std_norm(x, [6], WEIGHTS[0], WEIGHTS[1]), ()),
    "rms_norm": (lambda x: fusedops.rms_norm(x, [6], WEIGHTS[0], variant="gemma"), ()),
    "add_layer_norm": (
        lambda x, r: torch.stack(fusedops.add_layer_norm(x, r, [6], WEIGHTS[0])),
        (OTHERS,),
    ),
    "add_rms_norm, one residual": (
        lambda x: torch.stack(fusedops.add_rms_norm(x, OTHERS[0], [6])),
        (),
    ),
    "add_rms_norm, dropout": (
        lambda x, r: fusedops.add_rms_norm(x, r, [6], p=0.5, seed=SEED, return_sum=False),
        (OTHERS,),
    ),
    "cross_entropy": (
        lambda x, t: torch.stack(ops.cross_entropy(x, t, 1, 0.1, 0.5, 2.0)),
        (torch.randint(6, (4, 3, 6)),),
    ),
    "cross_entropy_backward": (
        lambda x: ops.cross_entropy_backward(
            x,
            x[..., 0].long().abs(),
            *ops.cross_entropy(x, x[..., 0].long().abs()),
            x[..., 1],
            None,
        ),
        (),
    ),
    "layer_norm_backward": (
        lambda x, g, m, r: ops.layer_norm_backward(
            g, x, [6], m, r, WEIGHTS[0], None, [True, False, False]
        )[0],
        (OTHERS, *STATISTICS),
    ),
    "std_norm_backward": (
        lambda x, g, m, r: ops.std_norm_backward(
            g, x, [6], m, r, WEIGHTS[0], None, [True, False, False], 1e-6
        )[0],
        (OTHERS, *STATISTICS),
    ),
    "gradients of weights": (
        lambda x, g, m, r: ops.layer_norm_backward(
            g, x, [6], m, r, WEIGHTS[0], None, [False, True, False]
        )[1],
        (OTHERS, *STATISTICS),
    ),
}


@pytest.mark.parametrize("name", BATCHED)
@pytest.mark.parametrize("batch_dim", [0, 2])
def test_vmap_has_rules_that_give_what_a_loop_gives(name, batch_dim):
    function, beside = BATCHED[name]
    expected = torch.stack([function(*slices) for slices in zip(SLICES, *beside, strict=True)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns where it has to loop itself
        batched = torch.vmap(function, in_dims=(batch_dim, *[0] * len(beside)))
        actual = batched(SLICES.movedim(0, batch_dim), *beside)
    torch.testing.assert_close(actual, expected, equal_nan=True)


def test_vmap_of_scalars():
    assert torch.vmap(lambda t: fusedops.softmax(t, 0))(torch.randn(5)).tolist() == [1.0] * 5


@contextlib.contextmanager
def autocast(device):
    """Does what torch.autocast does, which for CUDA does nothing on a machine without a GPU."""
    before = torch.is_autocast_enabled(device)
    torch.set_autocast_enabled(device, True)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, before)


AUTOCAST_CALLS = {
    "softmax": (lambda t, **o: fusedops.softmax(t, -1, **o), torch.softmax),
    "log_softmax": (lambda t, **o: fusedops.log_softmax(t, -1, **o), torch.log_softmax),
    "masked_softmax": (lambda t, **o: fusedops.masked_softmax(t, causal=True, **o), torch.softmax),
    "masked_softmax_dropout": (
        lambda t, **o: fusedops.masked_softmax_dropout(t, causal=True, **o),
        torch.softmax,
    ),
}


@pytest.mark.parametrize("name", AUTOCAST_CALLS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_autocast_gives_the_dtype_that_torch_gives(name, dtype, device):
    """It is float32 on CUDA, computed from the 16 bits themselves, and the input's on the CPU."""
    ours, eager = AUTOCAST_CALLS[name]
    with FakeTensorMode(allow_non_fake_inputs=True):
        # A CUDA tensor that requires grad would make a CPU build of torch look for CUDA streams.
        t = torch.empty(2, 3, 4, dtype=dtype, device=device, requires_grad=device == "cpu")
        with autocast(device):
            assert ours(t).dtype == eager(t, -1).dtype
            assert ours(t, dtype=torch.float64).dtype == torch.float64


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_autocast_gives_norms_the_dtype_that_torch_gives(dtype, device):
    with FakeTensorMode(allow_non_fake_inputs=True), autocast(device):
        t = torch.empty(2, 3, 4, dtype=dtype, device=device)
        expected = torch.nn.functional.layer_norm(t, [4]).dtype
        assert fusedops.layer_norm(t, [4]).dtype == expected
        assert fusedops.std_norm(t, [4]).dtype == expected
        assert fusedops.rms_norm(t, [4]).dtype == expected
        assert fusedops.add_layer_norm(t, t, [4])[0].dtype == expected
        assert fusedops.add_rms_norm(t, t, [4])[0].dtype == expected


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_autocast_leaves_logits_and_their_loss_as_they_are(dtype, device):
    with FakeTensorMode(allow_non_fake_inputs=True), autocast(device):
        t = torch.empty(2, 4, dtype=dtype, device=device)
        target = torch.empty(2, dtype=torch.int64, device=device)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        assert fusedops.cross_entropy(t, target, reduction="none").dtype == wide


@pytest.mark.parametrize("branch", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("residual", [torch.float16, torch.bfloat16, torch.float32])
def test_cuda_autocast_converts_the_residual_of_a_sum_and_leaves_the_branch(branch, residual):
    seen = []

    class Recorded(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if "add_" in str(func):
                seen.append([t.dtype for t in args[:2]])
            return func(*args, **(kwargs or {}))

    with FakeTensorMode(allow_non_fake_inputs=True), autocast("cuda"), Recorded():
        x = torch.empty(2, 3, 4, dtype=branch, device="cuda")
        r = torch.empty(2, 3, 4, dtype=residual, device="cuda")
        for results in (fusedops.add_layer_norm(x, r, [4]), fusedops.add_rms_norm(x, r, [4])):
            assert [t.dtype for t in results] == [torch.float32] * 2
    assert seen == [[branch, torch.float32]] * 2


def test_meta_tensors_give_shapes_without_computing():
    x = torch.empty(10**6, 10**6, device="meta", dtype=torch.bfloat16)
    y = fusedops.softmax(x, -1, torch.float32)
    assert y.shape == x.shape and y.dtype == torch.float32 and y.is_meta


def test_eager_calls_without_gradient_skip_the_formula_and_others_keep_it():
    x, w = torch.randn(3, 5), torch.randn(5, requires_grad=True)
    assert fusedops.softmax(x, -1).grad_fn is None
    assert fusedops.layer_norm(x, [5], w).grad_fn is not None
    with torch.no_grad():
        assert fusedops.layer_norm(x, [5], w).grad_fn is None
    with Dispatched() as mode:
        fusedops.softmax(x, -1)
    assert mode.seen == ["fusedops.softmax.default"]  # a mode sees the public op


@pytest.mark.parametrize("dynamic", [False, True])
def test_direct_calls_compile_whole_and_train(dynamic):
    def loss(x, w):
        return (fusedops.softmax(fusedops.layer_norm(x, [8], w), -1) ** 2).sum()

    compiled = torch.compile(loss, fullgraph=True, dynamic=dynamic)
    for rows in (4, 7):
        x, w = torch.randn(rows, 8, requires_grad=True), torch.randn(8, requires_grad=True)
        actual = torch.autograd.grad(compiled(x, w), (x, w))
        expected = torch.autograd.grad(loss(x, w), (x, w))
        torch.testing.assert_close(actual, expected)


def test_direct_calls_export_with_a_dynamic_batch():
    class Model(torch.nn.Module):
        def forward(self, x):
            return fusedops.log_softmax(fusedops.layer_norm(x, [8]), -1)

    x = torch.randn(4, 8)
    program = torch.export.export(Model(), (x,), dynamic_shapes={"x": {0: torch.export.Dim("n")}})
    targets = {str(node.target) for node in program.graph.nodes}
    assert {"fusedops.layer_norm.default", "fusedops.log_softmax.default"} <= targets
    bigger = torch.randn(9, 8)
    torch.testing.assert_close(program.module()(bigger), Model()(bigger))


def test_importing_the_package_leaves_torchs_compiler_alone():
    code = "import sys, fusedops; print('torch._dynamo' in sys.modules, callable(fusedops.explain))"
    result = run_python("-c", code)
    assert result.stdout.split() == ["False", "True"], result.stderr
