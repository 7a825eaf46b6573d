"""Compiled graphs write a softmax into memory that nothing else reads, and into no other; and they
do not write results that nothing reads, backward passes included."""

import copy

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_agrees
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.utils import fresh_cache, run_and_get_code

import fusedops
from fusedops.graph.passes import ReusePass


def inputs(requires_grad=False):
    return [torch.randn(2, 3, 16, 8, requires_grad=requires_grad) for _ in range(3)]


def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2), -1) @ v


def test_attention_scores_become_the_probabilities(compiled_calls):
    q, k, v = inputs()
    actual, ((call, _),) = compiled_calls(attention, q, k, v)
    assert call == "softmax_"
    torch.testing.assert_close(actual, attention(q, k, v))


def _reader_of_scores_and_probabilities(q, k, v):
    scores = q @ k.mT
    # The sum hands the gradient of the probabilities on to the scores as it is.
    return (torch.softmax(scores, -1) + scores) @ v


#: Functions in training, and the calls that run.
TRAINED = {
    "softmax": (attention, ["softmax_", "softmax_backward_"]),
    "log_softmax": (
        lambda q, k, v: fusedops.log_softmax(q @ k.mT, -1) @ v,
        ["log_softmax_", "log_softmax_backward_"],
    ),
    "masked_softmax": (
        lambda q, k, v: fusedops.masked_softmax(q @ k.mT, causal=True, scale=0.5) @ v,
        ["masked_softmax_", "masked_softmax_backward_"],
    ),
    "masked_softmax_dropout": (
        lambda q, k, v: fusedops.masked_softmax_dropout(q @ k.mT, p=0.5, seed=torch.tensor(3)) @ v,
        ["masked_softmax_dropout", "masked_softmax_dropout_backward_"],
    ),
    "a gradient with two readers": (
        _reader_of_scores_and_probabilities,
        ["_softmax", "_softmax_backward"],
    ),
}


@pytest.mark.parametrize("function, calls", TRAINED.values(), ids=TRAINED)
def test_gradients_are_written_into_memory_that_nothing_else_reads(compiled_calls, function, calls):
    ours = inputs(requires_grad=True)
    eager = [tensor.detach().requires_grad_() for tensor in ours]
    _, made = compiled_calls(function, *ours)
    assert [name for name, _ in made] == calls
    function(*eager).sum().backward()
    for actual, expected in zip(ours, eager, strict=True):
        torch.testing.assert_close(actual.grad, expected.grad)


NOT_FREE = {
    "the input itself": lambda q, k, v: torch.softmax(q, -1),
    "a view of the input": lambda q, k, v: torch.softmax(q.view(6, 16, 8), -1),
    "a slice of the input": lambda q, k, v: torch.softmax(q.split(8, 2)[0], -1),
    "used again later": lambda q, k, v: (lambda s: torch.softmax(s, -1) + s)(q @ k.mT),
    "a view is used again": lambda q, k, v: (lambda s: torch.softmax(s, -1) + s.mT)(q @ k.mT),
    "also a result": lambda q, k, v: (lambda s: (torch.softmax(s, -1), s))(q @ k.mT),
    "two softmaxes of it": lambda q, k, v: (
        lambda s: torch.softmax(s, -1) + torch.softmax(s.mT, -1)
    )(q @ k.mT),
    "wider than it": lambda q, k, v: torch.softmax(q @ k.mT, -1, dtype=torch.float64),
}


@pytest.mark.parametrize("name", NOT_FREE)
def test_memory_that_is_not_free_is_left_alone(compiled_calls, name):
    args = inputs()
    before = [t.clone() for t in args]
    actual, calls = compiled_calls(NOT_FREE[name], *args)
    assert calls and not any(call == "softmax_" for call, _ in calls)
    torch.testing.assert_close(actual, NOT_FREE[name](*before))
    assert all(map(torch.equal, args, before))


def test_eager_mode_never_writes_into_the_incoming_gradient():
    x = torch.randn(4, 9, requires_grad=True)
    grad = torch.randn(4, 9)
    before = grad.clone()
    for y in (fusedops.softmax(x, -1), fusedops.masked_softmax(x, causal=True)):
        y.backward(grad)
        assert torch.equal(grad, before)


