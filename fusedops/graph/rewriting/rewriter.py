"""Walks a graph and replaces the sites that the rules find by ops.

A site is edited only if no check refuses it, and if the replacement, run on fake tensors, has the
dtype, device, shape and strides of eager mode. Only nodes that the replacement makes dead are
removed. `Graph.eliminate_dead_code` is not used because it would delete in-place writes such as
`h.mul_(2)`, which have no users in torch IR but are needed.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from fusedops import config
from fusedops.graph import availability
from fusedops.graph.ir import aliasing, dialect, modes
from fusedops.graph.ir.dialect import ModuleAttribute
from fusedops.graph.policy import decision
from fusedops.graph.rewriting import saved_tensors
from fusedops.graph.rewriting.expand import expand
from fusedops.graph.rewriting.report import Report, Site, describe_site, log
from fusedops.graph.rules import RULES, STACKS
from fusedops.graph.rules.rule import Match, OpCall, Rule


def rewrite_module(
    graph_module: GraphModule, names: Mapping[str, str] | None = None, show: bool | None = None
) -> Report:
    """Rewrites a graph module and the bodies of its higher-order ops in place.

    `names` maps `str(id(module))` to the dotted path of a module, for the report; `show` as in
    `rewrite_graph`.
    """
    report = Report()
    for body in dialect.subgraphs(graph_module):
        report += rewrite_graph(body.graph, names, show)
        body.recompile()
    return report


def rewrite_graph(
    graph: Graph, names: Mapping[str, str] | None = None, show: bool | None = None
) -> Report:
    """Rewrites one graph in place. A second run changes nothing.

    `show`: whether the report contains the graph's code before and after; by default if the DEBUG
    level is logged.
    """
    show = log.isEnabledFor(logging.DEBUG) if show is None else show
    before = _code(graph) if show else ""
    if config.active().fuse_for("expand") != "never":
        expand(graph)
    aliasing.record_returned_inputs(graph)
    with modes.barriers(graph):
        visits = [
            _visit(node, rules, transformed, names or {})
            for rules in (STACKS, RULES)
            for node, transformed in dialect.walk(graph)
        ]
    sites = tuple(site for site in visits if site)
    return Report(sites, ((before, _code(graph)),) if show else ())


def _code(graph: Graph) -> str:
    return graph.python_code("self", verbose=True).src


def _visit(
    node: Node, rules: Sequence[Rule], transformed: bool, names: Mapping[str, str]
) -> Site | None:
    """Tries the rules on a node in their order; returns the site, if there is one."""
    call = dialect.as_call(node)
    if call is None or not (node.users or call.obstacle):  # a dead node is not a site
        return None
    site = None
    for rule in rules:
        match = rule.match(call)
        if match is None:
            continue
        refusal = _refusal(rule, match, transformed)
        verdict = decision.Verdict(refusal) if refusal else decision.judge(rule.name, match)
        chosen = verdict.refusal or _choose(rule, match)
        reason = chosen if isinstance(chosen, str) else ""
        site = describe_site(rule.name, match, reason, verdict.figures, names)
        if not reason:
            _replace(match, *chosen)
            break
    return site


def _refusal(rule: Rule, match: Match, transformed: bool) -> str | None:
    return (
        match.call.obstacle
        or _unsupported_inputs(match.call.arguments)
        or rule.guard(match)
        or aliasing.written_between(match.fused_nodes)
        or ("inside a torch.func transform" if transformed else None)
    )


def _unsupported_inputs(arguments: Mapping[str, Any]) -> str | None:
    inputs = arguments["inputs"] if "inputs" in arguments else [arguments["input"]]
    reasons = map(_unsupported_input, inputs)
    return next((reason for reason in reasons if reason), None)


def _unsupported_input(input: Node | OpCall) -> str | None:
    if isinstance(input, OpCall):  # a view of the input
        return _unsupported_input(input.args[0])
    tensor = dialect.value(input)
    if not isinstance(tensor, torch.Tensor):
        return "capture recorded no shape and dtype for the input"
    if tensor.is_nested or is_traceable_wrapper_subclass(tensor):
        return f"the input is a {type(tensor).__name__}, not a plain tensor"
    if tensor.layout is not torch.strided:
        return f"unsupported layout {tensor.layout}"
    if not availability.has_kernels(tensor.device.type):
        return f"this build has no {tensor.device.type} kernels"
    return None


def _choose(rule: Rule, match: Match) -> tuple[OpCall, Any, frozenset[int | None]] | str:
    """The first replacement with eager's metadata, its fake result, and the memory that it must not
    save; or the reason why there is none."""
    refusals = []
    unsavable = saved_tensors.unsavable_memory(match)
    for emitted in rule.emit(match):
        try:
            new = saved_tensors.with_cloned_inputs(emitted, unsavable)
            result = _evaluate(new, match.call.node)
        except Exception as error:  # the fake kernel does not accept these arguments
            refusals.append(f"{new.op} refuses: {str(error).partition(chr(10))[0]}")
            continue
        difference = _difference(match, result)
        if difference is None:
            return new, result, unsavable
        refusals.append(difference)
    return refusals[0]


def _evaluate(new: OpCall, site: Node) -> Any:
    """The result of `new` on the fake tensors that capture recorded."""
    mode = dialect.fake_mode(site)

    def known(argument: Any) -> Any:
        if isinstance(argument, OpCall):
            return _evaluate(argument, site)
        if isinstance(argument, ModuleAttribute):
            return mode.from_tensor(argument.tensor)
        return dialect.value(argument)

    with mode, torch.no_grad(), modes.autocast_of(site):
        return new.op(*map_aggregate(new.args, known), **new.kwargs)


def _difference(match: Match, result: Any) -> str | None:
    for old, index in match.results.items():
        new, eager = _output(result, index), dialect.value(old)
        for what in ("dtype", "device", "shape", "stride"):
            ours, theirs = _property(new, what), _property(eager, what)
            if old.users and not _same(ours, theirs):
                return f"output {what} would be {ours}, eager gives {theirs}"
    return None


def _output(result: Any, index: int | None) -> torch.Tensor:
    output: torch.Tensor = result if index is None else result[index]
    return output


def _property(tensor: torch.Tensor, what: str) -> Any:
    return tensor.stride() if what == "stride" else getattr(tensor, what)


def _same(ours: Any, theirs: Any) -> bool:
    if not isinstance(ours, tuple):
        return bool(ours == theirs)
    # Comparing symbolic sizes with == would add a guard.
    return len(ours) == len(theirs) and statically_known_true(sym_eq(ours, theirs))


def _replace(match: Match, new: OpCall, result: Any, unsavable: frozenset[int | None]) -> None:
    site = match.call.node
    with site.graph.inserting_before(match.place or site):
        inserted = _insert(new, result, site)
        for old, index in match.results.items():
            _drop_assertions(old)
            if old.users:
                copied = saved_tensors.is_cloned(old, index, unsavable)
                old.replace_all_uses_with(_select(inserted, index, old, copied))
    _erase(match)


def _drop_assertions(node: Node) -> None:
    """Erases assertions about `node`. They are already proven, and may come before the op that
    replaces `node`."""
    for user in [user for user in node.users if dialect.is_assertion(user)]:
        user.graph.erase_node(user)


def _insert(new: OpCall, result: Any, like: Node) -> Node:
    graph = like.graph

    def operand(argument: Any) -> Any:
        if isinstance(argument, OpCall):
            return _insert(argument, _evaluate(argument, like), like)
        if isinstance(argument, ModuleAttribute):
            read = graph.get_attr(argument.target)
            dialect.annotate(read, dialect.fake_mode(like).from_tensor(argument.tensor), like)
            return read
        return argument

    node = graph.call_function(new.op, map_aggregate(new.args, operand), new.kwargs)
    dialect.annotate(node, result, like)
    return node


def _select(inserted: Node, index: int | None, old: Node, copied: bool) -> Node:
    """Inserts the node that replaces `old`: an output of the op, or a clone of it. The node gets
    the value of `old`, whose storage views of `old` share."""
    graph, selected = old.graph, inserted
    if index is not None:
        selected = graph.call_function(operator.getitem, (inserted, index))
    if copied:
        dialect.annotate(selected, _output(dialect.value(inserted), index), like=old)
        selected = graph.call_function(torch.ops.aten.clone.default, (selected,))
    dialect.annotate(selected, dialect.value(old), like=old)
    return selected


def _erase(match: Match) -> None:
    """Erases the replaced nodes, the fused nodes without other users, and reads of scalars, such as
    eps, that are no longer used."""
    replaced = dict.fromkeys((*match.results, match.call.node))
    inputs = dict.fromkeys(
        i for old in (*replaced, *match.fused_nodes) for i in old.all_input_nodes
    )
    for old in replaced:
        old.graph.erase_node(old)
    for old in reversed(match.fused_nodes):
        if old not in replaced and not dialect.users(old):
            for node in (*old.users, old):
                node.graph.erase_node(node)
    for node in inputs:
        scalar = isinstance(dialect.value(node), (torch.SymFloat, float))
        if scalar and not node._erased and not node.users and node.op != "placeholder":
            node.graph.erase_node(node)
