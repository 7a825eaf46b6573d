"""The normal form of nodes: the same for every spelling of an operation at every capture level.

The capture levels are torch IR (Dynamo and `fx.symbolic_trace`: functions, tensor methods,
modules) and ATen IR (`torch.export`, before and after decomposition). `as_call` turns a node of any
of them into a `Call`, by the tables in `aliases.py`. No other module inspects `node.target`.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, get_plain_tensors
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.fx.operator_schemas import normalize_function
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass
from torch.utils._sympy.symbol import SymT, symbol_is_type

from fusedops.graph.analysis import aliases
from fusedops.graph.analysis.aliases import aten
from fusedops.ops.norm import default_rms_eps


@dataclass(frozen=True)
class Call:
    """A node in normal form.

    kind: "softmax", "log_softmax", "layer_norm", "native_layer_norm", "rms_norm" or
        "fused_rms_norm"; one of the calls around them or in their decomposition, such as "add",
        "masked_fill", "dropout", "exp", "mean", "cast" (all are in `aliases.py`; in place or
        not); or "leaf" for an opaque call that computes a softmax or norm internally.
    name: the operation's name in reports.
    arguments: by their torch names; defaults filled in, constants as Python numbers.
    obstacle: why this call cannot be replaced, or None.
    readings: what rules have found from this call, which is the same for all of them.
    """

    kind: str
    name: str
    node: Node
    arguments: dict[str, Any] = field(default_factory=dict)
    obstacle: str | None = None
    readings: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)


@dataclass(frozen=True)
class ModuleAttribute:
    """A parameter of a leaf module, for which a `get_attr` node is inserted when it is used."""

    target: str
    tensor: torch.Tensor


def value(argument: Any) -> Any:
    """The value that capture recorded for a node (a fake tensor, a symbol, ...), or None.

    An argument that is not a node is returned unchanged.
    """
    if not isinstance(argument, Node):
        return argument
    return argument.meta.get("val", argument.meta.get("example_value"))


def hints(tensor: torch.Tensor) -> list[int] | None:
    """A tensor's sizes, with symbols replaced by their values at capture; None if one has none."""
    sizes = [n.node.hint if isinstance(n, torch.SymInt) else n for n in tensor.shape]
    return None if None in sizes else sizes


def fake_mode(node: Node) -> FakeTensorMode:
    """The fake mode of the inputs of `node`. Dynamo's tracing context has a new one by the time
    passes run."""
    values = (value(argument) for argument in node.all_input_nodes)
    plain = (tensor for known in values for tensor in _plain_tensors(known))
    return next(known.fake_mode for known in plain if isinstance(known, FakeTensor))


def _plain_tensors(known: Any) -> list[Any]:
    """The tensors in one of a subclass, as DTensor; any other value is alone."""
    if not is_traceable_wrapper_subclass(known):
        return [known]
    tensors: list[Any] = []
    get_plain_tensors(known, out=tensors)
    return tensors


def constant(argument: Any) -> int | float | None:
    """`argument` as a Python number, or None.

    With dynamic=True module attributes such as eps are graph inputs. Reading one here adds a guard
    that makes it a constant of the compiled graph. Symbols that depend on a size are not read,
    because the graph would be compiled again for every length.
    """
    known = value(argument)
    if not is_readable(known):
        return None
    if isinstance(known, torch.SymInt):
        return int(known)
    if isinstance(known, torch.SymFloat):
        return float(known)
    return known if isinstance(known, (int, float)) else None


def is_readable(known: Any) -> bool:
    """Whether a value is a Python number, or a symbol for one that does not depend on a size."""
    if isinstance(known, (torch.SymInt, torch.SymFloat)):
        return all(symbol_is_type(symbol, _NUMBERS) for symbol in free_symbols(known))
    return isinstance(known, (int, float))


_NUMBERS = (SymT.FLOAT, SymT.UNBACKED_FLOAT)


def rounded(number: float, dtype: torch.dtype) -> int | float:
    """`number` rounded to `dtype`; infinite if it is out of range."""
    with _disable_current_modes():
        return torch.tensor(number, dtype=torch.float64).to(dtype).item()


def number(argument: Any) -> int | float | None:
    """As `constant`; also reads tensors without dimensions that the graph creates from a number."""
    if isinstance(value(argument), torch.Tensor):
        return _tensor_number(argument) if isinstance(argument, Node) else None
    return constant(argument)


