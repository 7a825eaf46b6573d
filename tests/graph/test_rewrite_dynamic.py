"""Dynamic shapes: the same counts as with static ones, and no recompilation."""

import copy
import operator

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_one_graph
from torch import nn

import fusedops
from fusedops.backend import backend
from fusedops.graph import rewrite_module


class _Block(nn.Module):
    """eps and the softmax's dim are module attributes, which dynamic=True turns into inputs."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.linear = nn.Linear(8, 8)
        self.eps, self.dim = 1e-4, -1

    def forward(self, x):
        h = F.layer_norm(self.linear(self.norm(x)), (x.shape[-1],), eps=self.eps)
        return torch.softmax(h @ h.transpose(-1, -2), self.dim) @ h


COUNTS = {"layer_norm": 2, "softmax": 1}


def test_three_batch_sizes_share_one_compilation():
    model = _Block().double()
    compiled = torch.compile(model, backend=backend, dynamic=True)
    for index, batch in enumerate((3, 5, 7)):
        x = torch.randn(batch, 4, 8, dtype=torch.float64, requires_grad=True)
        leaves = [x, *model.parameters()]
        with torch._dynamo.config.patch(error_on_recompile=index > 0):
            ours = torch.autograd.grad(compiled(x).sin().sum(), leaves)
        eager = torch.autograd.grad(model(x).sin().sum(), leaves)
        torch.testing.assert_close(ours, eager, rtol=1e-10, atol=1e-10)
    counted = torch._dynamo.utils.counters["fusedops"]
    assert +counted == COUNTS  # once, although the frame is captured twice before eps is constant


def test_a_symbolic_normalized_shape_is_passed_through(rewrite_dynamo):
    def model(x):
        return F.layer_norm(x, x.shape[1:])

    rewritten = rewrite_dynamo(model, torch.randn(3, 5, 7), dynamic=True)
    assert rewritten.replaced == {"layer_norm": 1}
    assert_one_graph(rewritten, model, [[torch.randn(shape)] for shape in ((4, 5, 7), (4, 6, 9))])


@pytest.mark.parametrize("scaled", [operator.add, operator.mul, operator.truediv])
def test_a_number_that_no_norm_takes_stays_a_variable(scaled):
    def model(x, h, number):
        return x * scaled(h, number).rsqrt()

    compiled = torch.compile(model, backend=backend, dynamic=True)
    x, h = torch.randn(3, 8), torch.rand(3, 1)
    for index, number in enumerate((0.25, 0.5, 0.75)):
        with torch._dynamo.config.patch(error_on_recompile=index > 0):
            torch.testing.assert_close(compiled(x, h, number), model(x, h, number))


#: Models that read a number, and what is replaced while it is known, and once it has changed.
OF_A_NUMBER = {
    "temperature": (lambda x, number: (x / number).softmax(-1), "masked_softmax", "softmax"),
    "eps": (lambda x, number: x * (x.pow(2).mean(-1, True) + number).rsqrt(), "rms_norm", None),
}


@pytest.mark.parametrize("name", OF_A_NUMBER)
def test_a_number_that_changes_is_a_variable_from_the_second_compilation_on(name):
    """As plain Inductor has it. Otherwise each value would be compiled, up to a limit."""
    model, of_constant, of_variable = OF_A_NUMBER[name]
    compiled = torch.compile(model, backend=backend)
    counted, x = torch._dynamo.utils.counters["fusedops"], torch.randn(3, 8)
    for index, number in enumerate((0.25, 0.5, 0.75, 0.25)):
        with torch._dynamo.config.patch(error_on_recompile=index > 1):
            torch.testing.assert_close(compiled(x, number), model(x, number))
    assert +counted == {replaced: 1 for replaced in (of_constant, of_variable) if replaced}


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_keeps_its_dynamic_batch(strict):
    model, x = _Block(), torch.randn(3, 5, 8)
    batch = torch.export.Dim("batch", min=2, max=64)
    exported = torch.export.export(model, (x,), dynamic_shapes=({0: batch},), strict=strict)
    assert len(rewrite_module(copy.deepcopy(exported.graph_module)).replaced) == 3
    rewritten = fusedops.export.rewrite(exported).module()
    for size in (2, 9):
        x = torch.randn(size, 5, 8)
        torch.testing.assert_close(rewritten(x), model(x), rtol=1e-5, atol=1e-5)


def _fill(x, number):
    return x.masked_fill(x > 1, number).softmax(-1)


def _clamped(x, number):
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True).clamp(min=number)


#: Models with a number that is read from a tensor when they run.
READ = {
    "scale": lambda x, number: (x * number).softmax(-1),
    "divisor": lambda x, number: (x / (2 * number)).softmax(-1),
    "addend": lambda x, number: (x * 2 + number).softmax(-1),
    "fill": _fill,
    "soft cap": lambda x, number: ((x / number).tanh() * number).softmax(-1),
    "lower limit": _clamped,
    "eps of a norm": lambda x, number: F.rms_norm(x, (8,), eps=number),
    "eps of a hand-written norm": lambda x, number: (
        x * (x.pow(2).mean(-1, keepdim=True) + number).rsqrt()
    ),
}


@pytest.mark.parametrize("entry, name", [("dynamo", name) for name in READ] + [("export", "scale")])
def test_a_number_that_the_graph_reads_from_a_tensor_is_not_known(entries, entry, name):
    def model(x, tensor):
        return READ[name](x, tensor.item())

    x = torch.randn(4, 8, dtype=torch.float64)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        rewritten = entries[entry](model, x, torch.tensor(0.5))
        assert "masked_softmax" not in rewritten.replaced
        for number in (torch.tensor(0.5), torch.tensor(0.75)):
            torch.testing.assert_close(
                rewritten.call(x, number), model(x, number), rtol=1e-12, atol=1e-12
            )


#: Norms of x or x + r over dimensions of which one has any size, by the name of their operator.
OF_ANY_SIZE = {
    "layer_norm": lambda x, r: F.layer_norm(x, x.shape),
    "rms_norm": lambda x, r: F.rms_norm(x, x.shape[2:], eps=1e-6),
    "add_layer_norm": lambda x, r: F.layer_norm(x + r, x.shape[1:]),
    "add_rms_norm": lambda x, r: F.rms_norm(x + r, x.shape[1:], eps=1e-6),
}


@pytest.mark.parametrize("name", OF_ANY_SIZE)
def test_an_exported_norm_takes_rows_of_any_size(name):
    class Model(nn.Module):
        def forward(self, x, r):
            return OF_ANY_SIZE[name](x, r)

    size = {2: torch.export.Dim("size", min=0, max=9)}
    inputs = torch.randn(2, 2, 8, 8).unbind()
    exported = torch.export.export(Model(), inputs, dynamic_shapes=(size, size))
    program = fusedops.export.rewrite(exported)
    assert f"fusedops.{name}.default" in str(program.graph)
    for count in (0, 1, 5):
        x, r = (t[..., :count] for t in inputs)
        torch.testing.assert_close(program.module()(x, r), Model()(x, r), rtol=1e-5, atol=1e-5)
