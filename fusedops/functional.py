"""The ops as functions, named and ordered as in ``torch.nn.functional``.

Every function is differentiable twice, also under the reverse-mode transforms of ``torch.func``
(``grad``, ``vjp``, ``jacrev``, and ``vmap`` of them for per-sample gradients), runs under
``torch.compile`` and ``torch.export``, is deterministic, and gives a row the same bits whatever the
rows beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args, overload

import torch

from fusedops import _arguments
from fusedops.ops import _checks
from fusedops.ops._autograd import EagerOp
from fusedops.ops._mutation import check_recordable
from fusedops.ops.norm import default_rms_eps, scaled_by_weight
from fusedops.ops.softmax import InplaceSoftmax

_ops = torch.ops.fusedops

_softmax: EagerOp[torch.Tensor] = EagerOp("softmax")
_log_softmax: EagerOp[torch.Tensor] = EagerOp("log_softmax")
_softmax_stats: EagerOp[tuple[torch.Tensor, torch.Tensor]] = EagerOp("softmax_stats")
_softmax_apply: EagerOp[torch.Tensor] = EagerOp("softmax_apply")
_masked_softmax: EagerOp[torch.Tensor] = EagerOp("masked_softmax")
_masked_softmax_dropout: EagerOp[Any] = EagerOp("masked_softmax_dropout", "_masked_softmax_dropout")
_layer_norm: EagerOp[torch.Tensor] = EagerOp("layer_norm", "_layer_norm_output", 0)
_std_norm: EagerOp[torch.Tensor] = EagerOp("std_norm", "_std_norm_output", 0)
_rms_norm: EagerOp[torch.Tensor] = EagerOp("rms_norm", "_rms_norm_output", 0)
_add_layer_norm: EagerOp[tuple[torch.Tensor, torch.Tensor]] = EagerOp(
    "add_layer_norm", "_add_layer_norm", slice(2)
)
_add_rms_norm: EagerOp[tuple[torch.Tensor, torch.Tensor]] = EagerOp(
    "add_rms_norm", "_add_rms_norm", slice(2)
)
_stack_softmax: EagerOp[torch.Tensor] = EagerOp("stack_softmax")
_stack_log_softmax: EagerOp[torch.Tensor] = EagerOp("stack_log_softmax")
_stack_layer_norm: EagerOp[torch.Tensor] = EagerOp("stack_layer_norm", returned=0)

Causal = bool | Literal["top_left", "bottom_right"]
MaskedRows = Literal["nan", "zero"]
RmsVariant = Literal["torch", "llama", "t5", "gemma"]


def softmax(
    input: torch.Tensor,
    dim: int | None,
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
            transposed or copied. Other strides cost a copy. All threads share a row of more than
            65536 elements, and the result has the same bits however many they are.
        dim: the dimension to normalise; None for all elements together, as of one row.
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
        return _softmax_out("softmax", input, dim, dtype, out)
    if dtype is not None:
        _arguments.floating("softmax", "dtype", dtype)
    run = _softmax.on(input)
    if dim is None:
        _arguments.tensor("softmax", "input", input)
        return run(input.reshape(-1), 0, dtype).view(input.shape)
    return run(input, dim, dtype)


def log_softmax(
    input: torch.Tensor,
    dim: int | None,
    dtype: torch.dtype | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    r"""Log-softmax along ``dim``: :math:`y_i = x_i - \max x - \log \sum_j e^{x_j - \max x}`.

    Args:
        input, dim, dtype, out: as in :func:`softmax`.

    Returns:
        A contiguous tensor of ``input``'s shape, or ``out``.

    Raises:
        RuntimeError: as in :func:`softmax`.

    Source: :func:`torch.nn.functional.log_softmax`.
    """
    if out is not None:
        return _softmax_out("log_softmax", input, dim, dtype, out)
    if dtype is not None:
        _arguments.floating("log_softmax", "dtype", dtype)
    run = _log_softmax.on(input)
    if dim is None:
        _arguments.tensor("log_softmax", "input", input)
        return run(input.reshape(-1), 0, dtype).view(input.shape)
    return run(input, dim, dtype)


def _softmax_out(
    function: str,
    input: torch.Tensor,
    dim: int | None,
    dtype: torch.dtype | None,
    out: torch.Tensor,
) -> torch.Tensor:
    _check_out_dtype(function, out, dtype)
    op = _ops.softmax_out if function == "softmax" else _ops.log_softmax_out
    if dim is not None:
        op.default(input, dim, out)
    elif out.is_contiguous() and out.shape == _arguments.tensor(function, "input", input).shape:
        op.default(input.reshape(-1), 0, out.view(-1))
    else:
        raise RuntimeError(
            f"{function}: out has shape {list(out.shape)} and strides {list(out.stride())}, wanted "
            f"a contiguous tensor of input's shape, {list(input.shape)}, where dim is None"
        )
    return out


def _check_out_dtype(function: str, out: torch.Tensor, dtype: torch.dtype | None) -> None:
    _arguments.tensor(function, "out", out)
    if dtype not in (None, out.dtype):
        raise RuntimeError(
            f"{function}: out is {out.dtype}, wanted dtype={dtype}; pass one of the two"
        )


def softmax_stats(input: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    r"""What the softmax of a row needs of all of it: :math:`m = \max x` and
    :math:`s = \sum_j e^{x_j - m}`.

    Rows may come in parts, on several devices or ranks: :func:`merge_softmax_stats` makes of the
    parts' statistics those of the rows, :func:`softmax_apply` the softmax of each part.
    :math:`m + \log s` is ``input.logsumexp(dim)``.

    Args:
        input: any shape; float32, bfloat16, float16 or float64. Rows as in :func:`softmax`; a
            ``dim`` that is not the last costs a copy.
        dim: the dimension to normalise, of at least one element.

    Returns:
        (max, sum), contiguous, of ``input``'s shape with ``dim`` of size 1; float32, float64 where
        ``input`` is. A row of ``-inf`` alone has the sum 0, one with a NaN or ``+inf`` NaN.
        Differentiable: ``max`` counts as a constant, which cancels in a softmax and in a logsumexp.

    Raises:
        RuntimeError: a dtype that is not floating, a ``dim`` out of range or empty, a device that
            this build has no kernels for.

    Source: Milakov, Gimelshein, "Online normalizer calculation for softmax" (2018).
    """
    return _softmax_stats.on(input)(input, dim)


def softmax_apply(
    input: torch.Tensor,
    max: torch.Tensor,
    sum: torch.Tensor,
    dim: int,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    r"""The softmax along ``dim`` of rows whose statistics are known: :math:`e^{x_i - m} / s`.

    Args:
        input: any shape; float32, bfloat16, float16 or float64.
        max, sum: of :func:`softmax_stats` or :func:`merge_softmax_stats`.
        dim: the dimension to normalise.
        dtype: the result's; default ``input``'s.

    Returns:
        A contiguous tensor of ``input``'s shape. Differentiable in ``input``, ``max`` and ``sum``.

    Raises:
        RuntimeError: statistics of another shape, dtype or device than ``input``'s would have; a
            dtype that is not floating, a ``dim`` out of range.

    Source: as for :func:`softmax_stats`.
    """
    if dtype is not None:
        _arguments.floating("softmax_apply", "dtype", dtype)
    return _softmax_apply.on(input, max, sum)(input, max, sum, dim, dtype)


def merge_softmax_stats(
    stats: Sequence[tuple[torch.Tensor, torch.Tensor]],
) -> tuple[torch.Tensor, torch.Tensor]:
    r"""The statistics of rows from those of their parts: :math:`m = \max_k m_k` and
    :math:`s = \sum_k s_k e^{m_k - m}`, always added in the order given.

    Args:
        stats: (max, sum) of each part, of one shape and dtype: of :func:`softmax_stats`, or merged.

    Returns:
        (max, sum) of that shape and dtype.

    Raises:
        RuntimeError: no parts, or parts of different shapes, dtypes or devices.
        TypeError: parts that are not two tensors.

    Source: as for :func:`softmax_stats`, where two such pairs are merged.
    """
    maxima, sums = (torch.stack(parts) for parts in zip(*_parts_of_stats(stats), strict=True))
    max = maxima.detach().amax(0)
    shift = max.masked_fill(max == -math.inf, 0)  # of parts of -inf alone: e^(-inf) = 0, not NaN
    return max, (sums * (maxima - shift).exp()).sum(0)


def _parts_of_stats(stats: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(max, sum) of each part, all alike."""
    function = "merge_softmax_stats"
    parts = _arguments.tensors(function, "stats", stats)
    if len(parts) == 0:
        raise RuntimeError(f"{function}: stats is empty, wanted at least one (max, sum)")
    for index, part in enumerate(parts):
        if not isinstance(part, (tuple, list)) or len(part) != 2:
            raise _arguments.wrong(function, f"stats[{index}]", part, "(max, sum)")
        for name, given in zip(("max", "sum"), part, strict=True):
            name = f"{name} of stats[{index}]"
            _arguments.tensor(function, name, given)
            _checks.check_dtype(function, name, given.dtype)
            _checks.check_like(function, name, given, ("max of stats[0]", parts[0][0]))
    return parts


