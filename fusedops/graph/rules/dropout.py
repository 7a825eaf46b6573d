"""Replaces dropout on a CPU, and a relu before it.

before    y = F.dropout(F.relu(x), p, training)
after     y = torch.ops.fusedops.dropout(x, p, seed, relu=True)

Inductor's code for a CPU draws one random number at a time and writes which elements are kept, and
which are above 0, as bools. With its backward pass that takes some 40 ns an element for the calls
above, where the op takes 1 ns. On a GPU both are fused with their neighbours and cost little, so
that they stay. Dropout that belongs to a softmax or a norm is part of their ops: this rule is tried
once those are replaced.
"""

from __future__ import annotations

from fusedops.graph.analysis import storages
from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.nodes import users
from fusedops.graph.analysis.steps import call_of
from fusedops.graph.analysis.values import hints, value
from fusedops.graph.readers.dropout import drawn_seed, is_active, wants_eagers_numbers
from fusedops.graph.rule import Match, Rule

#: The op takes some 18 ns for a row of up to 8 columns, and Inductor's code without a gradient 8 ns
#: a column.
_LEAST_COLS = 4


class Dropout(Rule):
    """Replaces a dropout, with the relu before it if nothing else uses its result."""

    name = "dropout"

    def match(self, call: Call) -> Match | None:
        if call.kind != "dropout" or not is_active(call):
            return None
        device = value(call.node).device
        if device.type != "cpu":
            return None
        relu = _relu(call)
        arguments = {
            "input": relu.input if relu else call.input,
            "p": float(call.arguments["p"]),
            "seed": drawn_seed(device),
            "relu": relu is not None,
        }
        nodes = (*([relu.node] if relu else []), call.node)
        site = Call("dropout", "dropout", call.node, arguments)
        return Match(site, {call.node: None}, nodes)

    def refusal(self, match: Match) -> str | None:
        if wants_eagers_numbers():
            return "Inductor's setting fallback_random asks for eager's random numbers"
        sizes = hints(value(match.call.node))
        if sizes is not None and (not sizes or sizes[-1] < _LEAST_COLS):
            return f"its rows have fewer than {_LEAST_COLS} columns"
        return super().refusal(match)


def _relu(dropout: Call) -> Call | None:
    """Returns the relu whose result only the dropout uses, or None. A relu that overwrites its
    input is left to Inductor."""
    relu = call_of(dropout.input, "relu")
    if relu is None or users(relu.node) != [dropout.node] or storages.is_in_place(relu):
        return None
    return relu
