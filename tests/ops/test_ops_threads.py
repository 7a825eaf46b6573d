"""Several threads call ops, and compile, at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import fusedops

#: Short rows, rows that threads divide, and one that they share. Odd lengths leave tails.
SHAPES = [(3, 17), (67, 1025), (1, 70001)]
ROUNDS = 5


def train(shape: tuple[int, int]) -> list[torch.Tensor]:
    """Results and gradients of ops of every family."""
    generator = torch.Generator().manual_seed(shape[1])
    x = torch.randn(shape, generator=generator, requires_grad=True)
    w = torch.randn(shape[1], generator=generator, requires_grad=True)
    mask = torch.rand(shape, generator=generator) > 0.2
    outputs = [
        fusedops.softmax(x, -1),
        fusedops.log_softmax(x, 0),
        fusedops.masked_softmax(x, mask),
        fusedops.layer_norm(x, w.shape, w, w),
        fusedops.rms_norm(x, w.shape, w),
        *fusedops.add_layer_norm(x, x, w.shape, w, w),
        fusedops.stack_softmax([x, x], -1),
    ]
    gradients = torch.autograd.grad(sum(y.square().sum() for y in outputs), (x, w))
    return [y.detach() for y in outputs] + list(gradients)


def same_bits(results: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(results, wanted, strict=True))


def at_once(*functions: Callable[[], object]) -> list:
    """Calls each in a thread of its own, all at once, and raises what one of them raises."""
    barrier = threading.Barrier(len(functions))

    def run(function):
        barrier.wait()
        return function()

    with ThreadPoolExecutor(len(functions)) as pool:
        return list(pool.map(run, functions))


@pytest.mark.parametrize("threads", [1, 2, 3], indirect=True)
def test_threads_that_call_at_once_get_the_bits_of_one_that_calls_alone(threads):
    wanted = {shape: train(shape) for shape in SHAPES}

    def calls():
        return all(
            same_bits(train(shape), wanted[shape]) for _ in range(ROUNDS) for shape in SHAPES
        )

    assert all(at_once(calls, calls, calls, calls))


@pytest.mark.slow("Inductor compiles a model and its backward pass, beside threads that compute")
@pytest.mark.parametrize("threads", [1, 2, 3], indirect=True)
def test_threads_call_ops_while_another_compiles(threads):
    wanted = {shape: train(shape) for shape in SHAPES}
    compiled = threading.Event()
    x = torch.randn(16, 64, requires_grad=True)

    def model(x):
        return fusedops.layer_norm(torch.softmax(x * 2, -1), (64,)).sin()

    def compiles():
        try:
            y = torch.compile(model, backend="fusedops")(x)
            torch.testing.assert_close(y, model(x))
            (gradient,) = torch.autograd.grad(y.sum(), x)
            torch.testing.assert_close(gradient, torch.autograd.grad(model(x).sum(), x)[0])
            return True
        finally:
            compiled.set()

    def calls():
        answers = []
        # Without pauses the compilation would wait for Python's lock most of the time.
        while not compiled.wait(0.05) or not answers:
            answers.append(all(same_bits(train(shape), wanted[shape]) for shape in SHAPES))
        return all(answers)

    assert all(at_once(compiles, calls, calls))


@pytest.mark.parametrize("threads", [1, 2, 3], indirect=True)
def test_threads_that_write_into_parts_of_one_tensor_do_not_interfere(threads):
    x = torch.randn(4, 67, 1025)
    wanted = torch.stack([fusedops.softmax(part, -1) for part in x])
    at_once(*(lambda part=part: fusedops.softmax_(part, -1) for part in x))
    assert torch.equal(x, wanted)
