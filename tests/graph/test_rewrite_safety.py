"""In-place writes, metadata, autocast and transforms survive a rewrite, or it is refused."""

import operator

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_becomes, assert_one_graph, rewritten_alike
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

import fusedops
from fusedops.graph import availability, rewrite_graph


def unused_write(x):
    h = x * 1
    y = h.softmax(-1)
    h.mul_(2)
    return y + h


def _write_before(x):
    h = x * 1
    h.mul_(2)
    return F.layer_norm(h, (8,)) + h.softmax(-1)


def _write_into_the_result(x):
    y = torch.softmax(x, -1)
    z = y * 1
    z.add_(1)
    return F.layer_norm(z, (8,)).mul_(3) + y


def _write_through_a_view(x):
    h = x * 1
    y = h.softmax(-1)
    h.view(-1)[:5].fill_(0.5)
    return y + h.log_softmax(-1)


def _write_between(x):
    h = x + 1
    a = h.softmax(0)
    h += a
    b = h.softmax(0)
    h.relu_()
    return a + b + F.layer_norm(h, h.shape[-1:])


IN_PLACE = [
    unused_write,
    _write_before,
    _write_into_the_result,
    _write_through_a_view,
    _write_between,
]


@pytest.mark.parametrize("model", IN_PLACE, ids=lambda model: model.__name__)
def test_in_place_writes_around_a_site_stay_correct(rewrite, model):
    rewritten = rewritten_alike(rewrite, model, [torch.randn(4, 8)])
    assert len(rewritten.report.replaced) >= 1 and rewritten.reasons == []


def test_a_norm_that_nothing_reads_stays_and_its_weight_gets_no_gradient(rewrite_dynamo):
    def model(x, weight):
        h = x + x
        F.rms_norm(h, (8,), weight).softmax(-1)
        return h.relu()

    x, weight = (torch.randn(shape, requires_grad=True) for shape in ((4, 8), (8,)))
    rewritten = rewrite_dynamo(model, x, weight)
    rewritten.call(x, weight).sum().backward()
    assert rewritten.report.sites == () and x.grad is not None and weight.grad is None


def _chain(x):
    """A site of each rule that takes in calls around it."""
    scores = (x @ x.transpose(-1, -2) * 0.5).masked_fill(x[:, None, 0] > 1, -1e9)
    e = torch.exp(x - x.amax(-1, keepdim=True))
    h = x + scores.softmax(-1) @ x
    mean = x.mean(-1, keepdim=True)
    normed = (x - mean) / torch.sqrt((x - mean).pow(2).mean(-1, keepdim=True) + 1e-5)
    return (
        F.layer_norm(h, (8,)) + h + F.rms_norm(x + x, (8,)) + e / e.sum(-1, keepdim=True) + normed
    )


CHAIN = {"masked_softmax": 1, "softmax": 1, "layer_norm": 1, "add_layer_norm": 1, "add_rms_norm": 1}


def test_the_rules_together_compile_once_for_all_batch_sizes(rewrite_dynamo):
    x = torch.randn(4, 8, 8, dtype=torch.float64)
    torch._dynamo.mark_dynamic(x, 0)
    rewritten = rewrite_dynamo(_chain, x)
    inputs = [[torch.randn(batch, 8, 8, dtype=torch.float64)] for batch in (2, 3, 8)]
    assert_one_graph(rewritten, _chain, inputs)
    assert rewritten.replaced == CHAIN


@pytest.mark.parametrize("branch", [True, False])
def test_both_branches_of_a_cond_are_rewritten(rewrite_dynamo, branch):
    def model(x, chosen):
        return torch.cond(chosen, _chain, lambda x: (x * 0.5).softmax(-1), (x,))

    inputs = torch.randn(2, 8, 8, dtype=torch.float64), torch.tensor(branch)
    assert_becomes(rewrite_dynamo, model, inputs, CHAIN | {"masked_softmax": 2})


