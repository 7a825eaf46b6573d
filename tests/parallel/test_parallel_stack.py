"""fusedops.parallel_stack: torch.stack of independent functions' results, at the same time."""

from __future__ import annotations

import contextvars
import ctypes
import dataclasses
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import fusedops
from fusedops.parallel import api, threads
from fusedops.parallel import streams as on_streams
from fusedops.parallel.branches import Branch

#: Longer than any branch here takes: what waits so long for another branch waits for ever.
TIMEOUT = 30


def in_turn(functions, inputs, dim=0):
    """The definition."""
    return torch.stack(
        [f(*x) if isinstance(x, tuple) else f(x) for f, x in zip(functions, inputs, strict=True)],
        dim,
    )


def same(actual, expected):
    assert actual.shape == expected.shape and actual.stride() == expected.stride()
    assert (actual.dtype, actual.device) == (expected.dtype, expected.device)
    assert actual.requires_grad == expected.requires_grad
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


# Values and gradients


@pytest.mark.parametrize(
    "shape", [(), (0,), (5,), (3, 4), (2, 0, 3), (2, 3, 4, 5), (1, 2, 1, 3, 2, 2)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int64])
def test_it_is_torch_stack_in_every_dim(shape, dtype):
    inputs = [(torch.randn(shape) * 9).to(dtype) for _ in range(3)]
    functions = [torch.neg, lambda x: x * x, lambda x: x]
    for dim in range(-len(shape) - 1, len(shape) + 1):
        same(fusedops.parallel_stack(functions, inputs, dim), in_turn(functions, inputs, dim))


def permuted(shape, numbers):
    """A dense tensor whose dimensions lie in memory in some order."""
    order = numbers.sample(range(len(shape)), len(shape))
    tensor = torch.randn([shape[i] for i in order])
    return tensor.permute([order.index(i) for i in range(len(shape))])


def test_strides_are_torch_stacks_whatever_the_results_are():
    numbers = random.Random(0)
    for _ in range(300):
        shape = [numbers.choice([1, 2, 3]) for _ in range(numbers.randint(1, 6))]
        first, other = (permuted(shape, numbers) for _ in range(2))
        results = [first, numbers.choice([first.clone(), other])]
        for dim in range(len(shape) + 1):
            same(
                fusedops.parallel_stack(torch.Tensor.detach, results, dim),
                torch.stack(results, dim),
            )


@pytest.mark.parametrize(
    "results",
    [
        [torch.randn(3), torch.randn(3).double()],
        [torch.ones(3, dtype=torch.int32), torch.ones(3, dtype=torch.bfloat16)],
        [torch.randn(3, dtype=torch.complex64).conj(), torch.randn(3, dtype=torch.complex64)],
        [torch.eye(3).to_sparse(), torch.eye(3).to_sparse()],
        [nn.Parameter(torch.randn(3)), torch.randn(3)],
    ],
    ids=["float64", "bfloat16", "conjugated", "sparse", "parameter"],
)
def test_what_does_not_fit_one_buffer_is_stacked_as_torch_does(results):
    for given in (results, results[::-1]):
        actual = fusedops.parallel_stack(lambda x: x, given)
        expected = torch.stack(given)
        assert actual.layout == expected.layout and actual.requires_grad == expected.requires_grad
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gradients_are_torch_stacks_bit_for_bit(dim):
    models = [nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4)) for _ in range(2)]
    x = torch.randn(5, 6, requires_grad=True)
    leaves = [x, *(p for model in models for p in model.parameters())]
    ours = torch.autograd.grad(fusedops.parallel_stack(models, [x, x], dim).sin().sum(), leaves)
    theirs = torch.autograd.grad(in_turn(models, [x, x], dim).sin().sum(), leaves)
    assert all(map(torch.equal, ours, theirs))


def test_double_backward_is_right():
    x, y = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)

    def function(x, y):
        return fusedops.parallel_stack([torch.sin, torch.mul, torch.exp], [x, (x, y), y], 1)

    x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
    assert torch.autograd.gradcheck(function, (x, y))
    assert torch.autograd.gradgradcheck(function, (x, y))


def test_a_branch_without_a_gradient_stays_without():
    x = torch.randn(3, requires_grad=True)
    out = fusedops.parallel_stack([torch.sin, torch.detach, torch.cos], [x, x, torch.randn(3)])
    out.sum().backward()
    assert torch.equal(x.grad, x.cos())
    assert not fusedops.parallel_stack([torch.detach], [x]).requires_grad


