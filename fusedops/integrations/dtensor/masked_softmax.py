"""masked_softmax of DTensors.

What depends on a query's position in the whole tensor follows it: a rank that has the queries from
``start`` on moves the diagonals by as much. Two things are gathered: keys, because no op computes
the statistics of masked scores, and all rows where there is dropout, whose random numbers are
those of a row's number in the whole tensor.
"""

from __future__ import annotations

from typing import Any

from fusedops.integrations.dtensor.call import Call, Rule
from fusedops.integrations.dtensor.partition import Dims, Partition, Result, Space, aligned

_OF_SCORES = ("input", "out", "grad_output", "probabilities", "mask", "bias")
_OF_ROWS = ("start", "end", "sinks", "sink_probabilities")


def _space(call: Call) -> Space:
    leaders = ("input",) if "input" in call else ("probabilities", "grad_output")
    sizes = tuple(call[leaders[0]].shape)
    tensors: dict[str, Dims] = {}
    for names, own in ((_OF_SCORES, sizes), (_OF_ROWS, sizes[:-1])):
        tensors |= {name: aligned(call[name], own) for name in names if name in call}
    every = tuple(range(len(sizes)))
    results = tuple(
        Result(every[:-1] if "sink" in result.name else every)
        for result in call.overload._schema.returns
    )
    keys = frozenset(every[-1:])
    drops = "seed" in call and call["p"] > 0
    return Space(sizes, tensors, results, leaders, keys, frozenset(every if drops else ()))


def _on_own_queries(call: Call, part: Partition, local: dict[str, Any]) -> Any:
    queries = len(part.sizes) - 2
    if queries in part.divided:
        first = part.start(queries)
        local["diagonal"] += first
        if local["lower_diagonal"] is not None:
            local["lower_diagonal"] += first
    return call.run(local)


def _rules() -> dict[str, Rule]:
    forward = ("", "_dropout", "_sinks")
    backward = ("_backward", "_sinks_backward", "_dropout_backward")
    rules = {f"masked_softmax{of}": Rule(_space, _on_own_queries) for of in (*forward, *backward)}
    for of, written in (
        ("_out", "out"),
        ("_", "input"),
        ("_backward_", "grad_output"),
        ("_dropout_backward_", "grad_output"),
    ):
        rules[f"masked_softmax{of}"] = Rule(_space, _on_own_queries, written=written)
    return rules


RULES = _rules()
