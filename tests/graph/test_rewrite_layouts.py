"""Results have eager's strides: the op runs in the order of memory, and copies only where it has
to."""

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_one_graph, rewritten_alike
from decomposed import layer_norm_decomposed, rms_norm_decomposed, softmax_decomposed
from torch._subclasses import FakeTensorMode

import fusedops
from fusedops.graph.analysis.values import value

permute = torch.ops.aten.permute.default


def randn(*shape):
    return torch.randn(shape, dtype=torch.float64)


#: Each gives a tensor of 4 x 3 x 5 x 6 elements, but for those with dimensions of size 1.
LAYOUTS = {
    # What a projection gives, seen by heads: the heads of one position are side by side.
    "heads": lambda: randn(4, 5, 3, 6).transpose(1, 2),
    "heads first": lambda: randn(5, 4, 3, 6).permute(1, 2, 0, 3),
    "channels last": lambda: randn(4, 3, 5, 6).to(memory_format=torch.channels_last),
    "last two swapped": lambda: randn(4, 3, 6, 5).transpose(2, 3),
    "expanded": lambda: randn(4, 1, 5, 6).expand(4, 3, 5, 6),
    "sliced": lambda: randn(4, 7, 4, 6)[:, 2:, 1:].transpose(1, 2),
    "every other": lambda: randn(4, 3, 5, 12)[..., ::2],
    "one position": lambda: randn(1, 9, 3, 6).transpose(1, 2)[:, :, -1:],
    "one head of several": lambda: randn(4, 5, 3, 6).transpose(1, 2)[:, 1:2],
}


def rms_norm(x):
    """With a weight for each feature."""
    return rms_norm_decomposed(x, torch.arange(6, dtype=x.dtype))


def layer_norm_with_bias(x):
    return layer_norm_decomposed(x, bias=torch.arange(6, dtype=x.dtype))


def layer_norm_with_statistics(x):
    results = torch.native_layer_norm(x, (6,), None, None, 1e-5)
    return results[0], results[1], results[2]


def layer_norm_of_channels(x):
    mean = x.mean(1, keepdim=True)
    variance = (x - mean).pow(2).mean(1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + 1e-5) * torch.arange(3, dtype=x.dtype)[:, None, None]


def masked_softmax(x):
    visible = torch.arange(6) != 2
    return softmax_decomposed(torch.where(visible, x * 0.5, -30.0))


def biased_softmax(x):
    bias = torch.arange(18, dtype=x.dtype).reshape(3, 1, 6)
    return softmax_decomposed(x * 0.5 + bias)


def softmax_with_a_sink(x):
    sinks = torch.arange(3, dtype=x.dtype)[: x.shape[1], None, None]
    maximum = torch.maximum(x.amax(-1, keepdim=True), sinks)
    exponentials = torch.exp(x - maximum)
    total = exponentials.sum(-1, keepdim=True)
    return exponentials / (total + torch.exp(sinks - maximum))


def causal_softmax(x):
    hidden = torch.ones(x.shape[-2:], dtype=torch.bool).triu(1)
    return softmax_decomposed(x.masked_fill(hidden, -torch.inf))


def add_layer_norm_and_sum(x):
    h = x.cos() + x
    return layer_norm_with_bias(h), h * 2


def normalised(x):
    variance = x.var(-1, unbiased=False, keepdim=True)
    return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(variance + 1e-5)


MODELS = {
    "rms_norm": lambda x: F.rms_norm(x, (6,), torch.arange(6, dtype=x.dtype), 1e-5),
    "rms_norm, decomposed": rms_norm,
    "layer_norm": lambda x: F.layer_norm(x, (6,)),
    "layer_norm with statistics": layer_norm_with_statistics,
    "layer_norm, decomposed": layer_norm_with_bias,
    "std_norm": lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5),
    "layer_norm of channels": layer_norm_of_channels,
    "rms_norm of channels": lambda x: x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-5),
    "layer_norm between permutations": lambda x: F.layer_norm(
        x.permute(0, 2, 3, 1), x.shape[1:2]
    ).permute(0, 3, 1, 2),
    "softmax": lambda x: x.softmax(-1),
    "softmax of a middle dimension": lambda x: x.softmax(2),
    "softmax, decomposed": lambda x: softmax_decomposed(x),
    "softmax, decomposed, of the first dimension": lambda x: softmax_decomposed(x, 0),
    "exp of log_softmax": lambda x: x.log_softmax(1).exp(),
    "masked_softmax": masked_softmax,
    "masked_softmax with a bias": biased_softmax,
    "masked_softmax with a sink": softmax_with_a_sink,
    "masked_softmax, causal": causal_softmax,
    "add_rms_norm": lambda x: rms_norm(x + x.sin()),
    "add_layer_norm and its sum": add_layer_norm_and_sum,
    "sum of two orders": lambda x: layer_norm_with_bias(x + x.sin().contiguous()),
    "stack": lambda x: torch.stack([softmax_decomposed(x), softmax_decomposed(x + 1)]),
    "stack in the middle": lambda x: torch.stack(
        [softmax_decomposed(x), softmax_decomposed(x.sin())], 1
    ),
    "stack of norms": lambda x: torch.stack([normalised(x.cos()), normalised(x.sin())], -1),
}


