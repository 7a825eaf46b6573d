"""parallel_stack under modes, transforms, tracing and tensor subclasses."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import pytest
import torch
from branches import in_turn, same
from modes import Called, Dispatched
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import fusedops
from fusedops.parallel import threads


def threads_of(call):
    """The threads that ran the branches of ``call(function)``."""
    seen = set()

    def branch(x):
        seen.add(threading.get_ident())
        time.sleep(0.001)  # long enough for a helper to take the next branch
        return x.sin()

    call(branch)
    return seen


@contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


IN_TURN = {
    "torch function mode": Called,
    "default device": lambda: torch.device("cpu"),
    "dispatch mode": Dispatched,
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


def test_branches_run_on_several_threads_everywhere_else():
    x = torch.randn(3)
    assert len(threads_of(lambda branch: fusedops.parallel_stack(branch, [x] * 8))) == 2 or (
        threads.most_threads() > 2
    )


def test_torch_func_transforms_the_branches():
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
    model, x = Two(), torch.randn(5, 4)
    return model, x, in_turn([model.a, model.b], [x, x.sin()], 1).tanh()


@pytest.mark.parametrize("dynamic", [False, True])
def test_dynamo_traces_the_branches_without_a_graph_break(two, dynamic):
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
