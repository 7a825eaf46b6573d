"""add_layer_norm and add_rms_norm: residual, dropout and norm in one pass, and its gradients."""

import itertools
from functools import partial

import bounds
import pytest
import torch
import torch.nn.functional as F
from oracle import DTYPES, same_bits
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

import fusedops
from fusedops import reference

ops = torch.ops.fusedops
COLS = [1, 2, 7, 8, 31, 32, 33, 64, 127, 768, 1023, 1025, 8193, 65537]
SHAPE = 3, 4, 10


def parameters(cols, dtype, count):
    return [torch.randn(cols).to(dtype) for _ in range(count)]


def add_layer_norm(x, r, w, b, **options):
    return fusedops.add_layer_norm(x, r, x.shape[-1:], w, b, **options)


def add_rms_norm(x, r, w, b=None, eps=1e-5, **options):
    return fusedops.add_rms_norm(x, r, x.shape[-1:], w, eps, **options)


ADDS = {"layer": add_layer_norm, "rms": add_rms_norm}
NORMS = {
    "layer": lambda s, w, b: fusedops.layer_norm(s, s.shape[-1:], w, b),
    "rms": lambda s, w, b: fusedops.rms_norm(s, s.shape[-1:], w, 1e-5),
}


EPS = 1e-5


def assert_normalised(y, kind, s, w=None, b=None):
    """y has the bits of the norm of `s`. On a GPU it only has its bound: there the plan of a row
    after a residual is another one where its vectors are unaligned."""
    if not y.is_cuda:
        assert same_bits(y, NORMS[kind](s, w, b))
        return
    w, b = (1.0 if w is None else w), (0.0 if b is None or kind == "rms" else b)
    bounds.assert_typical(y, bounds.norm(f"{kind}_norm", s, w, b, EPS))


def multiplier(p, seed, shape):
    """The multiplier of dropout, in float64."""
    cols = shape[-1]
    rows = torch.Size(shape).numel() // cols
    kept = reference.philox(seed, rows, cols).view(shape) >= round(p * 2**32)
    return kept.double() / (1 - p) if p < 1 else torch.zeros(shape, dtype=torch.float64)


