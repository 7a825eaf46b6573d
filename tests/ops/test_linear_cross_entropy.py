"""linear_cross_entropy against the linear layer and torch's cross entropy in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from modes import Dispatched
from oracle import DTYPES, relative_error, same_bits
from torch.profiler import ProfilerActivity, profile

import fusedops

FEATURES, CLASSES = 24, 70
#: The most rows of a chunk on the CPU.
CHUNK = 192
#: The L2 error of a gradient that is rounded a few times, relative to its norm.
TOLERANCES = {
    torch.float32: 1e-6,
    torch.bfloat16: 6e-3,
    torch.float16: 8e-4,
    torch.float64: 1e-14,
}


def randn(*shape, dtype=torch.float64, seed=0):
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed), device="cpu")
    return drawn.to(torch.get_default_device(), dtype)


def problem(rows=CHUNK + 5, dtype=torch.float64, ignored=0.3, heads=()):
    """Input, weight, bias and classes, a share of which are ignored."""
    x, w = randn(rows, FEATURES, seed=1), randn(CLASSES, *heads, FEATURES, seed=2) / 3
    b, generator = randn(CLASSES, *heads), torch.Generator().manual_seed(3)
    target = torch.randint(0, CLASSES, (rows, *heads), generator=generator, device="cpu")
    target[torch.rand(target.shape, generator=generator, device="cpu") < ignored] = -100
    return *(t.to(dtype) for t in (x, w, b)), target.to(x.device)


def with_weight(settings):
    """The settings with the weights of classes that "weight" asks for."""
    return settings | {"weight": randn(CLASSES, seed=5).abs()} if "weight" in settings else settings


def expected(x, w, b, target, weight=None, reduction="mean", z_loss=0.0, softcap=None, **settings):
    """The loss in float64, from the logits of all rows and heads."""
    bias = None if b is None else b.double().flatten()
    z = F.linear(x.double(), w.double().flatten(0, -2), bias).unflatten(-1, w.shape[:-1])
    z = z if softcap is None else softcap * torch.tanh(z / softcap)
    ignored = target == settings.get("ignore_index", -100)
    factors = ~ignored if weight is None else weight[target.clamp(0)].masked_fill(ignored, 0)
    each = F.cross_entropy(z, target, reduction="none", **settings) * factors
    each = each + z_loss * z.logsumexp(1).square().masked_fill(ignored, 0)
    if reduction != "mean":
        return each if reduction == "none" else each.sum()
    return each.sum() / factors.sum()


def gradients(loss_of, *tensors, upstream=None):
    """The loss, and the gradients of the tensors."""
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    loss = loss_of(*leaves)
    upstream = randn(*loss.shape, seed=4) if upstream is None else upstream
    loss.backward(upstream.to(loss.dtype))
    return [loss.detach(), *(leaf.grad for leaf in leaves)]


def assert_close(actual, exact, tolerance):
    for a, e in zip(actual, exact, strict=True):
        assert a.shape == e.shape
        assert relative_error(a, e.double()) < tolerance or e.double().norm() < tolerance


def assert_as_expected(rows, dtype=torch.float64, ignored=0.3, heads=(), **settings):
    x, w, b, target = problem(rows, dtype, ignored, heads)
    settings = with_weight(settings)

    def ours(x, w, b):
        return fusedops.linear_cross_entropy(x, w, target, linear_bias=b, **settings)

    def exact(x, w, b):
        return expected(x, w, b, target, **settings)

    results = gradients(ours, x, w, b)
    assert results[0].dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert [t.dtype for t in results[1:]] == [dtype] * 3
    loss, *grads = gradients(exact, x.double(), w.double(), b.double())
    assert_close(results[:1], [loss], 1e-3 if dtype == torch.bfloat16 else TOLERANCES[dtype])
    assert_close(results[1:], grads, TOLERANCES[dtype])


# --- values -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("heads", [(), (1,), (2, 3)])
def test_loss_and_gradients(dtype, reduction, heads):
    assert_as_expected(2 * CHUNK + 1, dtype, heads=heads, reduction=reduction)


@pytest.mark.parametrize("rows", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 1])
def test_any_number_of_rows(rows):
    assert_as_expected(rows, ignored=0.0)


SETTINGS = [
    {"label_smoothing": 0.2},
    {"z_loss": 0.1},
    {"softcap": 2.0},
    {"ignore_index": 5},
    {"weight": True},
    {"weight": True, "z_loss": 0.1, "softcap": 2.0},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "_".join(settings))
@pytest.mark.parametrize("heads", [(), (2, 3)])
def test_settings(settings, heads):
    ignored = 0.0 if "ignore_index" in settings else 0.3
    for reduction in ("mean", "sum", "none"):
        assert_as_expected(CHUNK + 1, ignored=ignored, heads=heads, reduction=reduction, **settings)


def test_no_row_is_ignored_with_an_ignore_index_of_none():
    x, w, b, target = problem(9, ignored=0.0)
    loss = fusedops.linear_cross_entropy(x, w, target, linear_bias=b, ignore_index=None)
    assert_close([loss], [expected(x, w, b, target)], 1e-14)


@pytest.mark.parametrize(("rows", "heads"), [(3, ()), (0, ()), (3, (2,)), (0, (2,)), (3, (2, 0))])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_mean_over_no_rows_is_nan_and_gradients_are_zeros(rows, heads, reduction):
    x, w, b, target = problem(rows, ignored=1.1, heads=heads)

    def ours(x, w, b):
        return fusedops.linear_cross_entropy(x, w, target, linear_bias=b, reduction=reduction)

    loss, *grads = gradients(ours, x, w, b)
    assert loss.isnan().all() if reduction == "mean" else not loss.any()
    assert loss.shape == (target.shape if reduction == "none" else ())
    for grad, tensor in zip(grads, (x, w, b), strict=True):
        assert grad.shape == tensor.shape and not grad.any()


def test_shapes_of_rows():
    x, w, _, target = problem(24)
    flat = fusedops.linear_cross_entropy(x, w, target, reduction="none")
    each = fusedops.linear_cross_entropy(
        x.view(2, 3, 4, -1), w, target.view(2, 3, 4), reduction="none"
    )
    assert same_bits(each, flat.view(2, 3, 4))
    row = int((target != -100).nonzero()[0])
    one = fusedops.linear_cross_entropy(x[row], w, target[row], reduction="none")
    assert one.shape == () and relative_error(one, flat[row]) < 1e-14


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_classes_of_other_dtypes(dtype):
    x, w, _, target = problem(9, ignored=0.0)
    target[2] = 0
    loss = fusedops.linear_cross_entropy(x, w, target.to(dtype), ignore_index=0)
    assert same_bits(loss, fusedops.linear_cross_entropy(x, w, target, ignore_index=0))


def test_strided_tensors():
    x, w, b, target = problem(9)
    by_feature, wide = x.t().contiguous().t(), torch.stack([w, w], 2)[..., 0]
    loss = fusedops.linear_cross_entropy(by_feature, wide, target.repeat_interleave(2)[::2])
    assert_close([loss], [fusedops.linear_cross_entropy(x, w, target)], 1e-14)
    x.requires_grad_(), by_feature.requires_grad_()
    for tensor, weight in ((x, w), (by_feature, wide)):
        fusedops.linear_cross_entropy(tensor, weight, target, linear_bias=b).backward()
    assert_close([by_feature.grad], [x.grad], 1e-14)


def by_head_first(w):
    return w.transpose(0, 1).contiguous().transpose(0, 1)


def by_last_head_first(w):
    return w.transpose(1, 2).contiguous().transpose(1, 2)


def by_feature_first(w):
    return w.movedim(-1, 0).contiguous().movedim(0, -1)


@pytest.mark.parametrize("stored", [by_head_first, by_last_head_first, by_feature_first])
def test_the_weight_of_several_heads_may_have_any_strides(stored):
    x, w, b, target = problem(9, heads=(2, 3))

    def ours(x, w, b):
        return fusedops.linear_cross_entropy(x, stored(w), target, linear_bias=stored(w)[..., 0])

    def exact(x, w, b):
        return expected(x, w, w[..., 0], target)

    assert_close(gradients(ours, x, w, b)[:3], gradients(exact, x, w, b)[:3], 1e-14)


# --- what is computed ---------------------------------------------------------------------------


def test_a_frozen_layer_has_no_gradient_and_no_product_for_it():
    x, w, b, target = problem()
    x.requires_grad_()
    with Dispatched() as mode:
        loss = fusedops.linear_cross_entropy(x, w, target, linear_bias=b)
        loss.backward()
    assert "fusedops.linear_cross_entropy_gradients.default" in mode.seen
    exact = gradients(lambda x: expected(x, w, b, target), x, upstream=torch.ones(()))
    assert_close([loss.detach(), x.grad], exact, 1e-14)
    args = (x, w, target, b, None, None, -100, 0.0, 0.0, None)
    with torch.no_grad():
        _, *grads = torch.ops.fusedops.linear_cross_entropy_gradients(*args, [True, False, False])
    assert [g.numel() for g in grads] == [x.numel(), 0, 0]


def test_without_gradients_only_the_loss_is_computed():
    x, w, b, target = problem()
    w.requires_grad_()
    with torch.no_grad(), Dispatched() as mode:
        fusedops.linear_cross_entropy(x, w, target, linear_bias=b)
    ours = [name for name in mode.seen if name.startswith("fusedops")]
    assert ours == ["fusedops.linear_cross_entropy.default"]


def test_ignored_rows_are_not_read():
    x, w, b, target = problem(2 * CHUNK, ignored=0.6)
    x[target == -100] = torch.nan
    for reduction in ("mean", "none"):
        settings = {"linear_bias": b, "reduction": reduction}
        results = gradients(
            lambda x, w: fusedops.linear_cross_entropy(x, w, target, **settings),  # noqa: B023
            x,
            w,
        )
        assert all(t.isfinite().all() for t in results)
        assert not results[1][target == -100].any()


def largest_allocation(features, classes, dtype, reduction, rows=8 * CHUNK, heads=(), train=True):
    """The bytes of the largest tensor of a step."""
    x, w = randn(rows, features, dtype=dtype), randn(classes, *heads, features, dtype=dtype)
    x.requires_grad_(train), w.requires_grad_(train)
    target = torch.zeros(rows, *heads, dtype=torch.int64)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        loss = fusedops.linear_cross_entropy(x, w, target, reduction=reduction).sum()
        if train:
            loss.backward()
    events = profiler.profiler.kineto_results.events()
    return max(event.nbytes() for event in events if event.name() == "[memory]")


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("heads", [(), (3,)])
def test_logits_of_all_rows_are_never_in_memory(reduction, heads):
    largest = largest_allocation(8, 1000, torch.float32, reduction, heads=heads)
    assert largest == CHUNK * 1000 * 4


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_the_weight_of_a_head_is_not_copied(dtype):
    # Torch's products of bfloat16 take 11 KB of scratch memory a thread.
    largest = largest_allocation(64, 2000, dtype, "sum", rows=8, heads=(2, 2), train=False)
    assert largest < 2000 * 64 * dtype.itemsize


def test_sums_of_a_16_bit_gradient_are_never_in_memory_as_floats():
    """The upper halves of floats are where the gradient will be."""
    assert largest_allocation(600, 2000, torch.bfloat16, "mean") == 600 * 2000 * 2


# --- autograd -----------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_second_backward_gives_the_same_gradients(reduction):
    x, w, b, target = problem()
    leaves = [t.requires_grad_() for t in (x, w, b)]
    loss = fusedops.linear_cross_entropy(x, w, target, linear_bias=b, reduction=reduction).sum()
    first = torch.autograd.grad(loss, leaves, retain_graph=True)
    second = torch.autograd.grad(loss, leaves, torch.tensor(2.0, dtype=torch.float64))
    assert all(same_bits(2 * a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "_".join(settings))
@pytest.mark.parametrize(("reduction", "heads"), [("mean", ()), ("none", ()), ("mean", (2,))])
def test_derivatives_of_gradients(settings, reduction, heads):
    *tensors, target = problem(9, ignored=0.0 if "ignore_index" in settings else 0.3, heads=heads)
    settings = with_weight(settings)
    results = []
    for loss_of in (fusedops.linear_cross_entropy, None):
        leaves = [t.clone().requires_grad_() for t in tensors]
        if loss_of is None:
            loss = expected(*leaves, target, reduction=reduction, **settings)
        else:
            x, w, b = leaves
            loss = loss_of(x, w, target, linear_bias=b, reduction=reduction, **settings)
        upstream = randn(*loss.shape, seed=6).requires_grad_()
        grads = torch.autograd.grad(loss, leaves, upstream, create_graph=True)
        total = sum((g * randn(*g.shape, seed=7)).sum() for g in grads)
        results.append([*grads, *torch.autograd.grad(total, [*leaves, upstream])])
    assert_close(*results, 1e-12)


@pytest.mark.parametrize("heads", [(), (2,)])
def test_a_weight_of_classes_that_requires_grad(heads):
    x, w, b, target = problem(heads=heads)
    weight = randn(CLASSES, seed=5).abs()

    def ours(x, weight):
        return fusedops.linear_cross_entropy(x, w, target, linear_bias=b, weight=weight)

    exact = gradients(lambda x, weight: expected(x, w, b, target, weight), x, weight)
    assert_close(gradients(ours, x, weight), exact, 1e-13)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("heads", [(), (2,)])
def test_transforms(reduction, heads):
    x, w, b, target = problem(9, heads=heads)
    batch = torch.stack([x, 2 * x])

    def ours(x, w):
        return fusedops.linear_cross_entropy(x, w, target, linear_bias=b, reduction=reduction)

    def exact(x, w):
        return expected(x, w, b, target, reduction=reduction)

    def results(f):
        def total(x, w):
            return f(x, w).sum()

        tangents = (randn(9, FEATURES, seed=8), torch.zeros_like(w))
        yield torch.vmap(f, (0, None))(batch, w)
        yield from torch.vmap(torch.func.grad(total, (0, 1)), (0, None))(batch, w)
        yield torch.func.grad(lambda w: torch.vmap(f, (0, None))(batch, w).sum())(w)
        yield from torch.func.jvp(f, (x, w), tangents)
        yield from torch.func.jvp(torch.func.grad(total), (x, w), tangents)

    assert_close(results(ours), results(exact), 1e-12)


# --- 16 bits ------------------------------------------------------------------------------------


def test_the_error_of_a_16_bit_gradient_does_not_grow_with_the_chunks():
    """It is that of one product of all rows and of one more rounding, of the chunks' products. The
    ratio is 1.02; of sums that are rounded after each chunk it is 2.7."""
    rows, classes = 64 * CHUNK, 300
    x, w = randn(rows, FEATURES, dtype=torch.bfloat16), randn(classes, FEATURES).bfloat16()
    target = torch.arange(rows) % classes
    ours = gradients(lambda x, w: fusedops.linear_cross_entropy(x, w, target), x, w)[2]

    def whole(x, w):
        return F.cross_entropy(F.linear(x, w).float(), target)

    exact = gradients(whole, x.double(), w.double())[2]
    of_whole = relative_error(gradients(whole, x, w)[2], exact)
    rounding = relative_error(exact.bfloat16(), exact)
    assert relative_error(ours, exact) < 1.05 * (of_whole**2 + rounding**2) ** 0.5


@pytest.mark.parametrize("of_class", [None, 1e5, 1e-8])
def test_a_float16_gradient_keeps_digits_that_a_mean_would_push_below_its_range(of_class):
    """A factor that all weights of classes have changes no mean."""
    rows = 2048
    weight = of_class and torch.full((CLASSES,), of_class)
    x, w = randn(rows, FEATURES).half(), (randn(CLASSES, FEATURES) / 3).half()
    target = torch.arange(rows) % CLASSES
    scale = torch.tensor(2.0**12)

    def mean(x):
        return fusedops.linear_cross_entropy(x, w, target, weight=weight)

    ours = gradients(mean, x, upstream=scale)[1]
    exact = gradients(lambda x: expected(x, w, None, target), x.double(), upstream=scale)[1]
    assert relative_error(ours, exact) < TOLERANCES[torch.float16]


def test_the_error_of_a_16_bit_gradient_of_the_input_does_not_grow_with_the_heads():
    """All heads' gradients are added in float32; if autograd added them, it would be 0.007."""
    x, w, b, target = problem(64, torch.bfloat16, heads=(64,))
    ours = gradients(lambda x: fusedops.linear_cross_entropy(x, w, target, linear_bias=b), x)[1]
    exact = gradients(lambda x: expected(x, w, b, target), x.double())[1]
    assert relative_error(ours, exact) < 0.003


