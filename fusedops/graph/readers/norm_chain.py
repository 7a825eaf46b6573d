"""Recognises norms that several calls compute: the product of a tensor and the scale of its rows,
and the weight, bias and casts that follow it.

before    y = x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight
          and the same with the factors in another order, with casts and with further factors
after     the arguments of one op

A norm is centred if it subtracts the mean of each row. A norm with a `refusal` is one that no op
computes; the refusal is the reason that the report gives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.nodes import users
from fusedops.graph.analysis.steps import (
    call_of,
    cast_chain,
    has_shape,
    is_number,
    known_number,
    only_user,
    read_once,
    same_value,
    tensor_and_number,
    upstream,
)
from fusedops.graph.analysis.values import constant, value
from fusedops.graph.analysis.writes import written
from fusedops.graph.availability import KERNEL_DTYPES
from fusedops.graph.readers.norm_dims import NormDims, norm_dims
from fusedops.graph.readers.row_scale import (
    OTHER_NORM,
    RowScale,
    as_one_per_row,
    centred,
    in_range,
    power_of,
    read_row_scale,
)
from fusedops.graph.rule import UNKNOWN_ROW, OpCall

aten = torch.ops.aten
#: The types of intermediate results, which must have no users outside of the norm. Nodes of other
#: types, such as a number eps, may have such users.
_RESULTS = (torch.Tensor, tuple)
HALF_DTYPES = (torch.float16, torch.bfloat16)
#: The kinds of norms that subtract the mean (centred), and those that do not.
_CENTRED = ("layer_norm", "std_norm")
_UNCENTRED = ("rms_norm", "l2_norm")
#: Factors count as 1 if they differ from 1 by no more than four roundings of a Python float.
_ROUNDING = 4 * torch.finfo(torch.float64).eps

SINGLE = "its rows have too few elements for an unbiased variance"
NOT_CENTRED = "it is divided by its deviation, but its mean is not subtracted, which no op does"
OUT_OF_RANGE = "its factors leave the range of its dtype"
EPS_OUTSIDE = "eps is added to the root of its mean square, which no op does"


@dataclass(frozen=True)
class Norm:
    """The part of a norm that has been matched so far.

    kind: "layer_norm", "std_norm", "rms_norm" or "l2_norm".
    over: the dimensions that are normalised.
    input: the tensor that is normalised, before its casts.
    computed_in: the tensor after these casts, whose dtype the model computes in.
    last: the last call that has been matched.
    source: the tensor that the scale of the rows is computed from, if that is not the input.
    factor, scalars: a number, and tensors with a single element, that multiply the norm.
    rounded_to: the 16-bit dtype of a cast between the normalised value and the weight.
    narrowed_to: the dtype of the casts that lose precision. The result has to have it too.
    absorbed: calls between a parameter and its use, such as views, which the op does not need.
    """

    kind: str
    over: NormDims
    input: Node
    computed_in: Node
    eps: float
    last: Node
    source: Node | None = None
    factor: float = 1.0
    scalars: tuple[Node, ...] = ()
    weight: Node | None = None
    weight_offset: float = 0.0
    bias: Node | None = None
    rounded_to: torch.dtype | None = None
    narrowed_to: torch.dtype | None = None
    absorbed: tuple[Node, ...] = ()
    refusal: str | None = None

    @property
    def op(self) -> str:
        """The name of the op that computes the norm, without the "add_" of ops with a residual."""
        return self.over.op(self.kind)

    @property
    def matched_calls(self) -> tuple[Node, ...]:
        """The calls that compute the norm from its input, weight and bias, in program order."""
        inputs = (self.input, self.source, self.weight, self.bias, *self.absorbed, *self.scalars)
        calls = upstream(self.last, until={node for node in inputs if node is not None})
        # Reads of a tensor's dtype, for which capture records no value, are left out.
        return tuple(sorted(node for node in calls if value(node) is not None))

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(sorted({*self.matched_calls, *self.absorbed}))

    @property
    def is_shared(self) -> bool:
        """Whether a call outside of the norm uses one of its intermediate results. A cast of the
        input does not count as such a result."""
        matched = set(self.matched_calls)
        results = [node for node in matched - {self.last} if isinstance(value(node), _RESULTS)]
        inner = (node for node in results if cast_chain(node)[1] is not self.input)
        return any(not matched.issuperset(users(node)) for node in inner)

    @property
    def is_half(self) -> bool:
        return value(self.last).dtype in HALF_DTYPES

    @property
    def has_factors(self) -> bool:
        return bool(self.scalars) or abs(self.factor - 1) > _ROUNDING


# --- the product ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Factor:
    """A factor of a product, or a divisor (`inverted`). `scale` describes it if it is computed from
    the squares of each row, and is None otherwise."""

    operand: Any
    inverted: bool
    scale: RowScale | None = None


@read_once
def read_norm(call: Call) -> Norm | None:
    """Returns the norm that `call` computes, without the weight and bias that later calls apply.
    The call is F.normalize, or a product or quotient: one operand has the tensor among its factors,
    and the other the scale of its rows. Returns None for other calls."""
    if call.refusal or not isinstance(value(call.node), torch.Tensor):
        return None
    if call.kind == "normalize":
        return _normalize(call)
    if call.kind not in ("mul", "div"):
        return None
    first, other = call.operands
    sides = list(_factors(first)), list(_factors(other, call.kind == "div"))
    for factors, scales in (sides, sides[::-1]):
        for scale in scales:
            rest = [factor for factor in scales if factor is not scale]
            norm = _product(call.node, factors, scale, rest)
            if norm is not None:
                return norm
    return None


def _normalize(call: Call) -> Norm | None:
    """Returns the norm that F.normalize computes, or None if its dimension or eps is not known. The
    norm is refused unless p is 2."""
    input, dim, rank = call.input, call.arguments["dim"], value(call.input).dim()
    if not isinstance(dim, int) or rank == 0:
        return None
    over, eps = norm_dims((dim % rank,), value(input).shape), known_number(call.arguments["eps"])
    if over is None or eps is None:
        return None
    refusal = None if call.arguments["p"] == 2 else OTHER_NORM
    source = cast_chain(input)[1]
    return Norm("l2_norm", over, source, input, eps, call.node, refusal=refusal)


def _factors(operand: Any, inverted: bool = False, steps: int = 4) -> Iterator[_Factor]:
    """Yields the factors of nested products such as a * (b * scale / c), at most `steps` deep.
    `inverted` says whether `operand` itself is a divisor."""
    scale = read_row_scale(operand)
    if scale is not None:
        yield _Factor(operand, inverted, scale)
        return
    is_tensor = steps and isinstance(value(operand), torch.Tensor)
    call = call_of(operand, "mul", "div") if is_tensor and len(users(operand)) == 1 else None
    if call is None or written(operand):
        yield _Factor(operand, inverted)
        return
    first, other = call.operands
    yield from _factors(first, inverted, steps - 1)
    yield from _factors(other, inverted ^ (call.kind == "div"), steps - 1)


def _product(
    node: Node, factors: list[_Factor], scale: _Factor, rest: list[_Factor]
) -> Norm | None:
    """Returns the norm of a tensor x among `factors`, times the other factors and `rest`. `scale`
    has to be 1 / root of a statistic of x's rows. Returns None if it is something else, or if
    the op cannot take one of the factors, and for x / std(x) a refused norm (`_not_centred`).

    A norm that is not centred and is computed in 16 bits is refused, because eager rounds at every
    step, unless one function computes the scale and there is no other factor."""
    by = as_one_per_row(scale.scale, scale.operand) if scale.scale else None
    if by is None:
        return None
    by = by.raised_to(-1.0) if scale.inverted else by
    if by is None or not by.is_inverse_root:
        return None
    tensor = next((f for f in factors if not f.inverted and _is_scaled_by(f.operand, by)), None)
    if tensor is None:
        return _not_centred(factors, by, node)
    norm: Norm | None = _norm_of(by, tensor.operand, node)
    others = [factor for factor in (*factors, *rest) if factor is not tensor]
    for factor in others:
        norm = _multiplied(norm, factor.operand, factor.inverted, is_inside=True) if norm else None
    is_plain = by.by_norm and not others
    dtype = value(norm.computed_in).dtype if norm else None
    if norm and norm.kind in _UNCENTRED and not is_plain and dtype in HALF_DTYPES:
        reason = f"it is computed in {dtype}, which rounds at every step"
        return replace(norm, refusal=norm.refusal or reason)
    return norm


def _not_centred(factors: list[_Factor], by: RowScale, node: Node) -> Norm | None:
    """Returns the norm x / std(x), which no op computes, with a refusal for the report; None if
    `factors` do not contain x."""
    plain = replace(by, centred=False)
    if not by.centred or not any(_is_scaled_by(f.operand, plain) for f in factors):
        return None
    norm = _norm_of(plain, by.input, node)
    return replace(norm, refusal=NOT_CENTRED) if norm else None


def _is_scaled_by(operand: Any, scale: RowScale) -> bool:
    """Returns whether `operand` is the tensor from which `scale` is computed, cast or not. If the
    scale is a variance (`centred`), it has to be that tensor minus its mean."""
    if not isinstance(operand, Node):
        return False
    if scale.centred:
        input, dims = centred(operand) or (None, None)
        return dims == scale.dims and same_value(input, scale.input)
    return same_value(cast_chain(operand)[1], cast_chain(scale.input)[1])


def _norm_of(scale: RowScale, tensor: Node, last: Node) -> Norm | None:
    """Returns the norm of `tensor`, which is the scale's input or that input minus its mean, with
    `last` as its last call. Returns None if no op normalises over the scale's dimensions."""
    over = norm_dims(scale.dims, value(scale.input).shape)
    if over is None:
        return None
    source = None
    # No centred op takes eps as a lower limit. l2_norm of the centred tensor does.
    if scale.centred and scale.eps_mode == "max":
        source, scale = scale.input, _as_mean_square_of(scale, tensor)
    kind, eps, factor, refusal = _kind(scale, over)
    if not in_range(factor, scale.input):
        refusal = refusal or OUT_OF_RANGE
    input, refusal = cast_chain(scale.input)[1], scale.refusal or refusal
    norm = Norm(kind, over, input, scale.input, eps, last, source, factor)
    return replace(norm, refusal=refusal)