@pytest.mark.parametrize("kind", ADDS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cols", COLS)
def test_the_sum_is_rounded_once_and_normalised_as_it_is_returned(kind, dtype, cols):
    rows = max(4, 20_000 // cols)
    x, r = torch.randn(2, rows, cols).to(dtype)
    w, b = parameters(cols, dtype, 2)
    y, s = ADDS[kind](x, r, w, b)
    assert same_bits(s, x + r)
    assert_normalised(y, kind, s, w, b)


@pytest.mark.parametrize("kind", ADDS)
def test_the_sum_is_left_out_where_it_is_not_wanted(kind):
    x, r = torch.randn(2, 5, 40)
    w, b = parameters(40, torch.float32, 2)
    y, _ = ADDS[kind](x, r, w, b)
    assert same_bits(ADDS[kind](x, r, w, b, return_sum=False), y)
    leaf = x.clone().requires_grad_()
    assert same_bits(ADDS[kind](leaf, r, w, b, return_sum=False).detach(), y)


@pytest.mark.parametrize("variant", ["torch", "llama", "t5", "gemma"])
@pytest.mark.parametrize("w_dtype", [torch.float32, torch.bfloat16])
def test_every_variant_has_the_values_of_rms_norm(variant, w_dtype):
    x, r = torch.randn(2, 50, 64).bfloat16()
    w = torch.randn(64).to(w_dtype)
    y, s = fusedops.add_rms_norm(x, r, [64], w, variant=variant)
    assert same_bits(s, x + r)
    assert same_bits(y, fusedops.rms_norm(x + r, [64], w, variant=variant))
    assert same_bits(y, fusedops.add_rms_norm(x, r, [64], w, variant=variant, return_sum=False))


@pytest.mark.parametrize("kind", ADDS)
@pytest.mark.parametrize("shape", [(3, 0), (0, 0), (0, 4)])
@pytest.mark.parametrize("p", [0.0, 0.5])
def test_without_elements_results_and_gradients_are_eagers(kind, shape, p):
    given = torch.randn(2, *shape).unbind() + torch.randn(2, shape[-1]).unbind()
    results = []
    for add in (partial(ADDS[kind], p=p), lambda x, r, w, b: (NORMS[kind](x + r, w, b), x + r)):
        leaves = [t.clone().requires_grad_() for t in given]
        y, s = add(*leaves)
        grads = torch.autograd.grad((y + s).sum(), leaves, materialize_grads=True)
        results.append([y, s, *grads])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("kind", ADDS)
@pytest.mark.parametrize("p", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cols", [5, 64, 129, 5001])
def test_dropout_applies_to_the_branch_alone_and_is_rounded_with_the_sum(kind, p, dtype, cols):
    x, r = torch.randn(2, 3, 4, cols).to(dtype)
    y, s = ADDS[kind](x, r, None, None, p=p, seed=torch.tensor(11))
    bounds.assert_typical(s, bounds.added(x, r, multiplier(p, 11, x.shape)))
    assert_normalised(y, kind, s)


@pytest.mark.parametrize("kind", ADDS)
def test_dropout_follows_torchs_generator_and_ends_with_training(kind):
    x, r = torch.randn(2, 6, 50)
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(ADDS[kind](x, r, None, None, p=0.3)[1])
    assert same_bits(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert same_bits(ADDS[kind](x, r, None, None, p=0.3, training=False)[1], x + r)
    state = torch.get_rng_state()
    ADDS[kind](x, r, None, None)
    assert torch.equal(state, torch.get_rng_state())  # draws nothing where nothing is dropped


LAYOUTS = {
    "split": lambda t: t.unflatten(1, (2, -1))[:, 1],
    "every other row": lambda t: t[::2],
    "columns": lambda t: t[:, ::2],
    "transposed": lambda t: t.t(),
    "shifted": lambda t: t.unflatten(0, (4, -1))[:, :-1, 1:],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ADDS)
def test_input_and_residual_may_have_any_layout(kind, layout):
    x, r = (LAYOUTS[layout](torch.randn(16, 90)) for _ in range(2))
    y, s = ADDS[kind](x, r, None, None)
    assert same_bits(s, x + r)
    assert_normalised(y, kind, s)
    assert same_bits(s, ADDS[kind](x.contiguous(), r, None, None)[1])


# --- derivatives --------------------------------------------------------------------------------


def gradients(add, tensors, grads):
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    outputs = add(*leaves)
    used = [(y, g) for y, g in zip(outputs, grads, strict=True) if g is not None]
    found = torch.autograd.grad(
        [y for y, _ in used], leaves, [g for _, g in used], allow_unused=True
    )
    return [torch.zeros_like(t) if g is None else g for t, g in zip(leaves, found, strict=True)]


@pytest.mark.parametrize("kind", ADDS)
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("used", ["both", "output", "sum"])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("rows, cols", [(3, 7), (65, 128), (300, 33), (2, 9000)])
def test_gradients_are_within_their_bounds_and_typical(kind, p, used, dtype, rows, cols):
    torch.manual_seed(rows)
    tensors = [*torch.randn(2, rows, cols).to(dtype), *parameters(cols, dtype, 2)]
    tensors = tensors if kind == "layer" else tensors[:3]
    grads = [*torch.randn(2, rows, cols).to(dtype)]
    grads = [grads[0] if used != "sum" else None, grads[1] if used != "output" else None]
    seed = torch.tensor(5)

    actual = gradients(lambda *leaves: ADDS[kind](*leaves, p=p, seed=seed), tensors, grads)
    _, s = ADDS[kind](*tensors, p=p, seed=seed)
    of_output = torch.zeros_like(s) if grads[0] is None else grads[0]
    through = bounds.norm_gradients(f"{kind}_norm", s, tensors[2], of_output, 1e-5)
    to_sum = through.input if grads[1] is None else through.input.plus(grads[1], dtype)
    to_branch = to_sum.scaled(multiplier(p, 5, s.shape), dtype) if p else to_sum
    wanted = [to_branch, to_sum, *through[1 : len(tensors) - 1]]
    for gradient, bound in zip(actual, wanted, strict=True):
        assert gradient.dtype == dtype
        bounds.assert_typical(gradient, bound.rounded_to(dtype))


@pytest.mark.parametrize("kind, variant", [("layer", None), ("rms", "torch"), ("rms", "gemma")])
@pytest.mark.parametrize("p", [0.0, 0.4])
def test_gradcheck_and_gradgradcheck(kind, variant, p):
    x, r = torch.randn(2, *SHAPE, dtype=torch.float64).unbind()
    w, b = torch.randn(2, SHAPE[-1], dtype=torch.float64).unbind()
    inputs = [t.clone().requires_grad_() for t in (x, r, w, b)][: 4 if kind == "layer" else 3]
    options = {"p": p, "seed": torch.tensor(3)}
    options |= {} if kind == "layer" else {"variant": variant, "eps": 1e-3}

    def add(*tensors):
        return ADDS[kind](*tensors, **options)

    assert gradcheck(add, inputs)
    assert gradgradcheck(add, inputs)


@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"])
@pytest.mark.parametrize("kind", ADDS)
def test_the_results_require_grad_where_eagers_do(kind, backend):
    """The sum depends on input and residual alone, the output on the parameters too."""
    shapes = [(3, 5), (3, 5), (5,), (5,)]
    norm = {"layer": F.layer_norm, "rms": lambda s, n, w, b: F.rms_norm(s, n, w)}[kind]
    for p in (0.0, 0.3):

        def ours(x, r, w, b, p=p):
            return ADDS[kind](x, r, w, b, p=p)

        torch.compiler.reset()
        run = ours if backend is None else torch.compile(ours, backend=backend, fullgraph=True)
        every = list(itertools.product([False, True], repeat=4))
        for wanted in every if backend is None else every[1::5]:  # each is compiled anew
            given = [
                torch.randn(shape, requires_grad=grad)
                for shape, grad in zip(shapes, wanted, strict=True)
            ]
            x, r, w, b = given
            total = F.dropout(x, p) + r
            eager = norm(total, [5], w, b), total
            found = [t.requires_grad for t in run(*given)]
            assert found == [t.requires_grad for t in eager], (p, wanted)


@pytest.mark.parametrize("kind", ADDS)
def test_a_sum_without_a_gradient_converts_to_numpy(kind):
    x, r = torch.randn(2, 3, 5)
    w = torch.randn(5, requires_grad=True)
    y, s = ADDS[kind](x, r, w, None)
    assert s.cpu().numpy().shape == (3, 5)
    (grad,) = torch.autograd.grad(y.sum(), w)
    want = torch.autograd.grad(NORMS[kind](s, w, None).sum(), w)[0]
    assert same_bits(grad, want)


@pytest.mark.parametrize("kind", ADDS)
def test_without_dropout_branch_and_residual_share_one_gradient_tensor(kind):
    x, r = (torch.randn(4, 8, requires_grad=True) for _ in range(2))
    y, s = ADDS[kind](x, r, None, None)
    by_x, by_r = torch.autograd.grad((y + s).sum(), (x, r))
    assert by_x.data_ptr() == by_r.data_ptr()
    x.grad = r.grad = None
    y, s = ADDS[kind](x, r, None, None)
    (y.pow(2) + s).sum().backward()
    x.grad.zero_()  # a later write into one of them must not reach the other
    assert r.grad.abs().sum() > 0


@pytest.mark.parametrize("kind", ADDS)
def test_only_the_sum_parameters_statistics_and_seed_are_kept(kind):
    x, r = (torch.randn(4, 64, requires_grad=True) for _ in range(2))
    w, b = torch.randn(64, requires_grad=True), torch.randn(64, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        ADDS[kind](x, r, w, b, p=0.2)
    layer = kind == "layer"
    assert sum(t.numel() for t in kept) == x.numel() + 64 * (1 + layer) + 4 * (1 + layer) + 1


@pytest.mark.parametrize("kind", ADDS)
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing_draws_the_same_numbers(kind, use_reentrant):
    x, r = torch.randn(6, 50, requires_grad=True), torch.randn(6, 50)

    def loss(x):
        return ADDS[kind](x, r, None, None, p=0.3)[0].pow(3).sum()

    torch.manual_seed(0)
    (expected,) = torch.autograd.grad(loss(x), x)
    torch.manual_seed(0)
    checkpoint(loss, x, use_reentrant=use_reentrant).backward()
    assert same_bits(x.grad, expected)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kind", ADDS)
def test_compiled_calls_train_and_repeat_under_manual_seed(kind, dynamic):
    def loss(x, r, w):
        y, s = ADDS[kind](x, r, w, None, p=0.25)
        return (y * s).sum()

    compiled = torch.compile(loss, fullgraph=True, dynamic=dynamic)
    for rows in (4, 7):
        x, r = (torch.randn(rows, 8, requires_grad=True) for _ in range(2))
        w = torch.randn(8, requires_grad=True)
        results = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            results.append(torch.autograd.grad(compiled(x, r, w), (x, r, w)))
        assert all(map(same_bits, results[0], results[1]))
        assert not torch.equal(results[0][0], results[2][0])


@pytest.mark.parametrize("norm", ADDS)
@pytest.mark.parametrize("p", [0.0, 0.4])
def test_the_gradient_of_the_sum_alone_does_not_depend_on_the_norm(norm, p):
    """Not even in a row whose norm is NaN."""
    x, r, weight, bias = torch.randn(3, 8), torch.randn(3, 8), *parameters(8, torch.float32, 2)
    x[1, 2], r[2] = torch.inf, torch.nan
    leaves = [t.requires_grad_() for t in (x, r, weight)]
    grad = torch.randn(3, 8)
    options = {"p": p, "seed": torch.tensor(7)} if p else {}
    _, total = ADDS[norm](x, r, weight, bias, **options)
    to_x, to_r, to_weight = torch.autograd.grad(total, leaves, grad, allow_unused=True)
    _, dropped = ADDS[norm](torch.ones(3, 8), torch.zeros(3, 8), weight, bias, **options)
    assert torch.equal(to_r, grad) and to_weight is None
    torch.testing.assert_close(to_x, grad * dropped.detach(), rtol=1e-6, atol=0)
