"""Has the tables of `calls.py`: the names of each operation in torch IR and in ATen IR."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch._C import _autograd
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
_NORM = ("input", "p", "dim", "keepdim", "dtype")
_VARIANCE = ("input", "dim", "unbiased", "keepdim")
_NLL_LOSS = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction")

# Function of torch -> (kind, positional parameters). ATen ops are in the table ATEN, without their
# parameters, which their schemas name.
FUNCTIONS: dict[Any, tuple[str, tuple[str, ...]]] = {
    F.softmax: ("softmax", _DIM_STACKLEVEL_DTYPE),
    torch._softmax: ("softmax", _HALF_TO_FLOAT),
    torch._safe_softmax: ("safe_softmax", _DIM_DTYPE),
    F.log_softmax: ("log_softmax", _DIM_STACKLEVEL_DTYPE),
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
    torch.where: ("where", ("condition", "input", "other")),
    operator.getitem: ("item", ("input", "index")),
    F.relu: ("relu", ("input", "inplace")),
    torch.einsum: ("matmul", ("equation", "tensors")),  # ATen's schema has the same names
    torch.stack: ("stack", ("tensors", "dim")),
    torch.searchsorted: ("bucketize", ("sorted_sequence", "input")),
    torch.cat: ("cat", ("tensors", "dim")),
}

# Kind -> (positional parameters, names of methods, those of in-place methods included, functions).
# A function of torch that has the name of a method, as most have, is not among the functions.
_FAMILIES: dict[str, tuple[tuple[str, ...], str, tuple[Any, ...]]] = {
    "add": (_BINARY, "add add_", (operator.add, operator.iadd)),
    "sub": (_BINARY, "sub sub_", (operator.sub, operator.isub, torch.subtract)),
    "mul": (_BINARY, "mul mul_", (operator.mul, operator.imul, torch.multiply)),
    "div": (_BINARY, "div div_ divide true_divide", (operator.truediv, operator.itruediv)),
    "pow": (("input", "exponent"), "pow pow_", (operator.pow,)),
    "square": (_INPUT, "square square_", ()),
    "sqrt": (_INPUT, "sqrt sqrt_", ()),
    "rsqrt": (_INPUT, "rsqrt rsqrt_", ()),
    "reciprocal": (_INPUT, "reciprocal reciprocal_", ()),
    "exp": (_INPUT, "exp exp_", ()),
    "log": (_INPUT, "log log_", ()),
    "tanh": (_INPUT, "tanh tanh_", (F.tanh,)),
    # The function is the attribute x.data.
    "detach": (_INPUT, "detach", (getattr(_autograd, "_get_data_attr", None),)),
    "neg": (_INPUT, "neg", (operator.neg,)),
    "not": (_INPUT, "logical_not bitwise_not", (operator.invert,)),
    "mean": (_REDUCTION, "mean", ()),
    "sum": (_REDUCTION, "sum", ()),
    "amax": (_REDUCTION[:3], "amax", ()),
    "max": (_REDUCTION[:3], "max", ()),
    "logsumexp": (_REDUCTION[:3], "logsumexp", (torch.special.logsumexp,)),
    "gather": (("input", "dim", "index"), "gather", ()),
    "var": (_VARIANCE, "var", ()),
    "std": (_VARIANCE, "std", ()),
    "var_mean": (_VARIANCE, "", (torch.var_mean,)),
    "std_mean": (_VARIANCE, "", (torch.std_mean,)),
    "norm": (_NORM, "norm", ()),
    "clamp": (("input", "min", "max"), "clamp clamp_ clip clip_ clamp_min clamp_min_", ()),
    "maximum": (_BINARY, "maximum", ()),
    "baddbmm": (("input", "batch1", "batch2"), "baddbmm", ()),
    "matmul": (_BINARY, "matmul bmm", (operator.matmul,)),
    "softmax": (_DIM_DTYPE, "softmax", (torch.special.softmax,)),
    "log_softmax": (_DIM_DTYPE, "log_softmax", (torch.special.log_softmax,)),
    "masked_fill": (("input", "mask", "value"), "masked_fill masked_fill_", ()),
    "pad": (("input", "pad", "mode", "value"), "", (F.pad, torch._C._nn.pad)),
    "where": (("input", "condition", "other"), "where", ()),
    "reshape": (("input", "shape"), "view reshape", ()),
    "same": (_INPUT, "contiguous clone alias", ()),
    "unsqueeze": (("input", "dim"), "unsqueeze unsqueeze_", ()),
    "squeeze": (("input", "dim"), "squeeze squeeze_", ()),
    "permute": (("input", "dims"), "permute", ()),
    "transpose": (("input", "dim0", "dim1"), "transpose swapaxes swapdims", ()),
    "movedim": (("input", "source", "destination"), "movedim moveaxis", ()),
    "expand": (("input", "shape"), "expand expand_as broadcast_to", ()),
    "abs": (_INPUT, "abs", (operator.abs,)),
    "relu": (_INPUT, "relu relu_", ()),
    "addcmul": (("input", "tensor1", "tensor2"), "addcmul addcmul_", ()),
    "nan_to_num": (("input", "nan", "posinf", "neginf"), "nan_to_num nan_to_num_", ()),
    **{name: (_INPUT, name, ()) for name in ("isfinite", "isinf", "isneginf", "isnan")},
    "floordiv": (_BINARY, "floor_divide", (operator.floordiv,)),
    "cumsum": (("input", "dim", "dtype"), "cumsum", ()),
    "diff": (("input", "n", "dim", "prepend", "append"), "diff", ()),
    "bucketize": (("input", "boundaries"), "", (torch.bucketize,)),
    "repeat_interleave": (("input", "repeats", "dim"), "repeat_interleave", ()),
    "tril": (("input", "diagonal"), "tril", ()),
    "triu": (("input", "diagonal"), "triu", ()),
    "arange": (("start", "end", "step"), "", (torch.arange,)),
    "full": (("input", "fill_value"), "", (torch.full, torch.full_like)),
    "zeros": (_INPUT, "", (torch.zeros, torch.zeros_like)),
    "ones": (_INPUT, "", (torch.ones, torch.ones_like)),
    "and": (
        _BINARY,
        "logical_and logical_and_ bitwise_and bitwise_and_ __and__ __iand__",
        (operator.and_, operator.iand),
    ),
    "or": (
        _BINARY,
        "logical_or logical_or_ bitwise_or bitwise_or_ __or__ __ior__",
        (operator.or_, operator.ior),
    ),
    **{
        name: (_BINARY, name, (getattr(operator, name),))
        for name in ("lt", "le", "gt", "ge", "eq", "ne")
    },
}
METHODS: dict[str, tuple[str, tuple[str, ...]]] = {
    method: (kind, parameters)
    for kind, (parameters, methods, _) in _FAMILIES.items()
    for method in methods.split()
}
# torch.norm and torch.where have other parameters than the methods, and stay as they are above.
FUNCTIONS = {
    **{
        getattr(torch, method): alias
        for method, alias in METHODS.items()
        if hasattr(torch, method) and not method.endswith("_")
    },
    **{
        function: (kind, parameters)
        for kind, (parameters, _, functions) in _FAMILIES.items()
        for function in functions
    },
    **FUNCTIONS,
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
