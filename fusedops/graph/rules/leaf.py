"""Reports opaque calls, which compute a softmax or a norm internally, without replacing them.

before    y = F.scaled_dot_product_attention(q, k, v)
after     the same
"""

from __future__ import annotations

from fusedops.graph.analysis.calls import Call
from fusedops.graph.rule import Match, Rule


class Leaf(Rule):
    """Matches an opaque call, which is reported and not replaced."""

    name = "leaf"

    def match(self, call: Call) -> Match | None:
        return Match(call, {}, (call.node,)) if call.kind == "leaf" else None
