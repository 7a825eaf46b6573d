"""Walks a graph and puts ops in the place of what the rules find.

A site is edited only after every refusal has been asked and the replacement has run on fake
tensors with eager's dtype, device, shape and strides. Nothing is removed but the nodes that the
replacement itself made dead: `Graph.eliminate_dead_code` would delete in-place writes such as
`h.mul_(2)`, which have no users in torch IR and are needed all the same.
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
from fusedops.graph.rewriting import kept
from fusedops.graph.rewriting.expand import expand
from fusedops.graph.rewriting.report import Report, Site, describe_site, log
from fusedops.graph.rules import RULES, STACKS
from fusedops.graph.rules.rule import Match, OpCall, Rule


def rewrite_module(
    graph_module: GraphModule, names: Mapping[str, str] | None = None, show: bool | None = None
) -> Report:
    """Rewrite a graph module and the bodies of its higher-order ops in place.

    `names` gives the dotted path of a module by `str(id(module))`, for the report; `show` as in
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
    """Rewrite one graph in place. A second run finds nothing to do.

    `show`: the report has the graph's code too, before and after; by default where that is logged.
    """
    show = log.isEnabledFor(logging.DEBUG) if show is None else show
    before = _code(graph) if show else ""
    if config.active().fuse_for("expand") != "never":
        expand(graph)
    aliasing.note_returned_inputs(graph)
    with modes.walls(graph):
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
    """Let the rules look at a node, those that take in more first; the site it is, if any."""
    call = dialect.as_call(node)
    if call is None or not (node.users or call.obstacle):  # a dead node is no site
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
    if isinstance(input, OpCall):  # the input, moved about
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
    """The first replacement that gives eager's metadata, its fake result, and the memory that it
    must not keep; or why none does."""
    refusals = []
    unkept = kept.not_to_keep(match)
    for emitted in rule.emit(match):
        try:
            new = kept.with_own_inputs(emitted, unkept)
            result = _evaluate(new, match.call.node)
        except Exception as error:  # whatever a fake kernel raises means: not these arguments
            refusals.append(f"{new.op} refuses: {str(error).partition(chr(10))[0]}")
            continue
        difference = _difference(match, result)
        if difference is None:
            return new, result, unkept
        refusals.append(difference)
    return refusals[0]


def _evaluate(new: OpCall, site: Node) -> Any:
    """What `new` would give, computed on the fake tensors that capture recorded."""
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
    # Decided from what is known: asking a symbolic size outright would add a guard.
    return len(ours) == len(theirs) and statically_known_true(sym_eq(ours, theirs))


def _replace(match: Match, new: OpCall, result: Any, unkept: frozenset[int | None]) -> None:
    site = match.call.node
    with site.graph.inserting_before(match.place or site):
        inserted = _insert(new, result, site)
        for old, index in match.results.items():
            _drop_assertions(old)
            if old.users:
                copied = kept.gives_copy(old, index, unkept)
                old.replace_all_uses_with(_select(inserted, index, old, copied))
    _erase(match)


def _drop_assertions(node: Node) -> None:
    """What they check was settled before; they may stand in front of what replaces `node`."""
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
    """What takes the place of `old`, also in the memory that its views are known to share."""
    graph, selected = old.graph, inserted
    if index is not None:
        selected = graph.call_function(operator.getitem, (inserted, index))
    if copied:
        dialect.annotate(selected, _output(dialect.value(inserted), index), like=old)
        selected = graph.call_function(torch.ops.aten.clone.default, (selected,))
    dialect.annotate(selected, dialect.value(old), like=old)
    return selected


def _erase(match: Match) -> None:
    """Remove the replaced nodes, what only they used of the fused_nodes ones, and reads of scalars
    (eps) that nothing uses any more."""
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
