"""The ops as functions, with the names and argument order of ``torch.nn.functional``, except that
:func:`cross_entropy` lacks ``size_average`` and ``reduce``, which torch deprecates, and takes what
follows ``weight`` by name.

Every function is twice differentiable, in reverse and forward mode and under the transforms of
``torch.func`` (``grad``, ``jvp``, ``hessian``, and ``vmap`` of them for per-sample gradients). It
runs under ``torch.compile`` and ``torch.export`` and is deterministic: a row's result has the same
bits whatever the other rows contain (see :func:`linear_cross_entropy` for its exception).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args, overload

import torch
from torch.compiler import is_dynamo_compiling

from fusedops import _arguments
from fusedops.losses import cross_entropy, linear_cross_entropy
from fusedops.ops import checks
from fusedops.ops.norm import default_rms_eps, scaled_by_weight
from fusedops.ops.registration.autograd import eager_op, through_dispatcher
from fusedops.ops.registration.forward_mode import has_tangent
from fusedops.ops.registration.mutation import check_recordable
from fusedops.ops.softmax import InplaceSoftmax, write_softmax
from fusedops.ops.softmax_stats import shift_of

__all__ = [
    "add_layer_norm",
    "add_rms_norm",
    "cross_entropy",
    "dropout",
    "l2_norm",
    "layer_norm",
    "linear_cross_entropy",
    "log_softmax",
    "masked_softmax",
    "masked_softmax_dropout",
    "merge_softmax_stats",
    "rms_norm",
    "segment_bounds",
    "softmax",
    "softmax_",
    "softmax_apply",
    "softmax_stats",
    "spatial_layer_norm",
    "spatial_rms_norm",
    "stack_layer_norm",
    "stack_log_softmax",
    "stack_softmax",
    "std_norm",
]

_ops = torch.ops.fusedops

_One = Callable[..., torch.Tensor]
_Two = Callable[..., tuple[torch.Tensor, torch.Tensor]]

_softmax: _One = eager_op("softmax")
_log_softmax: _One = eager_op("log_softmax")
_softmax_stats: _Two = eager_op("softmax_stats")
_softmax_apply: _One = eager_op("softmax_apply")
_OUT = {name: through_dispatcher(f"{name}_out") for name in ("softmax", "log_softmax")}
_dropout: _One = eager_op("dropout")
_masked_softmax: _One = eager_op("masked_softmax")
_masked_softmax_dropout = eager_op("masked_softmax_dropout", "_masked_softmax_dropout")
_masked_softmax_out: Callable[..., None] = through_dispatcher("masked_softmax_out")
_masked_softmax_sinks: Callable[..., tuple[torch.Tensor, ...]] = eager_op("masked_softmax_sinks")
_layer_norm: _One = eager_op("layer_norm", "_layer_norm_output", 1)
_std_norm: _One = eager_op("std_norm", "_std_norm_output", 1)
_rms_norm: _One = eager_op("rms_norm", "_rms_norm_output", 1)
_l2_norm: _One = eager_op("l2_norm", "_l2_norm_output", 1)
_spatial_layer_norm: _One = eager_op("spatial_layer_norm", "_spatial_layer_norm_output", 1)
_spatial_rms_norm: _One = eager_op("spatial_rms_norm", "_spatial_rms_norm_output", 1)
_add_layer_norm: _Two = eager_op("add_layer_norm", "_add_layer_norm", 2)
_add_rms_norm: _Two = eager_op("add_rms_norm", "_add_rms_norm", 2)
_stack_softmax: _One = eager_op("stack_softmax")
_stack_log_softmax: _One = eager_op("stack_log_softmax")
_stack_layer_norm: _One = eager_op("stack_layer_norm", returned=1)

Causal = bool | Literal["top_left", "bottom_right"]
Window = int | tuple[int, int]
MaskedRows = Literal["nan", "zero"]
RmsVariant = Literal["torch", "llama", "t5", "gemma"]


def softmax(
    input: torch.Tensor,
    dim: int | None,
    dtype: torch.dtype | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    r"""Computes the softmax along ``dim``:
    :math:`y_i = e^{x_i - \max x} / \sum_j e^{x_j - \max x}`.

    Sums are accumulated in float32 (float64 for float64), and the result is rounded once. A row
    that consists of ``-inf``, or contains a NaN or ``+inf``, gives NaN, as in PyTorch.

    Args:
        input: any shape; float32, bfloat16, float16 or float64, or any dtype with ``dtype``.
            Where ``dim`` is the last dimension, evenly spaced rows are read in place, and on the
            CPU evenly spaced groups of rows too, as in ``x[:, :-1]``. For any other ``dim`` a
            contiguous input is read without a transpose or copy. Other strides cost a copy. Several
            threads share a row of more than 65536 elements; their number does not change the bits
            of the result.
        dim: the dimension to normalise; None normalises all elements, flattened into one row.
        dtype: the result's dtype, to which ``input`` is converted first; default ``input``'s.
            The conversion from 16 bits to float32 is fused into the kernel.
        out: receives the result: ``input``'s shape, the result's dtype, any strides; may be
            ``input`` itself. Autograd does not record the call.

    Returns:
        A contiguous tensor of ``input``'s shape, or ``out``.

    Raises:
        RuntimeError: a dtype that is not floating, a ``dim`` out of range, a device that this build
            has no kernels for; an ``out`` of the wrong shape or dtype, an ``out`` whose elements
            share memory, or an ``out`` if it or ``input`` requires grad and grad mode is on.
        TypeError: an argument of another type.

    Source: :func:`torch.nn.functional.softmax`.
    """
    if out is not None:
        return _softmax_out("softmax", input, dim, dtype, out)
    if dtype is not None:
        _arguments.floating("softmax", "dtype", dtype)
    if dim is None:
        return _softmax_of_all("softmax", input, dtype)
    return _softmax(input, dim, dtype)


def log_softmax(
    input: torch.Tensor,
    dim: int | None,
    dtype: torch.dtype | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    r"""Computes the log-softmax along ``dim``:
    :math:`y_i = x_i - \max x - \log \sum_j e^{x_j - \max x}`.

    Args:
        input, dim, dtype, out: as in :func:`softmax`.

    Returns:
        A contiguous tensor of ``input``'s shape, or ``out``.

    Raises:
        RuntimeError, TypeError: as in :func:`softmax`.

    Source: :func:`torch.nn.functional.log_softmax`.
    """
    if out is not None:
        return _softmax_out("log_softmax", input, dim, dtype, out)
    if dtype is not None:
        _arguments.floating("log_softmax", "dtype", dtype)
    if dim is None:
        return _softmax_of_all("log_softmax", input, dtype)
    return _log_softmax(input, dim, dtype)


def _softmax_of_all(function: str, input: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    _arguments.tensor(function, "input", input)
    op = _softmax if function == "softmax" else _log_softmax
    return op(input.reshape(-1), 0, dtype).view(input.shape)


def _softmax_out(
    function: str,
    input: torch.Tensor,
    dim: int | None,
    dtype: torch.dtype | None,
    out: torch.Tensor,
) -> torch.Tensor:
    """Writes the softmax or log-softmax, as ``function`` says, into ``out``, and returns it."""
    _check_out_dtype(function, out, dtype, input)
    op = _OUT[function]
    if dim is not None:
        op(input, dim, out)
    elif out.is_contiguous() and out.shape == _arguments.tensor(function, "input", input).shape:
        op(input.reshape(-1), 0, out.view(-1))
    else:
        raise RuntimeError(
            f"{function}: out has shape {list(out.shape)} and strides {list(out.stride())}, wanted "
            f"a contiguous tensor of input's shape, {list(input.shape)}, where dim is None"
        )
    return out


def _check_out_dtype(
    function: str, out: torch.Tensor, dtype: torch.dtype | None, input: torch.Tensor
) -> None:
    _arguments.tensor(function, "out", out)
    wanted = dtype or _arguments.tensor(function, "input", input).dtype
    if out.dtype != wanted:
        what = "input's dtype" if dtype is None else "the dtype that is given"
        raise RuntimeError(
            f"{function}: out is {out.dtype}, wanted {wanted}, {what}; for this out, pass "
            f"dtype={out.dtype}"
        )


def softmax_stats(input: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    r"""Computes the statistics of each row for a softmax: :math:`m = \max x` and
    :math:`s = \sum_j e^{x_j - m}`.

    They allow a softmax of rows whose segments are on several devices or ranks:
    :func:`merge_softmax_stats` combines partial statistics, and :func:`softmax_apply` computes the
    softmax of each segment from the result. :math:`m + \log s` is ``input.logsumexp(dim)``.

    Args:
        input: any shape; float32, bfloat16, float16 or float64. Strides as in :func:`softmax`; a
            ``dim`` that is not the last costs a copy.
        dim: the dimension to normalise, of at least one element.

    Returns:
        (max, sum), contiguous, of ``input``'s shape with ``dim`` of size 1; float64 for a float64
        ``input``, else float32. The sum of a row that consists of ``-inf`` is 0, that of a row with
        a NaN or ``+inf`` is NaN. The sum is differentiable; ``max`` is treated as a constant, whose
        derivative cancels in a softmax and in a logsumexp.

    Raises:
        RuntimeError: a dtype that is not floating, a ``dim`` out of range or empty, a device that
            this build has no kernels for.
        TypeError: an argument of another type.

    Source: Milakov, Gimelshein, "Online normalizer calculation for softmax" (2018).
    """
    return _softmax_stats(input, dim)


def softmax_apply(
    input: torch.Tensor,
    max: torch.Tensor,
    sum: torch.Tensor,
    dim: int,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    r"""Computes the softmax along ``dim`` from the rows' statistics: :math:`e^{x_i - m} / s`.

    Args:
        input: any shape; float32, bfloat16, float16 or float64.
        max, sum: the statistics from :func:`softmax_stats` or :func:`merge_softmax_stats`.
        dim: the dimension to normalise.
        dtype: the result's dtype; default ``input``'s.

    Returns:
        A contiguous tensor of ``input``'s shape. Differentiable in ``input``, ``max`` and ``sum``.

    Raises:
        RuntimeError: statistics whose shape, dtype or device does not match ``input``; a dtype that
            is not floating, a ``dim`` out of range.
        TypeError: an argument of another type.

    Source: as for :func:`softmax_stats`.
    """
    if dtype is not None:
        _arguments.floating("softmax_apply", "dtype", dtype)
    return _softmax_apply(input, max, sum, dim, dtype)


def merge_softmax_stats(
    stats: Sequence[tuple[torch.Tensor, torch.Tensor]],
) -> tuple[torch.Tensor, torch.Tensor]:
    r"""Combines partial statistics into those of the whole rows: :math:`m = \max_k m_k` and
    :math:`s = \sum_k s_k e^{m_k - m}`, added by :func:`torch.sum`.

    Args:
        stats: one (max, sum) a segment, all of one shape and dtype, from :func:`softmax_stats` or
            from this function.

    Returns:
        (max, sum) of that shape and dtype.

    Raises:
        RuntimeError: no partials, or partials of different shapes, dtypes or devices.
        TypeError: a partial that is not two tensors.

    Source: as for :func:`softmax_stats`, where two such pairs are merged.
    """
    return _merged(stats)


def _merged(
    stats: Sequence[tuple[torch.Tensor, torch.Tensor]],
) -> tuple[torch.Tensor, torch.Tensor]:
    maxima, sums = (torch.stack(partials) for partials in zip(*_partials(stats), strict=True))
    max = maxima.detach().amax(0)
    return max, (sums * (maxima - shift_of(max)).exp()).sum(0)


def _partials(stats: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Returns the (max, sum) of each segment, checked to have one shape, dtype and device."""
    function = "merge_softmax_stats"
    partials = _arguments.tensors(function, "stats", stats)
    if len(partials) == 0:
        raise RuntimeError(f"{function}: stats is empty, wanted at least one (max, sum)")
    for index, partial in enumerate(partials):
        if not isinstance(partial, (tuple, list)) or len(partial) != 2:
            raise _arguments.wrong(function, f"stats[{index}]", partial, "(max, sum)")
        for name, statistic in zip(("max", "sum"), partial, strict=True):
            name = f"{name} of stats[{index}]"
            _arguments.tensor(function, name, statistic)
            checks.check_dtype(function, name, statistic.dtype)
            checks.check_like(function, name, statistic, ("max of stats[0]", partials[0][0]))
    return partials


