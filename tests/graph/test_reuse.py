"""Compiled graphs write a softmax into memory that nothing else reads, and into no other."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch._inductor.utils import fresh_cache, run_and_get_code

import fusedops


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    with fresh_cache():
        yield
    torch._dynamo.reset()


def compiled_code(function, *args):
    """The result, and the calls of our ops in all code that forward and backward run."""
    compiled = torch.compile(function, backend="fusedops", fullgraph=True)

    def run():
        result = compiled(*args)
        if result.requires_grad:
            result.sum().backward()
        return result

    result, codes = run_and_get_code(run)
    calls = re.findall(r"^ *(?:\w+ = )?torch\.ops\.fusedops\.(\w+)", "\n".join(codes), re.MULTILINE)
    return result, calls


def inputs(requires_grad=False):
    torch.manual_seed(0)
    return [torch.randn(2, 3, 16, 8, requires_grad=requires_grad) for _ in range(3)]


def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2), -1) @ v


def test_attention_scores_become_the_probabilities():
    q, k, v = inputs()
    actual, calls = compiled_code(attention, q, k, v)
    assert calls == ["softmax_"]
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
def test_gradients_are_written_into_memory_that_nothing_else_reads(function, calls):
    ours, eager = inputs(requires_grad=True), inputs(requires_grad=True)
    _, made = compiled_code(function, *ours)
    assert made == calls
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
def test_memory_that_is_not_free_is_left_alone(name):
    args = inputs()
    before = [t.clone() for t in args]
    expected = NOT_FREE[name](*args)
    compiled = torch.compile(NOT_FREE[name], backend="fusedops", fullgraph=True)
    actual, codes = run_and_get_code(compiled, *args)
    assert not any("softmax_." in code for code in codes)
    torch.testing.assert_close(actual, expected)
    assert all(map(torch.equal, args, before))


def test_eager_mode_never_writes_into_the_incoming_gradient():
    x = torch.randn(4, 9, requires_grad=True)
    grad = torch.randn(4, 9)
    before = grad.clone()
    for y in (fusedops.softmax(x, -1), fusedops.masked_softmax(x, causal=True)):
        y.backward(grad)
        assert torch.equal(grad, before)


def test_a_plain_compilation_reuses_under_patch():
    q, k, v = inputs()
    with fusedops.patch():
        compiled = torch.compile(attention)
        actual, codes = run_and_get_code(compiled, q, k, v)
    assert any("softmax_." in code for code in codes)
    torch.testing.assert_close(actual, F.softmax(q @ k.mT, -1) @ v)
