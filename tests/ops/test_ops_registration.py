"""The ops as torch.library sees them: schemas, fakes, autograd, vmap, export."""

import contextlib
import warnings
from collections import defaultdict
from functools import partial

import pytest
import torch
from exhaustive import beyond
from modes import Dispatched
from op_samples import samples
from processes import run_python
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

import fusedops
from fusedops.ops.registration import libraries

ops, VARIANTS = torch.ops.fusedops, libraries.OPS_WITH_VARIANT


#: What backward operators take as it was kept, beside what they differentiate.
KEPT = ("mean", "rstd", "max", "sum", "output", "probabilities", "sink_probabilities")
KEPT += ("losses", "lse", "lse_error")


def recorded(op, args):
    """The arguments, of which autograd records those that are floating and were not kept."""

    def leaf(value):
        if isinstance(value, list):
            return [leaf(each) for each in value]
        is_floating = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.clone().requires_grad_() if is_floating else value

    names = [argument.name for argument in getattr(ops, op).default._schema.arguments]
    return tuple(
        value if name in KEPT else leaf(value) for name, value in zip(names, args, strict=False)
    )


def calls():
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for op, args in samples(dtype):
            yield op, args
            if dtype != torch.float32:
                continue
            if op in VARIANTS:
                yield f"_{op}", args
            if not (op.startswith("_") or getattr(ops, op).default._schema.is_mutable):
                yield op, recorded(op, args)
    x = torch.randn(3, 4, 8)
    half = x.half().requires_grad_()
    yield "softmax", (half, -1, torch.float32)
    yield "softmax_backward", (x, torch.softmax(x, -1), -1, torch.float16)
    yield "softmax", (torch.randn(0, 5), -1)
    yield "softmax", (torch.randn(()), -1)
    yield "dropout", (torch.randn((), requires_grad=True), 0.5, torch.tensor(3))
    yield "log_softmax", (x.transpose(0, 1), 2)
    yield "layer_norm", (x.bfloat16(), [8], torch.randn(8), None, 1e-5)
    yield "layer_norm", (torch.randn(0, 5), [5], None, None, 1e-5)
    yield "layer_norm", (x[..., ::2], [4], None, None, 1e-5)
    yield "spatial_layer_norm", (torch.randn(5), 0, torch.randn(5), None, 1e-5)


CALLS = defaultdict(list)
for op, args in calls():
    CALLS[getattr(ops, op).default].append(args)


def records_a_gradient(args):
    leaves = tree_leaves(args)
    return any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)


#: The others, without a formula for autograd, differ from these in their names alone.
WITH_FORMULA = [op for op in CALLS if op.name().removeprefix("fusedops::_") not in VARIANTS]


@pytest.mark.parametrize("op", beyond(WITH_FORMULA, CALLS), ids=str)
def test_opcheck_finds_nothing_in_a_call(op):
    torch.library.opcheck(op, max(CALLS[op], key=records_a_gradient))


@pytest.mark.parametrize("op", CALLS, ids=str)
def test_schema_and_fake_are_right_for_every_call(op):
    for args in CALLS[op]:
        torch.library.opcheck(op, args, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("op", CALLS, ids=str)
def test_opcheck_finds_nothing_in_any_call_that_autograd_records(op):
    """But for calls with rows that see nothing: opcheck takes a NaN for another than itself."""
    for args in filter(records_a_gradient, CALLS[op]):
        if not any(result.isnan().any() for result in tree_leaves(op(*args))):
            torch.library.opcheck(op, args)


OP_INFO = {
    "softmax": lambda s: fusedops.softmax(s.input, *s.args, **s.kwargs),
    "log_softmax": lambda s: fusedops.log_softmax(s.input, *s.args, **s.kwargs),
    "nn.functional.layer_norm": lambda s: fusedops.layer_norm(s.input, *s.args, **s.kwargs),
    "nn.functional.rms_norm": lambda s: fusedops.rms_norm(s.input, *s.args, **s.kwargs),
}


@pytest.mark.parametrize(
    "info",
    [info for info in op_db if info.name in OP_INFO],
    ids=lambda info: f"{info.name} {info.variant_test_name}".strip(),
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_pytorchs_own_samples(info, dtype):
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float64: 1e-12}[dtype]
    samples = [s for s in info.sample_inputs("cpu", dtype) if s.kwargs.get("eps", 0) >= 0]
    assert len(samples) > 3
    for sample in samples:
        actual = OP_INFO[info.name](sample)
        assert actual.dtype == info.op(sample.input, *sample.args, **sample.kwargs).dtype
        exact = sample.transform(lambda v: v.double() if isinstance(v, torch.Tensor) else v)
        expected = info.op(exact.input, *exact.args, **exact.kwargs)
        torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance)