@pytest.mark.parametrize("heads", [(), (2,)])
def test_autocast_converts_as_for_a_linear_layer(heads):
    x, w, b, target = problem(dtype=torch.float32, heads=heads)
    for reduction in ("mean", "none"):
        settings = {"reduction": reduction}

        def in_autocast(x, w, b):
            with torch.autocast("cpu", torch.bfloat16):
                return fusedops.linear_cross_entropy(x, w, target, linear_bias=b, **settings)  # noqa: B023

        def converted(x, w, b):
            x, w, b = x.bfloat16(), w.bfloat16(), b.bfloat16()
            return fusedops.linear_cross_entropy(x, w, target, linear_bias=b, **settings)  # noqa: B023

        ours, wanted = gradients(in_autocast, x, w, b), gradients(converted, x, w, b)
        assert all(same_bits(a, e) for a, e in zip(ours, wanted, strict=True))


# --- graphs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("heads", [(), (2, 3)])
def test_compiled_for_any_number_of_rows(reduction, heads):
    options = getattr(torch.nn, "LinearCrossEntropyOptions", lambda: None)()  # of torch 2.13
    settings = {"reduction": reduction, "options": options}

    def step(x, w, b, target):
        return fusedops.linear_cross_entropy(x, w, target, linear_bias=b, **settings)

    compiled = torch.compile(step, fullgraph=True, dynamic=True)
    for rows in (CHUNK + 5, 40, 2 * CHUNK + 1):
        *tensors, target = problem(rows, torch.bfloat16, heads=heads)
        upstream = torch.tensor(1 / 3) if reduction == "mean" else randn(*target.shape)
        eager, ours = (
            gradients(lambda *leaves, f=f: f(*leaves, target), *tensors, upstream=upstream)  # noqa: B023
            for f in (step, compiled)
        )
        assert all(same_bits(a, b) for a, b in zip(eager[1:], ours[1:], strict=True))
        # Inductor adds the losses of several heads in its own order.
        torch.testing.assert_close(ours[0], eager[0], rtol=3e-7 if heads else 0, atol=0)