def test_one_callable_serves_all_inputs_and_a_module_list_is_a_list():
    x = torch.randn(3, 4)
    same(fusedops.parallel_stack(torch.sin, x.unbind()), torch.stack(x.sin().unbind()))
    modules = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)])
    same(fusedops.parallel_stack(modules, [x, x]), in_turn(modules, [x, x]))
    same(
        fusedops.parallel_stack(nn.Sequential(modules[0]), [x, x]),
        in_turn([modules[0]] * 2, [x, x]),
    )


def test_a_tuple_is_positional_arguments():
    x = torch.randn(3)
    out = fusedops.parallel_stack([torch.add, lambda: x, torch.sin], [(x, 1), (), (x,)])
    same(out, torch.stack([x + 1, x, x.sin()]))


def test_the_result_may_be_written_to():
    x = torch.randn(3, requires_grad=True)
    out = fusedops.parallel_stack(torch.sin, [x, x])
    out[0].mul_(2)
    out.sum().backward()
    assert torch.equal(x.grad, 3 * x.cos())


# Slots


def test_the_output_is_the_buffer_that_the_branches_filled(monkeypatch):
    buffers = []

    def empty_strided(*args, make=torch.empty_strided, **kwargs):
        buffers.append(make(*args, **kwargs))
        return buffers[-1]

    def stack(*args):
        raise AssertionError("a second copy")

    x = torch.randn(4, 4, requires_grad=True)
    monkeypatch.setattr(torch, "empty_strided", empty_strided)
    monkeypatch.setattr(torch, "stack", stack)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            out = fusedops.parallel_stack([torch.sin, torch.cos], [x, x], 1)
        (buffer,) = buffers
        assert out.data_ptr() == buffer.data_ptr()
        buffers.clear()


def test_results_that_no_gradient_needs_are_let_go_at_once():
    earlier = []

    def branch(x):
        assert not any(result() is not None for result in earlier)
        result = x.sin()
        earlier.append(weakref.ref(result))
        return result

    on_streams.run_on_streams([Branch(branch, (torch.randn(3),))] * 4, 0, Recorder())
    assert len(earlier) == 4


# At the same time


def meeting(parties=2):
    """A function that returns only while ``parties`` calls of it run at the same time."""
    barrier = threading.Barrier(parties)

    def function(x):
        barrier.wait(TIMEOUT)
        return x.sin()

    return function


def test_two_branches_run_at_the_same_time():
    x = torch.randn(3)
    same(fusedops.parallel_stack(meeting(), [x, x]), torch.stack([x.sin()] * 2))


def test_no_more_branches_run_at_once_than_there_are_cores():
    running, most, lock = 0, 0, threading.Lock()

    def branch(x):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1
        return x

    fusedops.parallel_stack(branch, [torch.ones(1)] * 4 * threads.most_threads())
    assert 2 <= most <= threads.most_threads()


def test_calls_within_branches_end_when_every_thread_is_busy():
    def tree(x, depth):
        if depth == 0:
            return x.sin()
        return fusedops.parallel_stack(tree, [(x, depth - 1)] * 3)

    x = torch.randn(2)
    same(tree(x, 4), x.sin().expand(3, 3, 3, 3, 2).contiguous())


def test_a_call_within_a_branch_ends_while_the_other_branch_waits_for_it():
    done = threading.Event()

    def inner(x):
        out = fusedops.parallel_stack(torch.sin, [x, x]).sum(0)
        done.set()
        return out

    def outer(x):
        assert done.wait(TIMEOUT)
        return x

    x = torch.randn(3)
    same(fusedops.parallel_stack([outer, inner], [x, x]), torch.stack([x, x.sin() * 2]))


def test_many_threads_may_call_at_once():
    x, results = torch.randn(3), []

    def call():
        for _ in range(20):
            results.append(fusedops.parallel_stack([torch.sin, torch.cos, torch.exp], [x] * 3))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = torch.stack([x.sin(), x.cos(), x.exp()])
    assert len(results) == 80 and all(torch.equal(result, expected) for result in results)


