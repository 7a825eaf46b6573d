"""Translates the ops to standard operators of ONNX, for `torch.onnx.export`.

The arithmetic is that of the ops: 16-bit tensors are converted to float32 first, and the result is
rounded once. There is one difference, in float64 models: ONNX's LayerNormalization and
RMSNormalization take eps as float32, and LayerNormalization returns float32 statistics.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.export import ExportedProgram

from fusedops.export import our_nodes, rewrite
from fusedops.ops.norm_kinds import (
    KINDS,
    NORM_OPS,
    DeviationPlusEps,
    MeanSquare,
    NormKind,
    NormOp,
    NormOrEps,
)
from fusedops.ops.registration.signature import Signature

try:
    from onnx.defs import onnx_opset_version
    from onnxscript import ir, opset18, opset23
except ImportError as error:
    raise ImportError(
        f"fusedops.integrations.onnx needs onnxscript ({error}); run: "
        "pip install onnx onnxscript onnxruntime"
    ) from error

#: The first opset with the operator RMSNormalization. ONNX Runtime 1.31 runs this operator.
OPSET = 23
_OLDEST = 18  # the first opset that has all operators used here except RMSNormalization
_END = 2**63 - 1  # ONNX's Slice takes this as the end of the dimension

#: The type is Any because opset18 is annotated for values of a script, but gets values of a graph
#: here.
op: Any = opset18
Value = Any  # a value of the graph, whose dtype is known only if torch has created the value


def translation_table(opset_version: int = OPSET) -> dict[Callable[..., Any], Callable[..., Any]]:
    """Returns the translations of our ops for `torch.onnx.export(program, dynamo=True,
    custom_translation_table=...)`.

    Every op is translated, and so are its variants without a derivative or without statistics;
    backward ops, in-place ops and ops with ``out`` are not.

    Args:
        opset_version: the one passed to `torch.onnx.export`, at least 18. Below 23, which has no
            RMSNormalization, rms_norm is decomposed.

    Returns: a translation for each op. A translation raises RuntimeError for a call with dropout.

    Raises:
        TypeError: an `opset_version` that is not an int.
        ValueError: an opset that is older than 18, or newer than the installed onnx.
    """
    if isinstance(opset_version, bool) or not isinstance(opset_version, int):
        raise TypeError(
            f"opset_version is {opset_version!r}, a {type(opset_version).__name__}, wanted an int"
        )
    if opset_version < _OLDEST:
        raise ValueError(f"opset_version is {opset_version}, wanted {_OLDEST} or later")
    if opset_version > onnx_opset_version():  # torch would write an older opset without a warning
        raise ValueError(
            f"opset_version is {opset_version}, wanted at most {onnx_opset_version()}, the newest "
            "that the installed onnx knows; pass that, or install a newer onnx"
        )
    ops = torch.ops.fusedops
    norms = {
        norm.name: _norm_translation(norm, opset_version)
        for norm in NORM_OPS
        if not norm.is_backward and norm.kind.scale in _SCALES
    }
    public = _PUBLIC | norms
    variants = {f"_{name}": f for name, f in public.items() if hasattr(ops, f"_{name}")}
    translations = variants | public
    return {getattr(ops, name).default: f for name, f in translations.items()}


def export(
    exported_program: ExportedProgram,
    path: str | os.PathLike[str] | None = None,
    *,
    opset_version: int = OPSET,
    **options: Any,
) -> torch.onnx.ONNXProgram:
    """Rewrites an exported program and translates it to ONNX.

    Args:
        exported_program: as for `fusedops.export.rewrite`, of a model in eval mode.
        path: the file to write, or None.
        opset_version: at least 18. From 23 on rms_norm is one operator.
        options: other options of `torch.onnx.export`.

    Returns: the program, which can be saved, and called with torch tensors.

    Raises:
        TypeError: `exported_program` is not an ExportedProgram, or `opset_version` is not an int.
        ValueError: an opset that is older than 18, or newer than the installed onnx.
        OSError: a `path` that cannot be written; it is checked before the translation.
        RuntimeError: the program calls an op that writes in place or into ``out``.
        torch.onnx.OnnxExporterError: an op of the model cannot be translated, such as one with
            dropout; its cause names the op and the reason.
    """
    table, program = translation_table(opset_version), rewrite(exported_program)
    if path is not None:
        _check_path(path)
    for node in our_nodes(program.graph_module):
        if node.target not in table:
            raise RuntimeError(
                f"fusedops.integrations.onnx: {node.target} has no translation; in the model, call "
                "the function that returns a new tensor"
            )
    translated = torch.onnx.export(
        program,
        f=path,
        dynamo=True,
        opset_version=opset_version,
        custom_translation_table=table,
        **options,
    )
    assert translated is not None  # it is None only with dynamo=False
    return translated


def _check_path(path: str | os.PathLike[str]) -> None:
    folder, name = os.path.split(os.fspath(path))
    if os.path.isdir(path):
        raise IsADirectoryError(f"{_PATH} {str(path)!r}, a folder, wanted the name of a file")
    if not name or not os.path.isdir(folder or os.curdir):
        raise FileNotFoundError(f"{_PATH} {str(path)!r}, but there is no such folder; create it")


_PATH = "fusedops.integrations.onnx.export: path is"


# --- dtypes and numbers -------------------------------------------------------------------------


def _arithmetic(dtype: ir.DataType) -> ir.DataType:
    """Returns the dtype that an op computes in."""
    narrow = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    return ir.DataType.FLOAT if dtype in narrow else dtype


def _promoted(a: ir.DataType, b: ir.DataType) -> ir.DataType:
    """Returns the dtype of a sum of floating-point tensors of two dtypes, as torch promotes
    them."""
    if a == b:
        return a
    return ir.DataType.DOUBLE if ir.DataType.DOUBLE in (a, b) else ir.DataType.FLOAT


def _convert(value: Value, *dtypes: ir.DataType) -> Value:
    """Returns `value`, which has the first of the dtypes, converted to each of the others in
    turn."""
    for current, following in pairwise(dtypes):
        if current != following:
            value = op.Cast(value, to=following)
    return value


def _result_dtype(input: Value, dtype: ir.DataType | int | None) -> ir.DataType:
    # torch.onnx passes a keyword dtype=None as -1.
    return input.dtype if dtype in (None, -1) else ir.DataType(dtype)


def _like(number: float, value: Value) -> Value:
    """Returns a constant in the dtype of `value`. The cast to this dtype is an operator of the
    graph because onnxscript does not know the dtype; without the cast the constant would be
    float32."""
    return op.CastLike(op.Constant(value=ir.tensor(number, ir.DataType.DOUBLE)), value)


def _translation(name: str, translate: Callable[[Any], dict[str, Any]]) -> Callable[..., Any]:
    """Returns the function that translates an op. torch reads its signature, which is that of the
    op's schema.

    ``translate`` takes a named tuple of the op's arguments, and returns the results by name.
    """
    schema, call_of = getattr(torch.ops.fusedops, name).default._schema, Signature(name).bind

    def translation(*args: Any, **kwargs: Any) -> Any:
        results = translate(call_of(*args, **kwargs))
        # If an op has a single result, the schema has no name for it.
        returned = tuple(results[result.name or "output"] for result in schema.returns)
        return returned if len(returned) > 1 else returned[0]

    signature = inspect.signature(call_of)
    translation.__signature__ = signature  # type: ignore[attr-defined]
    kinds = {argument.name: argument.real_type.kind() for argument in schema.arguments}
    translation.__annotations__ = {name: _TYPES.get(kind, Value) for name, kind in kinds.items()}
    return translation


#: Type in a schema -> Python type, for the arguments that are attributes in ONNX and not tensors.
_TYPES: dict[str, Any] = {"IntType": int, "FloatType": float, "BoolType": bool}


# --- softmax ------------------------------------------------------------------------------------


def _softmax(input: Value, dim: int, dtype: ir.DataType | None = None) -> Value:
    return _along(op.Softmax, input, dim, _result_dtype(input, dtype))


def _log_softmax(input: Value, dim: int, dtype: ir.DataType | None = None) -> Value:
    return _along(op.LogSoftmax, input, dim, _result_dtype(input, dtype))


def _along(operator: Callable[..., Any], input: Value, dim: int, result: ir.DataType) -> Value:
    """Returns ``operator``, a softmax, along ``dim`` of the input converted to the dtype
    ``result``."""
    computed = _arithmetic(result)
    x = _convert(input, input.dtype, result, computed)
    is_scalar = len(input.shape) == 0  # ONNX's operators do not accept scalars
    output = operator(op.Unsqueeze(x, [0]) if is_scalar else x, axis=dim)
    return _convert(op.Squeeze(output, [0]) if is_scalar else output, computed, result)


def _softmax_stats(input: Value, dim: int) -> tuple[Value, Value]:
    x = _convert(input, input.dtype, _arithmetic(input.dtype))
    dims = [dim] if len(input.shape) else None  # a scalar has no dimension to reduce over
    largest = op.ReduceMax(x, dims, keepdims=1)
    return largest, op.ReduceSum(op.Exp(op.Sub(x, largest)), dims, keepdims=1)


def _softmax_apply(
    input: Value, max: Value, sum: Value, dim: int, dtype: ir.DataType | None = None
) -> Value:
    computed = _arithmetic(input.dtype)
    x = _convert(input, input.dtype, computed)
    output = op.Div(op.Exp(op.Sub(x, max)), sum)
    return _convert(output, computed, _result_dtype(input, dtype))


def _stack(values: Sequence[Value], dim: int) -> Value:
    return op.Concat(*(op.Unsqueeze(value, [dim]) for value in values), axis=dim)


def _stack_softmax(inputs: Sequence[Value], dim: int, stack_dim: int) -> Value:
    return _stack([_softmax(input, dim) for input in inputs], stack_dim)


def _stack_log_softmax(inputs: Sequence[Value], dim: int, stack_dim: int) -> Value:
    return _stack([_log_softmax(input, dim) for input in inputs], stack_dim)


def _masked_softmax(call: Any) -> dict[str, Any]:
    """Translates a call of a masked softmax op. ``call`` has the op's arguments as attributes.
    Returns the op's results by name."""
    _refuse_dropout(getattr(call, "p", 0.0))
    result = _result_dtype(call.input, call.dtype)
    computed = _arithmetic(result)
    scores = _convert(call.input, call.input.dtype, result, computed)
    scores = _scaled_and_capped(scores, call)
    hides = call.mask is not None and call.mask.dtype == ir.DataType.BOOL
    for added in (call.bias, None if hides else call.mask):
        if added is not None:
            scores = op.Add(scores, _convert(added, added.dtype, computed))
    visible = _visible(call, call.mask if hides else None)
    value = -math.inf if call.mask_value is None else call.mask_value
    masked = scores if visible is None else op.Where(visible, scores, _like(value, scores))
    output, sink_probabilities = _softmax_with_sinks(masked, call.sinks, computed)
    if call.zero_masked_rows:
        output = op.Where(_has_visible_column(scores, visible), output, _like(0.0, output))
    output = _convert(output, computed, result)
    # The probabilities before dropout are empty if the op has an argument `seed` that is None.
    probabilities = _nothing(output) if getattr(call, "seed", output) is None else output
    return {
        "output": output,
        "probabilities": probabilities,
        "sink_probabilities": sink_probabilities,
    }


