"""Defines the report of a rewrite, which has one `Site` for each softmax or norm, with the reason
if it was not replaced."""

from __future__ import annotations

import dataclasses
import difflib
import logging
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch._dynamo.utils import counters
from torch._guards import CompileContext
from torch.fx import Node

from fusedops.graph.analysis.aliases import SDPA
from fusedops.graph.analysis.values import value
from fusedops.graph.policy.decision import BECOMES_SDPA, NEVER_MATERIALISED, Decision, Estimate
from fusedops.graph.policy.traffic import bytes_saved
from fusedops.graph.rewriting.report_text import as_text, summary
from fusedops.graph.rule import Match

log = logging.getLogger("fusedops")

Shape = tuple[int | str, ...]

#: The reasons of softmaxes that are left because Inductor's code around them is faster than any
#: kernel for the softmax alone, such as attention, or a loss that never stores probabilities.
_ON_PURPOSE_REASONS = (SDPA, BECOMES_SDPA, NEVER_MATERIALISED)


@dataclass(frozen=True)
class Site:
    """One softmax or norm in a graph, replaced or not.

    rule: the rule that recognised it.
    op: the computation: "softmax", "log_softmax", "layer_norm", "rms_norm", or the name of the
        opaque call that contains one.
    replaced: whether it was replaced by `torch.ops.fusedops.<op>`.
    reason: why it was not replaced; empty if it was.
    module: the dotted path of the module; "" outside of modules.
    location: "file.py:123", the innermost line outside PyTorch; "" if capture recorded none.
    shapes: the shapes of the tensor inputs; a symbolic size is a string.
    bytes_saved: the memory traffic that the rewrite removes, if each replaced call reads its inputs
        from memory and writes its result; 0 if a single call was replaced.
    figures: the measurements that decided with `fuse="profitable"`; None if there were none.
    note: for a replaced site, what the graph still computes beside the op, such as a mask, and why.
        It also says why no op was used that fuses more calls, such as the residual connection.
    """

    rule: str
    op: str
    replaced: bool
    reason: str
    module: str
    location: str
    shapes: tuple[Shape, ...]
    bytes_saved: int = 0
    figures: Estimate | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if self.replaced != (not self.reason.strip()):
            raise ValueError(
                f"Site: replaced is {self.replaced} and reason {self.reason!r}, wanted a reason if "
                "and only if the site was not replaced"
            )

    @property
    def left_on_purpose(self) -> bool:
        """Whether the site was left because no kernel for the softmax alone could be faster than
        Inductor's code. This holds for attention that runs as `scaled_dot_product_attention`, and
        for a cross entropy that never stores its probabilities."""
        return self.reason in _ON_PURPOSE_REASONS


