"""Defines the normal form of nodes, which is the same for all aliases of an operation at every
capture level.

The capture levels are torch IR (Dynamo and `fx.symbolic_trace`: functions, tensor methods,
modules) and ATen IR (`torch.export`, before and after decomposition). `as_call` turns a node of any
of them into a `Call`, by the tables in `aliases.py`. Rules and readers never read `node.target`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.fx import Node
from torch.fx.operator_schemas import normalize_function

from fusedops.graph.analysis import aliases
from fusedops.graph.analysis.nodes import OPS, packet, submodule
from fusedops.graph.analysis.values import constant, dtype_of, value
from fusedops.ops.norm import default_rms_eps


@dataclass(frozen=True)
class Call:
    """A node in normal form.

    kind: what the call computes, as one word: an operation that rules replace, such as "softmax"
        or "layer_norm"; an operation around these or in their decomposition, such as "add",
        "masked_fill" or "exp"; or "leaf", an opaque call that computes a softmax or norm
        internally. `aliases.py` lists the kinds. In-place variants have the same kind.
    name: the operation's name in reports.
    arguments: the call's arguments, keyed by the parameter names of the torch function. For kinds
        in `_DEFAULTS`, defaults are filled in and constants are Python numbers.
    refusal: why this call cannot be replaced, or None.
    cache: the results of readers for this call, which all rules share.
    """

    kind: str
    name: str
    node: Node
    arguments: dict[str, Any] = field(default_factory=dict)
    refusal: str | None = None
    cache: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def input(self) -> Any:
        """The argument `input`, or None for the few kinds that have none."""
        return self.arguments.get("input")

    @property
    def operands(self) -> tuple[Any, Any]:
        """The two operands of a sum, product, comparison or the like."""
        return self.arguments.get("input"), self.arguments.get("other")

    @property
    def orders(self) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """The two operands in both orders, for calls that compute the same from either."""
        first, other = self.operands
        return (first, other), (other, first)


@dataclass(frozen=True)
class ModuleAttribute:
    """A parameter of the module that a `call_module` node calls. The graph has no node for such a
    parameter, so that the rewriter inserts a `get_attr` node where an op takes it."""

    target: str
    tensor: torch.Tensor


def as_call(node: Node) -> Call | None:
    """Returns `node` in normal form, or None if no rule refers to such a call."""
    if node.op == "call_module":
        return _module_call(node)
    if not node.op.startswith("call"):
        return None
    if node.target is getattr:
        return _attribute_call(node)
    if packet(node) in aliases.LEAVES:
        return _leaf(node, *aliases.leaf(packet(node), node.kwargs))
    if _is_cast(node):
        return _cast_call(node)
    alias = _alias(node)
    return _operator_call(node, *alias) if alias else None


def kind_of(node: Node) -> str:
    """Names what a call computes by one word for all aliases: the kind of its normal form, or the
    name of a function that no rule refers to; "" for a node that is no call. Unlike `as_call`, this
    reads no arguments and so adds no guards."""
    if not node.op.startswith("call"):
        return ""
    if node.op == "call_module":
        module = type(submodule(node))
        return aliases.MODULES.get(module, module.__name__.lower())
    if _is_cast(node) and _cast_call(node):
        return "cast"
    if (alias := _alias(node)) is not None:
        return alias[0]
    target = packet(node)
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    return name.rstrip("_")


def _alias(node: Node) -> tuple[str, tuple[str, ...]] | None:
    """Returns the kind of a call and its parameters, or None if no rule refers to its target."""
    if node.op == "call_method":
        return aliases.METHODS.get(str(node.target))
    target = packet(node)
    if target in aliases.REVERSED:
        return ("sub", ("other", "input")) if len(node.args) == 2 else None
    if target in aliases.ATEN and isinstance(node.target, OPS):
        return aliases.ATEN[target], tuple(aliases.parameters_of(node.target))
    return aliases.FUNCTIONS.get(target)


def _is_cast(node: Node) -> bool:
    if node.op == "call_method":
        return node.target in aliases.CASTS
    return packet(node) in aliases.ATEN_CASTS


def _attribute_call(node: Node) -> Call | None:
    """Returns x.max(-1).values or x.data, which symbolic_trace records as calls of getattr, in
    normal form; None for other attributes."""
    input, name = node.args[:2]
    if name == "data":
        return Call("detach", "detach", node, {"input": input})
    if name in ("values", "indices"):
        return Call("item", "item", node, {"input": input, "index": int(name == "indices")})
    return None


def _cast_call(node: Node) -> Call | None:
    """Returns a cast to the dtype that capture recorded, or None if the call may also change the
    device or the memory format."""
    source, result = value(node.args[0]), value(node)
    if not isinstance(source, torch.Tensor) or not isinstance(result, torch.Tensor):
        return None
    if source.device != result.device or "memory_format" in node.kwargs:
        return None
    return Call("cast", "cast", node, {"input": node.args[0], "dtype": result.dtype})


def _leaf(node: Node, name: str, reason: str) -> Call:
    return Call("leaf", name, node, {"input": next(iter(node.all_input_nodes), None)}, reason)


def _operator_call(node: Node, kind: str, parameters: tuple[str, ...]) -> Call:
    """Returns the call of a function, a method or an ATen operator in normal form."""
    given, last = node.args, len(parameters) - 1
    if kind in aliases.VARIADIC and len(given) > len(parameters):
        given = (*given[:last], given[last:])  # reads x.view(2, 3) as x.view((2, 3))
    arguments = dict(zip(parameters, given, strict=False)) | node.kwargs
    arguments = {aliases.SYNONYMS.get(name, name): argument for name, argument in arguments.items()}
    refusal = _refusal(node, kind, arguments)
    if len(given) > len(parameters):  # an example is torch.add(x, 2, y), which computes x + 2 * y
        refusal = refusal or "has more positional arguments than the function has parameters"
    name = kind.removeprefix("native_").removeprefix("fused_")
    return Call(kind, name, node, _normal(name, arguments), refusal)


def _refusal(node: Node, kind: str, arguments: dict[str, Any]) -> str | None:
    """Returns why a call cannot be replaced, if it does more than its kind says, else None."""
    outs = (out for name, out in arguments.items() if name.rstrip("0123456789") == "out")
    if any(out is not None for out in outs):
        return "writes into an out= tensor"
    if arguments.get("rounding_mode") is not None:
        return "rounds its quotient"
    # An example is x.view(torch.int32).
    if kind == "reshape" and dtype_of(arguments["input"]) != dtype_of(node):
        return "reads the bits of its input as another dtype"
    scaled = kind in ("add", "sub") and arguments.get("alpha", 1) != 1
    return "scales one of its operands" if scaled else None


_SOFTMAX = {"dim": None, "dtype": None}
_VARIANCE = {"dim": None, "correction": 1, "keepdim": False}
_VECTOR_NORM = {"p": 2.0, "dim": None, "keepdim": False, "dtype": None}
_NLL_LOSS = {
    "target": None,
    "weight": None,
    "ignore_index": -100,
    "reduction": "mean",
    "size_average": None,
    "reduce": None,
}
#: Kind -> its arguments after the input, with the defaults of torch's functions. They are in the
#: order of the fusedops op of that kind, if there is one.
_DEFAULTS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("softmax", "safe_softmax", "log_softmax"), _SOFTMAX),
    "layer_norm": {"normalized_shape": None, "weight": None, "bias": None, "eps": 1e-5},
    "group_norm": {"num_groups": None, "weight": None, "bias": None, "eps": 1e-5},
    "rms_norm": {"normalized_shape": None, "weight": None, "eps": None},
    "dropout": {"p": 0.5, "train": True},
    "nll_loss": _NLL_LOSS,
    "cross_entropy": _NLL_LOSS | {"label_smoothing": 0.0},
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), _VARIANCE),
    **dict.fromkeys(("norm", "linalg_norm"), _VECTOR_NORM),
    "normalize": {"p": 2.0, "dim": 1, "eps": 1e-12},
}
#: Part of a kind's name -> the arguments of such kinds that are read as Python numbers.
_NUMERIC_ARGUMENTS = {
    "softmax": ["dim"],
    "dropout": ["p", "train"],
    "group_norm": ["num_groups", "eps"],
    "nll_loss": ["ignore_index"],
    "cross_entropy": ["ignore_index", "label_smoothing"],
    "layer_norm": ["eps"],
    "rms_norm": ["eps"],
    "var": ["correction"],
    "std": ["correction"],
    "normalize": ["p", "dim"],
}


def _normal(kind: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call, with defaults filled in and constants as Python numbers. The
    arguments of a kind that is not in `_DEFAULTS`, except arange, stay as they are."""
    if kind == "arange":
        # In torch.arange(end), the parameter `start` has the end.
        end = {} if "end" in arguments else {"end": arguments["start"], "start": 0}
        return {"start": 0, "step": 1} | arguments | end
    if kind not in _DEFAULTS:
        return arguments
    is_variance = "correction" in _DEFAULTS[kind]
    # x.var(False) passes `unbiased` in the place of `dim`.
    if is_variance and isinstance(arguments.get("dim"), bool):
        arguments = arguments | {"dim": None, "unbiased": arguments["dim"]}
    correction = arguments.get("correction", arguments.get("unbiased"))
    arguments = arguments | {"correction": 1 if correction is None else correction}
    normal = {name: arguments.get(name, default) for name, default in _DEFAULTS[kind].items()}
    names = next((names for word, names in _NUMERIC_ARGUMENTS.items() if word in kind), [])
    normal |= {name: constant(normal[name]) for name in names}
    input = value(arguments.get("input"))
    if arguments.get("half_to_float"):
        normal["dtype"] = torch.float32
    if "softmax" in kind and arguments.get("dim") is None and isinstance(input, torch.Tensor):
        # torch chooses this dimension for softmax(x, dim=None), in _get_softmax_dim of
        # torch/nn/functional.py.
        normal["dim"] = 0 if input.dim() in (0, 1, 3) else 1
    if kind == "rms_norm" and arguments.get("eps") is None and isinstance(input, torch.Tensor):
        normal["eps"] = default_rms_eps(input.dtype)
    return {"input": arguments["input"]} | normal


