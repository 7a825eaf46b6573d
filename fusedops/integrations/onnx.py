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

    Source: the argument `custom_translation_table` of :func:`torch.onnx.export`.
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
    public = {name: _translation(name, f) for name, f in _TRANSLATED.items()} | norms
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

    Source: :func:`torch.onnx.export`.
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


def _softmax(operator: Callable[..., Any], input: Value, dim: int, dtype: Any = None) -> Value:
    """Returns ``operator``, a softmax, along ``dim`` of the input converted to the dtype that the
    result has."""
    result = _result_dtype(input, dtype)
    computed = _arithmetic(result)
    x = _convert(input, input.dtype, result, computed)
    is_scalar = len(input.shape) == 0  # ONNX's operators do not accept scalars
    output = operator(op.Unsqueeze(x, [0]) if is_scalar else x, axis=dim)
    return _convert(op.Squeeze(output, [0]) if is_scalar else output, computed, result)


def _softmax_of_call(operator: Callable[..., Any], call: Any) -> dict[str, Any]:
    return {"output": _softmax(operator, call.input, call.dim, call.dtype)}


def _stack_of_softmaxes(operator: Callable[..., Any], call: Any) -> dict[str, Any]:
    outputs = [_softmax(operator, input, call.dim) for input in call.inputs]
    return {"output": _stack(outputs, call.stack_dim)}


def _stack(values: Sequence[Value], dim: int) -> Value:
    return op.Concat(*(op.Unsqueeze(value, [dim]) for value in values), axis=dim)


def _softmax_stats(call: Any) -> dict[str, Any]:
    x = _convert(call.input, call.input.dtype, _arithmetic(call.input.dtype))
    dims = [call.dim] if len(call.input.shape) else None  # a scalar has nothing to reduce over
    largest = op.ReduceMax(x, dims, keepdims=1)
    return {"max": largest, "sum": op.ReduceSum(op.Exp(op.Sub(x, largest)), dims, keepdims=1)}


def _softmax_apply(call: Any) -> dict[str, Any]:
    computed = _arithmetic(call.input.dtype)
    x = _convert(call.input, call.input.dtype, computed)
    output = op.Div(op.Exp(op.Sub(x, call.max)), call.sum)
    return {"output": _convert(output, computed, _result_dtype(call.input, call.dtype))}


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


def _dropout(call: Any) -> dict[str, Any]:
    _refuse_dropout(call.p)
    return {"output": op.Relu(call.input) if call.relu else op.Identity(call.input)}


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
    computed, rank = _arithmetic(dtype), len(named["input"].shape)
    x = _convert(total, dtype, computed)
    weight, bias = (_parameter(named, name, computed, rank) for name in ("weight", "bias"))
    if weight is not None and named.get("weight_offset"):  # the op ignores it without a weight
        weight = op.Add(weight, _like(named["weight_offset"], x))
    rounds = named.get("rounds_normalized") and dtype != computed
    operator = None if norm.is_spatial else _OPERATORS.get(norm.kind)
    if operator is None or (operator is _rms_norm and opset_version < OPSET):
        # ONNX's norms take the last dimensions only, and a scalar has no dimension.
        last = list(range(-len(named.get("normalized_shape", ())), 0))
        dims = last or ([named["dim"]] if rank else None)
        results, is_weighted = _normalized(norm.kind, x, dims, named["eps"]), False
    else:
        factors = _ones(x, named) if weight is None or rounds else weight, bias
        results, is_weighted = operator(x, *factors, named, computed), not rounds
    output = results["output"]
    if rounds:
        output = _convert(output, computed, dtype, computed)
    if weight is not None and not is_weighted:
        output = op.Mul(output, weight)
    if bias is not None and not is_weighted:
        output = op.Add(output, bias)
    return results | {"output": _convert(output, computed, dtype), "sum": total}


def _parameter(named: dict[str, Any], name: str, computed: ir.DataType, rank: int) -> Value | None:
    """Returns a weight or bias, converted, in a shape that broadcasts to an input of ``rank``
    dimensions; None if the call has none."""
    parameter = named.get(name)
    if parameter is None:
        return None
    parameter = _convert(parameter, parameter.dtype, computed)
    if "dim" not in named:
        return parameter
    # These are the dimensions of the parameter of a spatial norm after its first one.
    after = list(range(1, rank - named["dim"] % max(rank, 1)))
    return op.Unsqueeze(parameter, after) if rank else op.Squeeze(parameter, [0])