def softmax_(input: torch.Tensor, dim: int) -> torch.Tensor:
    r"""Computes the softmax along ``dim`` in place: it takes no extra memory.

    Autograd records the call where the input is not a leaf; the derivative needs only the result.
    The operation that computed the input must not have saved it for its own derivative: a matrix
    product does not, ``exp`` does, and then the backward pass raises.

    Args:
        input: any shape; float32, bfloat16, float16 or float64. Where :func:`softmax` would copy,
            because of the strides, a temporary copy is made.
        dim: the dimension to normalise.

    Returns:
        ``input``.

    Raises:
        RuntimeError: a leaf that requires grad or a view of one, a view from ``unbind``, ``split``
            or ``chunk`` that requires grad, an input whose elements share memory (expanded or
            overlapping), a dtype that is not floating, a ``dim`` out of range.
        TypeError: an argument of another type.

    No error changes the input.

    Source: :func:`torch.nn.functional.softmax`, in place.
    """
    return _softmax_in_place(input, dim)


def _softmax_in_place(input: torch.Tensor, dim: int) -> torch.Tensor:
    """Does what :func:`softmax_` does, as a function that torch.fx records as one node."""
    is_recorded = torch.is_grad_enabled() and getattr(input, "requires_grad", False)
    if not (is_recorded or _is_jit_tracing()):
        write_softmax(input, dim)
        return input
    if not torch.compiler.is_compiling() and _is_transformed(input):
        # An autograd function would run, and write into the input, at each level of torch.func; it
        # would lose a tangent, and a trace cannot hold it. A formula may save the scores, and so
        # gets a clone, which is not overwritten.
        return input.copy_(softmax(input.clone(), dim))
    check_recordable("softmax_", input)
    output: torch.Tensor = InplaceSoftmax.apply(input, dim)
    return output