def _module_call(node: Node) -> Call | None:
    """Returns the call of a module in normal form, in which the module's settings and parameters
    are arguments. Returns None if no rule refers to modules of this class."""
    module = submodule(node)
    if type(module) in aliases.LEAVES:
        return _leaf(node, *aliases.LEAVES[type(module)])
    kind = aliases.MODULES.get(type(module))
    if kind is None:
        return None
    arguments: dict[str, Any] = dict(zip(("input", "target"), node.args, strict=False))
    arguments |= node.kwargs
    # torch lists the settings of its modules for TorchScript.
    arguments |= {name: getattr(module, name) for name in getattr(module, "__constants__", ())}
    for name in ("weight", "bias"):
        if (tensor := getattr(module, name, None)) is not None:
            arguments[name] = ModuleAttribute(f"{node.target}.{name}", tensor)
    arguments |= _UNLISTED.get(type(module), {})
    return Call(kind, kind, node, _normal(kind, arguments), _module_refusal(module))


#: Module -> settings that it has without an attribute. Whether a dropout is active is unknown,
#: because train() or eval() may be called later.
_UNLISTED: dict[type[nn.Module], dict[str, Any]] = {
    nn.Softmax2d: {"dim": -3},
    nn.Dropout: {"train": None},
}

#: The attributes that hold a module's hooks. Hooks that torch runs for every module are in globals
#: of these names with "_global" in front.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _module_refusal(module: nn.Module) -> str | None:
    """Returns why the call of a module does more than the class of the module says, or None."""
    if "forward" in vars(module):
        return "the module has a forward of its own, not that of its class"
    ours = [getattr(module, name) for name in _HOOKS]
    of_all_modules = [getattr(nn.modules.module, f"_global{name}") for name in _HOOKS]
    has_hooks = any(ours) or any(of_all_modules)
    return "the module has hooks, which would no longer run" if has_hooks else None


def named_arguments(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns all arguments of an op call by name, with defaults filled in."""
    normalized = normalize_function(target, args, kwargs, normalize_to_only_use_kwargs=True)
    assert normalized is not None  # it is None only for functions without a schema
    return normalized.kwargs
