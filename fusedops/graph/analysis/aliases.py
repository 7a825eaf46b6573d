"""Has the tables of `calls.py`: the names of each operation in torch IR and in ATen IR."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast

aten = torch.ops.aten

_INPUT = ("input",)
_BINARY = ("input", "other")
_DIM_DTYPE = ("input", "dim", "dtype")
_DIM_STACKLEVEL_DTYPE = ("input", "dim", "_stacklevel", "dtype")
_HALF_TO_FLOAT = ("input", "dim", "half_to_float")
_LAYER_NORM = ("input", "normalized_shape", "weight", "bias", "eps")
_RMS_NORM = ("input", "normalized_shape", "weight", "eps")
_GROUP_NORM = ("input", "num_groups", "weight", "bias", "eps")
_REDUCTION = ("input", "dim", "keepdim", "dtype")
_CLAMP = ("input", "min", "max")
_NORM = ("input", "p", "dim", "keepdim", "dtype")
_VARIANCE = ("input", "dim", "unbiased", "keepdim")
_NLL_LOSS = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction")

# Function of torch -> (kind, positional parameters). ATen ops are in the table ATEN, without their
# parameters, which their schemas name.
FUNCTIONS: dict[Any, tuple[str, tuple[str, ...]]] = {
    F.softmax: ("softmax", _DIM_STACKLEVEL_DTYPE),
    torch.softmax: ("softmax", _DIM_DTYPE),
    torch.special.softmax: ("softmax", _DIM_DTYPE),
    torch._softmax: ("softmax", _HALF_TO_FLOAT),
    torch._safe_softmax: ("safe_softmax", _DIM_DTYPE),
    F.log_softmax: ("log_softmax", _DIM_STACKLEVEL_DTYPE),
    torch.log_softmax: ("log_softmax", _DIM_DTYPE),
    torch.special.log_softmax: ("log_softmax", _DIM_DTYPE),
    torch._log_softmax: ("log_softmax", _HALF_TO_FLOAT),
    F.layer_norm: ("layer_norm", _LAYER_NORM),
    torch.layer_norm: ("layer_norm", (*_LAYER_NORM, "cudnn_enable")),
    torch.native_layer_norm: ("native_layer_norm", _LAYER_NORM),
    F.rms_norm: ("rms_norm", _RMS_NORM),
    torch.rms_norm: ("rms_norm", _RMS_NORM),
    F.group_norm: ("group_norm", _GROUP_NORM),
    torch.group_norm: ("group_norm", (*_GROUP_NORM, "cudnn_enabled")),
    F.cross_entropy: ("cross_entropy", (*_NLL_LOSS, "label_smoothing")),
    F.nll_loss: ("nll_loss", _NLL_LOSS),
    F.linear: ("linear", ("input", "weight", "bias")),
    F.one_hot: ("one_hot", ("input", "num_classes")),
    F.dropout: ("dropout", ("input", "p", "train", "inplace")),
    torch.dropout: ("dropout", ("input", "p", "train")),
    F.normalize: ("normalize", ("input", "p", "dim", "eps", "out")),
    torch.norm: ("norm", ("input", "p", "dim", "keepdim", "out", "dtype")),
    torch.linalg.vector_norm: ("norm", _NORM),
    torch.linalg.norm: ("linalg_norm", _NORM),
    torch.clamp_min: ("clamp", _CLAMP),
    torch.where: ("where", ("condition", "input", "other")),
    torch.masked_fill: ("masked_fill", ("input", "mask", "value")),
    torch.pow: ("pow", ("input", "exponent")),
    operator.pow: ("pow", ("input", "exponent")),
    operator.getitem: ("item", ("input", "index")),
    # This is the attribute x.data.
    getattr(torch._C._autograd, "_get_data_attr", None): ("detach", _INPUT),
    operator.invert: ("not", _INPUT),
    operator.neg: ("neg", _INPUT),
    F.relu: ("relu", ("input", "inplace")),
    torch.einsum: ("matmul", ("equation", "tensors")),  # ATen's schema has the same names
    torch.reshape: ("reshape", ("input", "shape")),
    torch.stack: ("stack", ("tensors", "dim")),
    torch.searchsorted: ("bucketize", ("sorted_sequence", "input")),
    torch.cat: ("cat", ("tensors", "dim")),
    F.pad: ("pad", ("input", "pad", "mode", "value")),
    torch._C._nn.pad: ("pad", ("input", "pad", "mode", "value")),
}

# Kind -> (positional parameters, functions, names of methods, those of in-place methods included).
_FAMILIES: dict[str, tuple[tuple[str, ...], tuple[Any, ...], str]] = {
    "add": (_BINARY, (operator.add, operator.iadd, torch.add), "add add_"),
    "sub": (_BINARY, (operator.sub, operator.isub, torch.sub, torch.subtract), "sub sub_"),
    "mul": (_BINARY, (operator.mul, operator.imul, torch.mul, torch.multiply), "mul mul_"),
    "div": (
        _BINARY,
        (operator.truediv, operator.itruediv, torch.div, torch.divide, torch.true_divide),
        "div div_ divide true_divide",
    ),
    "pow": (("input", "exponent"), (), "pow pow_"),
    "square": (_INPUT, (torch.square,), "square square_"),
    "sqrt": (_INPUT, (torch.sqrt,), "sqrt sqrt_"),
    "rsqrt": (_INPUT, (torch.rsqrt,), "rsqrt rsqrt_"),
    "reciprocal": (_INPUT, (torch.reciprocal,), "reciprocal reciprocal_"),
    "exp": (_INPUT, (torch.exp,), "exp exp_"),
    "log": (_INPUT, (torch.log,), "log log_"),
    "tanh": (_INPUT, (torch.tanh, F.tanh), "tanh tanh_"),
    "detach": (_INPUT, (torch.detach,), "detach"),
    "neg": (_INPUT, (torch.neg,), "neg"),
    "not": (_INPUT, (torch.logical_not, torch.bitwise_not), "logical_not bitwise_not"),
    "mean": (_REDUCTION, (torch.mean,), "mean"),
    "sum": (_REDUCTION, (torch.sum,), "sum"),
    "amax": (_REDUCTION[:3], (torch.amax,), "amax"),
    "max": (_REDUCTION[:3], (torch.max,), "max"),
    "logsumexp": (
        _REDUCTION[:3],
        (torch.logsumexp, torch.special.logsumexp),
        "logsumexp",
    ),
    "gather": (("input", "dim", "index"), (torch.gather,), "gather"),
    "var": (_VARIANCE, (torch.var,), "var"),
    "std": (_VARIANCE, (torch.std,), "std"),
    "var_mean": (_VARIANCE, (torch.var_mean,), ""),
    "std_mean": (_VARIANCE, (torch.std_mean,), ""),
    "norm": (_NORM, (), "norm"),
    "clamp": (_CLAMP, (torch.clamp, torch.clip), "clamp clamp_ clip clip_ clamp_min clamp_min_"),
    "maximum": (_BINARY, (torch.maximum,), "maximum"),
    "baddbmm": (("input", "batch1", "batch2"), (torch.baddbmm,), "baddbmm"),
    "matmul": (_BINARY, (torch.matmul, operator.matmul, torch.bmm), "matmul bmm"),
    "softmax": (_DIM_DTYPE, (), "softmax"),
    "log_softmax": (_DIM_DTYPE, (), "log_softmax"),
    "masked_fill": (("input", "mask", "value"), (), "masked_fill masked_fill_"),
    "where": (("input", "condition", "other"), (), "where"),
    "reshape": (("input", "shape"), (), "view reshape"),
    "same": (_INPUT, (torch.clone,), "contiguous clone alias"),
    "unsqueeze": (("input", "dim"), (torch.unsqueeze,), "unsqueeze unsqueeze_"),
    "squeeze": (("input", "dim"), (torch.squeeze,), "squeeze squeeze_"),
    "permute": (("input", "dims"), (torch.permute,), "permute"),
    "transpose": (
        ("input", "dim0", "dim1"),
        (torch.transpose, torch.swapaxes, torch.swapdims),
        "transpose swapaxes swapdims",
    ),
    "movedim": (
        ("input", "source", "destination"),
        (torch.movedim, torch.moveaxis),
        "movedim moveaxis",
    ),
    "expand": (("input", "shape"), (torch.broadcast_to,), "expand expand_as broadcast_to"),
    "abs": (_INPUT, (torch.abs, operator.abs), "abs"),
    "relu": (_INPUT, (torch.relu,), "relu relu_"),
    "addcmul": (("input", "tensor1", "tensor2"), (torch.addcmul,), "addcmul addcmul_"),
    "nan_to_num": (
        (*_INPUT, "nan", "posinf", "neginf"),
        (torch.nan_to_num,),
        "nan_to_num nan_to_num_",
    ),
    **{
        name: (_INPUT, (getattr(torch, name),), name)
        for name in ("isfinite", "isinf", "isneginf", "isnan")
    },
    "floordiv": (_BINARY, (operator.floordiv, torch.floor_divide), "floor_divide"),
    "cumsum": (("input", "dim", "dtype"), (torch.cumsum,), "cumsum"),
    "diff": (("input", "n", "dim", "prepend", "append"), (torch.diff,), "diff"),
    "bucketize": (("input", "boundaries"), (torch.bucketize,), ""),
    "repeat_interleave": (
        ("input", "repeats", "dim"),
        (torch.repeat_interleave,),
        "repeat_interleave",
    ),
    "tril": (("input", "diagonal"), (torch.tril,), "tril"),
    "triu": (("input", "diagonal"), (torch.triu,), "triu"),
    "arange": (("start", "end", "step"), (torch.arange,), ""),
    "full": (("input", "fill_value"), (torch.full, torch.full_like), ""),
    "zeros": (_INPUT, (torch.zeros, torch.zeros_like), ""),
    "ones": (_INPUT, (torch.ones, torch.ones_like), ""),
    "and": (
        _BINARY,
        (operator.and_, operator.iand, torch.logical_and, torch.bitwise_and),
        "logical_and logical_and_ bitwise_and bitwise_and_ __and__ __iand__",
    ),
    "or": (
        _BINARY,
        (operator.or_, operator.ior, torch.logical_or, torch.bitwise_or),
        "logical_or logical_or_ bitwise_or bitwise_or_ __or__ __ior__",
    ),
    **{
        name: (_BINARY, (getattr(operator, name), getattr(torch, name)), name)
        for name in ("lt", "le", "gt", "ge", "eq", "ne")
    },
}
FUNCTIONS |= {
    function: (kind, parameters)
    for kind, (parameters, functions, _) in _FAMILIES.items()
    for function in functions
}
METHODS: dict[str, tuple[str, tuple[str, ...]]] = {
    method: (kind, parameters)
    for kind, (parameters, _, methods) in _FAMILIES.items()
    for method in methods.split()
}
METHODS["new_full"] = ("full", ("input", "shape", "fill_value"))
METHODS |= {f"new_{kind}": (kind, ("input", "shape")) for kind in ("zeros", "ones")}
#: Functions that subtract their first argument from the second.
REVERSED = {torch.rsub, aten.rsub}
#: Kinds whose last parameter may be passed as several arguments, as in x.view(2, 3) and
#: torch.einsum("ij,jk->ik", x, y).
VARIADIC = {"reshape", "permute", "expand", "zeros", "ones", "matmul"}
#: Kind -> the names of the operators in ATen that are not also names of methods.
_ATEN_NAMES = {
    **{name: name for name in ("layer_norm", "native_layer_norm", "rms_norm", "group_norm")},
    **{name: name for name in ("dropout", "stack", "arange", "cat", "slice", "index")},
    **{name: name for name in ("var_mean", "std_mean", "linalg_norm")},
    **{name: f"{name} {name}_like" for name in ("full", "zeros", "ones")},
    "softmax": "special_softmax _softmax",
    "safe_softmax": "_safe_softmax",
    "log_softmax": "special_log_softmax _log_softmax",
    "fused_rms_norm": "_fused_rms_norm",
    "logsumexp": "special_logsumexp",
    "cross_entropy": "cross_entropy_loss",
    "nll_loss": "nll_loss nll_loss_nd",
    "one_hot": "one_hot",
    "linear": "linear",
    "norm": "linalg_vector_norm",
    "matmul": "einsum",
    "reshape": "_unsafe_view",
    "pad": "pad constant_pad_nd",
    "bucketize": "bucketize searchsorted",
}
ATEN: dict[Any, str] = {
    getattr(aten, name): kind for kind, names in _ATEN_NAMES.items() for name in names.split()
} | {getattr(aten, method): kind for method, (kind, _) in METHODS.items()}
# torch 2.10's Dynamo writes `x == y` as x.__eq__(y) and abs(x) as x.__abs__(). ATen has no such
# operators, so that these names are added only after ATEN was made from METHODS.
METHODS |= {
    f"__{function.__name__.strip('_')}__": alias
    for function, alias in FUNCTIONS.items()
    if getattr(function, "__module__", None) == "_operator"
}

#: The methods and ATen operators that may be casts. A call of `to` may also move a tensor.
CASTS = {"to", "type", "type_as", "float", "double", "half", "bfloat16", "bool", "int", "long"}
ATEN_CASTS = {aten.to, aten._to_copy, aten.type_as}
#: Names of parameters in some of the functions -> their names in a `Call`.
SYNONYMS = {"self": "input", "A": "input", "ord": "p"}
# torch also accepts NumPy's names of parameters, which the table numpy_compatibility_arg_names in
# its python_arg_parser.cpp lists.
SYNONYMS |= dict.fromkeys(("x", "a", "x1"), "input") | {"x2": "other"}
SYNONYMS |= {"axis": "dim", "keepdims": "keepdim"}
SYNONYMS |= {"axis0": "dim0", "axis1": "dim1"}
SYNONYMS |= {"training": "train", "size": "shape", "indices": "index"}

# Only these exact types are read: a subclass may compute something else.
MODULES: dict[type[nn.Module], str] = {
    nn.Softmax: "softmax",
    nn.Softmax2d: "softmax",
    nn.LogSoftmax: "log_softmax",
    nn.LayerNorm: "layer_norm",
    nn.RMSNorm: "rms_norm",
    nn.GroupNorm: "group_norm",
    nn.Dropout: "dropout",
    nn.CrossEntropyLoss: "cross_entropy",
    nn.NLLLoss: "nll_loss",
}

SDPA = "already runs as SDPA"
_SDPA = ("scaled_dot_product_attention", SDPA)
_ATTENTION = (
    "multi_head_attention_forward",
    "one opaque call at this level: its softmax is hidden inside",
)
_ENCODER_LAYER = (
    "_transformer_encoder_layer_fwd",
    "PyTorch's fused inference path of nn.TransformerEncoderLayer",
)
_SOFTMIN = ("softmin", "softmax of a negated input, one opaque call at this level")
_GUMBEL = ("gumbel_softmax", "draws its noise inside, one opaque call at this level")
_INSTANCE_NORM = ("instance_norm", "normalises each channel of an image, which no op does")
#: Opaque calls, which contain a softmax or norm -> their name, and why they are not replaced.
LEAVES: dict[Any, tuple[str, str]] = {
    F.scaled_dot_product_attention: _SDPA,
    aten.scaled_dot_product_attention: _SDPA,
    F.multi_head_attention_forward: _ATTENTION,
    torch._native_multi_head_attention: _ATTENTION,
    aten._native_multi_head_attention: _ATTENTION,
    nn.MultiheadAttention: _ATTENTION,
    torch._transformer_encoder_layer_fwd: _ENCODER_LAYER,
    aten._transformer_encoder_layer_fwd: _ENCODER_LAYER,
    nn.TransformerEncoderLayer: _ENCODER_LAYER,
    F.softmin: _SOFTMIN,
    nn.Softmin: _SOFTMIN,
    F.gumbel_softmax: _GUMBEL,
    **dict.fromkeys(
        (F.instance_norm, torch.instance_norm, nn.InstanceNorm1d, nn.InstanceNorm2d)
        + (nn.InstanceNorm3d, aten.instance_norm),
        _INSTANCE_NORM,
    ),
}


def leaf(target: Any, kwargs: dict[str, Any]) -> tuple[str, str]:
    """Returns the name of an opaque call, which is a key of `LEAVES`, and why it is not replaced.
    Multi-head attention that returns no weights runs as SDPA."""
    name, reason = LEAVES[target]
    if target is F.multi_head_attention_forward and kwargs.get("need_weights") is False:
        return name, SDPA
    return name, reason


#: Function that changes the grad, inference or autocast mode of the calls after it -> its effect.
MODE_SWITCHES: dict[Any, str] = {
    torch._C._set_grad_enabled: "set_grad",
    torch.autograd.grad_mode._enter_inference_mode: "enter_inference",
    torch.autograd.grad_mode._exit_inference_mode: "exit_inference",
    _enter_autocast: "enter_autocast",
    _exit_autocast: "exit_autocast",
}

#: The names of the functions of `operator` that write into their first operand.
IN_PLACE = {f"i{name}" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")}
IN_PLACE |= {"imatmul", "iand", "ior", "ixor", "ilshift", "irshift", "setitem"}

#: Functions whose names end in an underscore only because the bare name is a keyword.
KEYWORDS = {operator.and_, operator.or_, operator.not_, operator.is_}


def parameters_of(op: torch._ops.OpOverload | torch._ops.OpOverloadPacket) -> Iterator[str]:
    """Returns the names of an ATen op's arguments; for a packet, those of its first overload that
    does not write into an `out` argument."""
    overload: torch._ops.OpOverload
    if isinstance(op, torch._ops.OpOverloadPacket):
        overload = getattr(op, next(name for name in op.overloads() if not name.endswith("out")))
    else:
        overload = op
    return (argument.name for argument in overload._schema.arguments)
