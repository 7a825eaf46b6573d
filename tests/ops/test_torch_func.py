"""Under torch.func and in forward mode the derivatives of first and second order and per-sample
gradients of every public function are those of PyTorch's own functions, or of a plain loop."""

import itertools

import pytest
import torch
from torch import func
from torch.autograd import forward_ad
from torch.nn import functional as F

import fusedops
from fusedops import nn, reference

torch.manual_seed(0)
X = torch.randn(3, 2, 4, dtype=torch.float64)
RESIDUAL, WEIGHT, BIAS = (torch.randn(s, dtype=torch.float64) for s in ((2, 4), (4,), (4,)))
MASK = torch.tensor([[True, True, False, True], [True, False, True, True]])
SEED, CLASSES = torch.tensor(5), torch.tensor([3, 0])
LOSSES = {"softcap": 2.0, "label_smoothing": 0.1}
RMS_EPS = torch.finfo(torch.float64).eps


def softmax_in_two_steps(x):
    return fusedops.softmax_apply(x, *fusedops.softmax_stats(x, -1), -1)


def logsumexp(x):
    max, sum = fusedops.softmax_stats(x, -1)
    return max + sum.log()


def std_norm(x):
    centered = x - x.mean(-1, keepdim=True)
    return centered / (x.std(-1, keepdim=True) + 1e-6) * WEIGHT + BIAS


def kept(x):
    """The multiplier of dropout with this seed."""
    ones = torch.ones(x.shape, dtype=x.dtype)
    zeros = torch.zeros_like(ones)
    return fusedops.add_rms_norm(ones, zeros, [4], p=0.5, seed=SEED)[1]


WINDOW = torch.ones(2, 4).tril(1).triu(0)


def kept_of_scores(x):
    """The multiplier of dropout of scores with this seed."""
    dropped = fusedops.masked_softmax_dropout(torch.zeros(x.shape, dtype=x.dtype), seed=SEED)
    return (dropped != 0) * 2


def masked(x):
    return (0.5 * x + BIAS).masked_fill(~MASK, -torch.inf).softmax(-1)


def masked_dropout(x):
    return masked(x) * kept_of_scores(x)


def gemma(x):
    return 2 * torch.tanh(x / 2)


def channels(norm):
    """A norm over dimension 0."""
    return lambda x: norm(x.t()).t()


def both(results):
    return torch.stack(results)


def added(x):
    return x * kept(x) + RESIDUAL


