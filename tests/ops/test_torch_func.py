"""Under torch.func the grad, vjp, jacrev, second derivatives and per-sample gradients of every
public function are those of PyTorch's own functions, or of a plain loop."""

import itertools

import pytest
import torch
from torch import func
from torch.nn import functional as F

import fusedops
from fusedops import nn

torch.manual_seed(0)
X = torch.randn(3, 2, 4, dtype=torch.float64)
RESIDUAL, WEIGHT, BIAS = (torch.randn(s, dtype=torch.float64) for s in ((2, 4), (4,), (4,)))
MASK = torch.tensor([[True, True, False, True], [True, False, True, True]])
SEED = torch.tensor(5)
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


def masked(x):
    return (0.5 * x + BIAS).masked_fill(~MASK, -torch.inf).softmax(-1)


def masked_dropout(x):
    dropped = fusedops.masked_softmax_dropout(torch.zeros(x.shape, dtype=x.dtype), seed=SEED)
    return masked(x) * (dropped != 0) * 2


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
    "masked_softmax_dropout": (
        lambda x: fusedops.masked_softmax_dropout(x, MASK, scale=0.5, bias=BIAS, seed=SEED),
        masked_dropout,
    ),
    "layer_norm": (
        lambda x: fusedops.layer_norm(x, [4], WEIGHT, BIAS),
        lambda x: F.layer_norm(x, [4], WEIGHT, BIAS),
    ),
    "layer_norm, of the weight": (
        lambda x: fusedops.layer_norm(RESIDUAL, [2, 4], x, x),
        lambda x: F.layer_norm(RESIDUAL, [2, 4], x, x),
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
    "add_layer_norm": (
        lambda x: both(fusedops.add_layer_norm(x, RESIDUAL, [4], WEIGHT, BIAS)),
        lambda x: both((F.layer_norm(x + RESIDUAL, [4], WEIGHT, BIAS), x + RESIDUAL)),
    ),
    "add_layer_norm, dropout": (
        lambda x: fusedops.add_layer_norm(x, RESIDUAL, [4], p=0.5, seed=SEED, return_sum=False),
        lambda x: F.layer_norm(added(x), [4]),
    ),
    "add_rms_norm": (
        lambda x: both(fusedops.add_rms_norm(x, x * 2, [4], WEIGHT)),
        lambda x: both((F.rms_norm(x * 3, [4], WEIGHT, RMS_EPS), x * 3)),
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
        lambda x: torch.stack([F.layer_norm(v, [4], WEIGHT) for v in (x, RESIDUAL)]),
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
}


def backward(function):
    x = X[0].clone().requires_grad_()
    return torch.autograd.grad(function(x).cos().sum(), x)[0]


#: vmap refuses functions that write, by name (test_ops_vmap_arguments.py).
NOT_BATCHED = ("softmax_", "gradient of a vmap")


@pytest.mark.parametrize(
    ("name", "transform"),
    [pair for pair in itertools.product(FUNCTIONS, TRANSFORMS) if pair != NOT_BATCHED],
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


@pytest.mark.parametrize("name", ["softmax", "masked_softmax", "layer_norm", "stack_softmax"])
def test_a_compiled_transform_is_the_transform(name):
    ours, torchs = (torch.vmap(func.grad(number(f))) for f in FUNCTIONS[name])
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(X), torchs(X), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_forward_over_reverse_is_refused_and_never_silently_zero(name):
    function = number(FUNCTIONS[name][0])
    if name == "merge_softmax_stats":  # of parts that fusedops has reduced
        function = number(lambda x: fusedops.softmax_stats(x, -1)[1])
    with pytest.raises(NotImplementedError, match="has no forward-mode derivative"):
        func.hessian(function)(X[0])


def test_a_third_derivative_of_a_norm_is_refused():
    third = func.jacrev(func.jacrev(func.jacrev(lambda x: fusedops.layer_norm(x, [4]).sum())))
    with pytest.raises(NotImplementedError, match="derivatives of first and second order"):
        third(X[0])


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