def _scaled_and_capped(scores: Value, call: Any) -> Value:
    scores = scores if call.scale == 1 else op.Mul(scores, _like(call.scale, scores))
    return _capped(scores, call.softcap)


def _capped(scores: Value, softcap: float | None) -> Value:
    if softcap is None:
        return scores
    cap = _like(softcap, scores)
    return op.Mul(op.Tanh(op.Div(scores, cap)), cap)


def _softmax_with_sinks(
    scores: Value, sinks: Value | None, computed: ir.DataType
) -> tuple[Value, Value | None]:
    """Returns the softmax of the scores and of one more column, the sinks, in two parts: the
    columns of the scores, and the column of the sinks, which is None if there are no sinks."""
    if sinks is None:
        return op.Softmax(scores, axis=-1), None
    column = op.Unsqueeze(_convert(sinks, sinks.dtype, computed), [-1])
    shape = op.Concat(op.Shape(scores, end=-1), op.Constant(value_ints=[1]), axis=0)
    both = op.Softmax(op.Concat(scores, op.Expand(column, shape), axis=-1), axis=-1)
    return op.Slice(both, [0], [-1], [-1]), op.Squeeze(op.Slice(both, [-1], [_END], [-1]), [-1])


def _visible(call: Any, mask: Value | None) -> Value | None:
    """Returns a bool tensor that is True in the columns that no bool mask, diagonal or bound hides;
    None if the call has none of these."""
    conditions = [] if mask is None else [mask]
    input, lower = call.input, call.lower_diagonal
    if lower is not None:
        conditions.append(op.GreaterOrEqual(_positions(input, -1), _shifted_queries(input, lower)))
    if call.causal:
        upper = _shifted_queries(input, call.diagonal)
        conditions.append(op.LessOrEqual(_positions(input, -1), upper))
    start, end = (None if b is None else _column_of_integers(b) for b in (call.start, call.end))
    if start is not None:
        conditions.append(op.GreaterOrEqual(_positions(input, -1), start))
    if end is not None:
        conditions.append(op.Less(_positions(input, -1), end))
    return functools.reduce(op.And, conditions) if conditions else None