def _is_transformed(input: torch.Tensor) -> bool:
    """Whether torch.func or torch.jit.trace is active, or the input has a forward-mode tangent."""
    is_watched = torch._C._are_functorch_transforms_active() or _is_jit_tracing()
    return is_watched or has_tangent((input,))


def _is_jit_tracing() -> bool:
    """Whether torch.jit.trace records the call. Its graph must not depend on what requires grad."""
    return not is_dynamo_compiling() and torch._C._is_tracing()


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
    window: Window | None = None,
    start: torch.Tensor | None = None,
    end: torch.Tensor | None = None,
    sinks: torch.Tensor | float | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    r"""Computes the softmax of masked attention scores over the last dimension, in one pass.

    :math:`y = \mathrm{softmax}(s x + b + m)` for a float mask. A bool mask sets the scores that it
    hides to ``mask_value``, and so do ``causal``, ``window``, ``start`` and ``end``, which leave a
    query one interval of keys. Everything is computed in float32 (float64 for float64) and rounded
    once. Scores outside of the interval are neither read nor computed, except those that a vector
    register holds beside one inside; the result has the same bits as with a bool mask. With a soft
    cap :math:`c`, :math:`c \tanh(s x / c)` stands in place of :math:`s x`.

    Args:
        input: scores, ``[..., queries, keys]``; float32, bfloat16, float16 or float64, or any dtype
            with ``dtype``. Strides as in :func:`softmax`.
        mask: bool (True where visible) or floating (added), of a shape that broadcasts to
            ``input``'s; the broadcast is not materialised. A floating mask that requires grad gets
            a gradient.
        scale: multiplies the scores; it is not rounded to 16 bits.
        causal: True or "top_left": query ``i`` sees the keys up to ``i``; "bottom_right": the last
            query sees all keys, as with a key-value cache.
        mask_value: the score of hidden columns: ``-inf``, ``finfo.min``, -1e4, ... A row without a
            visible column has PyTorch's result: NaN for ``-inf``, uniform for a finite value.
        bias: a second floating tensor that is added (ALiBi, T5, Swin), of a shape that broadcasts
            to ``input``'s. A bias that requires grad gets a gradient.
        dtype: the result's dtype; default ``input``'s.
        masked_rows: the result of rows without a visible column: "nan", as in PyTorch, or "zero".
        out: receives the result; may be ``input`` itself; as in :func:`softmax`.
        window: how many keys a query sees. An int needs ``causal`` and counts the query's own key
            and those before it; a pair (left, right) counts those on either side of its own, with
            ``causal`` only those on the left.
        start, end: int32 or int64, of a shape that broadcasts to ``[..., queries]``: a query sees
            the keys from ``start`` to before ``end``. For keys padded to a length,
            ``end=lengths[:, None, None]``; for sequences packed into one, :func:`segment_bounds`.
        sinks: floating, of a shape that broadcasts to ``[..., queries]``, or a number: one more
            score of each row, whose probability is left out of the result, so that a row adds up to
            less than 1. For a learned sink of each head, ``sinks[:, None]``; 0 adds 1 to the sum of
            exponentials. Sinks that require grad get a gradient.
        softcap: bounds the scaled scores to between ``-softcap`` and ``softcap``, before bias and
            mask. Its gradient needs ``input``, which is saved beside the result.

    Returns:
        A contiguous tensor of ``input``'s shape, or ``out``.

    Raises:
        RuntimeError: a mask, bias, start, end or sinks that do not broadcast, or of a wrong dtype
            or device, a ``scale`` or ``mask_value`` that is NaN, a ``mask_value`` beyond float32's
            range, a ``softcap`` that is not finite and above 0, ``causal`` or ``window`` for fewer
            than two dimensions; otherwise as in :func:`softmax`.
        TypeError: an argument of another type.
        ValueError: an invalid ``causal``, ``window`` or ``masked_rows``.

    Source: Vaswani et al., "Attention Is All You Need" (2017), section 3.2.1; for the window,
    Beltagy et al., "Longformer" (2020), and Jiang et al., "Mistral 7B" (2023); for the sinks, Xiao
    et al., "Efficient Streaming Language Models with Attention Sinks" (2023), section 3.3; for the
    soft cap, Gemma Team, "Gemma 2" (2024), section 2.
    """
    function = "masked_softmax"
    scores = (scale, causal, mask_value, window, sinks, softcap)
    masking, rest = _masking(function, input, mask, start, end, masked_rows, *scores)
    if out is not None:
        _check_out_dtype(function, out, dtype, input)
        _masked_softmax_out(input, *masking, bias, *rest[:2], out, *rest[2:])
        return out
    if dtype is not None:
        _arguments.floating(function, "dtype", dtype)
    if _require_grad(sinks):
        return _masked_softmax_sinks(input, *masking, 0.0, None, bias, dtype, *rest)[0]
    return _masked_softmax(input, *masking, bias, dtype, *rest)


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
    window: Window | None = None,
    start: torch.Tensor | None = None,
    end: torch.Tensor | None = None,
    sinks: torch.Tensor | float | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    r"""Computes :func:`masked_softmax` and its dropout in one pass: each element is kept with
    probability :math:`1 - p` and multiplied by :math:`1 / (1 - p)`; otherwise it becomes 0.

    Random numbers come from Philox4x32-7 with ``seed`` as the key and row and column as the
    counter. They are the same on every device and for any number of threads. The backward pass
    generates them again, so that only the probabilities and the seed are saved.

    Args:
        p: the probability of a zero, in [0, 1]; 0 and 1 are exact.
        training: False disables dropout.
        seed: one int64 on ``input``'s device. By default it is drawn from torch's generator, so
            that ``torch.manual_seed`` and activation checkpointing reproduce it, and a CUDA graph
            draws a new one at each replay.
        input, mask, scale, causal, mask_value, bias, dtype, masked_rows: as in
            :func:`masked_softmax`.
        window, start, end, sinks, softcap: as in :func:`masked_softmax`.

    Returns:
        A contiguous tensor of ``input``'s shape.

    Raises:
        RuntimeError: ``p`` outside [0, 1], a ``seed`` that is not one int64 on ``input``'s device;
            otherwise as in :func:`masked_softmax`.
        TypeError, ValueError: as in :func:`masked_softmax`.

    Source: Srivastava et al., "Dropout" (2014); Salmon et al., "Parallel Random Numbers: As Easy as
    1, 2, 3" (2011); :func:`torch.nn.functional.dropout`.
    """
    function = "masked_softmax_dropout"
    scores = (scale, causal, mask_value, window, sinks, softcap)
    masking, rest = _masking(function, input, mask, start, end, masked_rows, *scores)
    if dtype is not None:
        _arguments.floating(function, "dtype", dtype)
    p = _probability(function, p)
    dropout: tuple[float, torch.Tensor | None] = (0.0, None)
    if training:
        dropout = (p, _drawn_seed(function, input) if seed is None else seed)
    if _require_grad(sinks):
        return _masked_softmax_sinks(input, *masking, *dropout, bias, dtype, *rest)[0]
    if not training:
        return _masked_softmax(input, *masking, bias, dtype, *rest)
    results = _masked_softmax_dropout(input, *masking, *dropout, bias, dtype, *rest)
    output: torch.Tensor = results if isinstance(results, torch.Tensor) else results[0]
    return output


