"""Between a public function and its kernel lies as little as possible, and modes, subclasses and
traces still see the op."""

import sys

import pytest
import torch
from modes import Called, Dispatched
from torch._dynamo.testing import EagerAndRecordGraphs
from torch.profiler import ProfilerActivity, profile

import fusedops

X, RESIDUAL = torch.randn(2, 3, 8).unbind()
WEIGHT, BIAS = torch.randn(2, 8).unbind()
SEED, CLASSES = torch.tensor(3), torch.tensor([0, 4, 7])
STATS = fusedops.softmax_stats(X, -1)

#: Functions of one tensor, each with its number of results.
FUNCTIONS = {
    "softmax": (lambda x: fusedops.softmax(x, -1), 1),
    "log_softmax": (lambda x: fusedops.log_softmax(x, -1), 1),
    "softmax_stats": (lambda x: fusedops.softmax_stats(x, -1), 2),
    "softmax_apply": (lambda x: fusedops.softmax_apply(x, *STATS, -1), 1),
    "cross_entropy": (lambda x: fusedops.cross_entropy(x, CLASSES, reduction="none"), 3),
    "masked_softmax": (lambda x: fusedops.masked_softmax(x, bias=BIAS), 1),
    "masked_softmax_dropout": (lambda x: fusedops.masked_softmax_dropout(x, seed=SEED), 1),
    "dropout": (lambda x: fusedops.dropout(x, seed=SEED), 1),
    "layer_norm": (lambda x: fusedops.layer_norm(x, [8], WEIGHT, BIAS), 1),
    "std_norm": (lambda x: fusedops.std_norm(x, [8], WEIGHT, BIAS), 1),
    "rms_norm": (lambda x: fusedops.rms_norm(x, [8], WEIGHT), 1),
    "l2_norm": (lambda x: fusedops.l2_norm(x, [8], WEIGHT), 1),
    "spatial_layer_norm": (lambda x: fusedops.spatial_layer_norm(x, 0, WEIGHT[:3]), 1),
    "spatial_rms_norm": (lambda x: fusedops.spatial_rms_norm(x, 0, WEIGHT[:3]), 1),
    "add_layer_norm": (lambda x: fusedops.add_layer_norm(x, RESIDUAL, [8], WEIGHT), 2),
    "add_layer_norm, the norm alone": (
        lambda x: fusedops.add_layer_norm(x, RESIDUAL, [8], return_sum=False),
        1,
    ),
    "add_rms_norm": (lambda x: fusedops.add_rms_norm(x, RESIDUAL, [8], WEIGHT), 2),
    "stack_softmax": (lambda x: fusedops.stack_softmax([x, RESIDUAL], -1), 1),
    "stack_log_softmax": (lambda x: fusedops.stack_log_softmax([x, RESIDUAL], -1), 1),
    "stack_layer_norm": (lambda x: fusedops.stack_layer_norm([x, RESIDUAL], [8]), 1),
}
#: Functions whose results are not parts of memory that one more op has allocated.
NO_STACKS = [name for name in FUNCTIONS if not name.startswith("stack")]


def op_name(name):
    return name.split(",")[0]


def allocations(call):
    """How often torch's allocator hands out memory in a call, the second of two."""
    results = [call()]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        results.append(call())  # so that nothing is freed before the profiler stops
    events = profiler.profiler.kineto_results.events()
    return sum(event.name() == "[memory]" and event.nbytes() > 0 for event in events)


@pytest.mark.parametrize("name", NO_STACKS)
def test_a_call_without_a_gradient_allocates_its_results_alone(name):
    function, results = FUNCTIONS[name]
    with torch.no_grad():
        assert allocations(lambda: function(X)) == results
        assert allocations(lambda: function(X.requires_grad_(False))) == results


def test_vmap_allocates_the_result_alone():
    assert allocations(lambda: torch.vmap(lambda x: fusedops.softmax(x, -1))(X)) == 1


UNEVEN = torch.randn(6, 3, 16)[::2].transpose(0, 1)[..., ::2]


@pytest.mark.parametrize("name", ["layer_norm", "std_norm", "rms_norm"])
def test_a_norm_of_rows_that_lie_unevenly_copies_them_once(name):
    function, _ = FUNCTIONS[name]
    with torch.no_grad():
        assert allocations(lambda: function(UNEVEN)) == 2