def _positions(input: Value, dim: int) -> Value:
    """Returns the indices along a dimension: 0, 1, ... below its size."""
    size = op.Squeeze(op.Shape(input, start=dim, end=dim + 1 or None))
    return op.Range(op.Constant(value_int=0), size, op.Constant(value_int=1))


def _shifted_queries(input: Value, diagonal: int | Value) -> Value:
    """Returns for query i the key i + ``diagonal``, which lies on that diagonal. The result has the
    shape [queries, 1]."""
    return op.Unsqueeze(op.Add(_positions(input, -2), diagonal), [1])


def _column_of_integers(bounds: Value) -> Value:
    return op.Unsqueeze(op.Cast(bounds, to=ir.DataType.INT64), [-1])


def _has_visible_column(scores: Value, visible: Value | None) -> Value:
    """Whether each row has a visible score that is not -inf."""
    finite = op.Not(op.IsInf(scores, detect_positive=0))
    finite = finite if visible is None else op.And(visible, finite)
    any_finite = op.ReduceMax(op.Cast(finite, to=ir.DataType.INT32), [-1], keepdims=1)
    return op.Cast(any_finite, to=ir.DataType.BOOL)


def _nothing(like: Value) -> Value:
    """Returns a tensor without elements, in the dtype of another."""
    return op.CastLike(op.Constant(value=ir.tensor([], ir.DataType.FLOAT)), like)