def test_a_forked_process_has_threads_of_its_own():
    x = torch.randn(3)
    fusedops.parallel_stack(meeting(), [x, x])  # the pool is there
    child = os.fork()
    if child == 0:
        signal.alarm(TIMEOUT)
        try:
            right = torch.equal(fusedops.parallel_stack(meeting(), [x, x])[1], x.sin())
            os._exit(0 if right else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    fusedops.parallel_stack(meeting(), [x, x])


class NoThreads:
    """A pool that has none to give, but keeps what it was asked to do, or even does it."""

    def __init__(self, does_it=False):
        self.does_it, self.begun, self.asked = does_it, [], []

    def submit(self, work, *arguments):
        self.asked.append(lambda: work(*arguments))
        if self.does_it:
            self.begun.append(threading.Thread(target=self.asked[-1]))
            self.begun[-1].start()
        raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("does_it", [False, True])
def test_without_other_threads_the_caller_does_it_all(monkeypatch, does_it):
    """ThreadPoolExecutor keeps the work in its queue where it fails to start a thread for it."""
    pool, x = NoThreads(does_it), torch.randn(3)
    monkeypatch.setattr(threads, "_pool", lambda: pool)

    def slow(x):
        time.sleep(0.02)
        return x.sin()

    for _ in range(5):
        same(fusedops.parallel_stack(slow, [x] * 4), torch.stack([x.sin()] * 4))
    for thread in pool.begun:
        thread.join()
    assert len(pool.asked) == 5 and [late() for late in pool.asked] == [None] * 5


def test_a_call_while_python_exits_ends():
    code = """
import atexit, torch, fusedops
def last():
    out = fusedops.parallel_stack(torch.sin, [torch.ones(2)] * 4)
    print(torch.equal(out, torch.ones(4, 2).sin()))
atexit.register(last)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "True\n", "")


# What belongs to a thread


def per_branch(look, count=2):
    """What ``look()`` gives inside branches that are known to run on different threads."""
    seen, barrier = [], threading.Barrier(count)

    def branch(x):
        barrier.wait(TIMEOUT)
        seen.append(look())
        return x

    fusedops.parallel_stack(branch, [torch.ones(1)] * count)
    return seen


@pytest.mark.parametrize("grad", [True, False])
def test_a_grad_mode_that_a_branch_sets_is_its_own(grad):
    seen = []

    def branch(x):
        seen.append(torch.is_grad_enabled())
        torch.set_grad_enabled(not grad)
        return x.sin()

    with torch.set_grad_enabled(grad):
        fusedops.parallel_stack(branch, [torch.ones(1)] * 8)
        assert torch.is_grad_enabled() is grad
    assert seen == [grad] * 8


@pytest.mark.parametrize("grad", [True, False])
def test_grad_mode_is_the_callers(grad):
    with torch.set_grad_enabled(grad):
        assert per_branch(torch.is_grad_enabled) == [grad] * 2
    assert per_branch(torch.is_grad_enabled) == [True] * 2


def test_inference_mode_is_the_callers():
    x = torch.randn(3, requires_grad=True)
    with torch.inference_mode():
        assert per_branch(torch.is_inference_mode_enabled) == [True] * 2
        assert fusedops.parallel_stack(meeting(), [x, x]).is_inference()
    assert per_branch(torch.is_inference_mode_enabled) == [False] * 2
    assert not fusedops.parallel_stack(meeting(), [x.detach()] * 2).is_inference()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_the_callers(dtype):
    def look():
        return torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled()

    x = torch.randn(4, 4)
    with torch.autocast("cpu", dtype, cache_enabled=False):
        assert per_branch(look) == [(True, False)] * 2
        same(fusedops.parallel_stack(torch.mm, [(x, x)] * 2), in_turn([torch.mm] * 2, [(x, x)] * 2))
        assert fusedops.parallel_stack(torch.mm, [(x, x)] * 2).dtype == dtype
    assert per_branch(look) == [(False, True)] * 2


def test_a_branchs_own_autocast_leaves_the_callers_cache_as_it_is():
    weight, meet = nn.Parameter(torch.randn(4, 4)), meeting()

    def branch(x):
        meet(x)
        with torch.autocast("cpu", torch.bfloat16):
            return x @ x

    def cast():  # the node that casts the weight: a new one if the cache has lost it
        return (torch.ones(4, 4) @ weight).grad_fn.next_functions[1][0]

    with torch.autocast("cpu", torch.bfloat16):
        before = cast()
        fusedops.parallel_stack(branch, [torch.randn(4, 4)] * 2)
        assert cast() is before


def test_context_variables_are_the_callers_and_what_a_branch_sets_is_its_own():
    variable = contextvars.ContextVar("variable", default=0)
    variable.set(7)

    def look():
        before = variable.get()
        variable.set(before + 1)
        return before, variable.get()

    assert per_branch(look) == [(7, 8)] * 2
    assert variable.get() == 7


@pytest.fixture
def intra_op_threads():
    """Sets the number of intra-op threads, and sets it back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def in_new_thread(function):
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


@pytest.mark.parametrize("total, share", [(1, 1), (2, 1), (3, 1), (4, 2), (7, 3)])
def test_branches_divide_the_intra_op_threads_and_nobody_else_notices(
    intra_op_threads, total, share
):
    libraries = ctypes.PyDLL(torch._C.__file__)

    def look():  # torch's number, which is OpenMP's, and MKL's
        return torch.get_num_threads(), libraries.MKL_Get_Max_Threads()

    intra_op_threads(total)
    others = []

    def branch_look():
        others.append(in_new_thread(look))
        return look()

    assert per_branch(branch_look) == [(share, share)] * 2
    assert [*others, look(), in_new_thread(look)] == [(total, total)] * 4


# In turn


def threads_of(call):
    """The threads that ran the branches of ``call(function)``."""
    seen = set()

    def branch(x):
        seen.add(threading.get_ident())
        time.sleep(0.001)  # long enough for a helper to take the next branch
        return x.sin()

    call(branch)
    return seen


class FunctionMode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


IN_TURN = {
    "torch function mode": FunctionMode,
    "default device": lambda: torch.device("cpu"),
    "dispatch mode": DispatchMode,
    "saved tensor hooks": torch.autograd.graph.save_on_cpu,
    "forward-mode AD": torch.autograd.forward_ad.dual_level,
    "deterministic algorithms": deterministic,
}


@pytest.mark.parametrize("name", IN_TURN)
def test_branches_run_in_turn_where_they_are_tied_to_the_calling_thread(name):
    x = torch.randn(3)
    with IN_TURN[name]():

        def call(branch):
            same(fusedops.parallel_stack(branch, [x] * 8), torch.stack([x.sin()] * 8))

        assert threads_of(call) == {threading.get_ident()}


def test_elsewhere_they_do_not():
    x = torch.randn(3)
    assert len(threads_of(lambda branch: fusedops.parallel_stack(branch, [x] * 8))) == 2 or (
        threads.most_threads() > 2
    )


def test_torch_func_sees_through_it():
    x = torch.randn(4, 3, dtype=torch.float64)

    def ours(x):
        return fusedops.parallel_stack([torch.sin, torch.cos], [x, x * 2], -1)

    def theirs(x):
        return torch.stack([x.sin(), (x * 2).cos()], -1)

    same(torch.vmap(ours)(x), torch.vmap(theirs)(x))
    same(torch.func.jacrev(ours)(x), torch.func.jacrev(theirs)(x))
    same(torch.func.jacfwd(ours)(x), torch.func.jacfwd(theirs)(x))
    same(torch.func.grad(lambda x: ours(x).sum())(x), torch.func.grad(lambda x: theirs(x).sum())(x))


def test_forward_mode_has_tangents():
    x, t = torch.randn(2, 3)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, t)
        out = fusedops.parallel_stack([torch.sin, torch.cos], [dual, dual])
        tangent = torch.autograd.forward_ad.unpack_dual(out).tangent
    torch.testing.assert_close(tangent, torch.stack([t * x.cos(), -t * x.sin()]))