def _as_mean_square_of(scale: RowScale, residue: Node) -> RowScale:
    """Returns the scale, a function of the variance of its input, as a function of the mean square
    of `residue`, which is that input minus its mean. Variance and mean square are equal if the
    variance divides by N. If it divides by another number, and N is unknown or too small, the scale
    that is returned has a refusal."""
    biased = scale.corrected(0)
    refusal = scale.refusal or (None if biased else _why_not_corrected(scale))
    return replace(
        biased or scale, input=residue, centred=False, written_as_sum=True, refusal=refusal
    )


def _kind(scale: RowScale, over: NormDims) -> tuple[str, float, float, str | None]:
    """Returns four things about a norm: its kind, its eps, the factor between the model's result
    and the op's, and the refusal, or None if an op computes it. A centred norm is layer_norm if the
    model adds eps to the variance, and std_norm if it adds eps to the root. Without eps it is
    std_norm if the variance is over the last dimensions, has the divisor N - 1 and no factor, and
    otherwise layer_norm. A norm that is not centred is l2_norm if eps is a lower limit, or if there
    is no eps and the model writes a sum over the last dimensions; otherwise it is rms_norm."""
    # Without eps, l2_norm and rms_norm differ by a factor alone, so that either would do. Over a
    # dimension that is not the last, only rms_norm has an op that needs no permuted input.
    is_sum = not scale.eps_mode and scale.written_as_sum and not over.order("l2_norm")
    if not scale.centred and (scale.eps_mode == "max" or is_sum):
        return _l2_norm(scale)
    is_unbiased = scale.correction == 1 and scale.inner == 1 and not over.order("std_norm")
    has_root = math.isclose(scale.power, 0.5) if scale.eps_mode else is_unbiased
    is_deviation = scale.centred and has_root
    uncorrected = "layer_norm" if scale.centred else "rms_norm"
    kind, correction = ("std_norm", 1) if is_deviation else (uncorrected, 0)
    corrected = scale.corrected(correction)
    if corrected is None:
        return kind, scale.eps, 1.0, _why_not_corrected(scale)
    is_outside = scale.eps_mode and not is_deviation and not math.isclose(corrected.power, 1)
    factor = corrected.outer * power_of(corrected.inner, corrected.exponent)
    return kind, corrected.eps / corrected.inner, factor, EPS_OUTSIDE if is_outside else None