def softmax_(input: torch.Tensor, dim: int) -> torch.Tensor:
    r"""Softmax along ``dim`` in place of its input: peak memory grows by nothing.

    Recorded by autograd, whose formula needs the result alone, where the input is not a leaf: what
    made the input must not need it for its own derivative (a matrix product does not; ``exp`` does,
    and autograd then says so).

    Args:
        input: any shape; float32, bfloat16, float16 or float64. Strides that are neither rows nor
            planes cost a temporary copy.
        dim: the dimension to normalise.

    Returns:
        ``input``.

    Raises:
        RuntimeError: a leaf that requires grad or a view of one, one of the views that ``unbind``,
            ``split`` or ``chunk`` returned where it requires grad, an input whose elements share
            memory (expanded or overlapping), a dtype that is not floating, a ``dim`` out of range.
            The input is untouched then.
        NotImplementedError: an input with a forward-mode tangent; it is untouched too.

    Source: :func:`torch.nn.functional.softmax`, in place.
    """
    if not (torch.is_grad_enabled() and getattr(input, "requires_grad", False)):
        _ops.softmax_.default(input, dim)
        return input
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        return input.copy_(softmax(input, dim))  # an autograd function would write at each level
    check_recordable("softmax_", input)
    output: torch.Tensor = InplaceSoftmax.apply(input, dim)
    return output


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
        mask: bool (True where visible) or floating (added), of a shape that broadcasts to
            ``input``'s; it is not materialised. A floating mask gets a gradient where it requires
            one.
        scale: multiplies the scores; stays float32 (float64).
        causal: True or "top_left": query ``i`` sees the keys up to ``i``; "bottom_right": the last
            query sees all keys, as with a key-value cache.
        mask_value: what is put in place of hidden scores: ``-inf``, ``finfo.min``, -1e4, ... A row
            of which nothing is visible comes out as PyTorch gives it: NaN for ``-inf``, uniform
            for a finite value.
        bias: a second floating tensor that is added (ALiBi, T5, Swin), of a shape that broadcasts
            to ``input``'s; gets a gradient where it requires one.
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
    if type(scale) is not float:
        scale = _arguments.number("masked_softmax", "scale", scale)
    if type(mask_value) is not float:
        mask_value = _arguments.number("masked_softmax", "mask_value", mask_value)
    hidden = (mask, scale, bool(causal), mask_value)
    if out is not None:
        _check_out_dtype("masked_softmax", out, dtype)
        _ops.masked_softmax_out.default(input, *hidden, bias, diagonal, zero, out)
        return out
    if dtype is not None:
        _arguments.floating("masked_softmax", "dtype", dtype)
    run = _masked_softmax.on(input, mask, bias)
    return run(input, *hidden, bias, dtype, diagonal, zero)


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
    function = "masked_softmax_dropout"
    p = p if type(p) is float else _arguments.number(function, "p", p)
    if type(scale) is not float:
        scale = _arguments.number(function, "scale", scale)
    if type(mask_value) is not float:
        mask_value = _arguments.number(function, "mask_value", mask_value)
    if dtype is not None:
        _arguments.floating(function, "dtype", dtype)
    if seed is None:
        seed = _drawn_seed(function, input)
    rest = (bias, dtype, _diagonal(input, causal), _zero_masked_rows(masked_rows))
    hidden = (mask, scale, bool(causal), mask_value)
    run = _masked_softmax_dropout.on(input, mask, bias)
    results = run(input, *hidden, p, seed, *rest)
    output: torch.Tensor = results if run is _masked_softmax_dropout.plain else results[0]
    return output