def test_checkpointing_gives_the_same_gradients():
    models = [nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)) for _ in range(3)]
    x = torch.randn(5, 4, requires_grad=True)

    def function(x):
        return fusedops.parallel_stack(models, [x] * 3)

    (ours,) = torch.autograd.grad(checkpoint(function, x, use_reentrant=False).sin().sum(), x)
    (theirs,) = torch.autograd.grad(in_turn(models, [x] * 3).sin().sum(), x)
    assert torch.equal(ours, theirs)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return fusedops.parallel_stack([self.a, self.b], [x, x.sin()], 1).tanh()


@pytest.fixture
def two():
    torch._dynamo.reset()
    model, x = Two(), torch.randn(5, 4)
    return model, x, in_turn([model.a, model.b], [x, x.sin()], 1).tanh()


@pytest.mark.parametrize("dynamic", [False, True])
def test_dynamo_sees_through_it_without_a_graph_break(two, dynamic):
    model, x, expected = two
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    same(compiled(x), expected)
    ours = torch.autograd.grad(compiled(x).sum(), list(model.parameters()))
    theirs = torch.autograd.grad(expected.sum(), list(model.parameters()))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("strict", [False, True])
def test_export_has_the_plain_stack(two, strict):
    model, x, expected = two
    program = torch.export.export(model, (x,), strict=strict)
    targets = [node.target for node in program.graph.nodes]
    assert targets.count(torch.ops.aten.stack.default) == 1
    torch.testing.assert_close(program.module()(x), expected)


