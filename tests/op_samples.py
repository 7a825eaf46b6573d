"""Calls of every op, with tensors of any dtype."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

import fusedops  # noqa: F401  # registers the ops

ops = torch.ops.fusedops


class Sample(NamedTuple):
    op: str
    args: tuple[Any, ...]


def _randn(*shape):
    """Numbers of the dtype that `samples` was asked for."""
    return torch.randn(shape)


def _softmaxes():
    x, g = _randn(3, 5, 7), _randn(3, 5, 7)
    for op in ("softmax", "log_softmax"):
        for dim in (-1, 1):
            y = getattr(ops, op)(x, dim)
            yield Sample(op, (x, dim))
            yield Sample(op, (x.float(), dim, torch.float64))
            yield Sample(f"{op}_", (x, dim))
            yield Sample(f"{op}_out", (x, dim, torch.zeros_like(x)))
            yield Sample(f"{op}_backward", (g, y, dim, x.dtype))
            yield Sample(f"{op}_backward_", (g, y, dim))
    statistics = ops.softmax_stats(x, 1)
    yield Sample("softmax_stats", (x, 1))
    yield Sample("softmax_apply", (x, *statistics, 1))


def _maskings():
    """What hides and adds: mask, causal, mask_value, bias, diagonal, lower_diagonal, start, end,
    sinks, softcap; for scores of shape [3, 5, 4, 7]."""
    visible = torch.rand(3, 1, 4, 7) > 0.2
    start, end = torch.randint(0, 3, (3, 1, 1)), torch.randint(4, 8, (4,))
    yield None, True, None, None, 2, None, None, None, None, None
    yield visible, True, -1e4, _randn(5, 4, 1), 1, -2, None, None, None, 5.0
    yield _randn(1, 5, 1, 7), False, -1e4, None, 0, None, start, end, _randn(5, 1), None
    yield visible[:1], True, -1e4, _randn(7), 3, None, start, None, _randn(3, 5, 4), 3.0
    yield _randn(3, 1, 4, 7), False, None, _randn(7), 0, None, None, None, None, None


def _masked_softmaxes():
    x, g, seed = _randn(3, 5, 4, 7), _randn(3, 5, 4, 7), torch.tensor(2**40 + 17)
    for mask, causal, value, bias, diagonal, lower, start, end, sinks, cap in _maskings():
        hidden, scores = (mask, 0.7, causal, value), (bias, None, diagonal, False)
        bounds = (lower, start, end)
        yield Sample("masked_softmax", (x, *hidden, *scores, *bounds, sinks, cap))
        given = (bias, diagonal, False)
        yield Sample("masked_softmax_", (x, *hidden, *given, *bounds, sinks, cap))
        out = torch.zeros_like(x)
        yield Sample("masked_softmax_out", (x, *hidden, *given, out, *bounds, sinks, cap))
        dropped = (x, *hidden, 0.3, seed, *scores, *bounds, sinks, cap)
        yield Sample("masked_softmax_dropout", dropped)
        yield Sample("_masked_softmax_dropout", dropped)
        y = ops.masked_softmax(*dropped[:5], *scores, *bounds, sinks, cap)
        mask = mask if mask is not None and mask.dtype == torch.bool else None
        hidden = (mask, 0.7, causal)
        yield Sample("masked_softmax_backward", (g, y, *hidden, x.dtype, diagonal, *bounds))
        yield Sample("masked_softmax_backward_", (g, y, *hidden, diagonal, *bounds))
        of_dropout = (g, y, *hidden, 0.3, seed)
        yield Sample("masked_softmax_dropout_backward", (*of_dropout, x.dtype, diagonal, *bounds))
        yield Sample("masked_softmax_dropout_backward_", (*of_dropout, diagonal, *bounds))
        if sinks is None:
            continue
        for p, own_seed in ((0.0, None), (0.0, seed), (0.3, seed)):
            given = (*dropped[:5], p, own_seed, *scores, *bounds, sinks, cap)
            yield Sample("masked_softmax_sinks", given)
            of_sinks = ops.masked_softmax_sinks(*given)[2]
            rest = (p, own_seed, x.dtype, diagonal, *bounds)
            yield Sample("masked_softmax_sinks_backward", (g, y, of_sinks, *hidden, *rest))


def _masked_rows():
    """Scores with rows of which every key is hidden."""
    x, visible = _randn(3, 4, 7), torch.rand(3, 4, 7) > 0.2
    visible[0, 1], visible[2, :, :5] = False, False
    for value in (None, -1e4):
        for zero in (False, True):
            for sinks in (None, _randn(3, 1)):
                given = (visible, 0.7, True, value)
                rest = (None, None, 0, zero, None, None, None, sinks)
                yield Sample("masked_softmax", (x, *given, *rest))
                dropped = (x, *given, 0.0, torch.tensor(1), *rest)
                yield Sample("masked_softmax_dropout", dropped)
    yield Sample("masked_softmax", (_randn(1), None, 0.7, False, None))  # fewer keys than ranks


def _dropouts():
    for shape in ((3, 5, 7), (2, 3, 4, 6), (9,), (3, 0)):
        for p in (0.0, 0.3, 1.0):
            for relu in (False, True):
                yield Sample("dropout", (_randn(*shape), p, torch.tensor(2**40 + 17), relu))


def _norms():
    x, g, residual = _randn(3, 5, 6), _randn(3, 5, 6), _randn(3, 5, 6)
    seed = torch.tensor(12345)
    for shape in ([6], [5, 6]):
        weight, bias, wanted = _randn(*shape), _randn(*shape), [True] * 3
        for op, eps in (("layer_norm", 1e-5), ("std_norm", 1e-3)):
            own_eps = (eps,) if op == "std_norm" else ()
            for parameters in ((weight, bias), (None, None)):
                yield Sample(op, (x, shape, *parameters, eps))
                yield Sample(f"_{op}_output", (x, shape, *parameters, eps))
            _, mean, rstd = getattr(ops, op)(x, shape, weight, bias, eps)
            saved = (x, shape, mean, rstd, weight, bias)
            for mask in ([True] * 3, [True, False, True], [True, False, False]):
                yield Sample(f"{op}_backward", (g, *saved, mask, *own_eps))
        for op, eps in (("rms_norm", 1e-6), ("l2_norm", 2.0)):
            offset = (0.5,) if op == "rms_norm" else (eps,)
            yield Sample(op, (x, shape, weight, eps))
            yield Sample(f"_{op}_output", (x, shape, None, eps))
            _, rstd = getattr(ops, op)(x, shape, weight, eps)
            yield Sample(f"{op}_backward", (g, x, shape, rstd, weight, wanted[:2], *offset))
        for dropout in ((0.0, None), (0.4, seed)):
            whole = (x, residual, shape, weight, bias, 1e-5)
            yield Sample("add_layer_norm", (*whole, *dropout))
            yield Sample("_add_layer_norm", (*whole, True, *dropout))
            yield Sample("_add_layer_norm", (*whole, False, *dropout))
            _, sum, mean, rstd = ops.add_layer_norm(*whole)
            has_branch = [True, dropout[1] is not None, True, True]
            given = (g, residual, sum, shape, mean, rstd, weight, bias, has_branch)
            yield Sample("add_layer_norm_backward", (*given, *dropout))
            whole = (x, residual, shape, weight, 1e-5)
            yield Sample("add_rms_norm", (*whole, 1.0, True, *dropout))
            yield Sample("_add_rms_norm", (*whole, False, 0.0, False, *dropout))
            _, sum, rstd = ops.add_rms_norm(*whole)
            given = (g, None, sum, shape, rstd, weight, has_branch[:3], 1.0)
            yield Sample("add_rms_norm_backward", (*given, *dropout))
        yield from _sums_of_two_dtypes(shape)


def _sums_of_two_dtypes(shape):
    """Gradients that input and residual have apart, and one of the residual alone."""
    x, residual, g = _randn(3, 5, 6).float(), *_randn(2, 3, 5, 6).double()
    weight, bias = _randn(*shape), _randn(*shape)
    dtypes = (torch.float32, torch.float64)
    for dropout in ((0.0, None), (0.4, torch.tensor(12345))):
        whole = (x, residual, shape, weight, bias, 1e-5, *dropout)
        yield Sample("add_layer_norm", whole)
        _, sum, mean, rstd = ops.add_layer_norm(*whole)
        saved = (g, residual, sum, shape, mean, rstd, weight, bias)
        for wanted in ([True] * 4, [False, True, True, False]):
            yield Sample("add_layer_norm_backward", (*saved, wanted, *dropout))
            yield Sample("add_layer_norm_backward", (*saved, wanted, *dropout, *dtypes))
        _, sum, rstd = ops.add_rms_norm(x, residual, shape, weight, 1e-5)
        saved = (g, None, sum, shape, rstd, weight, [True] * 3, 0.0)
        yield Sample("add_rms_norm_backward", (*saved, *dropout, *dtypes))


def _spatial_norms():
    x, g = (_randn(3, 5, 2, 7).contiguous(memory_format=torch.channels_last) for _ in range(2))
    weight, bias = _randn(5), _randn(5)
    yield Sample("spatial_layer_norm", (x, 1, weight, bias, 1e-5))
    yield Sample("_spatial_layer_norm_output", (x.contiguous(), -3, weight, None, 1e-5))
    _, mean, rstd = ops.spatial_layer_norm(x, 1, weight, bias, 1e-5)
    saved = (x, 1, mean, rstd, weight, bias)
    yield Sample("spatial_layer_norm_backward", (g, *saved, [True] * 3))
    yield Sample("spatial_rms_norm", (x, 1, weight, 1e-5))
    yield Sample("_spatial_rms_norm_output", (x, 1, weight, 1e-5))
    _, rstd = ops.spatial_rms_norm(x, 1, weight, 1e-5)
    yield Sample("spatial_rms_norm_backward", (g, x, 1, rstd, weight, [True] * 2))


def _stacks():
    inputs, stacked = [_randn(3, 5, 6) for _ in range(2)], _randn(3, 2, 5, 6)
    weights, biases = [_randn(6), _randn(6)], [_randn(6), _randn(6)]
    yield Sample("stack_softmax", (inputs, 1, 0))
    yield Sample("stack_log_softmax", (inputs, -1, -3))
    yield Sample("stack_layer_norm", (inputs, [6], weights, biases, 1e-5, 1))
    yield Sample("stack_layer_norm", (inputs, [6], [], [], 1e-5, -1))
    _, mean, rstd = ops.stack_layer_norm(inputs, [6], weights, biases, 1e-5, 1)
    given = (stacked, inputs, [6], mean, rstd, weights, biases, 1, [True] * 3)
    yield Sample("stack_layer_norm_backward", given)


def _norms_of_no_columns():
    x, none = _randn(3, 0), (None, None)
    yield Sample("layer_norm", (x, [0], *none, 1e-5))
    saved = (x, [0], *ops.layer_norm(x, [0], *none, 1e-5)[1:], *none)
    yield Sample("layer_norm_backward", (x, *saved, [True] * 3))
    yield Sample("std_norm", (x, [0], *none, 1e-5))
    yield Sample("l2_norm", (x, [0], _randn(0), 1e-5))
    yield Sample("add_rms_norm", (x, x, [0], None, 1e-5))
    yield Sample("spatial_layer_norm", (x, 1, *none, 1e-5))
    yield Sample("stack_layer_norm", ([x, x], [0], [], [], 1e-5, 0))


def _cross_entropies():
    x, target = _randn(3, 5, 7), torch.randint(7, (3, 5))
    target[0, 1] = -100
    x[1, 0, int(target[1, 0])] += 40  # a confident row
    for settings in ((-100,), (-100, 0.0, 0.5, 3.0), (-100, 0.1)):
        whole = (*settings, *(-100, 0.0, 1.0, None)[len(settings) :])
        yield Sample("cross_entropy", (x, target, *whole))
        yield Sample("cross_entropy", (x, target.int(), *whole, True))
        saved = (x, target, *ops.cross_entropy(x, target, *whole))
        to_losses, to_lse = _randn(2, 3, 5).to(saved[-1].dtype)
        yield Sample("cross_entropy_backward", (*saved, to_losses, to_lse, *whole))
        yield Sample("cross_entropy_backward", (*saved, to_losses, None, *whole))
        if whole[1] == 0:  # with smoothing, divided classes are gathered
            yield Sample("cross_entropy_backward_", (*saved, None, to_lse, *whole))


def samples(dtype: torch.dtype = torch.float64) -> list[Sample]:
    before = torch.get_default_dtype()
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        softmaxes = (_softmaxes, _masked_softmaxes, _masked_rows, _dropouts, _cross_entropies)
        families = (*softmaxes, _norms, _spatial_norms, _stacks, _norms_of_no_columns)
        return [sample for family in families for sample in family()]
    finally:
        torch.set_default_dtype(before)