def _refuse_dropout(p: float) -> None:
    if p > 0:
        raise RuntimeError(
            "fusedops: ONNX has no dropout with fusedops' random numbers; export the model in eval "
            "mode, after model.eval()"
        )


# --- cross entropy ------------------------------------------------------------------------------


def _cross_entropy(call: Any) -> dict[str, Any]:
    x = _convert(call.input, call.input.dtype, _arithmetic(call.input.dtype))
    return _row_losses(_scaled_and_capped(x, call), call, call.reads_ignored)


def _row_losses(z: Value, call: Any, reads_ignored: bool = False) -> dict[str, Any]:
    """Translates the loss of each row of logits ``z``; returns the op's results by name. The result
    ``lse_error`` is 0, because ``lse`` is computed in its own dtype and not rounded to it."""
    lse = op.ReduceLogSumExp(z, [-1], keepdims=0)
    zeros = op.Expand(_like(0.0, lse), op.Shape(lse))
    classes = op.Cast(call.target, to=ir.DataType.INT64)
    ignored = None if call.ignore_index is None else op.Equal(classes, call.ignore_index)
    column = classes if ignored is None else op.Where(ignored, 0, classes)
    of_class = op.GatherElements(z, op.Unsqueeze(column, [-1]), axis=-1)
    losses = op.Sub(lse, op.Squeeze(of_class, [-1]))
    e = call.label_smoothing
    if e != 0:
        of_others = op.Sub(lse, op.ReduceMean(z, [-1], keepdims=0))
        losses = op.Add(op.Mul(losses, _like(1 - e, z)), op.Mul(of_others, _like(e, z)))
    if ignored is not None:
        losses = op.Where(ignored, zeros, losses)
        lse = lse if reads_ignored else op.Where(ignored, zeros, lse)
    return {"losses": losses, "lse": lse, "lse_error": zeros}


