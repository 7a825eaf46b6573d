"""All knowledge of node targets: every spelling at every capture level, in one normal form.

The capture levels are torch IR (Dynamo and `fx.symbolic_trace`: functions, tensor methods,
modules) and ATen IR (`torch.export`, before and after decomposition). `view` turns a node of any
of them into a `Call`; nothing outside this file looks at `node.target`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import GraphModule, Node

from fusedops.ops.norm import default_rms_eps

aten = torch.ops.aten


@dataclass(frozen=True)
class Call:
    """A node in normal form.

    kind: "softmax", "log_softmax", "layer_norm", "native_layer_norm", "rms_norm",
        "fused_rms_norm"; what they are written with by hand: "add", "mul", "pow", "square", "mean",
        "rsqrt", "cast"; or "leaf" for an opaque call that computes one of the first inside.
    name: the operation as the user knows it.
    arguments: by their torch names; defaults filled in, constants as Python numbers.
    obstacle: why this spelling cannot be replaced, or None.
    """

    kind: str
    name: str
    node: Node
    arguments: dict[str, Any] = field(default_factory=dict)
    obstacle: str | None = None


@dataclass(frozen=True)
class ModuleAttribute:
    """A parameter of a leaf module, read by a `get_attr` node once it is needed."""

    target: str
    tensor: torch.Tensor


def value(argument: Any) -> Any:
    """What capture recorded for a node (a fake tensor, a symbol, ...); None where it did not.

    Anything that is no node is its own value.
    """
    if not isinstance(argument, Node):
        return argument
    return argument.meta.get("val", argument.meta.get("example_value"))


def constant(argument: Any) -> int | float | None:
    """`argument` as a Python number, or None.

    With dynamic=True module attributes such as eps are graph inputs. Reading one here makes it a
    constant of the compiled graph, guarded, which is what it is for the model.
    """
    known = value(argument)
    if isinstance(known, torch.SymInt):
        return int(known)
    if isinstance(known, torch.SymFloat):
        return float(known)
    return known if isinstance(known, (int, float)) else None


# Function -> (kind, positional parameters). The ATen ones are read from their schemas.
_DIM_DTYPE = ("input", "dim", "dtype")
_DIM_STACKLEVEL_DTYPE = ("input", "dim", "_stacklevel", "dtype")
_HALF_TO_FLOAT = ("input", "dim", "half_to_float")
_LAYER_NORM = ("input", "normalized_shape", "weight", "bias", "eps")
_RMS_NORM = ("input", "normalized_shape", "weight", "eps")
_UNARY = ("input",)
_BINARY = ("input", "other")
_POW = ("input", "exponent")
_MEAN = ("input", "dim", "keepdim", "dtype")
_FUNCTIONS: dict[Any, tuple[str, tuple[str, ...]]] = {
    F.softmax: ("softmax", _DIM_STACKLEVEL_DTYPE),
    torch.softmax: ("softmax", _DIM_DTYPE),
    torch.special.softmax: ("softmax", _DIM_DTYPE),
    torch._softmax: ("softmax", _HALF_TO_FLOAT),
    F.log_softmax: ("log_softmax", _DIM_STACKLEVEL_DTYPE),
    torch.log_softmax: ("log_softmax", _DIM_DTYPE),
    torch.special.log_softmax: ("log_softmax", _DIM_DTYPE),
    torch._log_softmax: ("log_softmax", _HALF_TO_FLOAT),
    F.layer_norm: ("layer_norm", _LAYER_NORM),
    torch.layer_norm: ("layer_norm", _LAYER_NORM),
    torch.native_layer_norm: ("native_layer_norm", _LAYER_NORM),
    F.rms_norm: ("rms_norm", _RMS_NORM),
    torch.rms_norm: ("rms_norm", _RMS_NORM),
    operator.add: ("add", _BINARY),
    torch.add: ("add", _BINARY),
    operator.mul: ("mul", _BINARY),
    torch.mul: ("mul", _BINARY),
    torch.multiply: ("mul", _BINARY),
    operator.pow: ("pow", _POW),
    torch.pow: ("pow", _POW),
    torch.square: ("square", _UNARY),
    torch.mean: ("mean", _MEAN),
    torch.rsqrt: ("rsqrt", _UNARY),
}
_METHODS = {
    "softmax": ("softmax", _DIM_DTYPE),
    "log_softmax": ("log_softmax", _DIM_DTYPE),
    "add": ("add", _BINARY),
    "mul": ("mul", _BINARY),
    "pow": ("pow", _POW),
    "square": ("square", _UNARY),
    "mean": ("mean", _MEAN),
    "rsqrt": ("rsqrt", _UNARY),
}
_ATEN = {
    aten.softmax: "softmax",
    aten.special_softmax: "softmax",
    aten._softmax: "softmax",
    aten.log_softmax: "log_softmax",
    aten.special_log_softmax: "log_softmax",
    aten._log_softmax: "log_softmax",
    aten.layer_norm: "layer_norm",
    aten.native_layer_norm: "native_layer_norm",
    aten.rms_norm: "rms_norm",
    aten._fused_rms_norm: "fused_rms_norm",
    aten.add: "add",
    aten.mul: "mul",
    aten.pow: "pow",
    aten.square: "square",
    aten.mean: "mean",
    aten.rsqrt: "rsqrt",
}
_CASTS = {"to", "type", "type_as", "float", "double", "half", "bfloat16"}
_ATEN_CASTS = {aten.to, aten._to_copy, aten.type_as}
_SYNONYMS = {"self": "input", "x": "input", "axis": "dim"}

_SDPA = ("scaled_dot_product_attention", "already runs as SDPA")
_ATTENTION = (
    "multi_head_attention_forward",
    "one opaque call at this level: its softmax is hidden inside",
)
_ENCODER_LAYER = (
    "_transformer_encoder_layer_fwd",
    "PyTorch's fused inference path of nn.TransformerEncoderLayer",
)
_CROSS_ENTROPY = ("cross_entropy", "Inductor never materialises its log_softmax")
_SOFTMIN = ("softmin", "softmax of a negated input, one opaque call at this level")
_GUMBEL = ("gumbel_softmax", "draws its noise inside, one opaque call at this level")
_SAFE_SOFTMAX = ("_safe_softmax", "gives zeros, not NaN, where a whole row is -inf")
_LEAVES: dict[Any, tuple[str, str]] = {
    F.scaled_dot_product_attention: _SDPA,
    aten.scaled_dot_product_attention: _SDPA,
    F.multi_head_attention_forward: _ATTENTION,
    torch._native_multi_head_attention: _ATTENTION,
    aten._native_multi_head_attention: _ATTENTION,
    nn.MultiheadAttention: _ATTENTION,
    torch._transformer_encoder_layer_fwd: _ENCODER_LAYER,
    aten._transformer_encoder_layer_fwd: _ENCODER_LAYER,
    nn.TransformerEncoderLayer: _ENCODER_LAYER,
    F.cross_entropy: _CROSS_ENTROPY,
    aten.cross_entropy_loss: _CROSS_ENTROPY,
    nn.CrossEntropyLoss: _CROSS_ENTROPY,
    F.softmin: _SOFTMIN,
    nn.Softmin: _SOFTMIN,
    F.gumbel_softmax: _GUMBEL,
    aten._safe_softmax: _SAFE_SOFTMAX,
}


def view(node: Node) -> Call | None:
    """`node` in normal form, or None where it is nothing a rule could be about."""
    if node.op == "call_module":
        return _view_module(node)
    if node.op == "call_method":
        if node.target in _CASTS:
            return _view_cast(node)
        return _view_call(node, *_METHODS[node.target]) if node.target in _METHODS else None
    if node.op != "call_function":
        return None
    target = getattr(node.target, "overloadpacket", node.target)
    if target in _LEAVES:
        return _leaf(node, *_LEAVES[target])
    if target in _ATEN_CASTS:
        return _view_cast(node)
    if target in _ATEN:
        return _view_call(node, _ATEN[target], _schema_parameters(node.target))
    return _view_call(node, *_FUNCTIONS[target]) if target in _FUNCTIONS else None


def _schema_parameters(op: torch._ops.OpOverload | torch._ops.OpOverloadPacket) -> tuple[str, ...]:
    if isinstance(op, torch._ops.OpOverloadPacket):
        op = getattr(op, next(name for name in op.overloads() if not name.endswith("out")))
    return tuple(argument.name for argument in op._schema.arguments)


def _view_cast(node: Node) -> Call | None:
    """A change of dtype alone, to the dtype that capture recorded, or of nothing."""
    given, result = value(node.args[0]), value(node)
    if not isinstance(given, torch.Tensor) or not isinstance(result, torch.Tensor):
        return None
    if given.device != result.device or "memory_format" in node.kwargs:
        return None
    return Call("cast", "cast", node, {"input": node.args[0], "dtype": result.dtype})


def _leaf(node: Node, name: str, reason: str) -> Call:
    return Call("leaf", name, node, {"input": next(iter(node.all_input_nodes), None)}, reason)


def _view_call(node: Node, kind: str, parameters: tuple[str, ...]) -> Call:
    given = dict(zip(parameters, node.args, strict=False)) | node.kwargs
    given = {_SYNONYMS.get(name, name): argument for name, argument in given.items()}
    name = kind.removeprefix("native_").removeprefix("fused_")
    return Call(kind, name, node, _NORMAL.get(name, dict)(given), _obstacle(node))


def _obstacle(node: Node) -> str | None:
    if any(name.startswith("out") for name in node.kwargs):
        return "writes into an out= tensor"
    return "scales one of its operands" if node.kwargs.get("alpha", 1) != 1 else None


def _normal_softmax(given: dict[str, Any]) -> dict[str, Any]:
    dim = constant(given.get("dim"))
    dtype = torch.float32 if given.get("half_to_float") else given.get("dtype")
    if dim is None:
        dim = _implicit_dim(value(given["input"]))
    return {"input": given["input"], "dim": dim, "dtype": dtype}


def _implicit_dim(tensor: Any) -> int | None:
    """The dim torch picks for softmax(x, dim=None): torch/nn/functional.py, _get_softmax_dim."""
    if not isinstance(tensor, torch.Tensor):
        return None
    return 0 if tensor.dim() in (0, 1, 3) else 1


def _normal_layer_norm(given: dict[str, Any]) -> dict[str, Any]:
    return {
        "input": given["input"],
        "normalized_shape": given["normalized_shape"],
        "weight": given.get("weight"),
        "bias": given.get("bias"),
        "eps": constant(given.get("eps", 1e-5)),
    }


def _normal_rms_norm(given: dict[str, Any]) -> dict[str, Any]:
    eps = given.get("eps")
    return {
        "input": given["input"],
        "normalized_shape": given["normalized_shape"],
        "weight": given.get("weight"),
        "eps": _implicit_eps(value(given["input"])) if eps is None else constant(eps),
    }


def _implicit_eps(tensor: Any) -> float | None:
    return default_rms_eps(tensor.dtype) if isinstance(tensor, torch.Tensor) else None


_NORMAL = {
    "softmax": _normal_softmax,
    "log_softmax": _normal_softmax,
    "layer_norm": _normal_layer_norm,
    "rms_norm": _normal_rms_norm,
}


def _view_module(node: Node) -> Call | None:
    module = node.graph.owning_module.get_submodule(node.target)
    if type(module) in _LEAVES:
        return _leaf(node, *_LEAVES[type(module)])
    kind = _MODULES.get(type(module))
    if kind is None:
        return None
    given = {"input": node.args[0] if node.args else node.kwargs["input"]}
    if kind.endswith("norm"):
        settings = _norm_settings(module, node.target)
    else:
        settings = {"dim": -3 if type(module) is nn.Softmax2d else module.dim}
    return Call(kind, kind, node, _NORMAL[kind](given | settings), _module_obstacle(module))


# Exact types: a subclass may compute something else.
_MODULES = {
    nn.Softmax: "softmax",
    nn.Softmax2d: "softmax",
    nn.LogSoftmax: "log_softmax",
    nn.LayerNorm: "layer_norm",
    nn.RMSNorm: "rms_norm",
}


def _norm_settings(module: nn.LayerNorm | nn.RMSNorm, path: str) -> dict[str, Any]:
    parameters = {name: getattr(module, name, None) for name in ("weight", "bias")}
    attributes = {
        name: None if tensor is None else ModuleAttribute(f"{path}.{name}", tensor)
        for name, tensor in parameters.items()
    }
    return {"normalized_shape": module.normalized_shape, "eps": module.eps, **attributes}


def _module_obstacle(module: nn.Module) -> str | None:
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    return "the module has hooks, which would no longer run" if any(hooks) else None


def users(node: Node) -> list[Node]:
    """The users of a node but those that export leaves to check its dtype at run time."""
    return [user for user in node.users if not is_assertion(user)]


def is_assertion(node: Node) -> bool:
    return node.target is aten._assert_tensor_metadata.default


def outputs(node: Node) -> dict[Node, int] | None:
    """The `getitem` users of a multi-output call by index; None where the tuple is used whole."""
    if any(user.target is not operator.getitem for user in node.users):
        return None
    return {user: user.args[1] for user in node.users}


_IN_PLACE = {"iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul", "setitem"}
_IN_PLACE |= {"iand", "ior", "ixor", "ilshift", "irshift"}


def written(node: Node) -> list[Node]:
    """The arguments that a call writes into."""
    if not node.op.startswith("call"):
        return []
    if isinstance(node.target, torch._ops.OpOverload):
        arguments = node.target._schema.arguments
        given = dict(zip((a.name for a in arguments), node.args, strict=False)) | node.kwargs
        names = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]
        return [given[name] for name in names if isinstance(given.get(name), Node)]
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))
    first = node.args[:1] if in_place or node.kwargs.get("inplace") is True else ()
    return [argument for argument in (*first, node.kwargs.get("out")) if isinstance(argument, Node)]


def transform_depth_change(node: Node) -> int:
    """+1 where Dynamo enters a `torch.func` transform, -1 where it leaves one, else 0."""
    name = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
    return name.endswith("_increment_nesting") - name.endswith("_decrement_nesting")


def subgraphs(graph_module: GraphModule) -> Iterator[GraphModule]:
    """`graph_module`, the bodies of its higher-order ops (checkpoint, cond, ...) and parts."""
    yield graph_module
    used = {n.target for n in graph_module.graph.nodes if n.op in ("get_attr", "call_module")}
    for name, child in graph_module.named_children():
        if name in used and isinstance(child, GraphModule):
            yield from subgraphs(child)


_PROVENANCE = (
    "stack_trace",
    "nn_module_stack",
    "source_fn_stack",
    "from_node",
    "torch_fn",
    "custom",
)


def annotate(node: Node, result: Any, like: Node) -> None:
    """Give a new node its metadata: `result` under the keys that `like` uses, and its origin."""
    node.meta = {key: like.meta[key] for key in _PROVENANCE if key in like.meta}
    node.meta |= {key: result for key in ("val", "example_value") if key in like.meta}