#: Functions of two rows of four columns, each with PyTorch's expression of it.
FUNCTIONS = {
    "softmax": (lambda x: fusedops.softmax(x, -1), lambda x: x.softmax(-1)),
    "softmax over rows": (lambda x: fusedops.softmax(x, 0), lambda x: x.softmax(0)),
    "softmax of all": (
        lambda x: fusedops.softmax(x, None),
        lambda x: x.reshape(-1).softmax(0).view(x.shape),
    ),
    "log_softmax": (lambda x: fusedops.log_softmax(x, -1), lambda x: x.log_softmax(-1)),
    "softmax_": (lambda x: fusedops.softmax_(x * 1, -1), lambda x: x.softmax(-1)),
    "softmax_stats": (logsumexp, lambda x: x.logsumexp(-1, keepdim=True)),
    "softmax_apply": (softmax_in_two_steps, lambda x: x.softmax(-1)),
    "merge_softmax_stats": (
        lambda x: fusedops.merge_softmax_stats([fusedops.softmax_stats(x, -1)] * 2)[1],
        lambda x: 2 * (x - x.detach().amax(-1, keepdim=True)).exp().sum(-1, keepdim=True),
    ),
    "cross_entropy": (
        lambda x: fusedops.cross_entropy(x, CLASSES, reduction="none", label_smoothing=0.1),
        lambda x: F.cross_entropy(x, CLASSES, reduction="none", label_smoothing=0.1),
    ),
    "cross_entropy, soft cap and lse": (
        lambda x: both(
            fusedops.cross_entropy(x, CLASSES, reduction="none", **LOSSES, return_lse=True)
        ),
        lambda x: both(reference.cross_entropy(x, CLASSES, **LOSSES)),
    ),
    "masked_softmax": (
        lambda x: fusedops.masked_softmax(x, MASK, scale=0.5, bias=BIAS),
        masked,
    ),
    "masked_softmax, causal": (
        lambda x: fusedops.masked_softmax(x, causal="bottom_right"),
        lambda x: x.masked_fill(torch.ones(2, 4).tril(2) == 0, -torch.inf).softmax(-1),
    ),
    "masked_softmax, of the mask": (
        lambda x: fusedops.masked_softmax(RESIDUAL, x),
        lambda x: (RESIDUAL + x).softmax(-1),
    ),
    "masked_softmax, of the bias": (
        lambda x: fusedops.masked_softmax(RESIDUAL, bias=x[:1]),
        lambda x: (RESIDUAL + x[:1]).softmax(-1),
    ),
    "masked_softmax, window and soft cap": (
        lambda x: fusedops.masked_softmax(x, window=(0, 1), softcap=2.0),
        lambda x: gemma(x).masked_fill(WINDOW == 0, -torch.inf).softmax(-1),
    ),
    "masked_softmax, start and rows of nothing": (
        lambda x: fusedops.masked_softmax(x, start=torch.tensor([2, 4]), masked_rows="zero"),
        lambda x: torch.cat([x.new_zeros(2), x[0, 2:].softmax(-1), x.new_zeros(4)]).view(2, 4),
    ),
    "masked_softmax, a finite mask_value": (
        lambda x: fusedops.masked_softmax(x, MASK, mask_value=-1.5, bias=x),
        lambda x: (x * 2).masked_fill(~MASK, -1.5).softmax(-1),
    ),
    "masked_softmax, of the sinks": (
        lambda x: fusedops.masked_softmax(x, sinks=x[:, 0]),
        lambda x: torch.cat([x, x[:, :1]], -1).softmax(-1)[:, :-1],
    ),
    "masked_softmax_dropout, of the sinks": (
        lambda x: fusedops.masked_softmax_dropout(x, seed=SEED, sinks=x[:, 0]),
        lambda x: torch.cat([x, x[:, :1]], -1).softmax(-1)[:, :-1] * kept_of_scores(x),
    ),
    "masked_softmax_dropout": (
        lambda x: fusedops.masked_softmax_dropout(x, MASK, scale=0.5, bias=BIAS, seed=SEED),
        masked_dropout,
    ),
    "layer_norm": (
        lambda x: fusedops.layer_norm(x, [4], WEIGHT, BIAS),
        lambda x: reference.layer_norm(x, [4], WEIGHT, BIAS),
    ),
    "layer_norm, of the weight": (
        lambda x: fusedops.layer_norm(RESIDUAL, [2, 4], x, x),
        lambda x: reference.layer_norm(RESIDUAL, [2, 4], x, x),
    ),
    "std_norm": (lambda x: fusedops.std_norm(x, [4], WEIGHT, BIAS), std_norm),
    "rms_norm": (
        lambda x: fusedops.rms_norm(x, [4], WEIGHT),
        lambda x: F.rms_norm(x, [4], WEIGHT, RMS_EPS),
    ),
    "rms_norm, gemma": (
        lambda x: fusedops.rms_norm(x, [4], WEIGHT, variant="gemma"),
        lambda x: F.rms_norm(x, [4], 1 + WEIGHT, RMS_EPS),
    ),
    "rms_norm, llama beside another dtype": (
        lambda x: fusedops.rms_norm(x, [4], WEIGHT.float(), variant="llama"),
        lambda x: F.rms_norm(x, [4], None, RMS_EPS) * WEIGHT.float(),
    ),
    "l2_norm": (
        lambda x: fusedops.l2_norm(x, [4], WEIGHT),
        lambda x: F.normalize(x, dim=-1) * WEIGHT,
    ),
    "l2_norm, a row below eps": (
        lambda x: fusedops.l2_norm(torch.stack([x[0], x[1] * 0.01]), [4], eps=0.1),
        lambda x: torch.stack([F.normalize(x[0], dim=-1), x[1] * 0.1]),
    ),
    "spatial_layer_norm": (
        lambda x: fusedops.spatial_layer_norm(x, 0, WEIGHT[:2], BIAS[:2], 0.1),
        channels(lambda x: reference.layer_norm(x, [2], WEIGHT[:2], BIAS[:2], 0.1)),
    ),
    "spatial_layer_norm, of the weight": (
        lambda x: fusedops.spatial_layer_norm(RESIDUAL, 1, x[0], x[1]),
        lambda x: reference.layer_norm(RESIDUAL, [4], x[0], x[1], 1e-6),
    ),
    "spatial_rms_norm": (
        lambda x: fusedops.spatial_rms_norm(x, 0, WEIGHT[:2], 0.1),
        channels(lambda x: F.rms_norm(x, [2], WEIGHT[:2], 0.1)),
    ),
    "rms_norm, t5": (
        lambda x: fusedops.rms_norm(x, [2, 4], x * 2, variant="t5"),
        lambda x: F.rms_norm(x, [2, 4], x * 2, RMS_EPS),
    ),
    "add_layer_norm": (
        lambda x: both(fusedops.add_layer_norm(x, RESIDUAL, [4], WEIGHT, BIAS)),
        lambda x: both((reference.layer_norm(x + RESIDUAL, [4], WEIGHT, BIAS), x + RESIDUAL)),
    ),
    "add_layer_norm, dropout": (
        lambda x: fusedops.add_layer_norm(x, RESIDUAL, [4], p=0.5, seed=SEED, return_sum=False),
        lambda x: reference.layer_norm(added(x), [4]),
    ),
    "add_rms_norm": (
        lambda x: both(fusedops.add_rms_norm(x, x * 2, [4], WEIGHT)),
        lambda x: both((F.rms_norm(x * 3, [4], WEIGHT, RMS_EPS), x * 3)),
    ),
    "add_rms_norm, a residual of another dtype": (
        lambda x: both(fusedops.add_rms_norm(x, RESIDUAL.float(), [4], WEIGHT)),
        lambda x: both(
            (F.rms_norm(x + RESIDUAL.float(), [4], WEIGHT, RMS_EPS), x + RESIDUAL.float())
        ),
    ),
    "stack_softmax": (
        lambda x: fusedops.stack_softmax([x, RESIDUAL], -1, 1),
        lambda x: torch.stack([x.softmax(-1), RESIDUAL.softmax(-1)], 1),
    ),
    "stack_log_softmax": (
        lambda x: fusedops.stack_log_softmax([x, x * 2], -1),
        lambda x: torch.stack([x.log_softmax(-1), (x * 2).log_softmax(-1)]),
    ),
    "stack_layer_norm": (
        lambda x: fusedops.stack_layer_norm([x, RESIDUAL], [4], [WEIGHT] * 2),
        lambda x: torch.stack([reference.layer_norm(v, [4], WEIGHT) for v in (x, RESIDUAL)]),
    ),
}