def _linear_cross_entropy_losses(call: Any) -> dict[str, Any]:
    """Translates the op to a matrix product and :func:`_row_losses`. Unlike the op, the product
    stores the logits of all rows."""
    dtype = call.input.dtype
    computed = _arithmetic(dtype)
    tensors = (call.input, call.linear_weight, call.linear_bias)
    input, weight, bias = (
        None if tensor is None else _convert(tensor, dtype, computed) for tensor in tensors
    )
    logits = op.MatMul(input, op.Transpose(weight, perm=[1, 0]))
    logits = logits if bias is None else op.Add(logits, bias)
    logits = _convert(logits, computed, dtype, computed)  # the op rounds its product to dtype too
    return _row_losses(_capped(logits, call.softcap), call)


def _linear_cross_entropy(call: Any) -> dict[str, Any]:
    results = _linear_cross_entropy_losses(call)
    losses, lse = results["losses"], results["lse"]
    if call.row_weights is not None:
        losses = op.Mul(losses, call.row_weights)
    if call.z_loss != 0:
        losses = op.Add(losses, op.Mul(op.Mul(lse, lse), _like(call.z_loss, lse)))
    total = op.ReduceSum(losses, keepdims=0)
    return {"output": total if call.scale is None else op.Mul(total, call.scale)}


# --- norms --------------------------------------------------------------------------------------


def _norm_translation(norm: NormOp, opset_version: int) -> Callable[..., Any]:
    return _translation(norm.name, lambda call: _norm(norm, call._asdict(), opset_version))


def _norm(norm: NormOp, named: dict[str, Any], opset_version: int) -> dict[str, Any]:
    """Translates a call of a norm. ``named`` has the op's arguments. Returns the results by
    name."""
    total, dtype = named["input"], named["input"].dtype
    if norm.has_residual:  # the sum is returned too, even if wants_sum is False
        total, dtype = _sum(total, named["residual"], named["p"])
    computed = _arithmetic(dtype)
    x = _convert(total, dtype, computed)
    parameters = {
        name: None if named[name] is None else _convert(named[name], named[name].dtype, computed)
        for name in ("weight", "bias")
        if name in named
    }
    named = named | parameters
    if norm.is_spatial:
        results = _spatial_norm(norm.kind, x, len(total.shape), named)
    elif norm.kind is KINDS["layer_norm"]:
        results = _layer_norm(x, computed, named)
    elif norm.kind is KINDS["rms_norm"]:
        results = _rms_norm(x, (dtype, computed), named, is_operator=opset_version >= OPSET)
    else:
        dims = list(range(-len(named["normalized_shape"]), 0))
        results = _decomposed_norm(norm.kind, x, dims, named)
    return results | {"output": _convert(results["output"], computed, dtype), "sum": total}


