"""Walks a graph and replaces the sites that the rules find by ops. A site is one softmax, norm,
cross entropy or dropout with the calls around it that an op computes too.

A site is replaced only if no check refuses it, and if the replacement, run on fake tensors, has the
dtype, device, shape and strides of eager mode; `layouts.py` provides for the strides. Only nodes
that the replacement makes dead are removed. `Graph.eliminate_dead_code` is not used because it
would delete in-place writes such as `h.mul_(2)`, which have no users in torch IR but are needed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, starmap, takewhile
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from fusedops import config
from fusedops.graph import availability
from fusedops.graph.analysis import modes, storages
from fusedops.graph.analysis.calls import Call, as_call
from fusedops.graph.analysis.nodes import annotate, is_assertion, subgraphs, users, walk
from fusedops.graph.analysis.values import are_equal, lasting_strides, value
from fusedops.graph.policy.decision import Decision, decide
from fusedops.graph.rewriting import checkpoints, layouts, saved_tensors
from fusedops.graph.rewriting.assignments import fill_by_calls
from fusedops.graph.rewriting.evaluation import Evaluation
from fusedops.graph.rewriting.expand import expand
from fusedops.graph.rewriting.layouts import Replacement
from fusedops.graph.rewriting.report import Report, Site, describe_site, log
from fusedops.graph.rewriting.views import sink_views
from fusedops.graph.rule import Match, OpCall, Rule, nodes_of, viewed
from fusedops.graph.rules import REST, RULES, STACKS


def rewrite_module(
    graph_module: GraphModule, names: Mapping[str, str] | None = None, show: bool | None = None
) -> Report:
    """Rewrites a graph module and the bodies of its higher-order ops in place.

    `names` maps `str(id(module))` to the dotted path of a module, for the report. `show` is as for
    `rewrite_graph`.
    """
    report = Report()
    for body in subgraphs(graph_module):
        report += rewrite_graph(body.graph, names, show)
        body.recompile()
    return report


def rewrite_graph(
    graph: Graph, names: Mapping[str, str] | None = None, show: bool | None = None
) -> Report:
    """Rewrites one graph in place, and returns the report. A second run changes nothing.

    `names` maps `str(id(module))` to the dotted path of a module. `show` says whether the report
    contains the graph's code before and after; by default it does if the DEBUG level is logged.
    """
    show = log.isEnabledFor(logging.DEBUG) if show is None else show
    before = _code(graph) if show else ""
    if config.active().fuse_for("expand") != "never":
        modes.record(graph)
        expand(graph)
    fuses_masks = config.active().fuse_for("masked_softmax") != "never"
    if fuses_masks:
        fill_by_calls(graph)
    storages.thread_writes(graph)
    if fuses_masks:
        sink_views(graph)
    with modes.barriers(graph):
        storages.record(graph)
        modes.record(graph)
        places = {node: place for place, node in enumerate(graph.nodes)}
        visits = (_visit_all(graph, rules, names or {}) for rules in (STACKS, RULES, REST))
        sites = sorted(chain.from_iterable(visits), key=lambda found: places[found[0]])
    checkpoints.keep_selection(graph)
    return Report(tuple(site for _, site in sites), ((before, _code(graph)),) if show else ())


def _code(graph: Graph) -> str:
    return graph.python_code("self", verbose=True).src


def _visit_all(
    graph: Graph, rules: Sequence[Rule], names: Mapping[str, str]
) -> Iterator[tuple[Node, Site]]:
    """Tries the rules on all nodes except dead ones, and yields each site with the node at which it
    was found. A dead node is left out because it could become an output of an op that is not dead,
    and would then have a gradient of zeros where eager has none."""
    alive = storages.live_nodes(graph)
    for node, transformed in walk(graph):
        site = _visit(node, rules, transformed, names) if node in alive else None
        if site is not None:
            yield node, site


def _visit(
    node: Node, rules: Sequence[Rule], transformed: bool, names: Mapping[str, str]
) -> Site | None:
    """Tries the rules on a node in their order. Replaces what they match by the first replacement
    that copies nothing, or if there is none, by the first one. Returns the site, replaced or not,
    or None if no rule matches."""
    call = as_call(node)
    attempts = list(_attempts(call, rules, transformed)) if call is not None else []
    if not attempts:
        return None
    refused = list(takewhile(lambda attempt: attempt.replacement is None, attempts))
    # A replacement that copies a result is used only if every rule's replacement copies.
    accepted = attempts[len(refused) :]
    best = min(accepted, key=lambda each: not each.is_without_copy, default=attempts[-1])
    why_not_larger = "; ".join(f"no {each.match.op}: {each.decision.refusal}" for each in refused)
    site = describe_site(
        best.rule.name, best.match, best.decision, best.copied_bytes, names, why_not_larger
    )
    if best.replacement is not None:
        _replace(best.match, best.replacement)
    return site


@dataclass(frozen=True)
class _Attempt:
    """The attempt of one rule to replace a site that it matches. `replacement` is None if the
    attempt failed, and `decision.refusal` then says why."""

    rule: Rule
    match: Match
    decision: Decision
    replacement: Replacement | None = None

    @property
    def copied_bytes(self) -> int:
        return self.replacement.copied_bytes if self.replacement else 0

    @property
    def is_without_copy(self) -> bool:
        return self.replacement is not None and not self.copied_bytes


def _attempts(call: Call, rules: Sequence[Rule], transformed: bool) -> Iterator[_Attempt]:
    """Tries the rules on a call in turn, up to the first that replaces it without a copy."""
    for rule in rules:
        match = rule.match(call)
        if match is not None:
            attempt = _attempt(rule, match, transformed)
            yield attempt
            if attempt.is_without_copy:
                return


def _attempt(rule: Rule, match: Match, transformed: bool) -> _Attempt:
    """Returns the attempt to replace a match. It has no replacement if there is a refusal, if
    replacing does not pay, or if no call of the op gives eager's results. The decision whether it
    pays is made again if the replacement copies results."""
    refusal = _refusal(rule, match, transformed)
    decision = Decision(refusal) if refusal else decide(rule.name, match)
    if decision.refusal:
        return _Attempt(rule, match, decision)
    replacement = _choose(rule, match)
    if isinstance(replacement, str):
        return _Attempt(rule, match, replace(decision, refusal=replacement))
    if replacement.copied_bytes:  # the decision above assumed that no bytes are copied
        decision = decide(rule.name, match, replacement.copied_bytes)
    return _Attempt(rule, match, decision, None if decision.refusal else replacement)


def _refusal(rule: Rule, match: Match, transformed: bool) -> str | None:
    """Returns why the site cannot be replaced with equal results, or None."""
    return (
        match.call.refusal
        or _unsupported_inputs(match.call.arguments)
        or rule.refusal(match)
        or storages.written_between(match.nodes)
        or _written_operand(match)
        or ("inside a torch.func transform" if transformed else None)
    )


def _written_operand(match: Match) -> str | None:
    """Returns why the op cannot read its operands where it is inserted, or None. An operand may
    have been written since the model read it. The model reads a tensor from which it computes a
    mask much earlier, for example, than the op that gets this tensor."""
    readers = {*match.nodes, *match.mask_calls}
    for operand in nodes_of(match.call.arguments.values()):
        if storages.written_after_read(operand, readers, match.place):
            return f"{operand.name} is written between its first use and the last call"
    return None


def _unsupported_inputs(arguments: Mapping[str, Any]) -> str | None:
    inputs = arguments["inputs"] if "inputs" in arguments else [arguments["input"]]
    reasons = (*map(_unsupported_input, inputs), *starmap(_unsupported_operand, arguments.items()))
    return next(filter(None, reasons), None)


def _unsupported_operand(name: str, argument: Any) -> str | None:
    """Returns why the op does not take an operand, such as a weight or a list of them, or None."""
    for each in argument if isinstance(argument, (list, tuple)) else [argument]:
        tensor = value(each) if isinstance(each, Node) else None
        if isinstance(tensor, torch.Tensor) and not availability.ops_take(tensor):
            return f"the {name} is a {type(tensor).__name__}, not a plain tensor"
    return None


def _unsupported_input(input: Node | OpCall) -> str | None:
    """Returns why the ops do not take a tensor as their input, or None."""
    tensor = value(viewed(input))
    if not isinstance(tensor, torch.Tensor):
        return "capture recorded no shape and dtype for the input"
    if tensor.is_nested or not availability.ops_take(tensor):
        return f"the input is a {type(tensor).__name__}, not a plain tensor"
    if tensor.layout is not torch.strided:
        return f"unsupported layout {tensor.layout}"
    if not availability.has_kernels(tensor.device.type):
        return f"this build has no {tensor.device.type} kernels"
    return None


def _choose(rule: Rule, match: Match) -> Replacement | str:
    """Returns the replacement by the rule's call of the op, or the reason why its results would not
    have eager's dtype, device, shape and strides."""
    evaluation = Evaluation(match.call.node)
    new = saved_tensors.with_cloned_inputs(rule.emit(match), match)
    try:
        new = saved_tensors.with_kept_masks(new, match, evaluation)
        evaluation.value(new)
        replacement = _with_eagers_metadata(new, match, evaluation)
    except Exception as error:  # a fake kernel, or a call on its results, refuses its arguments
        return f"{new.op} refuses: {_first_line(error)}"
    if isinstance(replacement, str):
        return replacement
    return saved_tensors.with_cloned_results(replacement, match)


