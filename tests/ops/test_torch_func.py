"""Under torch.func and in forward mode the derivatives of first and second order and per-sample
gradients of every public function are those of PyTorch's own functions, or of a plain loop."""

import itertools

import pytest
import torch
from functions import FUNCTIONS, X
from torch import func
from torch.autograd import forward_ad

import fusedops
from fusedops import nn, reference


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