def _why_not_corrected(scale: RowScale) -> str:
    return UNKNOWN_ROW if scale.columns is None else SINGLE


def _l2_norm(scale: RowScale) -> tuple[str, float, float, str | None]:
    """Returns what `_kind` does, for an l2_norm."""
    if scale.columns is None:
        return "l2_norm", scale.eps, 1.0, UNKNOWN_ROW
    # Since sum = columns * mean, the term inner * mean ** power is unit * sum ** power.
    unit = scale.inner * power_of(scale.columns, -scale.power)
    if not in_range(unit, scale.input):
        return "l2_norm", scale.eps, 1.0, OUT_OF_RANGE
    eps = power_of(scale.eps / unit, 1 / (2 * scale.power)) if scale.eps_mode else 0.0
    return "l2_norm", eps, scale.outer * power_of(unit, scale.exponent), None


# --- weight, bias and casts -----------------------------------------------------------------------


def continued(norm: Norm | None) -> Iterator[Norm]:
    """Yields the norm, then the norm extended by the cast, factor or bias that follows, and so on
    until no op computes the next call too, or another call uses the result."""
    while norm is not None:
        yield norm
        step = only_user(norm.last)
        extended = _extended(norm, step) if step else None
        norm = replace(extended, last=step.node) if step and extended else None


