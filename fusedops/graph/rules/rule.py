"""The parts of a rewrite rule: what it found, and what it wants to put there."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from fusedops.graph.ir.dialect import Call


@dataclass(frozen=True)
class Match:
    """A site a rule recognised, before any decision and before any edit.

    `results` says which existing nodes the rewrite would replace: each maps to the index of the
    new op's output that takes its place, or to None where the op has a single output. `fused_nodes`
    are the calls that the op stands for, in program order, where they are several; those that
    something else uses too stay. The op goes to `place`, or else where `call` is.
    """

    call: Call
    op: str
    results: Mapping[Node, int | None]
    fused_nodes: tuple[Node, ...] = ()
    place: Node | None = None


@dataclass(frozen=True)
class OpCall:
    """An op call to insert. `args` may hold graph nodes, `ModuleAttribute`s and other `OpCall`s;
    `kwargs` are plain values."""

    op: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)


def op_of(match: Match) -> OpCall:
    """The op of a match, where the call's arguments are the op's, in its order."""
    op = getattr(torch.ops.fusedops, match.op).default
    return OpCall(op, tuple(match.call.arguments.values()))


class Rule(ABC):
    """One rewrite. Finding, refusing and emitting are apart, so anyone may refuse in between."""

    @property
    def name(self) -> str:
        """What settings and reports call the rule: `SoftmaxDecomposed` is "softmax_decomposed"."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()

    @abstractmethod
    def match(self, call: Call) -> Match | None:
        """The site that `call` anchors, or None where the rule has nothing to say."""

    @abstractmethod
    def guard(self, match: Match) -> str | None:
        """Why this rule must not replace the site, or None."""

    @abstractmethod
    def emit(self, match: Match) -> Iterator[OpCall]:
        """Replacements in order of preference; the first that gives eager's metadata is used."""