def _diagonal(input: torch.Tensor, causal: Causal) -> int:
    """The diagonal up to which a query sees the keys."""
    if causal is False or causal is True:
        return 0
    _arguments.one_of("causal", causal, (False, True, "top_left", "bottom_right"))
    if causal != "bottom_right":
        return 0
    if _arguments.tensor("masked_softmax", "input", input).dim() < 2:  # the op says what it wants
        return 0
    return input.shape[-1] - input.shape[-2]


def _zero_masked_rows(masked_rows: MaskedRows) -> bool:
    if type(masked_rows) is not str or masked_rows not in ("nan", "zero"):
        _arguments.one_of("masked_rows", masked_rows, get_args(MaskedRows))
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
    kept in that dtype for the backward pass, which reads its inputs once.

    Args:
        input: any shape that ends in ``normalized_shape``; float32, bfloat16, float16 or float64.
            Rows as in :func:`softmax`.
        normalized_shape: the last dimensions of ``input``'s shape.
        weight, bias: of ``normalized_shape``, or None; their dtype may differ from ``input``'s.
        eps: added to the variance, >= 0.

    Returns:
        A contiguous tensor of ``input``'s shape and dtype.

    Raises:
        RuntimeError: a dtype that is not floating, a shape that does not match or holds a 0, a
            negative eps, a weight or bias on another device, a device that this build has no
            kernels for.

    Source: Ba, Kiros, Hinton, "Layer Normalization" (2016);
    :func:`torch.nn.functional.layer_norm`.
    """
    if type(eps) is not float:
        eps = _arguments.number("layer_norm", "eps", eps)
    run = _layer_norm.on(input, weight, bias)
    return run(input, normalized_shape, weight, bias, eps)


def std_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> torch.Tensor:
    r"""Normalisation by the standard deviation over the last dimensions: the Annotated
    Transformer's LayerNorm, which is another function than :func:`layer_norm`.

    :math:`y = (x - \mathrm{mean}) / (\mathrm{std} + \epsilon) \cdot w + b`, where
    :math:`\mathrm{std}^2 = \sum (x - \mathrm{mean})^2 / (N - 1)` is the unbiased variance of a row
    of :math:`N` elements, and :math:`\epsilon` stands outside the root. Statistics as in
    :func:`layer_norm`. As in PyTorch, a row of one element, which has no unbiased variance, gives
    NaN, and in the gradient of a constant row that of its standard deviation counts as 0.

    Args:
        input: any shape that ends in ``normalized_shape``; float32, bfloat16, float16 or float64.
            Rows as in :func:`softmax`.
        normalized_shape: the last dimensions of ``input``'s shape.
        weight, bias: of ``normalized_shape``, or None; their dtype may differ from ``input``'s.
            ``a_2`` and ``b_2`` in the source.
        eps: added to the standard deviation, >= 0.

    Returns:
        A contiguous tensor of ``input``'s shape and dtype.

    Raises:
        RuntimeError: as in :func:`layer_norm`.

    Source: Rush, "The Annotated Transformer" (2018), Harvard NLP.
    """
    if type(eps) is not float:
        eps = _arguments.number("std_norm", "eps", eps)
    run = _std_norm.on(input, weight, bias)
    return run(input, normalized_shape, weight, bias, eps)


def rms_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
    *,
    variant: RmsVariant = "torch",
) -> torch.Tensor:
    r"""Root mean square normalisation over the last dimensions.

    :math:`y = x / \sqrt{\mathrm{mean}(x^2) + \epsilon} \cdot w`, computed in float32 (float64 for
    float64). Models spell it in four ways, which round at different places:

    - "torch": rounded once, to ``input``'s dtype.
    - "gemma": as torch, with :math:`1 + w` in place of :math:`w`.
    - "llama": the normalised value is rounded to ``input``'s dtype, then multiplied by ``weight``;
      the result has the dtype that both promote to.
    - "t5": as llama where ``weight`` has 16 bits, rounded to its dtype; beside a float32 ``weight``
      nothing is rounded to 16 bits.

    Args:
        input: any shape that ends in ``normalized_shape``; float32, bfloat16, float16 or float64.
            Rows as in :func:`softmax`.
        normalized_shape: the last dimensions of ``input``'s shape.
        weight: of ``normalized_shape``, or None. "llama" and "t5" take one pass where its dtype is
            ``input``'s, more where it is not.
        eps: added to the mean square, >= 0; by default what float32 (float64) resolves at 1, as in
            torch.
        variant: "torch", "llama", "t5" or "gemma".

    Returns:
        A contiguous tensor of ``input``'s shape.

    Raises:
        RuntimeError: as in :func:`layer_norm`.
        ValueError: another word for ``variant``.

    Source: Zhang, Sennrich, "Root Mean Square Layer Normalization" (2019);
    :func:`torch.nn.functional.rms_norm`, and LlamaRMSNorm, T5LayerNorm and GemmaRMSNorm of Hugging
    Face transformers.
    """
    eps = eps if type(eps) is float else _rms_eps("rms_norm", input, eps)
    if weight is not None and _multiplies_afterwards("rms_norm", variant, input, weight):
        is_t5, is_narrow = variant == "t5", weight.dtype in (torch.bfloat16, torch.float16)
        wide = input.float() if is_t5 and input.dtype != torch.float64 else input
        if is_t5 and weight.dtype == wide.dtype:
            return rms_norm(wide, normalized_shape, weight, eps)
        normalized = rms_norm(wide, normalized_shape, None, eps)
        normalized = normalized.to(weight.dtype) if is_t5 and is_narrow else normalized
        return scaled_by_weight(normalized, weight)
    settings = _rms_settings(variant)
    return _rms_norm.on(input, weight)(input, normalized_shape, weight, eps, *settings)


@overload
def add_layer_norm(
    input: torch.Tensor,
    residual: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = ...,
    bias: torch.Tensor | None = ...,
    eps: float = ...,
    *,
    p: float = ...,
    training: bool = ...,
    seed: torch.Tensor | None = ...,
    return_sum: Literal[True] = ...,
) -> tuple[torch.Tensor, torch.Tensor]: ...
@overload
def add_layer_norm(
    input: torch.Tensor,
    residual: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = ...,
    bias: torch.Tensor | None = ...,
    eps: float = ...,
    *,
    p: float = ...,
    training: bool = ...,
    seed: torch.Tensor | None = ...,
    return_sum: Literal[False],
) -> torch.Tensor: ...
def add_layer_norm(
    input: torch.Tensor,
    residual: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    *,
    p: float = 0.0,
    training: bool = True,
    seed: torch.Tensor | None = None,
    return_sum: bool = True,
) -> tuple[torch.Tensor, torch.Tensor] | torch.Tensor:
    r"""The residual connection of a transformer and the norm after it, in one pass.

    :math:`s = \mathrm{dropout}_p(x) + r`, :math:`y = \mathrm{layer\_norm}(s)`. Pre-norm layers go
    on with both, post-norm layers with :math:`y` alone. :math:`s` is rounded once to ``input``'s
    dtype and normalised as rounded, as the separate calls do. The backward pass adds the gradient
    of :math:`s` to that of the norm, and draws dropout's numbers again.

    Args:
        input: the branch, :math:`x`: shape and dtype as in :func:`layer_norm`, rows as in
            :func:`softmax`.
        residual: :math:`r`, of ``input``'s shape, dtype and device.
        normalized_shape, weight, bias, eps: as in :func:`layer_norm`.
        p: the probability of a zero in dropout of ``input``, in [0, 1]; 0 and 1 are exact.
        training: False leaves dropout out.
        seed: as in :func:`masked_softmax_dropout`; drawn only where ``p`` is above 0.
        return_sum: False: only :math:`y` is returned, and without a gradient :math:`s` is not
            written.

    Returns:
        :math:`(y, s)`, contiguous, of ``input``'s shape and dtype; or :math:`y`.

    Raises:
        RuntimeError: a ``residual`` of another shape, dtype or device, ``p`` outside [0, 1], a
            ``seed`` that is not one int64 on ``input``'s device; otherwise as in
            :func:`layer_norm`.

    Source: Vaswani et al., "Attention Is All You Need" (2017), section 5.4; Xiong et al., "On Layer
    Normalization in the Transformer Architecture" (2020).
    """
    function = "add_layer_norm"
    eps = eps if type(eps) is float else _arguments.number(function, "eps", eps)
    norm = (normalized_shape, weight, bias, eps)
    dropout = _branch_dropout(function, input, p, training, seed)
    run = _add_layer_norm.on(input, residual, weight, bias)
    wanted = (return_sum,) if run is _add_layer_norm.plain else ()
    results = run(input, residual, *norm, *wanted, *dropout)
    return results if return_sum else results[0]


@overload
def add_rms_norm(
    input: torch.Tensor,
    residual: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = ...,
    eps: float | None = ...,
    *,
    variant: RmsVariant = ...,
    p: float = ...,
    training: bool = ...,
    seed: torch.Tensor | None = ...,
    return_sum: Literal[True] = ...,
) -> tuple[torch.Tensor, torch.Tensor]: ...
@overload
def add_rms_norm(
    input: torch.Tensor,
    residual: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = ...,
    eps: float | None = ...,
    *,
    variant: RmsVariant = ...,
    p: float = ...,
    training: bool = ...,
    seed: torch.Tensor | None = ...,
    return_sum: Literal[False],
) -> torch.Tensor: ...
def add_rms_norm(
    input: torch.Tensor,
    residual: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
    *,
    variant: RmsVariant = "torch",
    p: float = 0.0,
    training: bool = True,
    seed: torch.Tensor | None = None,
    return_sum: bool = True,
) -> tuple[torch.Tensor, torch.Tensor] | torch.Tensor:
    r"""The residual connection of a transformer and the RMS norm after it, in one pass.

    :math:`s = \mathrm{dropout}_p(x) + r`, :math:`y = \mathrm{rms\_norm}(s)`; otherwise as
    :func:`add_layer_norm`.

    Args:
        normalized_shape, weight, eps, variant: as in :func:`rms_norm`.
        input, residual, p, training, seed, return_sum: as in :func:`add_layer_norm`.

    Returns:
        :math:`(y, s)`, contiguous, of ``input``'s shape; or :math:`y`.

    Raises:
        RuntimeError, ValueError: as in :func:`add_layer_norm` and :func:`rms_norm`.

    Source: as for :func:`add_layer_norm` and :func:`rms_norm`.
    """
    function = "add_rms_norm"
    dropout = _branch_dropout(function, input, p, training, seed)
    eps = eps if type(eps) is float else _rms_eps(function, input, eps)
    if weight is not None and _multiplies_afterwards(function, variant, input, weight):
        arguments = (input, residual, normalized_shape, None, eps, 0.0, False)
        total = _ops.add_rms_norm.default(*arguments, *dropout)[1]
        output = rms_norm(total, normalized_shape, weight, eps, variant=variant)
        return (output, total) if return_sum else output
    settings = _rms_settings(variant)
    run = _add_rms_norm.on(input, residual, weight)
    wanted = (return_sum,) if run is _add_rms_norm.plain else ()
    norm = (normalized_shape, weight, eps)
    results = run(input, residual, *norm, *wanted, *settings, *dropout)
    return results if return_sum else results[0]


def _rms_eps(function: str, input: torch.Tensor, eps: float | None) -> float:
    if eps is None:
        # Where the input is no tensor, the op says so.
        return default_rms_eps(getattr(input, "dtype", torch.float32))
    return _arguments.number(function, "eps", eps)


def _rms_settings(variant: RmsVariant) -> tuple[float, bool]:
    """The offset of the weight, and whether the normalised value is rounded before it."""
    if type(variant) is not str or variant not in ("torch", "llama", "t5", "gemma"):
        _arguments.one_of("variant", variant, get_args(RmsVariant))
    return float(variant == "gemma"), variant in ("llama", "t5")


def _multiplies_afterwards(
    function: str, variant: RmsVariant, input: torch.Tensor, weight: torch.Tensor
) -> bool:
    """Whether the weight's dtype, another than the input's, decides about the result's."""
    if variant not in ("llama", "t5"):
        return False
    given = _arguments.tensor(function, "input", input)
    return _arguments.tensor(function, "weight", weight).dtype != given.dtype