SAMPLES = defaultdict(list)
for op, args in samples():
    if not getattr(ops, op).default._schema.is_mutable:
        SAMPLES[op].append(args)


def slices_of(value):
    """Three values that a tensor may have."""
    if value.dim() == 0:
        return [value + n for n in range(3)]
    factors = (1.0, 1.25, 1.5) if value.is_floating_point() else (None, None, None)
    return [(value * f if f else value).roll(n, -1) for n, f in enumerate(factors)]


def by_loop_and_by_vmap(op, args, batched, batch_dim):
    """The results of three calls, stacked, those of one, and those of one for an empty batch; the
    tensors with these numbers, of all that are given, have a batch."""
    leaves, structure = tree_flatten(args)
    every, given, dims = [[leaf] * 3 for leaf in leaves], list(leaves), [None] * len(leaves)
    for number in batched:
        every[number] = slices_of(leaves[number])
        given[number], dims[number] = torch.stack(every[number], batch_dim), batch_dim
    each = [tree_leaves(op(*tree_unflatten(own, structure))) for own in zip(*every, strict=True)]
    mapped = torch.vmap(op, tree_unflatten(dims, structure))
    together = mapped(*tree_unflatten(given, structure))
    for number in batched:
        given[number] = given[number].narrow(batch_dim, 0, 0)
    of_none = mapped(*tree_unflatten(given, structure))
    stacked = [torch.stack(results) for results in zip(*each, strict=True)]
    return stacked, tree_leaves(together), tree_leaves(of_none)


@pytest.mark.parametrize("op", SAMPLES)
@pytest.mark.parametrize("batch_dim", [0, -1])
def test_vmap_has_rules_that_give_what_a_loop_gives(op, batch_dim):
    """Where all tensors have a batch, or the first ones alone, or all but the first."""
    for args in SAMPLES[op]:
        tensors = [n for n, leaf in enumerate(tree_leaves(args)) if isinstance(leaf, torch.Tensor)]
        first = [tensors[:count] for count in range(1, len(tensors) + 1)]
        for batched in filter(None, [*first, tensors[1:]]):
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # torch warns where it has to loop itself
                each, together, of_none = by_loop_and_by_vmap(
                    getattr(ops, op), args, batched, batch_dim
                )
            torch.testing.assert_close(together, each, equal_nan=True)
            torch.testing.assert_close(of_none, [results[:0] for results in each])


def test_vmap_of_scalars():
    assert torch.vmap(lambda t: fusedops.softmax(t, 0))(torch.randn(5)).tolist() == [1.0] * 5


@contextlib.contextmanager
def autocast(device):
    """Does what torch.autocast does, which for CUDA does nothing on a machine without a GPU."""
    before = torch.is_autocast_enabled(device)
    torch.set_autocast_enabled(device, True)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, before)