_TENSOR_OF_NUMBER = {torch.tensor, torch.scalar_tensor, aten.scalar_tensor}
_FULL = {torch.full, aten.full}
_UNCHANGED = {aten.lift_fresh_copy, aten.lift_fresh, aten.detach, aten.detach_, aten.clone}


def _tensor_number(node: Node) -> int | float | None:
    tensor, target = value(node), packet(node)
    changed = any(written(user) and packet(user) not in _UNCHANGED for user in node.users)
    if tensor.dim() > 0 or changed:
        return None
    if target in _UNCHANGED:
        return _tensor_number(node.all_input_nodes[0])
    if target in _TENSOR_OF_NUMBER or target in _FULL:
        given = node.args[target in _FULL] if len(node.args) > (target in _FULL) else None
        return rounded(given, tensor.dtype) if isinstance(given, (int, float)) else None
    known = getattr(tensor, "constant", None)  # a constant that export lifted
    return None if known is None else known.item()


def packet(node: Node) -> Any:
    """The target of a node, without the overload."""
    return getattr(node.target, "overloadpacket", node.target)


_OPS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)


def submodule(node: Node) -> nn.Module:
    """The module that a `call_module` node calls."""
    root = node.graph.owning_module
    assert root is not None  # the graph is a GraphModule's
    return root.get_submodule(str(node.target))


def as_call(node: Node) -> Call | None:
    """`node` in normal form, or None if no rule refers to such a call."""
    if node.op == "call_module":
        return _module_call(node)
    if node.op == "call_method":
        if node.target in aliases.CASTS:
            return _cast_call(node)
        spelling = aliases.METHODS.get(str(node.target))
        return _operator_call(node, *spelling) if spelling else None
    if node.op != "call_function":
        return None
    if node.target is getattr:
        return _attribute_call(node)
    target = packet(node)
    if target in aliases.LEAVES:
        return _leaf(node, *aliases.leaf(target, node.kwargs))
    if target in aliases.ATEN_CASTS:
        return _cast_call(node)
    if target in aliases.ATEN and isinstance(node.target, _OPS):
        parameters = tuple(aliases.parameters_of(node.target))
        return _operator_call(node, aliases.ATEN[target], parameters)
    return _operator_call(node, *aliases.FUNCTIONS[target]) if target in aliases.FUNCTIONS else None


def _attribute_call(node: Node) -> Call | None:
    """x.max(-1).values or x.data, which symbolic_trace records as calls of getattr."""
    given, name = node.args[:2]
    if name == "data":
        return Call("detach", "detach", node, {"input": given})
    index = {"values": 0, "indices": 1}.get(str(name))
    return (
        Call("item", "item", node, {"input": given, "index": index}) if index is not None else None
    )


def _cast_call(node: Node) -> Call | None:
    """A cast to the dtype that capture recorded; None where the device or memory format changes."""
    given, result = value(node.args[0]), value(node)
    if not isinstance(given, torch.Tensor) or not isinstance(result, torch.Tensor):
        return None
    if given.device != result.device or "memory_format" in node.kwargs:
        return None
    return Call("cast", "cast", node, {"input": node.args[0], "dtype": result.dtype})


def _leaf(node: Node, name: str, reason: str) -> Call:
    return Call("leaf", name, node, {"input": next(iter(node.all_input_nodes), None)}, reason)


def _operator_call(node: Node, kind: str, parameters: tuple[str, ...]) -> Call:
    given = dict(zip(parameters, node.args, strict=False)) | node.kwargs
    given = {aliases.SYNONYMS.get(name, name): argument for name, argument in given.items()}
    if kind == "reshape" and node.op == "call_method" and len(node.args) > 1:
        given["shape"] = node.args[1:]  # x.view(2, 3) as x.view((2, 3))
    if kind == "permute" and node.op == "call_method" and len(node.args) > 2:
        given["dims"] = node.args[1:]
    name = kind.removeprefix("native_").removeprefix("fused_")
    return Call(kind, name, node, _NORMALISERS.get(name, dict)(given), _obstacle(node, kind))


def _obstacle(node: Node, kind: str) -> str | None:
    given = (out for name, out in node.kwargs.items() if name.rstrip("0123456789") == "out")
    if any(out is not None for out in given):
        return "writes into an out= tensor"
    if node.kwargs.get("rounding_mode") is not None:
        return "rounds its quotient"
    scaled = kind in ("add", "sub") and node.kwargs.get("alpha", 1) != 1
    return "scales one of its operands" if scaled else None