class Loss(torch.nn.Module):
    def forward(self, x, w, target):
        return fusedops.linear_cross_entropy(x, w, target)


@pytest.mark.parametrize("heads", [(), (2,)])
def test_exported_for_any_number_of_rows(heads):
    x, w, _, target = problem(heads=heads)
    rows = torch.export.Dim("rows", min=2)
    shapes = ({0: rows}, None, {0: rows})
    program = torch.export.export(Loss(), (x, w, target), dynamic_shapes=shapes)
    assert "fusedops.linear_cross_entropy.default" in program.graph_module.code
    loss = program.module()(x[:7], w, target[:7])
    assert same_bits(loss, fusedops.linear_cross_entropy(x[:7], w, target[:7]))


def test_traced_by_fx_as_one_call():
    x, w, _, target = problem()
    traced = torch.fx.symbolic_trace(Loss())
    assert [node.op for node in traced.graph.nodes].count("call_function") == 1
    assert same_bits(traced(x, w, target), Loss()(x, w, target))


@pytest.mark.parametrize("recorded", [False, True])
def test_registration(recorded):
    ops = torch.ops.fusedops
    x, w, b, target = problem(7, torch.float32)
    losses = ops.linear_cross_entropy_losses(x, w, target, b, -100, 0.1, 3.0)
    given = [t.clone().requires_grad_(recorded) for t in (x, w, b, *randn(2, 7).float())]
    head, grads = (given[0], given[1], target, given[2]), given[3:]
    terms = (torch.rand(7), torch.tensor(0.5), -100, 0.1, 0.2, 3.0)
    mask = [True] * 3
    for op, *args in (
        (ops.linear_cross_entropy, *head, *terms),
        (ops.linear_cross_entropy, *head[:3]),
        (ops.linear_cross_entropy_gradients, *head, *terms, mask),
        (ops.linear_cross_entropy_losses, *head, -100, 0.1, 3.0),
        (ops.linear_cross_entropy_losses_backward, *head, *losses, *grads, -100, 0.1, 3.0, mask),
    ):
        torch.library.opcheck(op.default, args)