def test_a_checkpoint_of_every_rule_has_eagers_gradient(rewrite_dynamo):
    def model(x):
        return torch.utils.checkpoint.checkpoint(_chain, x, use_reentrant=False)

    x = torch.randn(2, 8, 8, dtype=torch.float64, requires_grad=True)
    assert rewritten_alike(rewrite_dynamo, model, [x]).replaced == CHAIN


def test_a_write_inside_a_transform_is_seen_outside(rewrite_dynamo):
    def model(x):
        h = x * 1
        scores = h * 0.5
        gradient = torch.func.vmap(lambda row: row.mul_(2))(h)
        return scores.softmax(-1) + h + gradient

    rewritten_alike(rewrite_dynamo, model, [torch.randn(4, 8)])


class _Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(8), nn.Softmax(-1))

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize(("entry", "key"), [("dynamo", "example_value"), ("export", "val")])
def test_every_new_node_has_fresh_metadata(entries, entry, key):
    (graph_module,) = entries[entry](_Nested(), torch.randn(4, 8)).graphs
    norm, softmax = [n for n in graph_module.graph.nodes if str(n.target).startswith("fusedops")]
    for node in (norm, *norm.users, softmax):
        assert node.meta["stack_trace"] and node.meta["nn_module_stack"]
    shapes = [tuple(output.shape) for output in norm.meta[key]]
    assert shapes == [(4, 8), (4, 1), (4, 1)]
    for node in (*norm.users, softmax):
        assert node.meta[key].shape == (4, 8)


@pytest.mark.parametrize("where", ["inside", "around"])
@pytest.mark.parametrize("masked", [False, True], ids=["modules", "masked chains"])
def test_autocast_keeps_eagers_dtype_and_values(rewrite_dynamo, where, masked):
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.Softmax(-1))
    model, op = (_chain, "masked_softmax") if masked else (model, "layer_norm")

    def inside(x):
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)

    x = torch.randn(2, 8, 8)
    with torch.autocast("cpu", torch.bfloat16, enabled=where == "around"):
        function = inside if where == "inside" else model
        rewritten = rewrite_dynamo(function, x)
        ours, eager = rewritten.call(x), function(x)
    assert rewritten.replaced[op] == rewritten.replaced["softmax"] == 1
    assert rewritten.reasons == [] and ours.dtype == eager.dtype
    tolerance = 2e-2 if masked else 1e-2
    torch.testing.assert_close(ours, eager, rtol=tolerance, atol=tolerance)


def _graph_as_autocast_leaves_it(target, *args):
    """A bfloat16 input and a float32 result: CUDA autocast runs these ops in float32."""
    graph = torch.fx.Graph()
    mode = FakeTensorMode()
    x = graph.placeholder("x")
    x.meta["example_value"] = mode.from_tensor(torch.zeros(2, 8, dtype=torch.bfloat16))
    site = graph.call_function(target, (x, *args))
    site.meta["example_value"] = mode.from_tensor(torch.zeros(2, 8))
    graph.output(site)
    return torch.fx.GraphModule(nn.Module(), graph)


@pytest.mark.parametrize(
    ("target", "argument"), [(torch.softmax, -1), (torch.log_softmax, 1), (F.layer_norm, (8,))]
)
def test_a_float32_result_of_autocast_stays_float32(target, argument):
    graph_module = _graph_as_autocast_leaves_it(target, argument)
    assert len(rewrite_graph(graph_module.graph).replaced) == 1
    graph_module.graph.lint()
    graph_module.recompile()
    x = torch.randn(2, 8, dtype=torch.bfloat16)
    result = graph_module(x)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, target(x.float(), argument), rtol=1e-5, atol=1e-5)