def _normal_softmax(given: dict[str, Any]) -> dict[str, Any]:
    dim = constant(given.get("dim"))
    dtype = torch.float32 if given.get("half_to_float") else given.get("dtype")
    if dim is None:
        dim = _implicit_dim(value(given["input"]))
    return {"input": given["input"], "dim": dim, "dtype": dtype}


def _implicit_dim(tensor: Any) -> int | None:
    """The dim that torch chooses for softmax(x, dim=None): _get_softmax_dim in
    torch/nn/functional.py."""
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


def _normal_group_norm(given: dict[str, Any]) -> dict[str, Any]:
    return {
        "input": given["input"],
        "num_groups": constant(given["num_groups"]),
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


def _normal_dropout(given: dict[str, Any]) -> dict[str, Any]:
    """The defaults are those of torch's functions; ATen's have none."""
    train = constant(given.get("train", True))
    return {"input": given["input"], "p": constant(given.get("p", 0.5)), "train": train}


def _normal_variance(given: dict[str, Any]) -> dict[str, Any]:
    correction = given.get("correction", given.get("unbiased", True))
    return {
        "input": given["input"],
        "dim": given.get("dim"),
        "correction": 1 if correction is None else constant(correction),
        "keepdim": given.get("keepdim", False),
    }


def _normal_arange(given: dict[str, Any]) -> dict[str, Any]:
    if "end" not in given:  # torch.arange(end)
        given = given | {"end": given["start"], "start": 0}
    return {"start": 0, "step": 1} | given


def _normal_norm(given: dict[str, Any]) -> dict[str, Any]:
    return {
        "input": given["input"],
        "p": given.get("p", 2.0),
        "dim": given.get("dim"),
        "keepdim": given.get("keepdim", False),
        "dtype": given.get("dtype"),
    }


_NORMALISERS = {
    "arange": _normal_arange,
    "norm": _normal_norm,
    "linalg_norm": _normal_norm,
    "dropout": _normal_dropout,
    "var": _normal_variance,
    "std": _normal_variance,
    "var_mean": _normal_variance,
    "std_mean": _normal_variance,
    "softmax": _normal_softmax,
    "safe_softmax": _normal_softmax,
    "log_softmax": _normal_softmax,
    "layer_norm": _normal_layer_norm,
    "group_norm": _normal_group_norm,
    "rms_norm": _normal_rms_norm,
}


def _module_call(node: Node) -> Call | None:
    module = submodule(node)
    if type(module) in aliases.LEAVES:
        return _leaf(node, *aliases.LEAVES[type(module)])
    kind = aliases.MODULES.get(type(module))
    if kind is None:
        return None
    given = {"input": node.args[0] if node.args else node.kwargs["input"]}
    settings: dict[str, Any]
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)):
        settings = _norm_settings(module, str(node.target))
    elif kind == "dropout":
        settings = {"p": module.p, "train": None}  # train() or eval() may change it later
    else:
        settings = {"dim": -3 if type(module) is nn.Softmax2d else module.dim}
    return Call(kind, kind, node, _NORMALISERS[kind](given | settings), _module_obstacle(module))


def _norm_settings(module: nn.LayerNorm | nn.RMSNorm | nn.GroupNorm, path: str) -> dict[str, Any]:
    parameters = {name: getattr(module, name, None) for name in ("weight", "bias")}
    attributes = {
        name: None if tensor is None else ModuleAttribute(f"{path}.{name}", tensor)
        for name, tensor in parameters.items()
    }
    own = "num_groups" if isinstance(module, nn.GroupNorm) else "normalized_shape"
    return {own: getattr(module, own), "eps": module.eps, **attributes}


def _module_obstacle(module: nn.Module) -> str | None:
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    return "the module has hooks, which would no longer run" if any(hooks) else None


def expansion(node: Node, expansions: dict[str, Callable[..., Any]]) -> Callable[..., Any] | None:
    """The function among `expansions` that decomposes a leaf, or None."""
    if node.op != "call_function" or node.target not in aliases.LEAVES:
        return None
    name, reason = aliases.leaf(node.target, node.kwargs)
    return None if reason == aliases.SDPA else expansions.get(name)