def _masking(
    function: str,
    input: torch.Tensor,
    mask: torch.Tensor | None,
    start: torch.Tensor | None,
    end: torch.Tensor | None,
    masked_rows: MaskedRows,
    scale: float,
    causal: Causal,
    mask_value: float,
    window: Window | None,
    sinks: torch.Tensor | float | None,
    softcap: float | None,
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Returns two parts of an op's arguments, checked and converted: those after the input, and
    those after bias and dtype. The second begins with the diagonal and what to do with masked
    rows."""
    # The diagonals between which a query sees keys, as in torch.tril. The upper one counts only if
    # the op is causal, the lower one only if it is not None.
    diagonal, lower_diagonal, is_causal = _diagonal(input, causal), None, bool(causal)
    if window is not None:
        left, right = _arguments.window(window, causal)
        is_causal, lower_diagonal = True, diagonal - left
        diagonal = diagonal if causal else right
    if type(masked_rows) is not str or masked_rows not in ("nan", "zero"):
        _arguments.one_of("masked_rows", masked_rows, get_args(MaskedRows))
    if type(scale) is not float:
        scale = _arguments.number(function, "scale", scale)
    if type(mask_value) is not float:
        mask_value = _arguments.number(function, "mask_value", mask_value)
    if sinks is not None:
        sinks = _sinks_of(function, input, sinks)
    if softcap is not None and type(softcap) is not float:
        softcap = _arguments.number(function, "softcap", softcap)
    bounds = (lower_diagonal, start, end, sinks, softcap)
    return (mask, scale, is_causal, mask_value), (diagonal, masked_rows == "zero", *bounds)


def segment_bounds(
    segment_ids: torch.Tensor | None = None,
    *,
    cu_seqlens: torch.Tensor | None = None,
    length: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns ``start`` and ``end`` of :func:`masked_softmax` for sequences that are packed into
    one, so that each position sees its own sequence. No tensor of queries x keys is allocated.

    Args:
        segment_ids: int32 or int64 of shape ``[..., length]``, the number of each position's
            sequence. They must not decrease along a row, which is not checked.
        cu_seqlens: instead of ``segment_ids``, int32 or int64 of shape ``[sequences + 1]``: where
            each sequence begins, and where the last one ends. They must begin with 0 and not
            decrease, which is not checked. Positions from the last end on see nothing.
        length: the number of positions, only with ``cu_seqlens``.

    Returns:
        Two int64 tensors, of ``segment_ids``' shape or ``[length]``. For scores ``[batch, heads,
        length, length]`` and ``segment_ids`` of a batch, pass ``start[:, None]`` and
        ``end[:, None]``.

    Raises:
        RuntimeError: ``segment_ids`` or ``cu_seqlens`` of another dtype, ``segment_ids`` without a
            dimension, ``cu_seqlens`` that are empty or have several dimensions.
        TypeError: neither or both of ``segment_ids`` and ``cu_seqlens``, one that is not a tensor,
            ``cu_seqlens`` without ``length`` or with one that is not an int from 0 on,
            ``segment_ids`` beside a ``length``.

    Source: ``cu_seqlens`` are those of Dao, "FlashAttention-2" (2023), for sequences of several
    lengths.
    """
    return _segment_bounds(segment_ids, cu_seqlens, length)


def _segment_bounds(
    segment_ids: torch.Tensor | None, cu_seqlens: torch.Tensor | None, length: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    function = "segment_bounds"
    if (segment_ids is None) == (cu_seqlens is None):
        raise TypeError(f"{function}: wanted segment_ids or cu_seqlens, one of them")
    if cu_seqlens is not None:
        return _bounds_of_starts(function, cu_seqlens, length)
    if length is not None:
        raise TypeError(
            f"{function}: length is {length!r} beside segment_ids, wanted None, because these have "
            "a length; leave it out"
        )
    ids = _integers(function, "segment_ids", segment_ids)
    checks.check(ids.dim() > 0, f"{function}: segment_ids has shape [], wanted [..., length]")
    return torch.searchsorted(ids, ids), torch.searchsorted(ids, ids, right=True)


def _bounds_of_starts(
    function: str, cu_seqlens: torch.Tensor, length: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    ends = _integers(function, "cu_seqlens", cu_seqlens).to(torch.int64)
    if ends.dim() != 1 or (_is_number(ends.shape[0]) and ends.shape[0] == 0):
        raise RuntimeError(
            f"{function}: cu_seqlens has shape {list(ends.shape)}, wanted [sequences + 1]: where "
            "each sequence begins, and where the last one ends"
        )
    positions = torch.arange(_positions(function, length), device=ends.device)
    # A position after the last end gets an interval from that end to itself, which is empty.
    after = torch.searchsorted(ends, positions, right=True)
    last = ends.shape[0] - 1
    return ends[after - 1], ends[after.clamp(max=last)]


def _integers(function: str, name: str, value: Any) -> torch.Tensor:
    """Returns ``value``, checked to be a tensor of int32 or int64, in contiguous memory."""
    tensor = _arguments.tensor(function, name, value)
    checks.check(
        tensor.dtype in (torch.int32, torch.int64),
        f"{function}: {name} is {tensor.dtype}, wanted torch.int32 or torch.int64; convert it",
    )
    return tensor.contiguous()


def _positions(function: str, length: Any) -> Any:
    """Returns ``length``, checked to be the number of positions unless it is a symbol."""
    if length is not None and not _is_number(length):
        return length
    try:
        is_size = 0 <= operator.index(length) < 2**63
    except TypeError:
        is_size = False
    if not is_size:
        wanted = "the number of positions, an int from 0 on"
        raise _arguments.wrong(function, "length", length, wanted)
    return length


def _is_number(value: Any) -> bool:
    """Whether ``value`` is itself, and not a symbol of a trace: to compare one adds a guard, or
    fails where the number depends on data."""
    return not (is_dynamo_compiling() or _is_jit_tracing() or isinstance(value, torch.SymInt))


def _sinks_of(
    function: str, input: torch.Tensor, sinks: torch.Tensor | float | None
) -> torch.Tensor | None:
    """Returns the sinks as a tensor; a number is the sink of every row. Returns None for None,
    which callers pass only in a graph of torch.fx, whose placeholder may stand for None."""
    if sinks is None or isinstance(sinks, torch.Tensor):
        return sinks
    value = _arguments.number(function, "sinks", sinks)
    scores = _arguments.tensor(function, "input", input)
    return torch.full((), value, dtype=torch.float64, device=scores.device)


def _require_grad(sinks: torch.Tensor | float | None) -> bool:
    if not isinstance(sinks, torch.Tensor) or _is_jit_tracing():
        return False
    return sinks.requires_grad and torch.is_grad_enabled()


def _diagonal(input: torch.Tensor, causal: Causal) -> int:
    """Returns the diagonal of a query's own position, as in ``torch.tril``: keys - queries for
    "bottom_right", else 0. If ``causal`` is not False, a query sees the keys up to it. A window is
    counted from it, also where ``causal`` is False."""
    if causal is False or causal is True:
        return 0
    _arguments.one_of("causal", causal, (False, True, "top_left", "bottom_right"))
    return _bottom_right_diagonal(input) if causal == "bottom_right" else 0


def _bottom_right_diagonal(input: torch.Tensor) -> int:
    if _arguments.tensor("masked_softmax", "input", input).dim() < 2:
        return 0  # the op raises with its own message
    diagonal = input.shape[-1] - input.shape[-2]
    # To torch.jit.trace sizes are tensors. int() warns that the trace keeps the number.
    return int(diagonal) if _is_jit_tracing() else diagonal


def layer_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    r"""Applies layer normalisation over the last dimensions.

    :math:`y = (x - \mathrm{mean}) / \sqrt{\mathrm{var} + \epsilon} \cdot w + b`, biased variance.
    Statistics are computed in float32 (float64 for float64), without cancellation where the mean is
    large, and saved in that dtype for the backward pass, which reads its inputs once.

    Args:
        input: any shape that ends in ``normalized_shape``; float32, bfloat16, float16 or float64.
            Strides as in :func:`softmax`.
        normalized_shape: the last dimensions of ``input``'s shape.
        weight, bias: of ``normalized_shape``, or None; their dtype may differ from ``input``'s.
        eps: added to the variance, >= 0.

    Returns:
        A contiguous tensor of ``input``'s shape and dtype.

    Raises:
        RuntimeError: a dtype that is not floating, a shape that does not match, a negative eps, a
            weight or bias on another device, a device that this build has no kernels for.
        TypeError: an argument of another type.

    Source: Ba, Kiros, Hinton, "Layer Normalization" (2016);
    :func:`torch.nn.functional.layer_norm`.
    """
    if type(eps) is not float:
        eps = _arguments.number("layer_norm", "eps", eps)
    return _layer_norm(input, normalized_shape, weight, bias, eps)


def std_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> torch.Tensor:
    r"""Normalises by the standard deviation over the last dimensions: the LayerNorm of the
    Annotated Transformer, which differs from :func:`layer_norm`.

    :math:`y = (x - \mathrm{mean}) / (\mathrm{std} + \epsilon) \cdot w + b`, where
    :math:`\mathrm{std}^2 = \sum (x - \mathrm{mean})^2 / (N - 1)` is the unbiased variance of a row
    of :math:`N` elements, and :math:`\epsilon` is added outside the root. Statistics as in
    :func:`layer_norm`. As in PyTorch, a row of one element, which has no unbiased variance, gives
    NaN, and the derivative of the standard deviation of a constant row is defined as 0.

    Args:
        input, normalized_shape: as in :func:`layer_norm`.
        weight, bias: as in :func:`layer_norm`; ``a_2`` and ``b_2`` in the source.
        eps: added to the standard deviation, >= 0.

    Returns:
        A contiguous tensor of ``input``'s shape and dtype.

    Raises:
        RuntimeError, TypeError: as in :func:`layer_norm`.

    Source: Rush, "The Annotated Transformer" (2018), Harvard NLP.
    """
    if type(eps) is not float:
        eps = _arguments.number("std_norm", "eps", eps)
    return _std_norm(input, normalized_shape, weight, bias, eps)


def rms_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
    *,
    variant: RmsVariant = "torch",
) -> torch.Tensor:
    r"""Applies root mean square normalisation over the last dimensions.

    :math:`y = x / \sqrt{\mathrm{mean}(x^2) + \epsilon} \cdot w`, computed in float32 (float64 for
    float64). Models use four variants, which round at different places:

    - "torch": the result is rounded once, to ``input``'s dtype.
    - "gemma": as torch, with :math:`1 + w` in place of :math:`w`.
    - "llama": the normalised value is rounded to ``input``'s dtype, then multiplied by ``weight``;
      the result has the dtype that both promote to.
    - "t5": as llama for a ``weight`` of 16 bits, but the normalised value is rounded to the dtype
      of ``weight``; with a float32 ``weight`` nothing is rounded to 16 bits.

    Args:
        input, normalized_shape: as in :func:`layer_norm`.
        weight: of ``normalized_shape``, or None. "llama" and "t5" take one pass if its dtype is
            ``input``'s, otherwise several.
        eps: added to the mean square, >= 0; by default ``torch.finfo(dtype).eps`` of the dtype that
            is computed in, float32 or float64, as in torch.
        variant: "torch", "llama", "t5" or "gemma".

    Returns:
        A contiguous tensor of ``input``'s shape.

    Raises:
        RuntimeError, TypeError: as in :func:`layer_norm`.
        ValueError: an invalid ``variant``.

    Source: Zhang, Sennrich, "Root Mean Square Layer Normalization" (2019);
    :func:`torch.nn.functional.rms_norm`, and LlamaRMSNorm, T5LayerNorm and GemmaRMSNorm of Hugging
    Face transformers.
    """
    eps = eps if type(eps) is float else _rms_eps("rms_norm", _dtype_of(input), eps)
    if weight is not None and variant in ("llama", "t5"):
        return _rounded_rms_norm(input, normalized_shape, weight, eps, variant)
    settings = _rms_settings(variant)
    return _rms_norm(input, normalized_shape, weight, eps, *settings)


def _rounded_rms_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor,
    eps: float,
    variant: RmsVariant,
) -> torch.Tensor:
    """Computes rms_norm in the variants "llama" and "t5", whose result's dtype depends on the
    weight's: in one call of an op, or in several steps if the weight has another dtype."""
    if _needs_separate_multiplication("rms_norm", input, weight, _dtype_of(input)):
        is_t5, is_narrow = variant == "t5", weight.dtype in (torch.bfloat16, torch.float16)
        wide = input.float() if is_t5 and input.dtype != torch.float64 else input
        if is_t5 and weight.dtype == wide.dtype:
            return rms_norm(wide, normalized_shape, weight, eps)
        normalized = rms_norm(wide, normalized_shape, None, eps)
        normalized = normalized.to(weight.dtype) if is_t5 and is_narrow else normalized
        return scaled_by_weight(normalized, weight)
    settings = _rms_settings(variant)
    return _rms_norm(input, normalized_shape, weight, eps, *settings)


def l2_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float = 1e-12,
) -> torch.Tensor:
    r"""Divides by the Euclidean norm over the last dimensions.

    :math:`y = x / \max(\lVert x \rVert, \epsilon) \cdot w`, where
    :math:`\lVert x \rVert^2 = \sum x^2` over a row, computed in float32 (float64 for float64); the
    result is rounded once. With a ``weight`` of :math:`\sqrt{N} g` it is the RMSNorm that some
    models write by :func:`torch.nn.functional.normalize`, and with one number for all columns it is
    ScaleNorm. As in PyTorch, a row whose norm is below ``eps`` is divided by a constant, and its
    derivative is that of this division.

    Args:
        input, normalized_shape, weight: as in :func:`layer_norm`.
        eps: the least divisor, >= 0.

    Returns:
        A contiguous tensor of ``input``'s shape and dtype.

    Raises:
        RuntimeError, TypeError: as in :func:`layer_norm`.

    Source: :func:`torch.nn.functional.normalize`; Nguyen, Salazar, "Transformers without Tears:
    Improving the Normalization of Self-Attention" (2019), for ScaleNorm.
    """
    if type(eps) is not float:
        eps = _arguments.number("l2_norm", "eps", eps)
    return _l2_norm(input, normalized_shape, weight, eps)


