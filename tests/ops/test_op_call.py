"""`op_call` takes a call to the kernel or to the dispatcher as `torch.ops` does, and leaves to
`torch.ops` the calls that it does not know."""

import sys
from pathlib import Path

import numpy
import pytest
import torch
from modes import Called, Dispatched
from processes import run_python
from torch.autograd import forward_ad
from torch.autograd.function import FunctionCtx

import fusedops
from fusedops.ops.registration import call
from fusedops.ops.registration.call import (
    PLAIN,
    RECORDED,
    WATCHED,
    direct,
    in_compiled_code,
    saving,
)
from fusedops.ops.registration.libraries import cpu_kernel
from fusedops.ops.registration.saved import Saved

pytestmark = pytest.mark.skipif(
    sys.platform == "linux" and not getattr(sys, "_is_gil_enabled", lambda: True)(),
    reason="a Python without its lock loads no module of the limited API",
)

X = torch.randn(3, 8)
WEIGHT, BIAS = torch.randn(2, 8).unbind()
GRAD = torch.randn(3, 8)
MASK = torch.rand(3, 8) < 0.5
MASK[:, 0] = True  # a row that sees nothing would be NaN, which equals nothing
Y = fusedops.softmax(X, -1)
STATS = fusedops.softmax_stats(X, -1)
CLASSES = torch.tensor([1, 7, 0])
SEED, START = torch.tensor(3), torch.tensor([0, 1, 2], dtype=torch.int32)
MEAN, RSTD = X.mean(1, True), torch.rand(3, 1)

#: For each op, arguments of every type that it takes.
CALLS = {
    "_softmax": [(X, -1, None), (X.double(), 0, None), (X.bfloat16(), 1, torch.float32)],
    "_softmax_backward": [(GRAD, Y, -1, torch.float32)],
    "softmax_stats": [(X, -1)],
    "_cross_entropy": [
        (X, CLASSES, 1, 0.1, 0.5, 3.0, True),
        (X, CLASSES, None, 0.0, 1.0, None, False),
    ],
    "_masked_softmax": [
        (X, MASK, 0.5, True, None, BIAS, torch.float32, -1, True, -3, START, None, MEAN[:, 0], 9.0),
        (X, None, 1.0, False, -1e4, None, None, 0, False, None, None, START + 2, None, None),
    ],
    "masked_softmax_dropout": [
        (X, MASK, 1.0, False, None, 0.5, SEED, None, None, 0, False, None, None, None, None, None)
    ],
    "_dropout": [(X, 0.25, SEED, relu) for relu in (False, True)],
    "_layer_norm_output": [(X, (8,), WEIGHT, BIAS, 1e-5), (X, [3, 8], None, None, 1e-5)],
    "_layer_norm_backward": [
        (GRAD, X, [8], MEAN, RSTD, WEIGHT, BIAS, [True, True, True]),
        (GRAD, X, torch.Size([8]), MEAN, RSTD, WEIGHT, None, (True, False, False)),
    ],
    "_rms_norm_output": [(X, (8,), torch.nn.Parameter(WEIGHT), 1e-5, 1.0, False)],
}
CASES = [(op, args) for op, calls in CALLS.items() for args in calls]


def by_torch(op):
    return getattr(torch.ops.fusedops, op).default


def assert_same(found, expected):
    assert type(found) is type(expected)
    if isinstance(found, tuple):
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif found is not None:
        assert found.dtype == expected.dtype and torch.equal(found, expected)


def test_the_module_is_in_use():
    assert call.IS_DIRECT


@pytest.fixture(params=[direct, in_compiled_code])
def function_of(request):
    return request.param


@pytest.mark.parametrize("op, args", CASES)
def test_a_direct_call_gives_what_torch_gives(function_of, op, args):
    with torch.no_grad():
        assert_same(function_of(op)(*args), by_torch(op)(*args))


@pytest.mark.parametrize("op, args", CASES)
def test_a_direct_call_does_not_need_torchs_search(op, args):
    """The function that serves other calls is never called."""

    def otherwise(*_):
        raise AssertionError("went by torch.ops")

    schema = by_torch(op)._schema
    results = len(schema.returns)
    bound = call._module.bind(
        f"fusedops::{op}", call._kinds_of(schema), results, results, otherwise, cpu_kernel(op)
    )
    with torch.no_grad():
        bound(*args)


@pytest.mark.parametrize("args", [(X, -1, None), (X, -1, None, None)])
def test_no_call_fits_an_argument_of_an_unknown_kind(args):
    bound = call._module.bind("fusedops::softmax", "tiD?", 1, 1, lambda *args: len(args), 0)
    assert bound(*args) == len(args)


