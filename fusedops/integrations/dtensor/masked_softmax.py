"""masked_softmax of DTensors.

Arguments that refer to positions in the whole tensor are adapted to a rank's part: it moves the
diagonals by its first query and its first key, the bounds of rows by its first key, and dropout.py
draws the random numbers of its rows. masked_softmax_keys.py computes rows whose keys are divided
among ranks. With dropout, whose random numbers belong to whole rows, such keys are gathered.
"""

from __future__ import annotations

from typing import Any

import torch

from fusedops.integrations.dtensor import masked_softmax_keys
from fusedops.integrations.dtensor.call import Call, Compute, Rule, writing
from fusedops.integrations.dtensor.dropout import drops, multiplier
from fusedops.integrations.dtensor.partition import Dims, Partition, Result, Space, aligned

_OF_SCORES = ("input", "out", "grad_output", "probabilities", "mask", "bias")
_OF_ROWS = ("start", "end", "sinks", "sink_probabilities")


def _space(call: Call) -> Space:
    deciding = ("input",) if "input" in call else ("probabilities", "grad_output")
    sizes = tuple(call[deciding[0]].shape)
    tensors: dict[str, Dims] = {}
    for names, shape in ((_OF_SCORES, sizes), (_OF_ROWS, sizes[:-1])):
        tensors |= {name: aligned(call[name], shape) for name in names if name in call}
    every = tuple(range(len(sizes)))
    results = tuple(
        Result(every[:-1] if "sink" in result.name else every)
        for result in call.overload._schema.returns
    )
    keys = frozenset(every[-1:])
    return Space(sizes, tensors, results, deciding, keys, keys if drops(call) else frozenset())


def _at_own_positions(part: Partition, local: dict[str, Any]) -> dict[str, Any]:
    """The arguments, with diagonals and bounds that count from this rank's first query and key."""
    queries, keys = (len(part.sizes) - back for back in (2, 1))
    first_query, first_key = (
        part.start(dim) if dim in part.divided else 0 for dim in (queries, keys)
    )
    moves = dict.fromkeys(("diagonal", "lower_diagonal"), first_query - first_key)
    moves |= dict.fromkeys(("start", "end"), -first_key)
    moved = {name: local[name] + by for name, by in moves.items() if local[name] is not None}
    return local | moved if first_query or first_key else local


def _on_own_queries(call: Call, part: Partition, local: dict[str, Any]) -> Any:
    local = _at_own_positions(part, local)
    if not (drops(call) and any(dim is not None for dim in part.divided)):
        return call.run(local)
    return _dropping(call, part, local)


def _on_own_keys(compute: Compute) -> Compute:
    def run(call: Call, part: Partition, local: dict[str, Any]) -> Any:
        return compute(call, part, _at_own_positions(part, local))

    return run


def _dropping(call: Call, part: Partition, local: dict[str, Any]) -> Any:
    """The call with dropout, for this rank's rows; products with its factor are rounded once."""
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
    forward, backward = map(
        _on_own_keys, (masked_softmax_keys.forward, masked_softmax_keys.backward)
    )
    returned = {
        **dict.fromkeys(("", "_dropout", "_sinks"), forward),
        **dict.fromkeys(("_backward", "_sinks_backward", "_dropout_backward"), backward),
    }
    rules = {
        f"masked_softmax{of}": Rule(_space, _on_own_queries, split)
        for of, split in returned.items()
    }
    for of, written, split in (
        ("_out", "out", forward),
        ("_", "input", forward),
        ("_backward_", "grad_output", backward),
        ("_dropout_backward_", "grad_output", backward),
    ):
        split = writing(split, written)
        rules[f"masked_softmax{of}"] = Rule(_space, _on_own_queries, split, written)
    return rules


RULES = _rules()