def spatial_layer_norm(
    input: torch.Tensor,
    dim: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> torch.Tensor:
    r"""Applies layer norm over one dimension, which need not be the last: ``dim=1`` for an image's
    channels.

    :math:`y = \frac{x - \mathrm{E}[x]}{\sqrt{\mathrm{Var}[x] + \epsilon}} w + b`, with the mean and
    the biased variance over ``dim``; :math:`w` and :math:`b` have one value for each of its
    indices. Nothing is transposed or copied. The derivatives are of first and second order.

    Args:
        input: any shape, of dtype float32, bfloat16, float16 or float64. A copy is made if the
            dimensions after ``dim`` are not adjacent, or those before it not evenly spaced.
        dim: the dimension to normalise.
        weight, bias: of shape ``[input.shape[dim]]``, of any floating dtype; or None.
        eps: added to the variance, >= 0.

    Returns:
        A tensor of ``input``'s shape and dtype. It is contiguous, or dense with ``dim`` innermost
        where ``input`` is, as with ``torch.channels_last``.

    Raises:
        RuntimeError: a dtype that is not floating, a ``dim`` out of range, a ``weight`` or
            ``bias`` of another shape or on another device, a negative ``eps``.
        TypeError: an argument of another type.

    Source: Liu et al., "A ConvNet for the 2020s" (2022), whose LayerNorm has the format
    channels_first; :class:`torchvision.ops.misc.LayerNorm2d`.
    """
    eps = eps if type(eps) is float else _arguments.number("spatial_layer_norm", "eps", eps)
    return _spatial_layer_norm(input, dim, weight, bias, eps)


def spatial_rms_norm(
    input: torch.Tensor,
    dim: int,
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    r"""Applies RMS norm over one dimension, which need not be the last.

    :math:`y = x / \sqrt{\mathrm{E}[x^2] + \epsilon} \cdot w`, with the mean over ``dim``; otherwise
    as :func:`spatial_layer_norm`.

    Args:
        input, dim, weight: as in :func:`spatial_layer_norm`.
        eps: as in :func:`rms_norm`.

    Returns:
        As :func:`spatial_layer_norm`.

    Raises:
        RuntimeError, TypeError: as in :func:`spatial_layer_norm`.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).
    """
    eps = eps if type(eps) is float else _rms_eps("spatial_rms_norm", _dtype_of(input), eps)
    return _spatial_rms_norm(input, dim, weight, eps)


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
    r"""Computes the residual connection of a transformer and the norm after it, in one pass.

    :math:`s = \mathrm{dropout}_p(x) + r`, :math:`y = \mathrm{layer\_norm}(s)`. Pre-norm layers use
    both results, post-norm layers only :math:`y`. As in the separate calls, :math:`s` has the dtype
    that torch promotes :math:`x` and :math:`r` to, and the rounded sum is normalised. The backward
    pass adds the gradient of :math:`s` to that of the norm, generates dropout's random numbers
    again, and rounds each gradient once to the dtype of its tensor.

    Under :func:`torch.autocast` ``input`` is often 16-bit and the residual float32. The kernels
    read such an ``input``, and write its gradient, in 16 bits; without dropout they do so for a
    16-bit residual of a float32 ``input`` too. Tensors of other mixed dtypes are converted first,
    into a copy.

    Args:
        input: the sublayer's result, :math:`x`: shape and dtype as in :func:`layer_norm`, strides
            as in :func:`softmax`.
        residual: :math:`r`, of ``input``'s shape and device, and of any dtype that ``input`` may
            have.
        normalized_shape, weight, bias, eps: as in :func:`layer_norm`.
        p: the probability of a zero in dropout of ``input``, in [0, 1]; 0 and 1 are exact.
        training: False disables dropout.
        seed: as in :func:`masked_softmax_dropout`; drawn only if ``p`` is above 0.
        return_sum: if False, only :math:`y` is returned; where autograd does not record the call,
            :math:`s` is not written to memory either.

    Returns:
        :math:`(y, s)`, contiguous, of ``input``'s shape and the sum's dtype; or :math:`y`.

    Raises:
        RuntimeError: a ``residual`` of another shape or device, or of a dtype that is not
            floating-point, ``p`` outside [0, 1], a ``seed`` that is not one int64 on ``input``'s
            device; otherwise as in :func:`layer_norm`.
        TypeError: an argument of another type.

    Source: Vaswani et al., "Attention Is All You Need" (2017), section 5.4; Xiong et al., "On Layer
    Normalization in the Transformer Architecture" (2020).
    """
    function = "add_layer_norm"
    eps = eps if type(eps) is float else _arguments.number(function, "eps", eps)
    norm = (normalized_shape, weight, bias, eps)
    dropout = _branch_dropout(function, input, p, training, seed)
    results = _add_layer_norm(input, residual, *norm, return_sum, *dropout)
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
    r"""Computes the residual connection of a transformer and the RMS norm after it, in one pass.

    :math:`s = \mathrm{dropout}_p(x) + r`, :math:`y = \mathrm{rms\_norm}(s)`; otherwise as
    :func:`add_layer_norm`.

    Args:
        normalized_shape, weight, eps, variant: as in :func:`rms_norm`.
        input, residual, p, training, seed, return_sum: as in :func:`add_layer_norm`.

    Returns:
        :math:`(y, s)`, contiguous, of ``input``'s shape; or :math:`y`. :math:`y` has the dtype that
        :func:`rms_norm` of :math:`s` has.

    Raises:
        RuntimeError, TypeError, ValueError: as in :func:`add_layer_norm` and :func:`rms_norm`.

    Source: as for :func:`add_layer_norm` and :func:`rms_norm`.
    """
    function = "add_rms_norm"
    dropout = _branch_dropout(function, input, p, training, seed)
    if type(eps) is not float:
        eps = _rms_eps(function, _dtype_of_sum(input, residual), eps)
    if weight is not None and variant in ("llama", "t5"):
        norm = (normalized_shape, weight, eps)
        return _rounded_add_rms_norm(input, residual, norm, variant, dropout, return_sum)
    settings = (eps, return_sum, *_rms_settings(variant), *dropout)
    results = _add_rms_norm(input, residual, normalized_shape, weight, *settings)
    return results if return_sum else results[0]


def _rounded_add_rms_norm(
    input: torch.Tensor,
    residual: torch.Tensor,
    norm: tuple[Sequence[int], torch.Tensor, float],
    variant: RmsVariant,
    dropout: tuple[float, torch.Tensor | None],
    return_sum: bool,
) -> tuple[torch.Tensor, torch.Tensor] | torch.Tensor:
    """Computes add_rms_norm in the variants "llama" and "t5", whose result's dtype depends on the
    weight's: in one call of an op, or the sum first if the weight has another dtype."""
    normalized_shape, weight, eps = norm
    dtype = _dtype_of_sum(input, residual)
    if _needs_separate_multiplication("add_rms_norm", input, weight, dtype):
        # Only the sum is used: the call has no weight, offset or rounding.
        unweighted = (input, residual, normalized_shape, None, eps, 0.0, False)
        total = _ops.add_rms_norm.default(*unweighted, *dropout)[1]
        output = rms_norm(total, normalized_shape, weight, eps, variant=variant)
    else:
        settings = _rms_settings(variant)
        output, total = _add_rms_norm(input, residual, *norm, return_sum, *settings, *dropout)
    return (output, total) if return_sum else output


def _dtype_of(input: torch.Tensor) -> torch.dtype:
    """Returns the input's dtype, or float32 if it has none: the op will refuse such an input."""
    dtype: torch.dtype = getattr(input, "dtype", torch.float32)
    return dtype


def _dtype_of_sum(input: torch.Tensor, residual: torch.Tensor) -> torch.dtype:
    """Returns the dtype of input + residual, or ``input``'s if the op will refuse one of the
    two."""
    dtype, of_residual = _dtype_of(input), _dtype_of(residual)
    if dtype == of_residual or dtype not in checks.FLOATING or of_residual not in checks.FLOATING:
        return dtype
    return torch.promote_types(dtype, of_residual)


def _rms_eps(function: str, dtype: torch.dtype, eps: float | None) -> float:
    return default_rms_eps(dtype) if eps is None else _arguments.number(function, "eps", eps)


def _rms_settings(variant: RmsVariant) -> tuple[float, bool]:
    """Returns what is added to the weight, and whether the normalised value is rounded before the
    weight multiplies it."""
    if type(variant) is not str or variant not in ("torch", "llama", "t5", "gemma"):
        _arguments.one_of("variant", variant, get_args(RmsVariant))
    return float(variant == "gemma"), variant in ("llama", "t5")


def _needs_separate_multiplication(
    function: str, input: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype
) -> bool:
    """Whether a separate step must multiply by the weight, in the variants "llama" and "t5": if the
    weight's dtype is not ``dtype``, that of the tensor that is normalised."""
    _arguments.tensor(function, "input", input)
    return _arguments.tensor(function, "weight", weight).dtype != dtype


def dropout(
    input: torch.Tensor,
    p: float = 0.5,
    training: bool = True,
    *,
    seed: torch.Tensor | None = None,
) -> torch.Tensor:
    r"""Multiplies each element by :math:`1 / (1 - p)` with probability :math:`1 - p`, and by 0
    otherwise.

    Random numbers are those of :func:`masked_softmax_dropout`, where the last dimension is a row.
    The backward pass generates them again, so that only the seed is saved.

    Args:
        input: any shape; float32, bfloat16, float16 or float64. Strides as in :func:`softmax`.
        p: the probability of a zero, in [0, 1]; 0 and 1 are exact.
        training: False disables dropout.
        seed: as in :func:`masked_softmax_dropout`; drawn only if ``p`` is above 0.

    Returns:
        A contiguous tensor of ``input``'s shape and dtype, or ``input`` itself where nothing is
        dropped.

    Raises:
        RuntimeError: ``p`` outside [0, 1], a ``seed`` that is not one int64 on ``input``'s device,
            an ``input`` that is not floating-point.
        TypeError: an argument of another type.

    Source: Srivastava et al., "Dropout" (2014); :func:`torch.nn.functional.dropout`.
    """
    p, drawn = _branch_dropout("dropout", input, p, training, seed)
    return _undropped(input) if drawn is None else _dropout(input, p, drawn, False)


def _undropped(input: torch.Tensor) -> torch.Tensor:
    """Returns the input of a dropout that drops nothing. Refuses a dtype that the op refuses, so
    that a model that runs in evaluation also trains."""
    checks.check_dtype_of("dropout", "input", _arguments.tensor("dropout", "input", input))
    return input


def _branch_dropout(
    function: str, input: torch.Tensor, p: float, training: bool, seed: torch.Tensor | None
) -> tuple[float, torch.Tensor | None]:
    """Returns p and the seed, or (0.0, None) where nothing is dropped."""
    p = _probability(function, p)
    if not training or p == 0:
        return 0.0, None
    return p, _drawn_seed(function, input) if seed is None else seed


def _probability(function: str, p: float) -> float:
    """Returns ``p`` as a float, checked also where nothing will be dropped."""
    p = p if type(p) is float else _arguments.number(function, "p", p)
    checks.check_probability(function, p)
    return p


def _drawn_seed(function: str, input: torch.Tensor) -> torch.Tensor:
    device = _arguments.tensor(function, "input", input).device
    return torch.randint(-(2**63), 2**63 - 1, (), dtype=torch.int64, device=device)


# torch.fx.symbolic_trace records these as single nodes: they branch on values that no proxy has.
for _name in (
    "_bottom_right_diagonal",
    "_check_out_dtype",
    "_drawn_seed",
    "_dtype_of_sum",
    "_merged",
    "_rms_eps",
    "_rounded_add_rms_norm",
    "_rounded_rms_norm",
    "_segment_bounds",
    "_sinks_of",
    "_softmax_in_place",
    "_softmax_of_all",
    "_softmax_out",
    "_undropped",
):
    torch.fx.wrap(_name)
for _function in (_check_out_dtype, _softmax_in_place, _softmax_out):
    torch.fx.has_side_effect(_function)  # else dead-code elimination would remove the call


# --- stacks -------------------------------------------------------------------------------------


def stack_softmax(inputs: Sequence[torch.Tensor], dim: int, stack_dim: int = 0) -> torch.Tensor:
    r"""Computes ``torch.stack([softmax(x, dim) for x in inputs], stack_dim)`` in one launch, which
    writes each result to its slot of the stack.

    Args:
        inputs: tensors of one shape, dtype (float32, bfloat16, float16 or float64) and device; the
            strides may differ, and cost a copy as in :func:`softmax`.
        dim: the dimension of each input to normalise. A ``dim`` that is not the last costs one
            launch per input.
        stack_dim: the dimension of the result that numbers the inputs. A ``stack_dim`` after
            ``dim`` costs a copy.

    Returns:
        A contiguous tensor with one more dimension than an input. Its bits are those of separate
        calls.

    Raises:
        RuntimeError: no inputs, inputs that differ in shape, dtype or device; a dtype that is not
            floating, a ``dim`` or ``stack_dim`` out of range.
        TypeError: an argument of another type.

    Source: :func:`torch.stack` of :func:`torch.nn.functional.softmax`.
    """
    inputs = _arguments.tensors("stack_softmax", "inputs", inputs)
    return _stack_softmax(inputs, dim, stack_dim)


def stack_log_softmax(inputs: Sequence[torch.Tensor], dim: int, stack_dim: int = 0) -> torch.Tensor:
    r"""Computes ``torch.stack([log_softmax(x, dim) for x in inputs], stack_dim)`` in one launch.

    Args:
        inputs, dim, stack_dim: as in :func:`stack_softmax`.

    Returns:
        As :func:`stack_softmax`.

    Raises:
        RuntimeError, TypeError: as in :func:`stack_softmax`.

    Source: :func:`torch.stack` of :func:`torch.nn.functional.log_softmax`.
    """
    inputs = _arguments.tensors("stack_log_softmax", "inputs", inputs)
    return _stack_log_softmax(inputs, dim, stack_dim)


def stack_layer_norm(
    inputs: Sequence[torch.Tensor],
    normalized_shape: Sequence[int],
    weights: Sequence[torch.Tensor] | None = None,
    biases: Sequence[torch.Tensor] | None = None,
    eps: float = 1e-5,
    stack_dim: int = 0,
) -> torch.Tensor:
    r"""Computes ``torch.stack`` of the layer_norm of each input, with its own weight and bias, in
    one launch forward and one backward.

    Args:
        inputs: as in :func:`stack_softmax`.
        normalized_shape: the last dimensions of each input's shape.
        weights, biases: one tensor of shape ``normalized_shape`` for each input, all of one dtype;
            or None.
        eps: added to the variance, >= 0.
        stack_dim: the dimension of the result that numbers the inputs. A ``stack_dim`` among the
            normalised dimensions costs a copy.

    Returns:
        As :func:`stack_softmax`.

    Raises:
        RuntimeError: as in :func:`stack_softmax` and :func:`layer_norm`; a number of weights or
            biases that is not that of the inputs.
        TypeError: an argument of another type.

    Source: :func:`torch.stack` of :func:`torch.nn.functional.layer_norm`.
    """
    function = "stack_layer_norm"
    inputs = _arguments.tensors(function, "inputs", inputs)
    weights = [] if weights is None else _arguments.tensors(function, "weights", weights)
    biases = [] if biases is None else _arguments.tensors(function, "biases", biases)
    shape = _arguments.shape(function, "normalized_shape", normalized_shape)
    eps = _arguments.number(function, "eps", eps)
    return _stack_layer_norm(inputs, shape, weights, biases, eps, stack_dim)