def number(function):
    return lambda x: function(x).sin().sum()


#: Transforms of a function of one slice of X.
TRANSFORMS = {
    "grad": lambda f: func.grad(number(f))(X[0]),
    "vjp": lambda f: func.vjp(number(f), X[0])[1](X.new_tensor(2.0))[0],
    "jacrev": lambda f: func.jacrev(f)(X[0]),
    "second derivatives": lambda f: func.jacrev(func.jacrev(number(f)))(X[0]),
    "gradient of a gradient": lambda f: func.grad(number(func.grad(number(f))))(X[0]),
    "per-sample gradients": lambda f: torch.vmap(func.grad(number(f)))(X),
    "per-sample second derivatives": lambda f: torch.vmap(func.jacrev(func.grad(number(f))))(X),
    "gradient of a vmap": lambda f: func.grad(number(torch.vmap(f)))(X),
    "gradient, then backward": lambda f: backward(func.grad(number(f))),
    "jvp": lambda f: func.jvp(f, (X[0],), (X[1],)),
    "hessian": lambda f: func.hessian(number(f))(X[0]),
    "forward over forward": lambda f: func.jacfwd(func.jacfwd(number(f)))(X[0]),
    "reverse over forward": lambda f: func.jacrev(func.jacfwd(number(f)))(X[0]),
    "per-sample tangents": lambda f: torch.vmap(lambda x, t: func.jvp(f, (x,), (t,)))(X, -X),
    "gradient of dual numbers": lambda f: dual(gradient(number(f)), X[0], X[1]),
}


def dual(function, x, tangent):
    """The result of a call in forward mode, and its tangent."""
    with forward_ad.dual_level():
        result = function(forward_ad.make_dual(x, tangent))
        return tuple(forward_ad.unpack_dual(result))


def gradient(function):
    """The gradient by autograd, of a tensor that may be dual."""

    def differentiated(x):
        leaf = x.detach().requires_grad_()
        given = forward_ad.make_dual(leaf, forward_ad.unpack_dual(x).tangent)
        return torch.autograd.grad(function(given), leaf, create_graph=True)[0]

    return differentiated


def backward(function):
    x = X[0].clone().requires_grad_()
    return torch.autograd.grad(function(x).cos().sum(), x)[0]


#: torch refuses to write into a constant tangent, also for its own functions in place.
IN_PLACE_TWICE = ("softmax_", "forward over forward")


@pytest.mark.parametrize(
    ("name", "transform"),
    [pair for pair in itertools.product(FUNCTIONS, TRANSFORMS) if pair != IN_PLACE_TWICE],
)
def test_a_transform_of_a_function_is_that_of_pytorchs(name, transform):
    ours, torchs = FUNCTIONS[name]
    apply = TRANSFORMS[transform]
    torch.testing.assert_close(apply(ours), apply(torchs), rtol=1e-9, atol=1e-10)