class Sub(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "op, args",
    [
        ("_softmax", (X, numpy.int64(-1), None)),
        ("_softmax", (X.as_subclass(Sub), -1, None)),
        ("_softmax", (X, -1)),
        ("_softmax", (X.half(), -1, torch.float32)),
        ("_layer_norm_output", (X, numpy.array([8]), None, None, 1e-5)),
        ("_layer_norm_output", (X, [numpy.int64(8)], None, None, 1e-5)),
    ],
)
def test_calls_with_other_arguments_are_left_to_torch(function_of, op, args):
    assert_same(function_of(op)(*args), by_torch(op)(*args))


@pytest.mark.parametrize(
    "op, args",
    [
        ("_softmax", (X, 5, None)),
        ("_softmax", (X.int(), -1, None)),
        ("_softmax", (None, -1, None)),
        ("_softmax", (X, -1, torch.int32)),
        ("_softmax", ()),
        ("_softmax", (X, -1, None, None)),
        ("_layer_norm_output", (X, (7,), None, None, 1e-5)),
    ],
)
def test_a_call_that_fails_raises_what_torch_raises(function_of, op, args):
    with pytest.raises(Exception) as expected:
        by_torch(op)(*args)
    with pytest.raises(type(expected.value)) as found:
        function_of(op)(*args)
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize(
    "op, args, problem",
    [
        ("_softmax", ([1.0], -1, None), "softmax: input is of type list, wanted a tensor; make it"),
        (
            "_softmax",
            (X, 2**70, None),
            r"softmax: dim is \d+, of type int, wanted an int of 64 bits",
        ),
        ("_layer_norm_output", (X, 8, None, None, 1e-5), "normalized_shape is 8, .* as \\[8\\]"),
        ("_layer_norm_output", (X, ("8",), None, None, 1e-5), "normalized_shape is \\('8',\\), "),
        ("_layer_norm_output", (X, (8,), WEIGHT, BIAS, None), "layer_norm: eps is None, of type"),
        (
            "_layer_norm_backward",
            (GRAD, X, [8], MEAN, RSTD, WEIGHT, BIAS, [True, "no", True]),
            "layer_norm_backward: output_mask is .*, wanted a list of bools",
        ),
    ],
)
def test_an_argument_of_a_wrong_type_is_named(op, args, problem):
    with pytest.raises(TypeError, match=problem):
        direct(op)(*args)


#: Tensors that do not lie in memory with the values that they have, and ordinary ones with these.
NOT_IN_MEMORY = {
    "a pending negation": (torch._neg_view(X), -X),
    "zeros without memory": (torch._efficientzerotensor(3, 8), torch.zeros(3, 8)),
    "sparse": (X.to_sparse(), None),
    "of a library": (X.to_mkldnn(), None),
}


@pytest.mark.parametrize("name", NOT_IN_MEMORY)
def test_the_dispatcher_sees_a_call_on_a_tensor_that_no_kernel_can_read(function_of, name):
    tensor, same = NOT_IN_MEMORY[name]
    if same is None:
        with pytest.raises(RuntimeError, match="wanted torch.strided"):
            function_of("_softmax")(tensor, -1, None)
    else:
        assert_same(function_of("_softmax")(tensor, -1, None), fusedops.softmax(same, -1))


@pytest.mark.parametrize("op, args", CASES)
def test_a_call_keeps_neither_its_arguments_nor_its_results(function_of, op, args):
    def uses():
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        return [(tensor._use_count(), sys.getrefcount(tensor)) for tensor in tensors]

    call, before = function_of(op), uses()
    with torch.no_grad():
        results = call(*args)
    results = results if isinstance(results, tuple) else (results,)
    assert [result._use_count() for result in results] == [1] * len(results)
    assert uses() == before


@pytest.mark.parametrize("returned", [1, 2])
def test_a_direct_call_returns_the_first_results_and_keeps_no_other(returned):
    settings = (0.0, 1.0, None, False)
    results = by_torch("_cross_entropy")(X, CLASSES, 9, *settings)
    expected = results[0] if returned == 1 else results[:returned]
    for ignore_index in (9, numpy.int64(9)):  # the second is left to torch
        found = direct("_cross_entropy", returned)(X, CLASSES, ignore_index, *settings)
        assert_same(found, expected)


def test_a_call_that_fails_keeps_nothing(function_of):
    before = X._use_count(), sys.getrefcount(X)
    with pytest.raises(RuntimeError):
        function_of("_softmax")(X, 5, None)
    assert (X._use_count(), sys.getrefcount(X)) == before


def test_a_call_does_not_copy_a_tensor_that_is_copied_when_it_is_written(function_of):
    lazy = torch._lazy_clone(X.clone())
    assert_same(function_of("_softmax")(lazy, -1, None), Y)
    assert torch._C._is_cow_tensor(lazy)