def _sum(input: Value, residual: Value, p: float) -> tuple[Value, ir.DataType]:
    """Returns input + residual, and the dtype of the sum. Refuses a call with dropout (p > 0)."""
    _refuse_dropout(p)
    dtype = _promoted(input.dtype, residual.dtype)
    computed = _arithmetic(dtype)
    terms = (_convert(term, term.dtype, computed) for term in (input, residual))
    return _convert(op.Add(*terms), computed, dtype), dtype


def _layer_norm(x: Value, computed: ir.DataType, named: dict[str, Any]) -> dict[str, Any]:
    rank, weight = len(named["normalized_shape"]), named["weight"]
    weight = _ones(x, rank) if weight is None else weight
    output, *statistics = op.LayerNormalization(
        x, weight, named["bias"], axis=-rank, epsilon=named["eps"]
    )
    mean, rstd = (_convert(each, ir.DataType.FLOAT, computed) for each in statistics)
    return {"output": output, "mean": mean, "rstd": rstd}


def _ones(x: Value, rank: int) -> Value:
    """Returns ones in the shape of a weight, for a norm over the last ``rank`` dimensions that has
    no weight."""
    return op.Expand(_like(1.0, x), op.Shape(x, start=-rank))


def _rms_norm(
    x: Value, dtypes: tuple[ir.DataType, ir.DataType], named: dict[str, Any], *, is_operator: bool
) -> dict[str, Any]:
    """Translates rms_norm to ONNX's RMSNormalization if ``is_operator``, else to several operators.
    ``dtypes`` has the dtype of the result, and the one in which the norm is computed."""
    rank, eps, weight = len(named["normalized_shape"]), named["eps"], named["weight"]
    rstd = _reciprocal_rms(x, list(range(-rank, 0)), eps)
    ones = _ones(x, rank)
    if weight is None:  # the op ignores weight_offset then
        weight = ones
    elif named["weight_offset"]:
        weight = op.Add(weight, _like(named["weight_offset"], x))
    dtype, computed = dtypes
    rounds = named["rounds_normalized"] and dtype != computed
    factor = ones if rounds else weight
    if is_operator:
        output = opset23.RMSNormalization(x, factor, axis=-rank, epsilon=eps)
    else:
        output = op.Mul(op.Mul(x, rstd), factor)
    if rounds:
        output = op.Mul(_convert(output, computed, dtype, computed), weight)
    return {"output": output, "rstd": rstd}


def _spatial_norm(kind: NormKind, x: Value, rank: int, named: dict[str, Any]) -> dict[str, Any]:
    """Translates a norm over one dimension to several operators, since ONNX's norms take the last
    dimensions only."""
    dim = named["dim"]
    # These are the dimensions of a parameter after its first one.
    after = list(range(1, rank - dim % max(rank, 1)))
    aligned = {
        name: op.Unsqueeze(named[name], after) if rank else op.Squeeze(named[name], [0])
        for name in ("weight", "bias")
        if named.get(name) is not None
    }
    return _decomposed_norm(kind, x, [dim] if rank else None, named | aligned)


def _decomposed_norm(
    kind: NormKind, x: Value, dims: list[int] | None, named: dict[str, Any]
) -> dict[str, Any]:
    """Translates a norm to several operators: (x - mean) * rstd * weight + bias. A kind of norm
    without a mean subtracts nothing. ``dims`` is None for a scalar x."""
    results = {}
    if kind.has_mean:
        results["mean"] = op.ReduceMean(x, dims, keepdims=1)
        x = op.Sub(x, results["mean"])
    output, results["rstd"] = _SCALES[kind.scale](x, dims, named["eps"])
    for name, apply in (("weight", op.Mul), ("bias", op.Add)):
        if named.get(name) is not None:
            output = apply(output, named[name])
    return {"output": output, **results}


