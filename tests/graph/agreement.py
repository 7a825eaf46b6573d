"""Whether a rewritten model is what it was to all who call it: not its values alone."""

from __future__ import annotations

import torch


def assert_agrees(ours, eager, inputs, rtol=1e-9, atol=1e-9):
    """Both functions, called with copies of `inputs`, give tensors of the same values, strides and
    memory, that require grad or not; write the same into the inputs; and have the same gradients,
    or none, in the same of them."""
    (a, given_a), (b, given_b) = ((f, _copies(inputs)) for f in (ours, eager))
    results_a, results_b = _as_list(a(*given_a)), _as_list(b(*given_b))
    for result, expected in zip(results_a, results_b, strict=True):
        torch.testing.assert_close(result, expected, rtol=rtol, atol=atol, equal_nan=True)
        assert result.stride() == expected.stride()
        assert result.requires_grad == expected.requires_grad
    assert shared(results_a, given_a) == shared(results_b, given_b)
    torch.testing.assert_close(given_a, given_b, rtol=rtol, atol=atol, equal_nan=True)
    try:
        grads_b = gradients(results_b, given_b)
    except RuntimeError:  # autograd refuses: something that eager keeps was written
        return
    grads_a = gradients(results_a, given_a)
    assert [g is None for g in grads_a] == [g is None for g in grads_b]
    torch.testing.assert_close(grads_a, grads_b, rtol=10 * rtol, atol=10 * atol, equal_nan=True)


def gradients(results, inputs):
    """Of a loss of all results that require grad; None where an input gets none."""
    wanted = [given for given in inputs if given.requires_grad]
    losses = [result.sin().sum() for result in results if result.requires_grad]
    if not losses or not wanted:
        return [None] * len(wanted)
    return list(torch.autograd.grad(sum(losses), wanted, allow_unused=True))


def shared(results, inputs):
    """For each result which of the tensors before it, inputs first, it shares its memory with."""
    memory = [tensor.untyped_storage()._cdata for tensor in (*inputs, *results)]
    return [memory.index(one) for one in memory[len(inputs) :]]


def _copies(inputs):
    return [given.detach().clone().requires_grad_(given.requires_grad) for given in inputs]


def _as_list(results):
    return list(results) if isinstance(results, (list, tuple)) else [results]