def _branch_dropout(
    function: str, input: torch.Tensor, p: float, training: bool, seed: torch.Tensor | None
) -> tuple[float, torch.Tensor | None]:
    """p and the seed; neither where nothing is dropped."""
    p = p if type(p) is float else _arguments.number(function, "p", p)
    if not training or p == 0:
        return 0.0, None
    return p, _drawn_seed(function, input) if seed is None else seed


def _drawn_seed(function: str, input: torch.Tensor) -> torch.Tensor:
    device = _arguments.tensor(function, "input", input).device
    return torch.randint(-(2**63), 2**63 - 1, (), dtype=torch.int64, device=device)


# --- stacks -------------------------------------------------------------------------------------


def stack_softmax(inputs: Sequence[torch.Tensor], dim: int, stack_dim: int = 0) -> torch.Tensor:
    r"""``torch.stack([softmax(x, dim) for x in inputs], stack_dim)`` in one launch: every result is
    written to its slot of the stack.

    Args:
        inputs: tensors of one shape, dtype (float32, bfloat16, float16 or float64) and device; the
            strides may differ. Rows as in :func:`softmax`.
        dim: the dimension of each input to normalise. One that is not the last costs a launch an
            input.
        stack_dim: the dimension of the result that numbers the inputs. Behind ``dim`` it costs a
            copy.

    Returns:
        A contiguous tensor with one more dimension than an input; bit for bit what the loop gives.

    Raises:
        RuntimeError: no inputs, inputs that differ in shape, dtype or device; a dtype that is not
            floating, a ``dim`` or ``stack_dim`` out of range.
        TypeError: no list of tensors.

    Source: :func:`torch.stack` of :func:`torch.nn.functional.softmax`.
    """
    inputs = _arguments.tensors("stack_softmax", "inputs", inputs)
    return _stack_softmax.on(*inputs)(inputs, dim, stack_dim)