def _over_root(centered: Value, dims: list[int] | None, eps: float) -> tuple[Value, Value]:
    """Returns ``centered`` / root(mean square + eps), and rstd, the reciprocal of the divisor."""
    rstd = _reciprocal_rms(centered, dims, eps)
    return op.Mul(centered, rstd), rstd


def _reciprocal_rms(x: Value, dims: list[int] | None, eps: float) -> Value:
    """Returns 1 / root(mean square + eps)."""
    mean_square = op.ReduceMean(op.Mul(x, x), dims, keepdims=1)
    return op.Reciprocal(op.Sqrt(op.Add(mean_square, _like(eps, x))))


def _over_deviation(centered: Value, dims: list[int], eps: float) -> tuple[Value, Value]:
    """Returns ``centered`` / (unbiased standard deviation + eps), and rstd, the reciprocal of the
    divisor."""
    count = op.ReduceProd(op.Shape(centered, start=dims[0]), keepdims=0)
    degrees = op.CastLike(op.Sub(count, op.Constant(value_int=1)), centered)
    variance = op.Div(op.ReduceSumSquare(centered, dims, keepdims=1), degrees)
    rstd = op.Reciprocal(op.Add(op.Sqrt(variance), _like(eps, centered)))
    return op.Mul(centered, rstd), rstd


def _over_norm(x: Value, dims: list[int], eps: float) -> tuple[Value, Value]:
    """Returns x / max(Euclidean norm, eps), and rstd, the reciprocal of the divisor. ONNX's
    LpNormalization is not used, because it takes a single axis and no eps."""
    norm = op.Max(op.ReduceL2(x, dims, keepdims=1), _like(eps, x))
    return op.Div(x, norm), op.Reciprocal(norm)


#: Scale of a kind of norm -> the function that returns the normalised values and rstd.
_SCALES: dict[type[MeanSquare], Callable[..., tuple[Value, Value]]] = {
    MeanSquare: _over_root,
    DeviationPlusEps: _over_deviation,
    NormOrEps: _over_norm,
}


def _stack_layer_norm(call: Any) -> dict[str, Any]:
    none = [None] * len(call.inputs)
    arguments = zip(call.inputs, call.weights or none, call.biases or none, strict=True)
    translate = _norm_translation(NormOp("layer_norm"), OPSET)
    results = [translate(x, call.normalized_shape, w, b, call.eps) for x, w, b in arguments]
    outputs, means, rstds = zip(*results, strict=True)
    of_rows = {"mean": _stack(means, 0), "rstd": _stack(rstds, 0)}
    return {"output": _stack(outputs, call.stack_dim), **of_rows}


# --- tables -------------------------------------------------------------------------------------

_MASKED_SOFTMAXES = (
    *("masked_softmax", "masked_softmax_dropout", "masked_softmax_sinks"),
    "_masked_softmax_dropout",  # it is here because it has fewer results than the public op
)
#: Name of an op -> its translation, for all public ops except those in NORM_OPS.
_PUBLIC: dict[str, Callable[..., Any]] = {
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "softmax_stats": _softmax_stats,
    "softmax_apply": _softmax_apply,
    "stack_softmax": _stack_softmax,
    "stack_log_softmax": _stack_log_softmax,
    "stack_layer_norm": _translation("stack_layer_norm", _stack_layer_norm),
    "cross_entropy": _translation("cross_entropy", _cross_entropy),
    "linear_cross_entropy": _translation("linear_cross_entropy", _linear_cross_entropy),
    "linear_cross_entropy_losses": _translation(
        "linear_cross_entropy_losses", _linear_cross_entropy_losses
    ),
    **{op: _translation(op, _masked_softmax) for op in _MASKED_SOFTMAXES},
}