def _extended(norm: Norm, step: Call) -> Norm | None:
    """Returns the norm with what the call `step`, which follows it, does: it applies a weight, a
    bias or a factor, or casts. Returns None if no op computes that too."""
    if step.kind == "cast":
        return _after_cast(norm, step.arguments["dtype"])
    if step.kind == "addcmul":
        return _after_addcmul(norm, step)
    first, other = step.operands
    operand: Any = other if first is norm.last else first
    if step.kind == "add":
        has_bias = norm.kind in _CENTRED and norm.bias is None
        return _with_bias(norm, operand) if has_bias and _is_affine(operand, norm) else None
    if step.kind not in ("mul", "div") or norm.bias is not None:
        return None
    if step.kind == "div" and step.input is not norm.last:
        return None
    return _multiplied(norm, operand, step.kind == "div")


def _after_addcmul(norm: Norm, step: Call) -> Norm | None:
    """Returns the norm with the parameters in bias + weight * norm or bias + norm * weight; None if
    the op cannot take them."""
    arguments = step.arguments
    bias, first, second = arguments["input"], arguments["tensor1"], arguments["tensor2"]
    weight = second if first is norm.last else first
    is_bare = norm.kind in _CENTRED and norm.weight is None and norm.bias is None
    is_plain = constant(arguments.get("value", 1)) == 1
    if not (is_bare and is_plain and _is_affine(weight, norm) and _is_affine(bias, norm)):
        return None
    return _with_bias(_with_weight(norm, weight), bias)


def _after_cast(norm: Norm, result: torch.dtype) -> Norm | None:
    """Returns the norm cast to the dtype `result`. If the cast rounds an rms_norm to 16 bits before
    the weight, `rounded_to` becomes `result`. Returns None for a dtype that no op gives, such as
    int8, for two casts that lose precision in different dtypes, and for a cast from 16 bits of a
    norm that is not centred."""
    input_dtype = value(norm.last).dtype
    if input_dtype == result:
        return norm
    if not {input_dtype, result}.issubset(KERNEL_DTYPES):
        return None
    if torch.promote_types(input_dtype, result) != result:
        if norm.narrowed_to not in (None, result):
            return None
        norm = replace(norm, narrowed_to=result)
    if norm.kind in _CENTRED:
        return norm
    if input_dtype in HALF_DTYPES:  # eager rounds here and at the end, but the op only at the end
        return None
    is_bare = norm.kind == "rms_norm" and norm.weight is None and not norm.has_factors
    rounds = is_bare and result in HALF_DTYPES and norm.over.are_last
    return replace(norm, rounded_to=result) if rounds else norm


def _multiplied(norm: Norm, operand: Any, inverted: bool, is_inside: bool = False) -> Norm | None:
    """Returns the norm times `operand`, or divided by it if `inverted`; None if the op cannot do
    that. `is_inside` says whether the operand is a factor of the product that is the norm itself.
    """
    takes_scalars = norm.kind in _UNCENTRED and norm.rounded_to is None and not norm.is_half
    if is_number(operand):
        takes = is_inside or takes_scalars
        return _times(norm, known_number(operand), inverted) if takes else None
    if inverted or not isinstance(operand, Node):
        return None
    if _is_affine(operand, norm) and norm.weight is None:
        is_half = norm.is_half and not is_inside and norm.rounded_to is None
        # Eager mode rounds before and after this product, but the op only after it.
        if is_half and norm.kind in _UNCENTRED:
            return None
        return _with_weight(norm, operand)
    if not takes_scalars or not _is_single(operand, norm):
        return None
    return replace(norm, scalars=(*norm.scalars, operand))


def _times(norm: Norm, factor: float | None, inverted: bool) -> Norm | None:
    """Returns the norm times `factor`, or divided by it if `inverted`. Returns None if the factor,
    or the product of all factors, leaves the range of the norm's dtype."""
    if factor is None or not in_range(factor, norm.computed_in):
        return None
    product = norm.factor / factor if inverted else norm.factor * factor
    return replace(norm, factor=product) if in_range(product, norm.computed_in) else None