#: Functions of scores, and those of torch whose dtypes they have.
AUTOCAST_SOFTMAXES = {
    "softmax": (partial(fusedops.softmax, dim=-1), torch.softmax),
    "log_softmax": (partial(fusedops.log_softmax, dim=-1), torch.log_softmax),
    "masked_softmax": (partial(fusedops.masked_softmax, causal=True), torch.softmax),
    "dropout": (partial(fusedops.masked_softmax_dropout, causal=True), torch.softmax),
}
AUTOCAST_NORMS = {
    "layer_norm": lambda t: fusedops.layer_norm(t, [4]),
    "std_norm": lambda t: fusedops.std_norm(t, [4]),
    "rms_norm": lambda t: fusedops.rms_norm(t, [4]),
    "add_layer_norm": lambda t: fusedops.add_layer_norm(t, t, [4])[0],
    "add_rms_norm": lambda t: fusedops.add_rms_norm(t, t, [4])[0],
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_autocast_gives_the_dtype_that_torch_gives(dtype, device):
    """It is float32 on CUDA, computed from the 16 bits themselves, and the input's on the CPU."""
    with FakeTensorMode(allow_non_fake_inputs=True), autocast(device):
        # A CUDA tensor that requires grad would make a CPU build of torch look for CUDA streams.
        t = torch.empty(2, 3, 4, dtype=dtype, device=device, requires_grad=device == "cpu")
        for name, (ours, eager) in AUTOCAST_SOFTMAXES.items():
            assert ours(t).dtype == eager(t, -1).dtype, name
            assert ours(t, dtype=torch.float64).dtype == torch.float64, name
        assert fusedops.dropout(t).dtype == torch.nn.functional.dropout(t).dtype
        for name, norm in AUTOCAST_NORMS.items():
            assert norm(t).dtype == torch.nn.functional.layer_norm(t, [4]).dtype, name


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_autocast_leaves_logits_and_their_loss_as_they_are(dtype, device):
    with FakeTensorMode(allow_non_fake_inputs=True), autocast(device):
        t = torch.empty(2, 4, dtype=dtype, device=device)
        target = torch.empty(2, dtype=torch.int64, device=device)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        assert fusedops.cross_entropy(t, target, reduction="none").dtype == wide


@pytest.mark.parametrize("branch", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("residual", [torch.float16, torch.bfloat16, torch.float32])
def test_cuda_autocast_converts_the_residual_of_a_sum_and_leaves_the_branch(branch, residual):
    seen = []

    class Recorded(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if "add_" in str(func):
                seen.append([t.dtype for t in args[:2]])
            return func(*args, **(kwargs or {}))

    with FakeTensorMode(allow_non_fake_inputs=True), autocast("cuda"), Recorded():
        x = torch.empty(2, 3, 4, dtype=branch, device="cuda")
        r = torch.empty(2, 3, 4, dtype=residual, device="cuda")
        for results in (fusedops.add_layer_norm(x, r, [4]), fusedops.add_rms_norm(x, r, [4])):
            assert [t.dtype for t in results] == [torch.float32] * 2
    assert seen == [[branch, torch.float32]] * 2


def test_meta_tensors_give_shapes_without_computing():
    x = torch.empty(10**6, 10**6, device="meta", dtype=torch.bfloat16)
    y = fusedops.softmax(x, -1, torch.float32)
    assert y.shape == x.shape and y.dtype == torch.float32 and y.is_meta


def test_eager_calls_without_gradient_skip_the_formula_and_others_keep_it():
    x, w = torch.randn(3, 5), torch.randn(5, requires_grad=True)
    assert fusedops.softmax(x, -1).grad_fn is None
    assert fusedops.layer_norm(x, [5], w).grad_fn is not None
    with torch.no_grad():
        assert fusedops.layer_norm(x, [5], w).grad_fn is None
    with Dispatched() as mode:
        fusedops.softmax(x, -1)
    assert mode.seen == ["fusedops.softmax.default"]  # a mode sees the public op


@pytest.mark.parametrize("dynamic", [False, True])
def test_direct_calls_compile_whole_and_train(dynamic):
    def loss(x, w):
        return (fusedops.softmax(fusedops.layer_norm(x, [8], w), -1) ** 2).sum()

    compiled = torch.compile(loss, fullgraph=True, dynamic=dynamic)
    for rows in (4, 7):
        x, w = torch.randn(rows, 8, requires_grad=True), torch.randn(8, requires_grad=True)
        actual = torch.autograd.grad(compiled(x, w), (x, w))
        expected = torch.autograd.grad(loss(x, w), (x, w))
        torch.testing.assert_close(actual, expected)


def test_direct_calls_export_with_a_dynamic_batch():
    class Model(torch.nn.Module):
        def forward(self, x):
            return fusedops.log_softmax(fusedops.layer_norm(x, [8]), -1)

    x = torch.randn(4, 8)
    program = torch.export.export(Model(), (x,), dynamic_shapes={"x": {0: torch.export.Dim("n")}})
    targets = {str(node.target) for node in program.graph.nodes}
    assert {"fusedops.layer_norm.default", "fusedops.log_softmax.default"} <= targets
    bigger = torch.randn(9, 8)
    torch.testing.assert_close(program.module()(bigger), Model()(bigger))


def test_importing_the_package_leaves_torchs_compiler_alone():
    code = "import sys, fusedops; print('torch._dynamo' in sys.modules, callable(fusedops.explain))"
    result = run_python("-c", code)
    assert result.stdout.split() == ["False", "True"], result.stderr