def test_a_mask_without_a_gradient_that_is_needed():
    x, w, _, target = problem(7)
    args = (x, w.requires_grad_(), target, None, None, None, -100, 0.0, 0.0, None)
    loss, *_ = torch.ops.fusedops.linear_cross_entropy_gradients(*args, [True, False, True])
    with pytest.raises(RuntimeError, match="output_mask leaves out the gradient of linear_weight"):
        loss.backward()


# --- the module ---------------------------------------------------------------------------------


def test_module():
    x, w, b, target = problem(dtype=torch.float32)
    module = fusedops.nn.LinearCrossEntropyLoss(FEATURES, CLASSES, bias=True, z_loss=0.1)
    module.load_state_dict({"linear.weight": w, "linear.bias": b})
    wanted = fusedops.linear_cross_entropy(x, w, target, linear_bias=b, z_loss=0.1)
    assert same_bits(module(x, target), wanted)
    weighted = fusedops.nn.LinearCrossEntropyLoss(FEATURES, CLASSES, weight=torch.ones(CLASSES))
    assert set(weighted.state_dict()) == {"weight", "linear.weight"}
    assert "z_loss=0.1" in repr(module)
    placed = fusedops.nn.LinearCrossEntropyLoss(2, 3, device="meta", dtype=torch.float64)
    assert placed.linear.weight.is_meta and placed.linear.weight.dtype == torch.float64