def _is_single(operand: Node, norm: Norm) -> bool:
    """Returns whether a tensor has one element, broadcasts to the norm's input, and has a dtype
    that the kernels take."""
    tensor = value(operand)
    if not isinstance(tensor, torch.Tensor) or tensor.dtype not in KERNEL_DTYPES:
        return False
    return tensor.dim() <= value(norm.input).dim() and has_shape(operand, [1] * tensor.dim())


def _with_weight(norm: Norm, weight: Node) -> Norm:
    """Returns `norm` with the weight `weight`. The op takes the tensor before the casts and views
    that the op does not need. A number that the model adds to the weight becomes `weight_offset`,
    if the op has this argument."""
    absorbed: tuple[Node, ...] = ()
    offset = 0.0
    call = call_of(weight, "add") if norm.kind == "rms_norm" and norm.over.are_last else None
    if call is not None:
        base, other = tensor_and_number(call)
        if isinstance(base, Node) and (added := constant(other)) is not None:
            absorbed, weight, offset = (weight,), base, float(added)
    casts, weight = cast_chain(weight) if norm.kind == "rms_norm" else ((), weight)
    views, weight = norm.over.view_chain_of(weight)
    absorbed = (*norm.absorbed, *absorbed, *casts, *views)
    return replace(norm, weight=weight, weight_offset=offset, absorbed=absorbed)


def _with_bias(norm: Norm, bias: Node) -> Norm:
    views, bias = norm.over.view_chain_of(bias)
    return replace(norm, bias=bias, absorbed=(*norm.absorbed, *views))


def _is_affine(operand: Any, norm: Norm) -> bool:
    """Returns whether `operand` is a tensor that can be a parameter of the op."""
    if not isinstance(operand, Node) or not isinstance(value(operand), torch.Tensor):
        return False
    return norm.over.has_parameter(operand) and value(operand).dtype in KERNEL_DTYPES


# --- the op's arguments ---------------------------------------------------------------------------


def input_of(norm: Norm) -> Node | None:
    """Returns the norm's input before or after its casts: the one that has the dtype of eager's
    result, since the op's output has the dtype of the op's input. Returns None if neither has this
    dtype, or if a cast to another one has lost precision."""
    result = value(norm.last).dtype
    if norm.narrowed_to not in (None, result):
        return None
    candidates = (norm.input, norm.computed_in)
    return next((node for node in candidates if value(node).dtype == result), None)


def arguments_of(norm: Norm, input: Node) -> dict[str, Any]:
    """Returns the arguments of the norm's op by name, in the op's order."""
    multiplies = norm.has_factors and None not in norm.over.known_row
    arguments = {"input": input, **norm.over.arguments(norm.kind)}
    arguments["weight"] = (
        _weight_times_factors(norm) if multiplies else _parameter(norm, norm.weight)
    )
    if norm.kind in _CENTRED:
        arguments["bias"] = _parameter(norm, norm.bias)
    arguments["eps"] = norm.eps
    if norm.kind == "rms_norm" and norm.over.are_last:
        arguments["weight_offset"] = 0.0 if multiplies else norm.weight_offset
        arguments["rounds_normalized"] = norm.rounded_to is not None
    return arguments


def _parameter(norm: Norm, operand: Node | None) -> Node | OpCall | None:
    return None if operand is None else norm.over.parameter(operand)


def _weight_times_factors(norm: Norm) -> OpCall:
    """Returns the weight times the factors, in the dtype of the computation. To multiply the weight
    costs only as many products as a row has elements, and the norm's result is rounded only once.
    """
    dtype = torch.promote_types(value(norm.input).dtype, torch.float32)
    weight = _parameter(norm, norm.weight)
    if weight is None:
        device = value(norm.input).device
        options = {"dtype": dtype, "device": device}
        product = OpCall(aten.full.default, (norm.over.known_row, norm.factor), options)
    else:
        product = OpCall(aten.to.dtype, (weight, dtype))
        if norm.weight_offset:
            product = OpCall(aten.add.Scalar, (product, norm.weight_offset))
        product = OpCall(aten.mul.Scalar, (product, norm.factor))
    for scalar in norm.scalars:
        single = OpCall(aten.reshape.default, (OpCall(aten.to.dtype, (scalar, dtype)), [1]))
        product = OpCall(aten.mul.Tensor, (product, single))
    return product