def drawn(layout):
    """The same tensor at every call, in memory of its own. A clone would have other strides."""
    torch.manual_seed(0)
    return LAYOUTS[layout]().requires_grad_()


def listed(results):
    return results if isinstance(results, (list, tuple)) else [results]


def assert_agree(ours, eager, layout, precision=1e-9):
    """Values, gradients and strides are the same, each time for a fresh input."""
    found = []
    for function in (ours, eager):
        x = drawn(layout)
        results = listed(function(x))
        gradient = torch.autograd.grad(sum(result.sin().sum() for result in results), x)
        found.append([*results, *gradient])
    for actual, expected in zip(*found, strict=True):
        torch.testing.assert_close(actual, expected, rtol=precision, atol=precision)
    # Captured without running, a stack has on torch 2.10 the strides of fake tensors, not eager's.
    assert metadata(found[0][:-1]) in (metadata(found[1][:-1]), metadata(on_fakes(eager, layout)))


def metadata(results):
    return [(result.dtype, result.shape, strides(result)) for result in results]


def on_fakes(function, layout):
    with FakeTensorMode() as mode:
        return listed(function(mode.from_tensor(drawn(layout))))


def strides(tensor):
    """Strides without those of dimensions of size 1, which torch's fake tensors get wrong."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [stride for size, stride in pairs if size != 1]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_values_gradients_and_strides_are_eagers(rewrite, model, layout):
    rewritten = rewrite(model, drawn(layout))
    assert rewritten.reasons == [] and rewritten.report.replaced
    assert_agree(rewritten.call, model, layout)


PERMUTED = [
    ("rms_norm, decomposed", "heads"),
    ("layer_norm, decomposed", "heads first"),
    ("std_norm", "heads"),
    ("layer_norm of channels", "heads"),
    ("rms_norm of channels", "last two swapped"),
    ("softmax, decomposed", "channels last"),
    ("softmax, decomposed", "last two swapped"),
    ("softmax, decomposed, of the first dimension", "heads first"),
    ("masked_softmax", "heads"),
    ("masked_softmax with a bias", "heads first"),
    ("masked_softmax with a sink", "heads first"),
    ("add_rms_norm", "heads"),
    ("add_layer_norm and its sum", "heads"),
    ("stack", "channels last"),
    ("stack in the middle", "channels last"),
]


@pytest.mark.parametrize(("model", "layout"), PERMUTED)
def test_the_op_runs_in_the_order_of_memory_without_a_copy(rewrite, model, layout):
    rewritten = rewrite(MODELS[model], LAYOUTS[layout]())
    assert "clone" not in rewritten.code and "as_strided" not in rewritten.code
    nodes = [node for graph in rewritten.graphs for node in graph.graph.nodes]
    (op,) = (node for node in nodes if str(node.target).startswith("fusedops"))
    inputs = [value(node) for node in op.all_input_nodes if node.target is permute]
    assert inputs and all(tensor.is_contiguous() for tensor in inputs)


COPIED = [
    ("rms_norm, decomposed", "last two swapped"),  # the features of a row are not adjacent
    ("layer_norm, decomposed", "channels last"),
    ("add_rms_norm", "last two swapped"),
]


@pytest.mark.parametrize(("model", "layout"), COPIED)
def test_strides_that_no_permutation_gives_take_one_copy(rewrite, model, layout):
    code = rewrite(MODELS[model], LAYOUTS[layout]()).code
    assert code.count("aten.clone.default(") == 1


def test_a_scale_that_would_need_a_copy_stays_outside_of_the_softmax(rewrite):
    rewritten = rewrite(lambda x: softmax_decomposed(x * 0.5), LAYOUTS["channels last"]())
    assert rewritten.replaced == {"softmax": 1} and "clone" not in rewritten.code


def test_a_residual_norm_that_would_need_a_copy_gives_way_to_the_norm_alone(rewrite):
    def model(x):
        h = x + x.sin()
        return F.layer_norm(h, (6,)), h

    rewritten = rewrite(model, LAYOUTS["heads"]())
    assert rewritten.replaced == {"layer_norm": 1} and "clone" not in rewritten.code
    assert_agree(rewritten.call, model, "heads")


@pytest.mark.parametrize("model", [rms_norm, softmax_decomposed])
@pytest.mark.parametrize("entry", ["dynamo", "export"])
def test_a_dimension_of_size_one_has_eagers_stride_too(entries, entry, model):
    x = torch.randn(1, 9, 6)[:, -1:].transpose(1, 2).contiguous().transpose(1, 2)
    x = x.as_strided((1, 1, 6), (54, 6, 1))
    rewritten = entries[entry](lambda x: model(x).neg(), x)
    assert rewritten.reasons == []
    assert rewritten.call(x).stride() == model(x).neg().stride()


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_graphs_that_export_has_decomposed_keep_their_strides(entries, model):
    class Model(torch.nn.Module):
        def forward(self, x):
            return model(x)

    x = LAYOUTS["heads"]()
    program = torch.export.export(Model(), (x,)).run_decompositions()
    rewritten = fusedops.export.rewrite(program)
    assert any("fusedops" in str(node.target) for node in rewritten.graph.nodes)
    for ours, eager in zip(listed(rewritten.module()(x)), listed(model(x)), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-9, atol=1e-9)
        assert strides(ours) == strides(eager)


@pytest.mark.parametrize("layout", ["heads", "channels last", "last two swapped"])
@pytest.mark.parametrize(
    "model", [rms_norm, add_layer_norm_and_sum, biased_softmax, MODELS["stack"]]
)
def test_compiled_models_have_eagers_strides_and_gradients(ops_run, model, layout):
    compiled = torch.compile(model, backend="fusedops")
    assert_agree(compiled, model, layout)
    assert ops_run(compiled, drawn(layout))


@pytest.mark.parametrize("model", [rms_norm, MODELS["add_rms_norm"], biased_softmax])
def test_one_graph_keeps_the_strides_of_every_batch_and_length(rewrite_dynamo, model):
    def inputs(batch, length):
        x = torch.randn(batch, length, 3, 6, dtype=torch.float64)
        torch._dynamo.mark_dynamic(x, (0, 1))
        return x

    def seen_by_heads(x):
        return model(x.transpose(1, 2))

    rewritten = rewrite_dynamo(seen_by_heads, inputs(4, 5))
    sizes = (4, 5), (2, 9), (7, 3)
    assert_one_graph(rewritten, seen_by_heads, [[inputs(*size)] for size in sizes])
    assert rewritten.reasons == [] and "clone" not in rewritten.code


def test_the_last_position_of_a_dynamic_length_keeps_its_strides(rewrite_dynamo):
    def model(x):
        return rms_norm(x[:, -1:])

    x = torch.randn(1, 9, 6, dtype=torch.float64)
    torch._dynamo.mark_dynamic(x, 1)
    rewritten = rewrite_dynamo(model, x)
    assert rewritten.replaced == {"rms_norm": 1}
    for length in (9, 4):
        x = torch.randn(1, length, 6, dtype=torch.float64)
        assert rewritten.call(x).stride() == model(x).stride()


def _written_after_no_grad(x, w):
    with torch.no_grad():
        y = rms_norm(x)
    return y.mul_(w)


def _written_after_inference_mode(x, w):
    with torch.inference_mode():
        y = softmax_decomposed(x).add_(1)
    return y * w.detach()


def _written(x, w):
    y = softmax_decomposed(x * w)
    y.mul_(w)
    return y


@pytest.mark.parametrize("model", [_written_after_no_grad, _written_after_inference_mode, _written])
def test_a_result_may_be_written_as_in_eager(rewrite_dynamo, model):
    w = torch.randn(6, dtype=torch.float64, requires_grad=True)
    rewritten = rewritten_alike(rewrite_dynamo, model, [LAYOUTS["heads"](), w])
    assert rewritten.report.replaced


def test_masked_softmax_with_dropout_runs_in_the_order_of_memory(rewrite_dynamo):
    def model(x):
        return F.dropout(biased_softmax(x), 0.5).neg()

    x = LAYOUTS["heads first"]()
    rewritten = rewrite_dynamo(model, x)
    assert rewritten.replaced == {"masked_softmax_dropout": 1} and "clone" not in rewritten.code
    ours, kept = rewritten.call(x), model(x)
    assert ours.stride() == kept.stride()
    shown = ours != 0
    torch.testing.assert_close(-ours[shown], 2 * biased_softmax(x)[shown], rtol=1e-11, atol=1e-12)