def test_symbolic_tracing_has_the_plain_stack(two):
    model, x, expected = two
    for traced in (torch.fx.symbolic_trace(model), make_fx(model)(x), torch.jit.trace(model, (x,))):
        torch.testing.assert_close(traced(x), expected)
    assert "torch.stack" in torch.fx.symbolic_trace(model).code


def test_compiled_functions_may_be_branches():
    torch._dynamo.reset()
    x = torch.randn(3)
    function = torch.compile(lambda x: x.sin() * 2, backend="eager", fullgraph=True)
    function(x)
    same(fusedops.parallel_stack(function, [x] * 4), torch.stack([x.sin() * 2] * 4))


def test_subclasses_keep_their_type():
    class Labelled(torch.Tensor):
        pass

    x = torch.randn(3).as_subclass(Labelled)
    assert type(fusedops.parallel_stack(torch.sin, [x, x])) is Labelled
    plain = torch.randn(3)
    out = fusedops.parallel_stack(lambda x: x.as_subclass(Labelled), [plain, plain])
    assert type(out) is Labelled and torch.equal(
        out.as_subclass(torch.Tensor), torch.stack([plain] * 2)
    )


def test_meta_tensors_have_the_right_shape():
    x = torch.empty(3, 4, device="meta")
    assert fusedops.parallel_stack(torch.sin, [x, x], 1).shape == (3, 2, 4)


# Errors


def fail(error):
    def branch(x):
        raise error

    return branch


def test_the_first_branchs_error_surfaces_with_a_note_and_the_others_in_notes():
    meet = threading.Barrier(2)

    def late(x):
        meet.wait(TIMEOUT)
        time.sleep(0.05)
        raise KeyError("late")

    def early(x):
        meet.wait(TIMEOUT)
        raise ZeroDivisionError("early")

    x = torch.ones(1)
    with pytest.raises(KeyError) as caught:
        fusedops.parallel_stack([late, early], [x, x])
    assert [note.split("<locals>.")[1] for note in caught.value.__notes__] == [
        "late)",
        "early) raised ZeroDivisionError: early",
    ]
    assert "raised by branch 0" in caught.value.__notes__[0]


class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no text")


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


class Nameless:
    def __call__(self, x):
        raise KeyError("of a nameless function")

    def __getattr__(self, name):
        raise ValueError("no attributes")