def test_a_result_of_another_shape_is_refused_before_any_edit():
    graph_module = _graph_as_autocast_leaves_it(torch.softmax, -1)
    site = next(iter(graph_module.graph.find_nodes(op="call_function", target=torch.softmax)))
    site.meta["example_value"] = site.meta["example_value"].new_empty(3, 8)
    before = str(graph_module.graph)
    (left,) = rewrite_graph(graph_module.graph).left
    assert "output" in left.reason and "eager gives" in left.reason
    assert str(graph_module.graph) == before


TRANSFORMS = {
    "vmap": lambda x: torch.func.vmap(lambda row: row.softmax(0))(x),
    "grad": lambda x: torch.func.grad(lambda x: x.softmax(-1).pow(2).sum())(x),
    "jvp": lambda x: torch.func.jvp(lambda x: x.softmax(-1), (x,), (x.cos(),))[1],
    "vmap of a chain": lambda x: torch.func.vmap(lambda x: (x * 0.5 + x.sin()).softmax(-1))(x),
    "grad of a residual norm": lambda x: torch.func.grad(
        lambda x: F.layer_norm(x + x.sin(), (8,)).sin().sum()
    )(x),
    "closure": lambda x: torch.func.grad(lambda y: (y * x.softmax(-1)).sum())(x),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_sites_under_torch_func_are_left(rewrite_dynamo, transform):
    model, x = TRANSFORMS[transform], torch.randn(4, 8)
    assert_becomes(rewrite_dynamo, model, [x], {}, ["inside a torch.func transform"])


def test_sites_after_a_transform_are_replaced(rewrite_dynamo):
    def model(x):
        return torch.func.vmap(lambda row: row.softmax(0))(x) + x.softmax(-1)

    assert rewrite_dynamo(model, torch.randn(4, 8)).replaced == {"softmax": 1}


def test_an_out_argument_is_refused(rewrite):
    def model(x):
        y = torch.empty_like(x)
        torch.softmax(x, -1, out=y)
        return y + 1

    assert_becomes(rewrite, model, [torch.randn(4, 8)], {}, ["writes into an out= tensor"])


def _norm_into(x, norm):
    return x / torch.norm(x, 2, -1, True, norm).clamp(min=1e-6)


def _normalized_into(x, normalized):
    return F.normalize(x, 2.0, -1, 1e-12, normalized) + 1


@pytest.mark.parametrize("model, columns", [(_norm_into, 1), (_normalized_into, 8)])
def test_an_out_argument_by_position_is_written(rewrite_dynamo, model, columns):
    inputs = [torch.randn(4, 8, dtype=torch.float64), torch.zeros(4, columns, dtype=torch.float64)]
    rewritten = rewritten_alike(rewrite_dynamo, model, inputs)
    assert rewritten.replaced == {}


#: By the reason for which it is left: an input.
REFUSED = {
    "unsupported dtype torch.complex64": torch.zeros(2, 8, dtype=torch.complex64),
    "unsupported dtype torch.float8_e5m2": torch.zeros(2, 8, dtype=torch.float8_e5m2),
    "unsupported layout torch.sparse_coo": torch.zeros(2, 8).to_sparse(),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_dtype_or_layout_without_kernels_is_refused(reason):
    graph_module = _graph_as_autocast_leaves_it(torch.softmax, -1)
    (x,) = graph_module.graph.find_nodes(op="placeholder")
    x.meta["example_value"] = REFUSED[reason]
    (left,) = rewrite_graph(graph_module.graph).left
    assert left.reason == reason


#: Sites that read a cast, and the ops that they become.
OF_A_CAST = {
    "softmax": lambda x, target: x.float().softmax(-1),
    "masked_softmax": lambda x, target: x.float().masked_fill(target > 4, -1e9).softmax(-1),
    "layer_norm": lambda x, target: F.layer_norm(x.float(), (8,)),
    "add_rms_norm": lambda x, target: F.rms_norm(x.float() + x.float().exp(), (8,)),
    "l2_norm": lambda x, target: F.normalize(x.float(), dim=-1),
    "cross_entropy": lambda x, target: F.cross_entropy(x.float(), target),
}


@pytest.mark.parametrize("op", OF_A_CAST)
@pytest.mark.parametrize("dtype", [torch.float8_e5m2, torch.float8_e4m3fn, torch.int8])
def test_an_op_reads_the_cast_of_a_dtype_without_kernels(rewrite, op, dtype):
    inputs = [torch.randn(8, 8).mul(3).to(dtype), torch.arange(8)]
    assert_becomes(rewrite, OF_A_CAST[op], inputs, {op: 1})


def test_a_device_without_kernels_is_refused(rewrite_dynamo, monkeypatch):
    monkeypatch.setattr(availability, "has_kernels", lambda device_type: device_type != "cpu")
    rewritten = rewrite_dynamo(lambda x: x.softmax(-1), torch.randn(4, 8))
    assert rewritten.reasons == ["this build has no cpu kernels"]


def _hooked(softmax):
    softmax.register_forward_hook(lambda module, args, output: output * 2)


def _with_a_forward_of_its_own(softmax):
    softmax.forward = lambda x: x.softmax(-1) * 2


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (_hooked, "the module has hooks, which would no longer run"),
        (
            _with_a_forward_of_its_own,
            "the module has a forward of its own, not that of its class",
        ),
    ],
)
def test_a_module_that_does_more_than_its_class_is_refused(changed, reason):
    graph_module = torch.fx.symbolic_trace(nn.Sequential(nn.Softmax(-1)))
    changed(graph_module.get_submodule("0"))
    x = torch.randn(4, 8)
    fusedops.rewrite(graph_module, x)
    (site,) = rewrite_graph(graph_module.graph).left
    assert site.reason == reason
    torch.testing.assert_close(graph_module(x), x.softmax(-1) * 2)