def _sum(input: Value, residual: Value, p: float) -> tuple[Value, ir.DataType]:
    """Returns input + residual, and the dtype of the sum. Refuses a call with dropout (p > 0)."""
    _refuse_dropout(p)
    dtype = _promoted(input.dtype, residual.dtype)
    computed = _arithmetic(dtype)
    terms = (_convert(term, term.dtype, computed) for term in (input, residual))
    return _convert(op.Add(*terms), computed, dtype), dtype


def _ones(x: Value, named: dict[str, Any]) -> Value:
    """Returns ones in the shape of a weight, for a norm over the last dimensions without one."""
    return op.Expand(_like(1.0, x), op.Shape(x, start=-len(named["normalized_shape"])))


def _layer_norm(
    x: Value, weight: Value, bias: Value | None, named: dict[str, Any], computed: ir.DataType
) -> dict[str, Any]:
    output, *statistics = op.LayerNormalization(
        x, weight, bias, axis=-len(named["normalized_shape"]), epsilon=named["eps"]
    )
    mean, rstd = (_convert(each, ir.DataType.FLOAT, computed) for each in statistics)
    return {"output": output, "mean": mean, "rstd": rstd}


def _rms_norm(
    x: Value, weight: Value, bias: None, named: dict[str, Any], computed: ir.DataType
) -> dict[str, Any]:
    rank, eps = len(named["normalized_shape"]), named["eps"]
    output = opset23.RMSNormalization(x, weight, axis=-rank, epsilon=eps)
    return {"output": output, "rstd": op.Reciprocal(_root(x, list(range(-rank, 0)), eps))}


#: Kind of norm -> the function that translates it to one operator, where the last dimensions are
#: normalised.
_OPERATORS = {KINDS["layer_norm"]: _layer_norm, KINDS["rms_norm"]: _rms_norm}


def _normalized(kind: NormKind, x: Value, dims: list[int] | None, eps: float) -> dict[str, Any]:
    """Translates a norm without its parameters to several operators, (x - mean) / scale. A kind of
    norm without a mean subtracts nothing. ``dims`` is None for a scalar x."""
    statistics = {}
    if kind.has_mean:
        statistics["mean"] = op.ReduceMean(x, dims, keepdims=1)
        x = op.Sub(x, statistics["mean"])
    scale = _SCALES[kind.scale](x, dims, eps)
    return {"output": op.Div(x, scale), **statistics, "rstd": op.Reciprocal(scale)}


def _root(centered: Value, dims: list[int] | None, eps: float) -> Value:
    """Returns root(mean square + eps)."""
    mean_square = op.ReduceMean(op.Mul(centered, centered), dims, keepdims=1)
    return op.Sqrt(op.Add(mean_square, _like(eps, centered)))


def _deviation(centered: Value, dims: list[int], eps: float) -> Value:
    """Returns the unbiased standard deviation + eps."""
    count = op.ReduceProd(op.Shape(centered, start=dims[0]), keepdims=0)
    degrees = op.CastLike(op.Sub(count, op.Constant(value_int=1)), centered)
    variance = op.Div(op.ReduceSumSquare(centered, dims, keepdims=1), degrees)
    return op.Add(op.Sqrt(variance), _like(eps, centered))


def _norm_or_eps(x: Value, dims: list[int], eps: float) -> Value:
    """Returns max(Euclidean norm, eps). ONNX's LpNormalization is not used, because it takes a
    single axis and no eps."""
    return op.Max(op.ReduceL2(x, dims, keepdims=1), _like(eps, x))


#: Scale of a kind of norm -> the function that returns it for each row.
_SCALES: dict[type[MeanSquare], Callable[..., Value]] = {
    MeanSquare: _root,
    DeviationPlusEps: _deviation,
    NormOrEps: _norm_or_eps,
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
#: Name of an op -> what translates a call of it, for all public ops except those in NORM_OPS.
_TRANSLATED: dict[str, Callable[[Any], dict[str, Any]]] = {
    "softmax": functools.partial(_softmax_of_call, op.Softmax),
    "log_softmax": functools.partial(_softmax_of_call, op.LogSoftmax),
    "softmax_stats": _softmax_stats,
    "softmax_apply": _softmax_apply,
    "dropout": _dropout,
    "stack_softmax": functools.partial(_stack_of_softmaxes, op.Softmax),
    "stack_log_softmax": functools.partial(_stack_of_softmaxes, op.LogSoftmax),
    "stack_layer_norm": _stack_layer_norm,
    "cross_entropy": _cross_entropy,
    "linear_cross_entropy": _linear_cross_entropy,
    "linear_cross_entropy_losses": _linear_cross_entropy_losses,
    **dict.fromkeys(_MASKED_SOFTMAXES, _masked_softmax),
}
