"""What torch's tracers make of every function and module computes what the call computes."""

import copy
import pickle

import pytest
import torch
from torch import fx

import fusedops
from fusedops import nn

torch.manual_seed(0)
X = torch.randn(2, 4)
WEIGHT, MASK, SEED = torch.randn(4), X > -0.5, torch.tensor(5)
CLASSES = torch.tensor([3, 1])

#: Functions of a tensor of two rows and four columns.
FUNCTIONS = {
    "softmax": lambda x: fusedops.softmax(x, -1),
    "softmax of all": lambda x: fusedops.softmax(x, None, torch.float64),
    "log_softmax of all": lambda x: fusedops.log_softmax(x, None),
    "softmax, out": lambda x: fusedops.softmax(x, -1, out=torch.empty_like(x)),
    "log_softmax of all, out": lambda x: fusedops.log_softmax(x, None, out=torch.empty_like(x)),
    "softmax_": lambda x: fusedops.softmax_(x * 1, -1),
    "softmax_stats": lambda x: fusedops.softmax_stats(x, -1)[1],
    "merge_softmax_stats": lambda x: fusedops.merge_softmax_stats([fusedops.softmax_stats(x, 0)])[
        1
    ],
    "masked_softmax": lambda x: fusedops.masked_softmax(x, MASK, scale=0.5),
    "masked_softmax, bottom_right": lambda x: fusedops.masked_softmax(x, causal="bottom_right"),
    "masked_softmax, window": lambda x: fusedops.masked_softmax(x, causal="bottom_right", window=2),
    "masked_softmax, a sink": lambda x: fusedops.masked_softmax(x, sinks=0.5),
    "masked_softmax, sinks": lambda x: fusedops.masked_softmax(x, sinks=x[:, 0]),
    "masked_softmax, out": lambda x: fusedops.masked_softmax(x, out=torch.empty_like(x)),
    "masked_softmax_dropout": lambda x: fusedops.masked_softmax_dropout(x, seed=SEED),
    "segment_bounds": lambda x: fusedops.segment_bounds((x > 0).long().cumsum(-1))[0],
    "cross_entropy": lambda x: fusedops.cross_entropy(x, CLASSES, WEIGHT, softcap=2.0),
    "cross_entropy, lse": lambda x: fusedops.cross_entropy(x.t(), CLASSES, dim=0, return_lse=True)[
        1
    ],
    "layer_norm": lambda x: fusedops.layer_norm(x, [4], WEIGHT),
    "rms_norm": lambda x: fusedops.rms_norm(x, [4], WEIGHT),
    "rms_norm, llama": lambda x: fusedops.rms_norm(x, [4], WEIGHT.double(), variant="llama"),
    "l2_norm": lambda x: fusedops.l2_norm(x, [4]),
    "spatial_rms_norm": lambda x: fusedops.spatial_rms_norm(x, 0),
    "add_layer_norm": lambda x: fusedops.add_layer_norm(x, x, [4])[0],
    "add_rms_norm": lambda x: fusedops.add_rms_norm(x, x, [4], WEIGHT)[1],
    "add_rms_norm, llama": lambda x: fusedops.add_rms_norm(
        x, x, [4], WEIGHT.double(), variant="llama"
    )[0],
    "add_rms_norm, two dtypes": lambda x: fusedops.add_rms_norm(x.bfloat16(), x, [4], WEIGHT)[0],
    "stack_softmax": lambda x: fusedops.stack_softmax([x, x], -1),
    "nn.Softmax": nn.Softmax(-1),
    "nn.MaskedSoftmax": nn.MaskedSoftmax(causal="bottom_right", sinks=0.5),
    "nn.LayerNorm": nn.LayerNorm(4),
    "nn.StdNorm": nn.StdNorm(4),
    "nn.RMSNorm": nn.RMSNorm(4),
    "nn.RMSNorm, llama": nn.RMSNorm(4, variant="llama"),
    "nn.LayerNorm2d": torch.nn.Sequential(nn.LayerNorm2d(4)),
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
    y = torch.randn(2, 4)
    assert torch.equal(traced(y), FUNCTIONS[name](y))


@pytest.mark.parametrize("name", ["softmax_", "nn.RMSNorm", "masked_softmax, sinks"])
@pytest.mark.parametrize("tracer", ["symbolic_trace", "jit.trace"])
def test_a_trace_of_a_tensor_that_requires_grad_is_differentiable(name, tracer):
    x = torch.randn(2, 4, requires_grad=True)
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
    model = Layers()
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


def test_dropout_draws_anew_at_each_call_of_a_symbolic_trace():
    traced = fx.symbolic_trace(lambda x: fusedops.masked_softmax_dropout(x))
    torch.manual_seed(1)
    first, second = traced(X), traced(X)
    torch.manual_seed(1)
    assert torch.equal(first, fusedops.masked_softmax_dropout(X))
    assert not torch.equal(first, second)


def test_a_meta_tensor_takes_a_seed_of_the_cpu():
    x = X.to("meta")
    assert fusedops.masked_softmax_dropout(x, seed=SEED).is_meta
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
