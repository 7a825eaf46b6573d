"""Has the tables of `calls.py`: the names of each operation in torch IR and in ATen IR."""

from __future__ import annotations

import inspect
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
_HALF_TO_FLOAT = ("input", "dim", "half_to_float")
_LAYER_NORM = ("input", "normalized_shape", "weight", "bias", "eps", "cudnn_enable")
_GROUP_NORM = ("input", "num_groups", "weight", "bias", "eps", "cudnn_enabled")
_REDUCTION = ("input", "dim", "keepdim", "dtype")
_NORM = ("input", "p", "dim", "keepdim", "dtype")
_VARIANCE = ("input", "dim", "unbiased", "keepdim")

_LOGICAL = (
    "logical_{0} logical_{0}_ bitwise_{0} bitwise_{0}_ __{0}__ __i{0}__ operator.{0}_ operator.i{0}"
)

# Kind -> (positional parameters, names). A bare name stands for the method, the function of torch
# and the operator of ATen that have it, as far as there are such, and for no function if it ends in
# an underscore. A name with a dot is that of a function in one of `_OWNERS`, or of an operator.
# Operators have the parameters of their schemas, functions in Python those of their signatures.
_FAMILIES: dict[str, tuple[tuple[str, ...], str]] = {
    "add": (_BINARY, "add add_ operator.add operator.iadd"),
    "sub": (_BINARY, "sub sub_ operator.sub operator.isub torch.subtract"),
    "mul": (_BINARY, "mul mul_ operator.mul operator.imul torch.multiply"),
    "div": (_BINARY, "div div_ divide true_divide operator.truediv operator.itruediv"),
    "pow": (("input", "exponent"), "pow pow_ operator.pow"),
    "square": (_INPUT, "square square_"),
    "sqrt": (_INPUT, "sqrt sqrt_"),
    "rsqrt": (_INPUT, "rsqrt rsqrt_"),
    "reciprocal": (_INPUT, "reciprocal reciprocal_"),
    "exp": (_INPUT, "exp exp_"),
    "log": (_INPUT, "log log_"),
    "tanh": (_INPUT, "tanh tanh_ F.tanh"),
    "detach": (_INPUT, "detach _autograd._get_data_attr"),  # the function is the attribute x.data
    "neg": (_INPUT, "neg operator.neg"),
    "not": (_INPUT, "logical_not bitwise_not operator.invert"),
    "mean": (_REDUCTION, "mean"),
    "sum": (_REDUCTION, "sum"),
    "amax": (_REDUCTION[:3], "amax"),
    "max": (_REDUCTION[:3], "max"),
    **{name: (_REDUCTION[:3], name) for name in ("any", "all")},
    "logsumexp": (_REDUCTION[:3], "logsumexp special.logsumexp aten.special_logsumexp"),
    "gather": (("input", "dim", "index"), "gather aten.take_along_dim"),
    **{name: (_VARIANCE, name) for name in ("var", "std", "var_mean", "std_mean")},
    "norm": (_NORM, "norm linalg.vector_norm aten.linalg_vector_norm"),
    "linalg_norm": (_NORM, "linalg.norm aten.linalg_norm"),
    "normalize": (_INPUT, "F.normalize"),
    "clamp": (("input", "min", "max"), "clamp clamp_ clip clip_ clamp_min clamp_min_"),
    "maximum": (_BINARY, "maximum"),
    "linear": (("input", "weight", "bias"), "F.linear aten.linear"),
    "baddbmm": (("input", "batch1", "batch2"), "baddbmm"),
    "matmul": (_BINARY, "matmul bmm operator.matmul aten.einsum"),
    "softmax": (_DIM_DTYPE, "softmax F.softmax special.softmax aten._softmax aten.special_softmax"),
    "safe_softmax": (_DIM_DTYPE, "_safe_softmax"),
    "log_softmax": (
        _DIM_DTYPE,
        "log_softmax F.log_softmax special.log_softmax aten._log_softmax aten.special_log_softmax",
    ),
    "cross_entropy": (_INPUT, "F.cross_entropy aten.cross_entropy_loss"),
    "nll_loss": (_INPUT, "F.nll_loss aten.nll_loss aten.nll_loss_nd"),
    "one_hot": (("input", "num_classes"), "F.one_hot aten.one_hot"),
    "layer_norm": (_LAYER_NORM, "layer_norm F.layer_norm"),
    "native_layer_norm": (_LAYER_NORM, "native_layer_norm"),
    "group_norm": (_GROUP_NORM, "group_norm F.group_norm"),
    "rms_norm": (("input", "normalized_shape", "weight", "eps"), "rms_norm F.rms_norm"),
    "fused_rms_norm": (_INPUT, "aten._fused_rms_norm"),
    "dropout": (("input", "p", "train"), "dropout F.dropout"),
    "masked_fill": (("input", "mask", "value"), "masked_fill masked_fill_"),
    "pad": (("input", "pad", "mode", "value"), "F.pad _nn.pad aten.pad aten.constant_pad_nd"),
    "where": (("input", "condition", "other"), "where"),
    "item": (("input", "index"), "operator.getitem"),
    "index": (_INPUT, "aten.index"),
    "slice": (_INPUT, "aten.slice"),
    "stack": (("tensors", "dim"), "stack"),
    "cat": (("tensors", "dim"), "cat"),
    "reshape": (("input", "shape"), "view reshape aten._unsafe_view"),
    "same": (_INPUT, "contiguous clone alias"),
    "unsqueeze": (("input", "dim"), "unsqueeze unsqueeze_"),
    "squeeze": (("input", "dim"), "squeeze squeeze_"),
    "permute": (("input", "dims"), "permute"),
    "transpose": (("input", "dim0", "dim1"), "transpose swapaxes swapdims"),
    "movedim": (("input", "source", "destination"), "movedim moveaxis"),
    "expand": (("input", "shape"), "expand expand_as broadcast_to"),
    "abs": (_INPUT, "abs operator.abs"),
    "relu": (_INPUT, "relu relu_ F.relu"),
    "addcmul": (("input", "tensor1", "tensor2"), "addcmul addcmul_"),
    "nan_to_num": (("input", "nan", "posinf", "neginf"), "nan_to_num nan_to_num_"),
    **{name: (_INPUT, name) for name in ("isfinite", "isinf", "isneginf", "isnan")},
    "floordiv": (_BINARY, "floor_divide operator.floordiv"),
    "cumsum": (("input", "dim", "dtype"), "cumsum"),
    "diff": (("input", "n", "dim", "prepend", "append"), "diff"),
    "bucketize": (("input", "boundaries"), "bucketize aten.searchsorted"),
    "repeat_interleave": (("input", "repeats", "dim"), "repeat_interleave"),
    "tril": (("input", "diagonal"), "tril"),
    "triu": (("input", "diagonal"), "triu"),
    "arange": (("start", "end", "step"), "arange"),
    "full": (("input", "fill_value"), "full full_like aten.new_full"),
    "zeros": (_INPUT, "zeros zeros_like aten.new_zeros"),
    "ones": (_INPUT, "ones ones_like aten.new_ones"),
    "and": (_BINARY, _LOGICAL.format("and")),
    "or": (_BINARY, _LOGICAL.format("or")),
    **{name: (_BINARY, f"{name} operator.{name}") for name in ("lt", "le", "gt", "ge", "eq", "ne")},
}
_OWNERS = {"": torch, "torch": torch, "F": F, "operator": operator, "special": torch.special}
_OWNERS |= {"linalg": torch.linalg, "_nn": torch._C._nn, "_autograd": _autograd}