@dataclass(frozen=True)
class Report:
    """All sites of one or more graphs, in program order. `str(report)` is plain text, which says
    what the replaced sites are expected to save in a call, and then describes each site. Equal
    sites share an entry.

    graphs: the code of each graph before and after, if it was recorded.
    mode: "training" or "inference", if all sites are in the same known mode; else "".
    """

    sites: tuple[Site, ...] = ()
    graphs: tuple[tuple[str, str], ...] = ()
    mode: str = ""

    @property
    def replaced(self) -> tuple[Site, ...]:
        return tuple(site for site in self.sites if site.replaced)

    @property
    def left(self) -> tuple[Site, ...]:
        return tuple(site for site in self.sites if not site.replaced)

    def __add__(self, other: Report) -> Report:
        return Report(self.sites + other.sites, self.graphs + other.graphs, self.mode)

    def diff(self) -> str:
        """Returns the changes to the graphs, as a unified diff of their code."""
        return "\n".join(
            line
            for number, (before, after) in enumerate(self.graphs)
            for line in difflib.unified_diff(
                before.splitlines(),
                after.splitlines(),
                f"graph {number} before",
                f"graph {number} after",
                lineterm="",
                n=1,
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the report in types that `json.dumps` accepts."""
        return {
            "mode": self.mode,
            "replaced": len(self.replaced),
            "left": len(self.left),
            "sites": [dataclasses.asdict(site) for site in self.sites],
            "graphs": [{"before": before, "after": after} for before, after in self.graphs],
        }

    def __str__(self) -> str:
        return as_text(self)


def describe_site(
    rule: str,
    match: Match,
    decision: Decision,
    copied_bytes: int,
    names: Mapping[str, str],
    why_not_larger: str = "",
) -> Site:
    """Returns the report's `Site` for `match`, which was replaced if the decision has no refusal.

    `copied_bytes` is the number of bytes read and written to give the results eager's strides.
    `names` maps `str(id(module))` to the dotted path of the module. `why_not_larger` says why no op
    that fuses more calls was used.
    """
    node = match.call.node
    replaced = decision.refusal is None
    return Site(
        rule=rule,
        op=match.op,
        replaced=replaced,
        reason=decision.refusal or "",
        module=_module_path(node, names),
        location=_user_line(node),
        shapes=_input_shapes(node),
        bytes_saved=max(0, bytes_saved(match) - copied_bytes) if replaced else 0,
        figures=decision.estimate,
        note="; ".join(filter(None, (match.note, why_not_larger))) if replaced else "",
    )


def _input_shapes(node: Node) -> tuple[Shape, ...]:
    tensors = [value(argument) for argument in node.all_input_nodes]
    return tuple(
        tuple(size if type(size) is int else str(size) for size in tensor.shape)
        for tensor in tensors
        if isinstance(tensor, torch.Tensor)
    )


def _module_path(node: Node, names: Mapping[str, str]) -> str:
    """Returns the dotted path of the innermost module whose code made a node, or "" if none did."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return str(node.target) if node.op == "call_module" else ""
    identity, (path, *_) = list(stack.items())[-1]
    # Dynamo keys the stack by id(module), with "@n" at the n-th call of the same module.
    name = names.get(identity.partition("@")[0])
    return _dotted(path) if name is None else name


def _dotted(path: str) -> str:
    """Turns Dynamo's `L['self'].layers[0]` into `layers.0`. Paths of torch.export stay as they are,
    since they are dotted already."""
    path = re.sub(r"^L\['\w+'\]\.?", "", path).replace("._modules", "")
    return re.sub(r"\['?(\w+)'?\]", r".\1", path).removeprefix("G.").strip(".")


_TORCH_FILES = os.path.dirname(torch.__file__)


def _user_line(node: Node) -> str:
    """Returns the innermost source line outside PyTorch that made a node, such as "model.py:12", or
    "" if capture recorded none."""
    frames = re.findall(r'File "(.+?)", line (\d+)', node.meta.get("stack_trace") or "")
    outside = [frame for frame in frames if not frame[0].startswith(_TORCH_FILES)]
    if not outside:
        return ""
    path, line = outside[-1]
    return f"{os.path.basename(path)}:{line}"


def publish(report: Report) -> None:
    """Adds `report` to `torch._dynamo.utils.counters["fusedops"]`, and logs it: a line of totals at
    INFO, every site and the changes to the graph at DEBUG.

    A replaced site counts under the op's name, any other under "left" or "left on purpose".
    """
    _count(Counter(map(_counted_as, report.sites)))
    if report.sites:
        log.info("%s%s", summary(report), _in_this_process(len(report.sites)))
        log.debug("%s", report)
    if report.graphs:
        log.debug("%s", report.diff())


#: Compilation of a Python frame -> the number of Dynamo's attempt at it, and what that counted.
_counted: WeakKeyDictionary[CompileContext, tuple[int, Counter[str]]] = WeakKeyDictionary()


def _count(counted: Counter[str]) -> None:
    """Adds the counts of a graph to Dynamo's counters. If Dynamo has started the same frame again,
    first subtracts the counts of the previous attempt, so that its sites count once. An example is
    dynamic=True, where Dynamo starts again when it finds that a float input, such as eps, is a
    constant."""
    if (compilation := CompileContext.try_get()) is not None:
        attempt, earlier = _counted.get(compilation, (compilation.attempt, Counter()))
        if attempt != compilation.attempt:
            counters["fusedops"].subtract(earlier)
            earlier = Counter()
        _counted[compilation] = compilation.attempt, earlier + counted
    counters["fusedops"].update(counted)


_LEFT, _LEFT_ON_PURPOSE = "left", "left on purpose"


def _counted_as(site: Site) -> str:
    if site.replaced:
        return site.op
    return _LEFT_ON_PURPOSE if site.left_on_purpose else _LEFT


def _in_this_process(sites: int) -> str:
    """Returns a text that says how many of all sites in this process were replaced, or "" if all of
    them are in this report, which has `sites` sites."""
    totals = Counter(counters["fusedops"])
    if totals.total() == sites:
        return ""
    wanted = totals.total() - totals[_LEFT_ON_PURPOSE]
    return f"; in this process {wanted - totals[_LEFT]} of {wanted}"
