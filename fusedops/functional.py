"""The ops as functions, named and ordered as in ``torch.nn.functional``.

Every function is differentiable twice, runs under ``torch.compile`` and ``torch.export``, is
deterministic, and gives a row the same bits whatever the rows beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fusedops.ops._autograd import needs_no_formula

_ops = torch.ops.fusedops


def softmax(input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    r"""Softmax along ``dim``: :math:`y_i = e^{x_i - \max x} / \sum_j e^{x_j - \max x}`.

    Accumulated in float32 (float64 for float64) and rounded once. A row of ``-inf`` alone, or with
    a NaN or ``+inf``, gives NaN, as in PyTorch.

    Args:
        input: any shape; float32, bfloat16, float16 or float64, or any dtype with ``dtype``.
            Rows (``dim`` the last dimension) may be strided; another ``dim`` costs a copy of the
            input and one of the output.
        dim: the dimension to normalise.
        dtype: the result's dtype, converted to before anything is computed; default ``input``'s.
            From 16 bits to float32 the conversion costs no pass over memory.

    Returns:
        A contiguous tensor of ``input``'s shape.

    Raises:
        RuntimeError: a dtype that is not floating, a ``dim`` out of range, a device that this build
            has no kernels for.

    Source: :func:`torch.nn.functional.softmax`.
    """
    if needs_no_formula(input):
        return _ops._softmax.default(input, dim, dtype)
    return _ops.softmax.default(input, dim, dtype)


def log_softmax(input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    r"""Log-softmax along ``dim``: :math:`y_i = x_i - \max x - \log \sum_j e^{x_j - \max x}`.

    Arguments, result and errors as in :func:`softmax`.

    Source: :func:`torch.nn.functional.log_softmax`.
    """
    if needs_no_formula(input):
        return _ops._log_softmax.default(input, dim, dtype)
    return _ops.log_softmax.default(input, dim, dtype)


def layer_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    r"""Layer normalisation over the last dimensions.

    :math:`y = (x - \mathrm{mean}) / \sqrt{\mathrm{var} + \epsilon} \cdot w + b`, biased variance.
    Statistics are taken in float32 (float64 for float64), exactly even where the mean is large, and
    kept in that dtype for the backward pass.

    Args:
        input: float32, bfloat16, float16 or float64. Rows may be strided.
        normalized_shape: the last dimensions of ``input``'s shape.
        weight, bias: of ``normalized_shape``, or None; their dtype may differ from ``input``'s.
        eps: added to the variance, >= 0.

    Returns:
        A contiguous tensor of ``input``'s shape and dtype.

    Raises:
        RuntimeError: a dtype that is not floating, a shape that does not match, a weight or bias on
            another device, a device that this build has no kernels for.

    Source: Ba, Kiros, Hinton, "Layer Normalization" (2016);
    :func:`torch.nn.functional.layer_norm`.
    """
    op = _ops._layer_norm if needs_no_formula(input, weight, bias) else _ops.layer_norm
    return op.default(input, normalized_shape, weight, bias, eps)[0]