def test_equal_results_that_are_returned_have_memory_of_their_own():
    def equal_norms(x):
        first, second, third = (fusedops.layer_norm(x, (8,)) for _ in range(3))
        return first, second, third.view(-1)

    called = []

    def compile_graph(graph_module, _):
        ReusePass()(graph_module.graph)
        graph_module.recompile()
        called.extend(str(node.target) for node in graph_module.graph.nodes)
        return make_boxed_func(graph_module.forward)

    backend = aot_autograd(
        fw_compiler=compile_graph, partition_fn=min_cut_rematerialization_partition
    )
    q, *_ = inputs(requires_grad=True)
    results = torch.compile(equal_norms, backend=backend)(q)
    assert called.count("fusedops._layer_norm.default") == 1
    assert len({result.untyped_storage().data_ptr() for result in results}) == 3
    torch.testing.assert_close(results, equal_norms(q))


def test_a_plain_compilation_reuses_under_patch():
    q, k, v = inputs()
    with fusedops.patch(), fresh_cache():
        compiled = torch.compile(attention)
        actual, codes = run_and_get_code(compiled, q, k, v)
    assert any("fusedops_kernels.softmax_(" in code for code in codes)
    torch.testing.assert_close(actual, F.softmax(q @ k.mT, -1) @ v)


# --- results that nothing reads -------------------------------------------------------------------

SHAPE = (16,)


def post_norm(x, r):
    return F.layer_norm(x @ x.mT @ x + r, SHAPE)


def pre_norm(x, r):
    total = x @ x.mT @ x + r
    return F.layer_norm(total, SHAPE), total @ total.mT


def post_rms_norm(x, r):
    return F.rms_norm(x @ x.mT @ x + r, SHAPE, None, 1e-6)


@pytest.mark.parametrize(
    ("function", "op", "wants_sum"),
    [
        (post_norm, "_add_layer_norm", False),
        (pre_norm, "_add_layer_norm", True),
        (post_rms_norm, "_add_rms_norm", False),
    ],
)
def test_inference_writes_the_sum_where_it_is_wanted(compiled_calls, function, op, wants_sum):
    x, r = torch.randn(2, 4, 8, 16)
    with torch.no_grad():
        result, ((name, arguments),) = compiled_calls(function, x, r)
    assert name == op and (", True" in arguments) == wants_sum
    torch.testing.assert_close(result, function(x, r), rtol=1e-5, atol=1e-4)


#: Norms whose statistics only a backward pass reads.
NORMS = {
    "layer_norm": lambda x: F.layer_norm(x, SHAPE),
    "rms_norm": lambda x: F.rms_norm(x, SHAPE, None, 1e-6),
    "std_norm": lambda x: fusedops.std_norm(x, SHAPE, eps=1e-6),
    "spatial_layer_norm": lambda x: fusedops.spatial_layer_norm(x, 1),
}


@pytest.mark.parametrize("name", NORMS)
def test_inference_writes_no_statistics(compiled_calls, name):
    def function(x):
        return NORMS[name](x @ x.mT @ x)

    x = torch.randn(4, 8, 16, requires_grad=True)
    with torch.no_grad():
        result, ((inferred, _),) = compiled_calls(function, x)
    torch.testing.assert_close(result, function(x), rtol=1e-5, atol=1e-4)
    _, ((trained, _), _) = compiled_calls(function, x)
    assert (inferred, trained) == (f"_{name}_output", f"_{name}")


def test_training_keeps_what_the_backward_pass_reads(compiled_calls):
    def loss(x, r):
        return post_norm(x, r).sin().sum()

    x, r = torch.randn(2, 4, 8, 16).unbind(0)
    x.requires_grad_()
    _, calls = compiled_calls(loss, x, r)
    assert calls[0][0] == "add_layer_norm"
    (eager,) = torch.autograd.grad(loss(x, r), x)
    torch.testing.assert_close(x.grad, eager, rtol=1e-4, atol=1e-4)


def test_dropout_without_a_gradient_does_not_write_the_probabilities(compiled_calls):
    x = torch.randn(4, 64, 64)
    with torch.no_grad():
        result, ((name, _),) = compiled_calls(
            lambda x: F.dropout((x @ x * 0.1).softmax(-1), 0.5) @ x, x
        )
    assert name == "_masked_softmax_dropout"
    assert result.isfinite().all()