def stack_log_softmax(inputs: Sequence[torch.Tensor], dim: int, stack_dim: int = 0) -> torch.Tensor:
    r"""``torch.stack([log_softmax(x, dim) for x in inputs], stack_dim)`` in one launch.

    Args:
        inputs, dim, stack_dim: as in :func:`stack_softmax`.

    Returns:
        A contiguous tensor with one more dimension than an input; bit for bit what the loop gives.

    Raises:
        RuntimeError, TypeError: as in :func:`stack_softmax`.

    Source: :func:`torch.stack` of :func:`torch.nn.functional.log_softmax`.
    """
    inputs = _arguments.tensors("stack_log_softmax", "inputs", inputs)
    return _stack_log_softmax.on(*inputs)(inputs, dim, stack_dim)


def stack_layer_norm(
    inputs: Sequence[torch.Tensor],
    normalized_shape: Sequence[int],
    weights: Sequence[torch.Tensor] | None = None,
    biases: Sequence[torch.Tensor] | None = None,
    eps: float = 1e-5,
    stack_dim: int = 0,
) -> torch.Tensor:
    r"""``torch.stack`` of the layer_norm of each input, with its own weight and bias, in one launch
    forward and one backward.

    Args:
        inputs: as in :func:`stack_softmax`.
        normalized_shape: the last dimensions of each input's shape.
        weights, biases: one of ``normalized_shape`` for each input, all of one dtype; or None.
        eps: added to the variance, >= 0.
        stack_dim: the dimension of the result that numbers the inputs. Among the normalized ones it
            costs a copy.

    Returns:
        A contiguous tensor with one more dimension than an input; bit for bit what the loop gives.

    Raises:
        RuntimeError: as in :func:`stack_softmax` and :func:`layer_norm`; not as many weights or
            biases as inputs.

    Source: :func:`torch.stack` of :func:`torch.nn.functional.layer_norm`.
    """
    function = "stack_layer_norm"
    inputs = _arguments.tensors(function, "inputs", inputs)
    weights = [] if weights is None else _arguments.tensors(function, "weights", weights)
    biases = [] if biases is None else _arguments.tensors(function, "biases", biases)
    run = _stack_layer_norm.on(*inputs, *weights, *biases)
    shape = _arguments.shape(function, "normalized_shape", normalized_shape)
    eps = _arguments.number(function, "eps", eps)
    return run(inputs, shape, weights, biases, eps, stack_dim)
