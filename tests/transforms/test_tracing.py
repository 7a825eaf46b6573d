"""What torch's tracers make of every function and module computes what the call computes."""

import copy
import pickle

import pytest
import torch
from functions import CLASSES, FUNCTIONS, SEED, WEIGHT, X
from torch import fx

import fusedops
from fusedops import nn

X = X[0]
MASK = X > -0.5
#: Functions of a tensor of two rows and four columns.
FUNCTIONS = {
    # A symbolic trace cannot unpack the statistics.
    **{name: ours for name, (ours, _) in FUNCTIONS.items() if name != "softmax_apply"},
    "softmax of all in float32": lambda x: fusedops.softmax(x, None, torch.float32),
    "log_softmax of all": lambda x: fusedops.log_softmax(x, None),
    "softmax, out": lambda x: fusedops.softmax(x, -1, out=torch.empty_like(x)),
    "log_softmax of all, out": lambda x: fusedops.log_softmax(x, None, out=torch.empty_like(x)),
    "masked_softmax, window": lambda x: fusedops.masked_softmax(x, causal="bottom_right", window=2),
    "masked_softmax, a sink": lambda x: fusedops.masked_softmax(x, sinks=0.5),
    "masked_softmax, out": lambda x: fusedops.masked_softmax(x, out=torch.empty_like(x)),
    "dropout of nothing": lambda x: fusedops.dropout(x, 0.0),
    "dropout, in evaluation": lambda x: fusedops.dropout(x, training=False),
    "layer_norm, of x's own shape": lambda x: fusedops.layer_norm(x, x.shape[-1:]),
    "add_rms_norm, of x's own shape": lambda x: fusedops.add_rms_norm(x, x, (x.shape[-1],))[0],
    "stack_layer_norm, of x's own shape": lambda x: fusedops.stack_layer_norm([x], [x.size(-1)]),
    "segment_bounds": lambda x: fusedops.segment_bounds((x > 0).long().cumsum(-1))[0],
    "cross_entropy, weights": lambda x: fusedops.cross_entropy(x, CLASSES, WEIGHT, softcap=2.0),
    "cross_entropy, columns": lambda x: fusedops.cross_entropy(x.t(), CLASSES, dim=0),
    "add_rms_norm, llama": lambda x: fusedops.add_rms_norm(
        x, x, [4], WEIGHT.float(), variant="llama"
    )[0],
    "nn.Softmax": nn.Softmax(-1),
    "nn.MaskedSoftmax": nn.MaskedSoftmax(causal="bottom_right", sinks=0.5),
    **{
        f"nn.{name}": module.double()
        for name, module in {
            "LayerNorm": nn.LayerNorm(4),
            "StdNorm": nn.StdNorm(4),
            "RMSNorm": nn.RMSNorm(4),
            "RMSNorm, llama": nn.RMSNorm(4, variant="llama"),
            "LayerNorm2d": torch.nn.Sequential(nn.LayerNorm2d(4)),
        }.items()
    },
}
TRACERS = {
    "symbolic_trace": fx.symbolic_trace,
    "jit.trace": lambda f: torch.jit.trace(f, X),
    "make_fx": lambda f: fx.experimental.proxy_tensor.make_fx(f)(X),
}


@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_trace_computes_what_the_function_computes(name, tracer):
    traced = TRACERS[tracer](FUNCTIONS[name])
    y = torch.randn_like(X)
    assert torch.equal(traced(y), FUNCTIONS[name](y))


@pytest.mark.parametrize("name", ["softmax_", "nn.RMSNorm", "masked_softmax, of the sinks"])
@pytest.mark.parametrize("tracer", ["symbolic_trace", "jit.trace"])
def test_a_trace_of_a_tensor_that_requires_grad_is_differentiable(name, tracer):
    x = X.clone().requires_grad_()
    call = FUNCTIONS[name]
    traced = fx.symbolic_trace(call) if tracer == "symbolic_trace" else torch.jit.trace(call, x)
    (expected,) = torch.autograd.grad(call(x).sin().sum(), x)
    torch.testing.assert_close(torch.autograd.grad(traced(x).sin().sum(), x)[0], expected)


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(4)
        self.scores = nn.MaskedSoftmax(sinks=0.5, p=0.5).eval()

    def forward(self, x):
        return self.scores(self.norm(x))


def test_a_symbolic_trace_of_modules_is_copied_pickled_and_rewritten():
    model = Layers().double()
    traced = fx.symbolic_trace(model)
    expected = model(X)
    assert torch.equal(copy.deepcopy(traced)(X), expected)
    assert torch.equal(pickle.loads(pickle.dumps(traced))(X), expected)
    assert torch.equal(fusedops.rewrite(traced, X)(X), expected)


def test_a_symbolic_trace_of_a_module_takes_the_arguments_that_it_leaves_open():
    module = nn.MaskedSoftmax(sinks=0.5)
    traced = fx.symbolic_trace(module)
    sinks = torch.tensor([1.0, -1.0])
    assert torch.equal(traced(X), module(X))
    assert torch.equal(traced(X, MASK, sinks=sinks), module(X, MASK, sinks=sinks))


def test_a_write_in_a_symbolic_trace_is_not_dead_code():
    def writes(x):
        fusedops.softmax_(x, -1)
        return x

    traced = fx.symbolic_trace(writes)
    traced.graph.eliminate_dead_code()
    traced.recompile()
    assert torch.equal(traced(X.clone()), fusedops.softmax(X, -1))


@pytest.mark.parametrize("function", [fusedops.masked_softmax_dropout, fusedops.dropout])
def test_dropout_draws_anew_at_each_call_of_a_symbolic_trace(function):
    traced = fx.symbolic_trace(lambda x: function(x))
    torch.manual_seed(1)
    first, second = traced(X), traced(X)
    torch.manual_seed(1)
    assert torch.equal(first, function(X))
    assert not torch.equal(first, second)


def test_a_meta_tensor_takes_a_seed_of_the_cpu():
    x = X.to("meta")
    assert fusedops.masked_softmax_dropout(x, seed=SEED).is_meta
    assert fusedops.dropout(x, seed=SEED).is_meta
    assert fusedops.add_layer_norm(x, x, [4], p=0.5, seed=SEED)[0].is_meta


def test_a_batch_of_gradients_of_a_stack_is_a_loop_over_them():
    inputs = [torch.randn(2, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    weights = [torch.randn(4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    stack = fusedops.stack_layer_norm(inputs, [4], weights, stack_dim=1)
    grads, given = torch.randn(3, *stack.shape, dtype=torch.float64), [*inputs, *weights]
    found = torch.autograd.grad(stack, given, grads, is_grads_batched=True, retain_graph=True)
    each = [torch.autograd.grad(stack, given, grad, retain_graph=True) for grad in grads]
    expected = tuple(map(torch.stack, zip(*each, strict=True)))
    torch.testing.assert_close(found, expected)


def test_a_trace_warns_that_it_keeps_the_diagonal():
    with pytest.warns(torch.jit.TracerWarning, match="Python integer"):
        torch.jit.trace(
            lambda x: fusedops.masked_softmax(x, causal="bottom_right"), torch.randn(4, 6)
        )
