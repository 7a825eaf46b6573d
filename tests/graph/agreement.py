"""Whether a rewritten model behaves as before to its caller, in more than its values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

from fusedops.graph import rewrite_module


@dataclass
class Outcome:
    """What a function gave for copies of some inputs: its results, the inputs afterwards, and their
    gradients, or autograd's refusal where a tensor that it kept was written."""

    results: list[torch.Tensor]
    inputs: list[torch.Tensor]
    gradients: list[torch.Tensor | None]
    refusal: str = ""

    @property
    def metadata(self):
        """Everything but values: a list for each result, and which inputs have a gradient."""
        shared = _shared(self.results, self.inputs)
        return [
            [r.dtype, r.shape, r.stride(), r.requires_grad, with_]
            for r, with_ in zip(self.results, shared, strict=True)
        ], [grad is not None for grad in self.gradients]

    @property
    def values(self):
        grads = [grad for grad in self.gradients if grad is not None]
        return [tensor.detach() for tensor in (*self.results, *self.inputs, *grads)]


def outcome(function, inputs):
    given = [one.detach().clone().requires_grad_(one.requires_grad) for one in inputs]
    torch.manual_seed(1)  # every function draws the same numbers, if any
    results = function(*given)
    results = list(results) if isinstance(results, (list, tuple)) else [results]
    try:
        return Outcome(results, given, _gradients(results, given))
    except RuntimeError as error:
        return Outcome(results, given, [], str(error))


def _gradients(results, inputs):
    """The gradients of a loss of all results that require grad; None where an input gets none."""
    wanted = [given for given in inputs if given.requires_grad]
    losses = [result.double().sin().sum() for result in results if result.requires_grad]
    if not losses or not wanted:
        return [None] * len(wanted)
    return list(torch.autograd.grad(sum(losses), wanted, allow_unused=True))


def _shared(results, inputs):
    """For each result, the first tensor with the same memory, counted over inputs and results."""
    memory = [tensor.untyped_storage()._cdata for tensor in (*inputs, *results)]
    return [memory.index(one) for one in memory[len(inputs) :]]


def assert_agrees(ours, eager, inputs, rtol=None, atol=None):
    """Both functions have the same outcome: in float64 to 1e-12, else to torch's tolerances."""
    ours, eager = (outcome(function, inputs) for function in (ours, eager))
    assert_alike(ours, eager)
    for actual, expected in zip(ours.values, eager.values, strict=True):
        if rtol is None and expected.dtype == torch.float64:
            torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12, equal_nan=True)
        else:
            torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True)


def rewritten_alike(rewrite, model, inputs, rtol=None, atol=None, **options):
    """What a model becomes, captured for these inputs. It has the model's outcome for them."""
    rewritten = rewrite(model, *inputs, **options)
    assert_agrees(rewritten.call, model, inputs, rtol, atol)
    return rewritten


def assert_one_graph(rewritten, model, batches, rtol=None, atol=None):
    """The model's one graph has its outcome for each of these inputs, whatever their sizes."""
    for inputs in batches:
        assert_agrees(rewritten.call, model, inputs, rtol, atol)
    assert len(rewritten.graphs) == 1


def assert_becomes(rewrite, model, inputs, replaced, reasons=(), rtol=None, atol=None):
    """Captured without gradients, a model's sites become these operators, but for those that are
    left for these reasons; and what it becomes, which is returned, has the outcome of the model,
    with gradients where inputs require them."""
    rewritten = rewrite(model, *(tensor.detach() for tensor in inputs))
    assert rewritten.replaced == replaced and rewritten.reasons == list(reasons)
    assert_agrees(rewritten.call, model, inputs, rtol, atol)
    captures = len(rewritten.graphs)  # Dynamo captures it again for inputs that require grad
    assert rewritten.replaced == {op: captures * count for op, count in replaced.items()}
    return rewritten


def assert_same_gradients(ours, eager, inputs, leaves, **tolerance):
    """The results of both functions have the same gradients at the leaves."""

    def gradients(function):
        results = function(*inputs)
        results = results if isinstance(results, (list, tuple)) else [results]
        total = sum(result.sin().sum() for result in results)
        return torch.autograd.grad(total, leaves, allow_unused=True)

    torch.testing.assert_close(gradients(ours), gradients(eager), **tolerance)


def trained(model, x):
    """The gradients of a model's parameters."""
    model.zero_grad()
    model(x).sin().sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def compiled_by_aot(model, **options):
    """A model that is rewritten, made free of writes by AOTAutograd, and run as it is; and a list
    that gets the operators in it."""
    replaced = []
    aot = aot_autograd(fw_compiler=lambda graph, _: make_boxed_func(graph.forward), **options)

    def backend(graph_module, example_inputs):
        replaced.extend(site.op for site in rewrite_module(graph_module).replaced)
        return aot(graph_module, example_inputs)

    return torch.compile(model, backend=backend), replaced


def assert_alike(ours, eager):
    """The outcomes are the same but for values. There may be gradients that eager refuses."""
    if eager.refusal:
        ours.gradients, ours.refusal = [], eager.refusal
    assert ours.refusal == eager.refusal
    assert ours.metadata == eager.metadata