def users(node: Node) -> list[Node]:
    """The users of a node, without those that export leaves behind: assertions about its dtype, and
    unused outputs."""
    return [user for user in node.users if not is_assertion(user) and not _is_unread(user)]


def live(graph: Graph) -> set[Node]:
    """The nodes that the graph's outputs or side effects depend on."""
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        if node.is_impure() or written(node) or not found.isdisjoint(node.users):
            found.add(node)
    return found


def _is_unread(node: Node) -> bool:
    return node.target is operator.getitem and not node.users


def is_pointwise(node: Node) -> bool:
    """Whether a call is elementwise, also through views, so that Inductor fuses it with its
    neighbours."""
    if is_unchanged(node) and node.all_input_nodes:
        return is_pointwise(node.all_input_nodes[0])
    return node.op.startswith("call") and _name(node) in aliases.POINTWISE


def is_unchanged(node: Node) -> bool:
    """Whether a call's result has the same elements as its input: a view, an inactive dropout, or a
    cast to the same dtype."""
    name = _name(node)
    if name == "dropout":
        given = call.arguments if (call := as_call(node)) else {}
        return given.get("train") is False or given.get("p") == 0
    if name in aliases.CASTS and node.op.startswith("call"):
        tensors = (value(node), value(node.all_input_nodes[0]))
        return all(isinstance(t, torch.Tensor) for t in tensors) and (
            tensors[0].dtype == tensors[1].dtype
        )
    return name in aliases.VIEWS


def returns_its_input(node: Node) -> bool:
    """Whether a call may return its input itself although the fake tensors have separate memory: an
    inactive dropout."""
    if _name(node) != "dropout" or not node.op.startswith("call"):
        return False
    call = as_call(node)
    return call is not None and not (call.arguments["train"] is True and call.arguments["p"])


def readers(node: Node) -> list[Node]:
    """The users of a node, with those that do not change its elements replaced by their users."""
    direct = [user for user in users(node) if not is_unchanged(user)]
    unchanged = [user for user in users(node) if is_unchanged(user)]
    return direct + [reader for user in unchanged for reader in readers(user)]


def ends_in_reduction(node: Node, steps: int = 8) -> bool:
    """Whether a node is a gather or reduction, or is used only by such calls, directly or through
    pointwise ones."""
    name = _name(node)
    if name in aliases.REDUCTIONS:
        return True
    through = name in aliases.POINTWISE or name in aliases.VIEWS
    return bool(steps and through and node.users) and all(
        ends_in_reduction(user, steps - 1) for user in node.users
    )


def is_product(node: Node) -> bool:
    """Whether a node is a matrix product, possibly cast, viewed or scaled by a number."""
    name = _name(node)
    if name in aliases.VIEWS | aliases.CASTS and node.all_input_nodes:
        return is_product(node.all_input_nodes[0])
    if name in aliases.SCALING and len(node.all_input_nodes) == 1:
        return is_product(node.all_input_nodes[0])
    return name in aliases.PRODUCTS


def feeds_products(node: Node) -> bool:
    """Whether a node is used only by matrix products, directly or through views, casts and
    dropout."""
    passes = aliases.VIEWS | aliases.CASTS | {"dropout"}
    return bool(node.users) and all(
        _name(user) in aliases.PRODUCTS or (_name(user) in passes and feeds_products(user))
        for user in node.users
    )


def _name(node: Node) -> str:
    """The name of a call in torch IR or ATen, without the suffix of in-place calls; for a module
    its type."""
    if node.op == "call_module":
        return type(submodule(node)).__name__.lower()
    target = packet(node)
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    return name.rstrip("_")