@pytest.mark.parametrize("on", ["the caller", "a helper"])
@pytest.mark.parametrize(
    "error", [Frozen(1), Unprintable(), StopIteration(1), GeneratorExit(), SystemExit(3)],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_an_error_surfaces_as_it_was_raised_on_every_thread(error, on):
    meet = threading.Barrier(2)

    def branch(x):
        meet.wait(TIMEOUT)
        if (threading.current_thread() is threading.main_thread()) == (on == "the caller"):
            raise error
        return x

    with pytest.raises(type(error)) as caught:
        fusedops.parallel_stack(branch, [torch.ones(1)] * 2)
    assert caught.value is error and "raised by branch" in error.__notes__[-1]


def test_an_error_without_a_text_is_told_beside_others():
    meet = threading.Barrier(2)

    def failing(error):
        def branch(x):
            meet.wait(TIMEOUT)
            raise error

        return branch

    with pytest.raises(KeyError) as caught:
        fusedops.parallel_stack([failing(KeyError(1)), failing(Unprintable())], [torch.ones(1)] * 2)
    assert "raised" in caught.value.__notes__[1] and "Unprintable" in caught.value.__notes__[1]


def test_a_function_without_a_name_is_called_by_its_type():
    with pytest.raises(KeyError) as caught:
        fusedops.parallel_stack(Nameless(), [torch.ones(1)])
    assert caught.value.__notes__ == ["parallel_stack: raised by branch 0 (Nameless)"]


def test_a_result_whose_memory_is_freed_is_refused():
    def freed(x):
        result = x * 2
        result.untyped_storage().resize_(0)
        return result

    with pytest.raises(RuntimeError, match=r"branch 0 returned a tensor of shape \[3\] whose mem"):
        fusedops.parallel_stack(freed, [torch.ones(3)])


def test_when_an_error_surfaces_nothing_runs_and_nothing_more_has_begun():
    begun, ended, meet = [], [], threading.Barrier(2)

    def slow(x):
        begun.append("slow")
        meet.wait(TIMEOUT)
        time.sleep(0.1)
        ended.append("slow")
        return x

    def failing(x):
        begun.append("failing")
        meet.wait(TIMEOUT)
        raise ValueError("no")

    def never(x):
        begun.append("never")
        return x

    x = torch.ones(1)
    with pytest.raises(ValueError, match="no"):
        fusedops.parallel_stack([slow, failing] + [never] * 20, [x] * 22)
    assert ended == ["slow"]
    seen = len(begun)
    time.sleep(0.05)
    assert len(begun) == seen < 22
    same(fusedops.parallel_stack(torch.sin, [x, x]), torch.stack([x.sin()] * 2))


@pytest.mark.parametrize("context", [nullcontext, FunctionMode], ids=["threads", "in turn"])
def test_an_error_keeps_no_tensors_alive(context):
    def failing(x):
        raise ValueError("no")

    x = torch.randn(3)
    alive = weakref.ref(x)
    gc.disable()
    try:
        try:
            with context():
                fusedops.parallel_stack([torch.sin, failing], [x, x])
        except ValueError:
            del x
        assert alive() is None
    finally:
        gc.enable()


@pytest.fixture
def interruptible():
    """A shell's background jobs ignore SIGINT, and so does a Python that one of them starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_while_waiting_leaves_nothing_running(interruptible):
    ended, meet = [], threading.Barrier(2)

    def branch(x):
        meet.wait(TIMEOUT)
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.1)  # the caller has come to wait
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            time.sleep(0.1)
            ended.append(True)
        return x

    x = torch.ones(1)
    with pytest.raises(KeyboardInterrupt):
        fusedops.parallel_stack(branch, [x, x])
    assert ended == [True]
    same(fusedops.parallel_stack(meeting(), [x, x]), torch.stack([x.sin()] * 2))


def test_an_interrupt_before_the_first_branch_runs_none(monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    begun = []
    monkeypatch.setattr(threads, "_has_begun", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fusedops.parallel_stack(begun.append, [torch.ones(1)] * 2)
    assert begun == []


def test_an_error_of_a_thread_outside_any_branch_surfaces(monkeypatch):
    @contextmanager
    def failing(count):
        if threading.current_thread() is not threading.main_thread():
            raise OSError("no such library")
        yield

    def slow(x):
        time.sleep(0.05)
        return x

    monkeypatch.setattr(threads, "_intra_op_threads", failing)
    with pytest.raises(OSError, match="no such library"):
        fusedops.parallel_stack(slow, [torch.ones(1)] * 4)


def test_an_interrupt_in_a_branch_comes_before_errors_of_others():
    meet = threading.Barrier(2)

    def branch(x):
        meet.wait(TIMEOUT)
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        raise ValueError("other")

    with pytest.raises(KeyboardInterrupt) as caught:
        fusedops.parallel_stack(branch, [torch.ones(1)] * 2)
    assert "ValueError: other" in caught.value.__notes__[1]


X, META = torch.ones(3), torch.ones(3, device="meta")

REFUSED = {
    "no functions": (ValueError, [], [], 0, "there are no functions, wanted at least one"),
    "no inputs": (ValueError, torch.sin, [], 0, "there are no functions"),
    "fewer inputs": (ValueError, [torch.sin] * 2, [X], 0, "2 functions and 1 inputs, wanted one"),
    "functions are no iterable": (
        TypeError,
        None,
        [X],
        0,
        "functions is a NoneType, wanted a list",
    ),
    "inputs are no iterable": (TypeError, torch.sin, 3, 0, "inputs is a int, wanted a list or an"),
    "dim bool": (TypeError, torch.sin, [X], True, "dim is True, a bool, wanted an int"),
    "dim huge": (IndexError, torch.sin, [X], 2**70, "dim is 1180.*, wanted a value in"),
    "a scalar and a dim that it has not": (
        RuntimeError,
        [torch.sin, torch.sum],
        [X, X],
        1,
        r"branch 1 returned shape \[\], wanted \[3\] as branch 0 returned",
    ),
    "generator": (
        TypeError,
        lambda x: (x for _ in range(2)),
        [X],
        0,
        "branch 0 returned a generator, wanted a tensor",
    ),
    "not callable": (
        TypeError,
        [torch.sin, 3],
        [X, X],
        0,
        r"functions\[1\] is a int, wanted a call",
    ),
    "a tensor": (TypeError, torch.sin, X, 0, "inputs is one tensor, wanted one entry a function"),
    "a list": (
        TypeError,
        torch.sin,
        [X, [X]],
        0,
        r"inputs\[1\] is a list, wanted a tensor or a tu",
    ),
    "dim": (TypeError, torch.sin, [X], 0.5, "dim is 0.5, a float, wanted an int"),
    "dim range": (IndexError, torch.sin, [X], 2, r"dim is 2, wanted a value in \[-2, 1\] .* \[3\]"),
    "devices": (
        RuntimeError,
        torch.sin,
        [X, META],
        0,
        "branch 1 has inputs on meta, wanted cpu as",
    ),
    "in one branch": (
        RuntimeError,
        torch.add,
        [(META, X), X],
        0,
        "branch 1 has inputs on cpu, wan",
    ),
    "shapes": (
        RuntimeError,
        lambda x, n: x[:n],
        [(X, 3), (X, 3), (X, 2)],
        0,
        r"branch 2 returned shape \[2\], wanted \[3\] as branch 0 returned",
    ),
    "result devices": (
        RuntimeError,
        [torch.sin, lambda x: x.to("meta")],
        [X, X],
        0,
        "branch 1 returned a tensor on meta, wanted cpu as branch 0 returned",
    ),
    "no tensor": (
        TypeError,
        [torch.sin, torch.Tensor.tolist],
        [X, X],
        0,
        "branch 1 returned a list",
    ),
    "None": (TypeError, lambda x: None, [X], 0, "branch 0 returned a NoneType, wanted a tensor"),
}


@pytest.mark.parametrize("context", [nullcontext, FunctionMode], ids=["threads", "in turn"])
@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_named(name, context):
    error, functions, inputs, dim, message = REFUSED[name]
    with pytest.raises(error, match=f"parallel_stack: {message}"), context():
        fusedops.parallel_stack(functions, inputs, dim)


# Streams, recorded instead of run


class Recorder(on_streams.CudaStreams):
    """Streams that write down what is asked of them; tensors are called by their first element."""

    def __init__(self):
        self.log = []
        self.now = "current"
        self.made = 0

    def current(self):
        return RecordedStream("current", self.log)

    @contextmanager
    def borrowed(self, count):
        yield [RecordedStream(f"s{i}", self.log) for i in range(count)]

    @contextmanager
    def using(self, stream):
        before, self.now = self.now, stream.name
        yield
        self.now = before

    def crosses(self, tensor, stream):
        self.log.append(f"{int(tensor.flatten()[0])} is used on {stream.name}")


class RecordedStream:
    def __init__(self, name, log):
        self.name, self.log = name, log

    def record_event(self):
        self.log.append(f"{self.name} records")
        return f"what {self.name} recorded"

    def wait_event(self, event):
        self.log.append(f"{self.name} waits for {event}")


def recorded(functions, inputs):
    """The log of a call; each function's run is a line of it."""
    streams = Recorder()

    def on_its_stream(function):
        def branch(*arguments):
            streams.log.append(f"runs on {streams.now}")
            return function(*arguments)

        return branch

    branches = [Branch(on_its_stream(f), x) for f, x in zip(functions, inputs, strict=True)]
    try:
        out = on_streams.run_on_streams(branches, 0, streams)
    except Exception as error:
        out = error
    return streams.log, out


def full(*values):
    return tuple(torch.full((2,), value) for value in values)


def test_streams_fork_from_the_current_one_and_join_it():
    one, two, three = full(1, 2, 3)
    nested = ((one, {"two": [two]}, "no tensor"), (three,))
    log, out = recorded([lambda x, d, _: x * 10, lambda x: x * 10], nested)
    assert log == [
        "current records",
        "s0 waits for what current recorded",
        "1 is used on s0",
        "2 is used on s0",
        "runs on s0",
        "10 is used on current",
        "s1 waits for what current recorded",
        "3 is used on s1",
        "runs on s1",
        "30 is used on current",
        "s0 records",
        "current waits for what s0 recorded",
        "s1 records",
        "current waits for what s1 recorded",
    ]
    assert out.tolist() == [[10, 10], [30, 30]]


def test_the_current_stream_joins_the_streams_begun_when_a_branch_raises():
    log, error = recorded(
        [torch.neg, fail(ValueError("no")), torch.neg], [full(1), full(2), full(3)]
    )
    assert isinstance(error, ValueError) and "branch 1" in error.__notes__[0]
    assert log[-7:] == [
        "s1 waits for what current recorded",
        "2 is used on s1",
        "runs on s1",
        "s0 records",
        "current waits for what s0 recorded",
        "s1 records",
        "current waits for what s1 recorded",
    ]


def test_the_output_belongs_to_the_current_stream(monkeypatch):
    streams, made_on = Recorder(), []

    def empty_strided(*args, make=torch.empty_strided, **kwargs):
        made_on.append(streams.now)
        return make(*args, **kwargs)

    monkeypatch.setattr(torch, "empty_strided", empty_strided)
    on_streams.run_on_streams([Branch(torch.sin, (torch.ones(2),))] * 3, 0, streams)
    assert made_on == ["current"]


def test_more_branches_than_streams_share_them(monkeypatch):
    monkeypatch.setattr(on_streams, "_MOST_STREAMS", 2)
    log, out = recorded([torch.neg] * 5, [full(i) for i in range(5)])
    assert [line for line in log if line.startswith("runs")] == [
        f"runs on s{i % 2}" for i in range(5)
    ]
    assert log[-4:] == [
        "s0 records",
        "current waits for what s0 recorded",
        "s1 records",
        "current waits for what s1 recorded",
    ]
    assert torch.equal(out[:, 0], -torch.arange(5))


def test_streams_give_gradients_and_the_errors_of_threads():
    x = torch.randn(2, requires_grad=True)
    out = on_streams.run_on_streams([Branch(torch.sin, (x,))] * 2, 0, Recorder())
    assert torch.equal(torch.autograd.grad(out.sum(), x)[0], 2 * x.cos())
    _, error = recorded([torch.neg, lambda x: x[:1]], [full(1), full(2)])
    assert isinstance(error, RuntimeError) and "branch 1 returned shape [1]" in str(error)


def test_cuda_inputs_go_to_streams_of_their_device(monkeypatch):
    made_for, recorder = [], Recorder()

    def streams(device):
        made_for.append(device)
        return recorder

    cuda = torch.device("cuda:1")
    monkeypatch.setattr(api, "common_device", lambda branches: cuda)
    monkeypatch.setattr(api, "CudaStreams", streams)
    x = torch.ones(2)
    with torch.device("cpu"):  # a function mode: the calling thread launches, so nothing is lost
        same(fusedops.parallel_stack(torch.neg, [x, x], 1), torch.stack([-x, -x], 1))
    assert made_for == [cuda] and "s1 waits for what current recorded" in recorder.log


def test_streams_are_kept_and_lent_to_one_call_at_a_time(monkeypatch):
    made = []

    def stream(device):
        made.append((device, len(made)))
        return made[-1]

    monkeypatch.setattr(torch.cuda, "Stream", stream)
    streams = on_streams.CudaStreams("a device of this test")
    with streams.borrowed(2) as first:
        with streams.borrowed(2) as within:
            assert not set(first) & set(within)
        with streams.borrowed(2) as again:
            assert again == within
    with streams.borrowed(3) as later:
        assert set(later) < {*first, *within}

    def borrow():
        with streams.borrowed(1) as others:
            return others

    assert not set(in_new_thread(borrow)) & {*first, *within}
    assert len(made) == 5
