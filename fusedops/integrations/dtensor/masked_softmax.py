"""masked_softmax of DTensors.

What depends on a query's position in the whole tensor follows it: a rank that has the queries from
``start`` on moves the diagonals by as much, and dropout.py draws the random numbers of its rows.
Keys are gathered, because no op computes the statistics of masked scores.
"""

from __future__ import annotations

from typing import Any

import torch

from fusedops.integrations.dtensor.call import Call, Rule
from fusedops.integrations.dtensor.dropout import drops, multiplier
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
    return Space(sizes, tensors, results, leaders, keys)


def _on_own_queries(call: Call, part: Partition, local: dict[str, Any]) -> Any:
    queries = len(part.sizes) - 2
    if queries in part.divided:
        first = part.start(queries)
        local["diagonal"] += first
        if local["lower_diagonal"] is not None:
            local["lower_diagonal"] += first
    if not (drops(call) and any(dim is not None for dim in part.divided)):
        return call.run(local)
    return _dropping(call, part, local)


def _dropping(call: Call, part: Partition, local: dict[str, Any]) -> Any:
    """The call where rows are divided; products are rounded once."""
    if "input" not in local:
        return _dropping_backward(call, part, local)
    dtype = local["dtype"] or local["input"].dtype
    wide = torch.promote_types(dtype, torch.float32)
    undropped = call.run(local | {"input": local["input"].to(dtype), "p": 0.0, "dtype": wide})
    results = undropped if isinstance(undropped, (list, tuple)) else [undropped]
    output = (results[0] * multiplier(call, part, results[0], columns=1)).to(dtype)
    if not isinstance(undropped, (list, tuple)):
        return output
    return [output, results[1].to(dtype), *results[2:]]


def _dropping_backward(call: Call, part: Partition, local: dict[str, Any]) -> Any:
    grad, y = local["grad_output"], local["probabilities"]
    factor = multiplier(call, part, grad, columns=1)
    if not call.overload._schema.returns:
        return call.run(local | {"grad_output": grad.mul_(factor), "p": 0.0})
    wide = {"grad_output": grad * factor, "probabilities": y.to(factor.dtype)}
    return call.run(local | wide | {"p": 0.0})


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