def named_arguments(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments of an op call by name, with defaults filled in."""
    given = normalize_function(target, args, kwargs, normalize_to_only_use_kwargs=True)
    assert given is not None  # an op has a schema
    return given.kwargs


def is_assertion(node: Node) -> bool:
    return node.target is aten._assert_tensor_metadata.default


def outputs(node: Node) -> dict[Node, int] | None:
    """The `getitem` users of a multi-output call by index; None if the tuple is used as a whole, or
    is sliced, which symbolic_trace records."""
    if any(user.target is not operator.getitem for user in node.users):
        return None
    given = {user: user.args[1] for user in node.users}
    indices = {user: i for user, i in given.items() if type(i) is int and i >= 0}
    return indices if len(indices) == len(given) else None


def written(node: Node) -> list[Node]:
    """The arguments that a call writes into."""
    if not node.op.startswith("call"):
        return []
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return node.all_input_nodes if _writes_inside(node) else []
    if isinstance(node.target, _OPS):
        given = _written_by_schema(node, node.target)
    else:
        first = node.args[:1] if _is_in_place(node) else ()
        given = [*first, node.kwargs.get("out")]
    lists = (g if isinstance(g, (list, tuple)) else (g,) for g in given)
    nodes = (argument for arguments in lists for argument in arguments)
    return list(dict.fromkeys(node for node in nodes if isinstance(node, Node)))


def _writes_inside(node: Node) -> bool:
    """Whether the body of a higher-order op writes into anything, which may be an input."""
    if node.target is torch.ops.higher_order.triton_kernel_wrapper_mutation:
        return True
    read = [operator.attrgetter(str(n.target)) for n in node.all_input_nodes if n.op == "get_attr"]
    attributes = [get(node.graph.owning_module) for get in read]
    bodies = [body for body in attributes if isinstance(body, GraphModule)]
    return any(written(inner) for body in bodies for inner in body.graph.nodes)


def _written_by_schema(
    node: Node, op: torch._ops.OpOverload | torch._ops.OpOverloadPacket
) -> list[Any]:
    """The arguments that an op writes into. For a packet, the overload is unknown, so that all of
    them are considered."""
    if isinstance(op, torch._ops.OpOverloadPacket):
        overloads = [getattr(op, name) for name in op.overloads()]
    else:
        overloads = [op]
    found = []
    for overload in overloads:
        arguments = overload._schema.arguments
        given = dict(zip((a.name for a in arguments), node.args, strict=False)) | node.kwargs
        writes = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]
        found += [given[name] for name in writes if name in given]
    return found


def _is_in_place(node: Node) -> bool:
    if node.op == "call_module":
        return bool(getattr(submodule(node), "inplace", False))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if node.target in aliases.KEYWORDS:
        return False
    if name.strip("_") in aliases.IN_PLACE or (name.endswith("_") and not name.endswith("__")):
        return True
    return node.op == "call_function" and _has_inplace_true(node)


def _has_inplace_true(node: Node) -> bool:
    position = _inplace_position(node.target)
    if position is not None and position < len(node.args):
        return node.args[position] is True
    return node.kwargs.get("inplace") is True


@functools.cache
def _inplace_position(function: Callable[..., Any]) -> int | None:
    """The position of `inplace` in a function such as F.dropout; Dynamo passes it by position."""
    if getattr(function, "__module__", "") != "torch.nn.functional":
        return None
    parameters = list(inspect.signature(function).parameters)
    return parameters.index("inplace") if "inplace" in parameters else None


def walk(graph: Graph) -> Iterator[tuple[Node, bool]]:
    """The current nodes, and whether each is inside a `torch.func` transform, where the recorded
    values are wrappers. The caller may erase nodes; erased ones are skipped."""
    depth = 0
    for node in list(graph.nodes):
        if not node._erased:
            depth += _transform_depth_change(node)
            yield node, depth > 0


def _transform_depth_change(node: Node) -> int:
    """+1 where Dynamo enters a `torch.func` transform, -1 where it leaves one, else 0."""
    name = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
    return name.endswith("_increment_nesting") - name.endswith("_decrement_nesting")


def mode_switch(node: Node) -> str | None:
    """How a call changes the modes of the calls after it, a value of `aliases.MODE_SWITCHES`;
    None if it does not."""
    return aliases.MODE_SWITCHES.get(node.target) if node.op == "call_function" else None


def has_mode_switches(graph: Graph, *kinds: str) -> bool:
    """Whether a graph has switches of one of these kinds, or of any kind if none is given."""
    targets = (
        target for target, kind in aliases.MODE_SWITCHES.items() if kind in kinds or not kinds
    )
    return any(graph.find_nodes(op="call_function", target=target) for target in targets)


def subgraphs(graph_module: GraphModule) -> Iterator[GraphModule]:
    """`graph_module` and the graph modules in it, such as bodies of checkpoint or cond."""
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
    """Sets a new node's metadata: `result` under the keys that `like` uses, and the origin of
    `like`."""
    node.meta = {key: like.meta[key] for key in _PROVENANCE if key in like.meta}
    node.meta |= {key: result for key in ("val", "example_value") if key in like.meta}