def _first_line(error: Exception) -> str:
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)


def _with_eagers_metadata(call: OpCall, match: Match, evaluation: Evaluation) -> Replacement | str:
    """Returns the replacement by `call` that copies the fewest bytes, or a text which says how the
    results of `call` differ from eager's."""
    candidates: list[Replacement] = []
    for replacement in layouts.replacements(call, match, evaluation):
        if difference := _difference(match, replacement):
            return difference
        candidates.append(replacement)
        if not replacement.copied_bytes:
            break
    return min(candidates, key=lambda replacement: replacement.copied_bytes)


def _difference(match: Match, replacement: Replacement) -> str | None:
    """Returns a text about the first property in which a result differs from eager's, or None if
    none differs."""
    properties = ("dtype", "device", "shape", *([] if match.any_strides else ["stride"]))
    for old, result in replacement.results.items():
        tensors = replacement.evaluation.value(result), value(old)
        for what in properties:
            ours, theirs = (
                lasting_strides(each) if what == "stride" else getattr(each, what)
                for each in tensors
            )
            # Comparing symbolic sizes with == would add a guard.
            if not (are_equal(ours, theirs) if isinstance(ours, tuple) else ours == theirs):
                return f"output {what} would be {ours}, eager gives {theirs}"
    return None


def _replace(match: Match, replacement: Replacement) -> None:
    """Inserts the calls of a replacement, and erases what it replaces."""
    site, evaluation = match.call.node, replacement.evaluation
    with site.graph.inserting_before(match.place):
        evaluation.insert(replacement.call)
        for old in match.results:
            # Capture has proven these assertions, which may come before the op.
            for assertion in filter(is_assertion, list(old.users)):
                assertion.graph.erase_node(assertion)
            if old.users:
                new = evaluation.insert(replacement.results[old])
                # `new` keeps the recorded value of `old`, whose storage the views of `old` share.
                annotate(new, value(old), like=old)
                storages.record_node(new)
                modes.inherit(new, site)
                old.replace_all_uses_with(new)
    _erase(match)


def _erase(match: Match) -> None:
    """Erases the replaced nodes, and the fused nodes, mask calls and reads of scalars, such as eps,
    that nothing uses any more."""
    replaced = dict.fromkeys((*match.results, match.call.node))
    inputs = dict.fromkeys(i for old in (*replaced, *match.nodes) for i in old.all_input_nodes)
    for old in replaced:
        old.graph.erase_node(old)
    for old in reversed(match.nodes):
        if old not in replaced:
            _erase_if_unused(old)
    for node in inputs:
        scalar = isinstance(value(node), (torch.SymFloat, float))
        if scalar and not node._erased and not node.users and node.op != "placeholder":
            node.graph.erase_node(node)
    for node in sorted(match.mask_calls, reverse=True):
        _erase_if_unused(node)


def _erase_if_unused(node: Node) -> None:
    """Erases a call that nothing uses, with the assertions and outputs that export leaves behind
    (see `users`)."""
    if not users(node):
        for dead in (*node.users, node):
            dead.graph.erase_node(dead)