of_torch_2_13 = pytest.mark.skipif(
    not hasattr(torch.nn, "LinearCrossEntropyLoss"), reason="torch < 2.13"
)


@of_torch_2_13
@pytest.mark.parametrize("heads", [(), (2, 3)])
def test_module_loads_what_torchs_has_saved(heads):
    x, _, _, target = problem(dtype=torch.float32, heads=heads)
    theirs = torch.nn.LinearCrossEntropyLoss(FEATURES, CLASSES, out_features=heads, bias=True)
    ours = fusedops.nn.LinearCrossEntropyLoss(FEATURES, CLASSES, out_features=heads, bias=True)
    ours.load_state_dict(theirs.state_dict())
    assert relative_error(ours(x, target).detach(), theirs(x, target).detach().double()) < 1e-6


@of_torch_2_13
def test_options_change_nothing():
    x, w, _, target = problem()
    module = fusedops.nn.LinearCrossEntropyLoss
    for given in ({}, {"batch_chunk_size": 7, "acc_policy": "compact", "allow_retain_graph": True}):
        options = torch.nn.LinearCrossEntropyOptions(**given)
        loss = fusedops.linear_cross_entropy(x, w, target, options=options)
        assert same_bits(loss, fusedops.linear_cross_entropy(x, w, target))
        assert repr(module(2, 3, options=options)) == repr(module(2, 3))