def test_a_module_is_refused_under_a_hook_of_all_modules():
    graph_module = torch.fx.symbolic_trace(nn.Sequential(nn.Softmax(-1)))

    def double(module, args, output):
        return output * 2 if type(module) is nn.Softmax else None

    hook = nn.modules.module.register_module_forward_hook(double)
    try:
        fusedops.rewrite(graph_module, torch.randn(4, 8))
    finally:
        hook.remove()
    (site,) = rewrite_graph(graph_module.graph).replaced  # the hook is gone
    assert site.op == "softmax"


def test_config_never_leaves_every_site(rewrite):
    with fusedops.config.patch(fuse="never"):
        rewritten = rewrite(lambda x: F.layer_norm(x.softmax(-1), (8,)), torch.randn(4, 8))
    assert rewritten.replaced == {}
    assert rewritten.reasons == ['config: fuse="never"'] * 2


def test_a_subclass_of_a_torch_module_is_not_taken_for_it():
    class Twice(nn.Softmax):
        def forward(self, x):
            return super().forward(x) * 2

    class Tracer(torch.fx.Tracer):
        def is_leaf_module(self, module, name):
            return isinstance(module, Twice)

    model, x = nn.Sequential(Twice(-1)), torch.randn(4, 8)
    graph_module = torch.fx.GraphModule(model, Tracer().trace(model))
    torch.testing.assert_close(fusedops.rewrite(graph_module, x)(x), model(x))


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_a_parameter_of_a_subclass_leaves_its_site(name):
    norm = nn.LayerNorm(8)
    setattr(norm, name, nn.Parameter(TwoTensor(torch.ones(8), torch.ones(8))))
    (site,) = fusedops.explain(norm, torch.randn(4, 8)).left
    assert site.reason == f"the {name} is a TwoTensor, not a plain tensor"


def test_other_getitems_are_not_touched(rewrite_dynamo):
    def model(x):
        first, second = x.chunk(2)
        return first.softmax(-1) + second

    rewritten = rewritten_alike(rewrite_dynamo, model, [torch.randn(4, 8)])
    assert rewritten.replaced == {"softmax": 1}
    assert len(rewritten.graphs[0].graph.find_nodes(op="call_function", target=operator.getitem))