def _function(name: str) -> Any:
    """Returns the function that a name of `_FAMILIES` stands for, or None if there is none."""
    owner, _, attribute = name.rpartition(".")
    has_none = name == attribute and name.endswith("_")
    return None if has_none else getattr(_OWNERS.get(owner), attribute, None)


def _parameters(function: Any, parameters: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the names of a function's parameters, which are `parameters` if it is not written in
    Python."""
    is_python = inspect.isfunction(function)
    return tuple(inspect.signature(function).parameters) if is_python else parameters


# Function of torch -> (kind, positional parameters).
FUNCTIONS: dict[Any, tuple[str, tuple[str, ...]]] = {
    function: (kind, _parameters(function, parameters))
    for kind, (parameters, names) in _FAMILIES.items()
    for function in map(_function, names.split())
    if function is not None
}
ATEN: dict[Any, str] = {
    getattr(aten, name.removeprefix("aten.")): kind
    for kind, (_, names) in _FAMILIES.items()
    for name in names.split()
    if "." not in name or name.startswith("aten.")
}
METHODS: dict[str, tuple[str, tuple[str, ...]]] = {
    name: (kind, parameters)
    for kind, (parameters, names) in _FAMILIES.items()
    for name in names.split()
    if hasattr(torch.Tensor, name)
}
# These have other parameters than the rest of their kind.
FUNCTIONS |= {
    torch._softmax: ("softmax", _HALF_TO_FLOAT),
    torch._log_softmax: ("log_softmax", _HALF_TO_FLOAT),
    torch.where: ("where", ("condition", "input", "other")),
    torch.einsum: ("matmul", ("equation", "tensors")),  # ATen's schema has the same names
    torch.searchsorted: ("bucketize", ("sorted_sequence", "input")),
    torch.take_along_dim: ("gather", ("input", "index", "dim")),
}
# torch 2.10's Dynamo writes `x == y` as x.__eq__(y) and abs(x) as x.__abs__().
METHODS |= {
    f"__{function.__name__.strip('_')}__": alias
    for function, alias in FUNCTIONS.items()
    if getattr(function, "__module__", None) == "_operator"
}
METHODS["take_along_dim"] = FUNCTIONS[torch.take_along_dim]
METHODS["new_full"] = ("full", ("input", "shape", "fill_value"))
METHODS |= {f"new_{kind}": (kind, ("input", "shape")) for kind in ("zeros", "ones")}
#: Functions that subtract their first argument from the second.
REVERSED = {torch.rsub, aten.rsub}
#: Kinds whose last parameter may be passed as several arguments, as in x.view(2, 3) and
#: torch.einsum("ij,jk->ik", x, y).
VARIADIC = {"reshape", "permute", "expand", "zeros", "ones", "matmul"}

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
    aten.scaled_dot_product_attention.default: _SDPA,
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

_STATISTICS = ("running_mean", "running_var")
_WRITES: dict[str, tuple[tuple[str, ...], str, bool | None]] = {
    **dict.fromkeys(
        ("batch_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"),
        (_STATISTICS, "training", False),
    ),
    "instance_norm": (_STATISTICS, "use_input_stats", False),
    "embedding": (("weight",), "max_norm", None),
    "embedding_bag": (("weight",), "max_norm", None),
}
#: Calls that write into arguments although neither their names nor ATen's schemas say so -> these
#: arguments, the argument that switches this, and its value for a call that writes nothing.
WRITES = {
    getattr(owner, name): written
    for owner in (F, torch, aten)
    for name, written in _WRITES.items()
    if hasattr(owner, name) and not (name.startswith("embedding") and owner is not F)
}
WRITES |= dict.fromkeys((nn.Embedding, nn.EmbeddingBag), _WRITES["embedding"])

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