# --- refusals -----------------------------------------------------------------------------------

X, W, T = randn(4, 6, dtype=torch.float32), randn(5, 6, dtype=torch.float32), torch.arange(4)
#: With several heads, and of arguments together: tests/bad_input has the others.
REFUSALS = [
    ((X, W[:, None], T), {}, r"target has shape \[4\], wanted \[4, 1\] beside .* \[5, 1, 6\]"),
    ((X, W[:0, None], T[:, None]), {}, r"linear_weight has shape \[0, 1, 6\], wanted .* one class"),
    ((X, W[:, None, 1:], T[:, None]), {}, r"linear_weight has shape \[5, 1, 5\], wanted .*, 6\]"),
    ((X[None], W[:, None], T[:, None]), {}, r"input has shape \[1, 4, 6\], wanted \[N, features\]"),
    ((X[0], W[:, None], T[:1]), {}, r"input has shape \[6\], wanted \[N, features\] .* reshape it"),
    ((X, W[:, None], T[:, None]), {"linear_bias": W[:, 0]}, r"linear_bias has shape \[5\], wanted"),
    ((X, W[:, :0, None], T[:, None]), {}, r"linear_weight has shape \[5, 0, 1\]"),
    ((X, W.double().view(5, 1, 6), T[:, None]), {}, "linear_weight is torch.float64, wanted"),
    ((X[None], W, T), {}, r"target has shape \[4\], wanted that of input without its features"),
    ((X, W, T), {"weight": W[:, 0], "label_smoothing": 0.1}, "beside a weight, wanted 0"),
]


@pytest.mark.parametrize(("args", "settings", "message"), REFUSALS)
def test_refusals(args, settings, message):
    for reduction in ("mean", "none"):
        with pytest.raises(RuntimeError, match=f"linear_cross_entropy.*: .*{message}"):
            fusedops.linear_cross_entropy(*args, reduction=reduction, **settings)


def test_refusals_of_types():
    with pytest.raises(TypeError, match="linear_cross_entropy: linear_weight is of type str"):
        fusedops.linear_cross_entropy(X, "w", T)
    with pytest.raises(ValueError, match="reduction is 'max'"):
        fusedops.linear_cross_entropy(X, W, T, reduction="max")
    for call in (fusedops.linear_cross_entropy, fusedops.nn.LinearCrossEntropyLoss):
        with pytest.raises(TypeError, match="options is {}, wanted a torch.nn.LinearCrossEntropyO"):
            call(*((X, W, T) if call is fusedops.linear_cross_entropy else (6, 5)), options={})
    factors = torch.ones(4, requires_grad=True)
    with pytest.raises(RuntimeError, match="row_weights or scale requires grad"):
        torch.ops.fusedops.linear_cross_entropy(X, W, T, None, factors)