MODULES = {
    "LayerNorm": (nn.LayerNorm(4), torch.nn.LayerNorm(4)),
    "RMSNorm": (nn.RMSNorm(4, eps=1e-6), torch.nn.RMSNorm(4, eps=1e-6)),
}


@pytest.mark.parametrize("name", MODULES)
def test_per_sample_gradients_of_parameters_are_those_of_a_loop(name):
    ours, torchs = (module.double() for module in MODULES[name])
    parameters = {key: p.detach() + 0.5 for key, p in torchs.named_parameters()}

    def per_sample(module):
        def loss(parameters, x):
            return func.functional_call(module, parameters, (x,)).sin().sum()

        return torch.vmap(func.grad(loss), in_dims=(None, 0))(parameters, X)

    torch.testing.assert_close(per_sample(ours), per_sample(torchs), rtol=1e-9, atol=1e-10)


def test_an_op_called_by_its_name_is_transformed_too():
    found = func.jacrev(lambda x: torch.ops.fusedops.softmax(x, -1))(X[0])
    torch.testing.assert_close(found, func.jacrev(lambda x: x.softmax(-1))(X[0]))


@pytest.mark.parametrize("backend", ["aot_eager", "fusedops"])
@pytest.mark.parametrize("name", ["softmax", "masked_softmax", "layer_norm", "stack_softmax"])
def test_compiled_per_sample_gradients_are_those_of_torchs(name, backend):
    ours, torchs = (torch.vmap(func.grad(number(f))) for f in FUNCTIONS[name])
    compiled = torch.compile(ours, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(X), torchs(X), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("transform", [func.hessian, lambda f: lambda x: func.jvp(f, (x,), (-x,))])
@pytest.mark.parametrize("name", ["softmax", "masked_softmax", "layer_norm", "stack_layer_norm"])
def test_compiled_tangents_are_those_of_torchs(name, transform):
    ours, torchs = (transform(number(f)) for f in FUNCTIONS[name])
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(X[0]), torchs(X[0]), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", ["softmax", "masked_softmax", "layer_norm", "stack_softmax"])
def test_a_tangent_does_not_depend_on_grad_mode_or_on_how_it_is_computed(name):
    ours, torchs = FUNCTIONS[name]
    expected = func.jvp(torchs, (X[0],), (X[1],))
    torch.testing.assert_close(torch.no_grad()(dual)(ours, X[0], X[1]), expected)
    torch.testing.assert_close(func.linearize(ours, X[0])[1](X[1]), expected[1])
    torch.testing.assert_close(func.jacfwd(ours)(X[0]), func.jacrev(torchs)(X[0]))
    of_batch = func.jvp(torch.vmap(ours), (X,), (-X,))
    torch.testing.assert_close(of_batch, func.jvp(torch.vmap(torchs), (X,), (-X,)))


def test_forward_over_forward_of_a_softmax_in_place_is_refused_as_torch_does():
    with pytest.raises(RuntimeError, match="ZeroTensors are immutable"):
        TRANSFORMS["forward over forward"](FUNCTIONS["softmax_"][0])


def cube(x):
    return fusedops.layer_norm(x, [4]).pow(3).sum()


@pytest.mark.parametrize("outer", [func.jacrev, func.jacfwd])
def test_a_third_derivative_of_a_norm_in_reverse_mode_is_refused(outer):
    with pytest.raises(NotImplementedError, match="derivatives of first and second order"):
        outer(func.jacrev(func.jacrev(cube)))(X[0])


@pytest.mark.parametrize("inner", [func.jacfwd, func.hessian])
def test_a_third_derivative_over_forward_mode_is_torchs(inner):
    found = func.jacrev(inner(func.jacfwd(cube) if inner is func.jacfwd else cube))(X[0])
    torchs = func.jacrev(func.hessian(lambda x: reference.layer_norm(x, [4]).pow(3).sum()))(X[0])
    torch.testing.assert_close(found, torchs, rtol=1e-9, atol=1e-10)


def test_a_wrapper_that_a_transform_leaves_behind_is_recorded_as_its_tensor():
    left = []

    def function(x):
        left.append(x * 1)
        return x.sum()

    x = X[0].clone().requires_grad_()
    func.grad(function)(x)
    (grad,) = torch.autograd.grad(number(FUNCTIONS["softmax"][0])(left[0]), x)
    torch.testing.assert_close(grad, func.grad(number(FUNCTIONS["softmax"][1]))(X[0]))


def test_without_grad_a_transform_takes_the_result_for_a_constant():
    def function(x):
        with torch.no_grad():
            constant = fusedops.softmax(x, -1)
        return (x * constant).sum()

    torch.testing.assert_close(func.grad(function)(X[0]), X[0].softmax(-1))