def test_a_call_that_writes_into_an_argument_goes_to_the_kernel():
    written = X.clone()
    assert in_compiled_code("softmax_")(written, -1) is None
    assert torch.equal(written, Y)


class Image(torch.Tensor):
    """A subclass that dispatches no calls, as those of torchvision."""


def test_compiled_code_takes_a_subclass_that_inductor_takes():
    compiled = torch.compile(torch.nn.Softmax(-1), backend="fusedops")
    with fusedops.config.patch(fuse="always"):
        assert torch.equal(compiled(X.as_subclass(Image)), Y)


def test_a_profiler_sees_a_call_to_the_kernel():
    with torch.profiler.profile() as profile:
        in_compiled_code("_softmax")(X, -1, None)
    assert "fusedops::_softmax" in {event.name for event in profile.events()}


def test_the_module_runs_the_forward_pass_of_an_op_that_it_calls():
    saved = Saved(["input", "max"], ["dim"], ["max"])
    for returned, expected in ((1, STATS[0]), (2, STATS), (None, STATS)):
        forward = saving(direct("softmax_stats"), "softmax_stats", saved, returned)
        ctx = FunctionCtx()
        assert_same(forward(ctx, (X, -1), X), expected)
        assert ctx.settings == (-1,) and ctx.materialize_grads is False
        assert ctx.to_save[0] is X and torch.equal(ctx.to_save[1], STATS[0])
        assert hasattr(ctx, "non_differentiable") == (returned != 1)
    assert saving(by_torch("softmax_stats"), "softmax_stats", saved, None) is None


@pytest.mark.parametrize("args", [(X, 5), (X, "no"), (X,)])
def test_a_forward_pass_that_fails_raises_what_the_op_raises(args):
    forward = saving(direct("softmax_stats"), "softmax_stats", Saved(["input"]), None)
    before = X._use_count(), sys.getrefcount(X)
    with pytest.raises((RuntimeError, TypeError), match="softmax_stats"):
        forward(FunctionCtx(), args, X)
    assert (X._use_count(), sys.getrefcount(X)) == before


LEAF = X.clone().requires_grad_()


@pytest.fixture(params=["op_call", "Python"])
def call_path(request):
    return {"op_call": call._module.state, "Python": call._call_path}[request.param]


def test_a_call_is_watched_or_recorded_where_something_asks_for_it(call_path):
    assert call_path() == call_path(X) == call_path(None) == call_path(X, None, WEIGHT) == PLAIN
    assert call_path(torch.nn.Parameter(WEIGHT, requires_grad=False)) == PLAIN
    assert call_path(LEAF) == call_path(X, LEAF, None) == call_path(LEAF * 2) == RECORDED
    assert call_path(X.as_subclass(Sub)) == call_path(LEAF, 3) == call_path([X]) == WATCHED
    with torch.no_grad():
        assert call_path(LEAF) == PLAIN
        assert call_path(LEAF, X.as_subclass(Sub)) == WATCHED


@pytest.mark.parametrize("context", [Dispatched, Called, forward_ad.dual_level])
def test_a_call_in_a_mode_is_watched(call_path, context):
    with context():
        assert call_path(X) == call_path(LEAF) == call_path() == WATCHED
    assert call_path(X) == PLAIN


def test_a_recorded_call_on_a_nested_tensor_is_watched(call_path):
    nested = torch.nested.nested_tensor([X[0], X[1]], requires_grad=True)
    assert call_path(nested) == call_path(LEAF, nested) == WATCHED
    with torch.no_grad():
        assert call_path(nested) == PLAIN


def test_a_recorded_call_on_what_a_transform_has_wrapped_is_watched(call_path):
    wrapped = []
    torch.func.grad(lambda x: (wrapped.append(x), x.sum())[1])(X)
    assert call_path(LEAF, *wrapped) == WATCHED


def test_a_call_in_a_trace_or_a_transform_is_watched(call_path):
    seen = []

    def function(x):
        seen.append(call_path(x))
        return x.sin().sum()

    torch.jit.trace(function, X, check_trace=False)
    torch.func.grad(function)(X)
    torch.func.vmap(function)(X)
    assert seen == [WATCHED] * 3


WITHOUT_MODULE = """
import sys
sys.modules["fusedops.lib.op_call"] = None
import fusedops.ops.registration.call
import pytest
assert not fusedops.ops.registration.call.IS_DIRECT
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", sys.argv[1]]))
"""


def test_every_claim_about_small_calls_holds_without_the_module():
    claims = Path(__file__).with_name("test_small_calls.py")
    run = run_python("-c", WITHOUT_MODULE, claims, timeout=600)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-2000:]