def test_what_a_region_reads_belongs_to_the_graph_around_it():
    """Inductor says which inputs of the whole backward graph are free, while it compiles a part."""

    @torch.compiler.nested_compile_region
    def region(x):
        return x.softmax(-1)

    def step(q, k, v):
        scores = q @ k.mT
        return region(scores) @ v + region(scores.sin()).square() @ v + scores.square() @ v

    tensors = inputs(requires_grad=True)
    with fusedops.config.patch(fuse="always"):
        compiled = torch.compile(step, backend="fusedops", fullgraph=True)
        ours, eager = (torch.autograd.grad(f(*tensors).sum(), tensors) for f in (compiled, step))
    torch.testing.assert_close(ours, eager)


def test_the_mask_of_a_relu_before_a_linear_layer_is_not_saved():
    model, x = torch.nn.Sequential(*map(torch.nn.Linear, (8, 16), (16, 4))), torch.randn(3, 5, 8)
    model.insert(1, torch.nn.ReLU())
    parameters, kept = list(model.parameters()), []
    compiled = torch.compile(model, backend="fusedops", dynamic=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = compiled(x)
    assert kept and not any(t.dtype == torch.bool for t in kept)
    ours, eager = (torch.autograd.grad(y.sum(), parameters) for y in (y, model(x)))
    torch.testing.assert_close(ours, eager)


class _EmbeddedBias(torch.nn.Module):
    """T5's: a number for each head and bucket of distances, one of which is padding."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(6, 3, padding_idx=1)

    def forward(self, x):
        place = torch.arange(x.shape[-1])
        distance = (place - place[:, None]).abs().clamp(max=5)
        return (x + self.table(distance).permute(2, 0, 1)).softmax(-1).square()


class _IndexedBias(torch.nn.Module):
    """Swin's and BEiT's: a number for each head and distance, here of up to 4 either way. A
    distance below 0 counts from the table's end."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(9, 3))

    def forward(self, x):
        place = torch.arange(x.shape[-1])
        distance = (place - place[:, None]).clamp(-4, 4)
        bias = self.table[distance.view(-1)].view(*distance.shape, -1)
        return (x + bias.permute(2, 0, 1)).softmax(-1).square()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kind", [_EmbeddedBias, _IndexedBias])
def test_threads_do_not_share_the_gradient_of_a_small_table(kind, dynamic):
    torch.set_num_threads(2)  # until the end of the test: threads.py
    model, x = kind(), torch.randn(2, 3, 40, 40)
    compiled = torch.compile(model, backend="fusedops", dynamic=dynamic)
    with fresh_cache():
        _, code = run_and_get_code(lambda: compiled(x).sum().backward())
    assert "atomic_add" not in "".join(code)
    exact = copy.deepcopy(model).double()
    exact.zero_grad()
    exact(x.double()).sum().backward()
    for ours, reference in zip(model.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.double(), reference.grad, rtol=1e-5, atol=1e-6)
        zeros = reference.grad == 0  # of the padding
        assert not ours.grad[zeros].any()


def test_16_bit_gradients_of_a_small_table_are_added_as_floats():
    table = torch.randn(4, 3).bfloat16().requires_grad_()
    index, grad = torch.arange(4).repeat(1000), torch.randint(4, (4000, 3)).bfloat16()
    read = torch.compile(lambda table: table[index] * 1, backend="fusedops")
    read(table).backward(grad)
    exact = grad.double().view(1000, 4, 3).sum(0)
    assert torch.equal(table.grad, exact.bfloat16())


def _masked_sums(mask, index):
    put = torch.ops.aten._unsafe_masked_index_put_accumulate
    return lambda v: put(v.new_zeros(8, 3), mask, [index], v)


INDEX = torch.arange(64) % 8


def _integers(v):
    large = torch.full((64, 3), 2**24 + 1)  # no float, nor are their sums
    sums = torch.zeros(8, 3, dtype=torch.int64).index_put((INDEX,), large, accumulate=True)
    return v + sums.remainder(7)[INDEX]


OTHER_SUMS = {
    "of frequencies": lambda v: F.embedding(INDEX, v[:8], scale_grad_by_freq=True),
    "of single values": _masked_sums(torch.rand(64, 3) > 0.5, INDEX),
    "from the end": _masked_sums((INDEX > 4)[:, None], INDEX - 4),
    "of integers": _integers,
}


@pytest.mark.parametrize("model", OTHER_SUMS.values(), ids=OTHER_SUMS)
def test_other_sums_over_an_index_are_inductors(model):
    compiled = torch.compile(model, backend="fusedops")
    assert_agrees(compiled, model, [torch.randn(64, 3, dtype=torch.float64, requires_grad=True)])
