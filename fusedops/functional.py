"""The ops as functions, named and ordered as in ``torch.nn.functional``.

Every function is differentiable twice, runs under ``torch.compile`` and ``torch.export``, is
deterministic, and gives a row the same bits whatever the rows beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch

from fusedops.ops._autograd import needs_no_formula
from fusedops.ops.softmax import InplaceSoftmax

_ops = torch.ops.fusedops

Causal = bool | Literal["top_left", "bottom_right"]
MaskedRows = Literal["nan", "zero"]


def softmax(
    input: torch.Tensor,
    dim: int,
    dtype: torch.dtype | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    r"""Softmax along ``dim``: :math:`y_i = e^{x_i - \max x} / \sum_j e^{x_j - \max x}`.

    Accumulated in float32 (float64 for float64) and rounded once. A row of ``-inf`` alone, or with
    a NaN or ``+inf``, gives NaN, as in PyTorch.

    Args:
        input: any shape; float32, bfloat16, float16 or float64, or any dtype with ``dtype``.
            Rows (``dim`` the last dimension) are read where they lie if evenly spaced, on the CPU
            in groups too, as in ``x[:, :-1]``; over another ``dim`` a contiguous input is not
            transposed or copied. Other strides cost a copy.
        dim: the dimension to normalise.
        dtype: the result's dtype, converted to before anything is computed; default ``input``'s.
            From 16 bits to float32 the conversion costs no pass over memory.
        out: takes the result: of ``input``'s shape and the result's dtype, any strides; may be
            ``input`` itself. Not recorded by autograd.

    Returns:
        A contiguous tensor of ``input``'s shape, or ``out``.

    Raises:
        RuntimeError: a dtype that is not floating, a ``dim`` out of range, a device that this build
            has no kernels for; an ``out`` that does not fit, whose elements share memory, or beside
            tensors that require grad.

    Source: :func:`torch.nn.functional.softmax`.
    """
    if out is not None:
        return _softmax_out(_ops.softmax_out, input, dim, dtype, out)
    op = _ops._softmax if needs_no_formula(input) else _ops.softmax
    return op.default(input, dim, dtype)


def log_softmax(
    input: torch.Tensor,
    dim: int,
    dtype: torch.dtype | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    r"""Log-softmax along ``dim``: :math:`y_i = x_i - \max x - \log \sum_j e^{x_j - \max x}`.

    Arguments, result and errors as in :func:`softmax`.

    Source: :func:`torch.nn.functional.log_softmax`.
    """
    if out is not None:
        return _softmax_out(_ops.log_softmax_out, input, dim, dtype, out)
    op = _ops._log_softmax if needs_no_formula(input) else _ops.log_softmax
    return op.default(input, dim, dtype)


def _softmax_out(
    op: Any, input: torch.Tensor, dim: int, dtype: torch.dtype | None, out: torch.Tensor
) -> torch.Tensor:
    _check_out_dtype(out, dtype)
    op.default(input, dim, out)
    return out


def _check_out_dtype(out: torch.Tensor, dtype: torch.dtype | None) -> None:
    if dtype not in (None, out.dtype):
        raise RuntimeError(f"out is {out.dtype}, wanted dtype={dtype}; pass one of the two")


def softmax_(input: torch.Tensor, dim: int) -> torch.Tensor:
    r"""Softmax along ``dim`` in place of its input: peak memory grows by nothing.

    Recorded by autograd, whose formula needs the result alone, where the input is not a leaf: what
    made the input must not need it for its own derivative (a matrix product does not; ``exp`` does,
    and autograd then says so).

    Args:
        input: float32, bfloat16, float16 or float64. Strides that are neither rows nor planes cost
            a temporary copy.
        dim: the dimension to normalise.

    Returns:
        ``input``.

    Raises:
        RuntimeError: a leaf that requires grad, an input whose elements share memory (expanded or
            overlapping), a dtype that is not floating, a ``dim`` out of range. The input is
            untouched then.

    Source: :func:`torch.nn.functional.softmax`, in place.
    """
    if not (torch.is_grad_enabled() and input.requires_grad):
        _ops.softmax_.default(input, dim)
        return input
    if input.is_leaf:
        raise RuntimeError(
            "softmax_: input is a leaf that requires grad, whose value autograd needs as it is; "
            "use softmax, or call softmax_ under torch.no_grad()"
        )
    return InplaceSoftmax.apply(input, dim)


def masked_softmax(
    input: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    scale: float = 1.0,
    causal: Causal = False,
    mask_value: float = -math.inf,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
    masked_rows: MaskedRows = "nan",
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    r"""Softmax of masked attention scores over the last dimension, in one pass.

    :math:`y = \mathrm{softmax}(s x + b + m)` for a float mask; a bool mask and causality replace
    what they hide with ``mask_value``. Computed in float32 (float64 for float64) from the first
    product on, rounded once. What causality hides is neither read nor computed.

    Args:
        input: scores, ``[..., queries, keys]``; float32, bfloat16, float16 or float64, or any dtype
            with ``dtype``. Rows as in :func:`softmax`.
        mask: bool (True where visible) or floating (added); broadcasts to ``input`` without being
            materialised. A floating mask gets a gradient where it requires one.
        scale: multiplies the scores; stays float32 (float64).
        causal: True or "top_left": query ``i`` sees the keys up to ``i``; "bottom_right": the last
            query sees all keys, as with a key-value cache.
        mask_value: what is put in place of hidden scores: ``-inf``, ``finfo.min``, -1e4, ... A row
            of which nothing is visible comes out as PyTorch gives it: NaN for ``-inf``, uniform
            for a finite value.
        bias: a second floating tensor that is added (ALiBi, T5, Swin); broadcasts, and gets a
            gradient where it requires one.
        dtype: the result's dtype; default ``input``'s.
        masked_rows: "nan", as in PyTorch, or "zero": rows of which nothing is visible are zeros.
        out: takes the result, may be ``input`` itself; as in :func:`softmax`.

    Returns:
        A contiguous tensor of ``input``'s shape, or ``out``.

    Raises:
        RuntimeError: a mask or bias that does not broadcast or is of a wrong dtype or device, a NaN
            ``scale`` or ``mask_value``, a ``mask_value`` beyond float32, causality for fewer than
            two dimensions; otherwise as in :func:`softmax`.
        ValueError: another word for ``causal`` or ``masked_rows``.

    Source: Vaswani et al., "Attention Is All You Need" (2017), section 3.2.1.
    """
    diagonal, zero = _diagonal(input, causal), _zero_masked_rows(masked_rows)
    hidden = (mask, float(scale), bool(causal), float(mask_value))
    if out is not None:
        _check_out_dtype(out, dtype)
        _ops.masked_softmax_out.default(input, *hidden, bias, diagonal, zero, out)
        return out
    plain = needs_no_formula(input, mask, bias)
    op = _ops._masked_softmax if plain else _ops.masked_softmax
    return op.default(input, *hidden, bias, dtype, diagonal, zero)


def masked_softmax_dropout(
    input: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    p: float = 0.5,
    training: bool = True,
    seed: torch.Tensor | None = None,
    scale: float = 1.0,
    causal: Causal = False,
    mask_value: float = -math.inf,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
    masked_rows: MaskedRows = "nan",
) -> torch.Tensor:
    r"""Dropout of :func:`masked_softmax`, in the same pass: each element is kept with probability
    :math:`1 - p` and multiplied by :math:`1 / (1 - p)`, or is 0.

    Random numbers come from Philox4x32-10, keyed with ``seed`` and counted by row and column: the
    same on every device, for any number of threads. The backward pass makes them again; only the
    probabilities and the seed are kept for it.

    Args:
        p: the probability of a zero, in [0, 1]; 0 and 1 are exact.
        training: False leaves dropout out.
        seed: one int64 on ``input``'s device. By default drawn from torch's generator:
            ``torch.manual_seed`` repeats it, activation checkpointing recomputes it, a CUDA graph
            draws a new one at each replay.
        input, mask, scale, causal, mask_value, bias, dtype, masked_rows: as in
            :func:`masked_softmax`.

    Returns:
        A contiguous tensor of ``input``'s shape.

    Raises:
        RuntimeError: ``p`` outside [0, 1], a ``seed`` that is not one int64 on ``input``'s device;
            otherwise as in :func:`masked_softmax`.

    Source: Srivastava et al., "Dropout" (2014); Salmon et al., "Parallel Random Numbers: As Easy as
    1, 2, 3" (2011); :func:`torch.nn.functional.dropout`.
    """
    if not training:
        return masked_softmax(
            input,
            mask,
            scale=scale,
            causal=causal,
            mask_value=mask_value,
            bias=bias,
            dtype=dtype,
            masked_rows=masked_rows,
        )
    if seed is None:
        seed = torch.randint(-(2**63), 2**63 - 1, (), dtype=torch.int64, device=input.device)
    hidden = (mask, float(scale), bool(causal), float(mask_value))
    rest = (bias, dtype, _diagonal(input, causal), _zero_masked_rows(masked_rows))
    if needs_no_formula(input, mask, bias):
        return _ops._masked_softmax_dropout.default(input, *hidden, float(p), seed, *rest)
    return _ops.masked_softmax_dropout.default(input, *hidden, float(p), seed, *rest)[0]


def _diagonal(input: torch.Tensor, causal: Causal) -> int:
    """The diagonal up to which a query sees the keys."""
    if causal not in (False, True, "top_left", "bottom_right"):
        raise ValueError(f"causal is {causal!r}, wanted False, True, 'top_left' or 'bottom_right'")
    # Fewer than two dimensions: the op says what it wants.
    if causal != "bottom_right" or input.dim() < 2:
        return 0
    return input.shape[-1] - input.shape[-2]


def _zero_masked_rows(masked_rows: MaskedRows) -> bool:
    if masked_rows not in ("nan", "zero"):
        raise ValueError(f"masked_rows is {masked_rows!r}, wanted 'nan' or 'zero'")
    return masked_rows == "zero"


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
        input: float32, bfloat16, float16 or float64. Rows as in :func:`softmax`.
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