def ops_run(call):
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        call()
    return [event.name for event in profiler.events() if event.name.startswith("fusedops::")]


@pytest.mark.parametrize("name", NO_STACKS)
def test_a_recorded_eager_call_runs_one_op_and_makes_one_node(name):
    function, _ = FUNCTIONS[name]
    x = X.clone().requires_grad_()
    assert len(ops_run(lambda: function(x))) == 1
    result = function(x)
    node = (result if isinstance(result, torch.Tensor) else result[-1]).grad_fn
    if name == "cross_entropy":  # the caller gets a copy of the losses, to write over
        assert node.name() == "CloneBackward0"
        ((node, _),) = node.next_functions
    assert node.name() == f"fusedops_{op_name(name)}Backward"
    assert [following for following, _ in node.next_functions if following is not None] == [
        torch.autograd.graph.get_gradient_edge(x).node
    ]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_recorded_call_keeps_its_tensors_as_long_as_its_result(name):
    x = X.clone().requires_grad_()

    def uses():
        tensors = [x, WEIGHT, BIAS, RESIDUAL, *STATS]
        return [(tensor._use_count(), sys.getrefcount(tensor)) for tensor in tensors]

    function, before = FUNCTIONS[name][0], uses()
    result = function(x)
    assert uses() != before  # the graph leads to x
    del result
    assert uses() == before


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("mode", [Dispatched, Called])
def test_a_mode_sees_the_op_of_a_recorded_call(name, mode):
    function, _ = FUNCTIONS[name]
    with mode() as watching:
        function(X.clone().requires_grad_())
    assert f"fusedops.{op_name(name)}.default" in watching.seen


class Sub(torch.Tensor):
    pass


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("records", [False, True])
def test_a_subclass_stays_a_subclass(name, records):
    function, _ = FUNCTIONS[name]
    result = function(X.clone().as_subclass(Sub).requires_grad_(records))
    assert type(result if isinstance(result, torch.Tensor) else result[0]) is Sub


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "add_rms_norm"])
def test_a_trace_holds_the_op_and_no_python(name):
    function, _ = FUNCTIONS[name]
    traced = torch.jit.trace(function, X.clone().requires_grad_(), check_trace=False)
    graph = str(traced.graph)
    assert f"fusedops::{name}" in graph and "PythonOp" not in graph and "^" not in graph


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("records", [False, True])
def test_a_compiled_call_is_one_graph_with_the_op_and_is_compiled_once(name, records):
    function, _ = FUNCTIONS[name]
    backend = EagerAndRecordGraphs()
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    x = X.clone().requires_grad_(records)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), function(x))
    (graph,) = backend.graphs
    targets = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert [target for target in targets if target.startswith("fusedops")] == [
        f"fusedops.{op_name(name)}.default"
    ]


def test_symbolic_tracing_of_a_call_gives_the_op():
    graph = torch.fx.symbolic_trace(lambda x: fusedops.softmax(x, -1)).graph
    assert torch.ops.fusedops.softmax.default in [node.target for node in graph.nodes]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_recorded_call_has_the_gradients_of_the_op_by_its_name(name):
    """Gradients of first and second order are equal: the eager function's and the dispatcher's."""
    function, _ = FUNCTIONS[name]
    x = X.clone().requires_grad_()

    def gradients():
        result = function(x)
        result = result if isinstance(result, torch.Tensor) else result[-1]
        (first,) = torch.autograd.grad(result.square().sum(), x, create_graph=True)
        return first, *torch.autograd.grad(first.sin().sum(), x)

    eager = gradients()
    with Called():
        dispatched = gradients()
    for found, expected in zip(eager, dispatched, strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_compiled_autograd_differentiates_a_recorded_call_in_one_graph(name):
    function, _ = FUNCTIONS[name]
    x = X.clone().requires_grad_()

    def loss():
        result = function(x)
        return (result if isinstance(result, torch.Tensor) else result[-1]).square().sum()

    (expected,) = torch.autograd.grad(loss(), x)
    torch._dynamo.reset()
    in_one_graph = torch.compile(backend="eager", fullgraph=True)
    with torch._dynamo.compiled_autograd._enable(in_one_graph):
        loss().backward()
    assert torch.equal(x.grad, expected)
