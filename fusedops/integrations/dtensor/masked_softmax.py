"""Computes masked_softmax of DTensors.

Arguments that refer to positions in the whole tensor are adapted to a rank's part. The rank moves
the diagonals by its first query and its first key, and the bounds of rows by its first key.
dropout.py draws the random numbers of the rank's rows. masked_softmax_keys.py computes rows whose
keys are divided among ranks. With dropout, whose random numbers belong to whole rows, the keys are
gathered.
"""

from __future__ import annotations

from typing import Any

import torch

from fusedops.integrations.dtensor.call import Call, Rule
from fusedops.integrations.dtensor.dropout import draws_for_part, drops, multiplier
from fusedops.integrations.dtensor.masked_softmax_keys import at_local_positions, backward, forward
from fusedops.integrations.dtensor.partition import Dims, Partition, Result, Space, aligned

#: The arguments whose dimensions are those of the scores, and those without the last of these.
_OF_SCORES = ("input", "out", "grad_output", "probabilities", "mask", "bias")
_OF_ROWS = ("start", "end", "sinks", "sink_probabilities")


def _space(call: Call) -> Space:
    """Returns the Space that describes a call. With dropout every rank needs all keys."""
    deciding = ("input",) if "input" in call else ("probabilities", "grad_output")
    sizes = tuple(call[deciding[0]].shape)
    tensors: dict[str, Dims] = {}
    for names, shape in ((_OF_SCORES, sizes), (_OF_ROWS, sizes[:-1])):
        tensors |= {name: aligned(call[name], shape) for name in names if name in call}
    every = tuple(range(len(sizes)))
    results = tuple(Result(every[:-1] if "sink" in name else every) for name in call.results)
    keys = frozenset(every[-1:])
    return Space(sizes, tensors, results, deciding, keys, keys if drops(call) else frozenset())


def _on_local_queries(call: Call, part: Partition, local: dict[str, Any]) -> Any:
    """Returns the results for this rank's rows, where each rank has all keys of its rows."""
    local = at_local_positions(part, local)
    return _dropping(call, part, local) if draws_for_part(call, part) else call.run(local)


def _dropping(call: Call, part: Partition, local: dict[str, Any]) -> Any:
    """Returns the results of the op without dropout for this rank's rows, with the probabilities
    multiplied by the factors of dropout for these rows. The op is asked for float32 or wider, so
    that only the product is rounded."""
    if "input" not in local:
        return _dropping_backward(call, part, local)
    dtype = local["dtype"] or local["input"].dtype
    wide = torch.promote_types(dtype, torch.float32)
    undropped = call.run(local | {"input": local["input"].to(dtype), "p": 0.0, "dtype": wide})
    output, *others = undropped if isinstance(undropped, (list, tuple)) else [undropped]
    dropped = output * multiplier(call, part, output, row_dim_count=1)
    return [dropped, *others] if others else dropped


def _dropping_backward(call: Call, part: Partition, local: dict[str, Any]) -> Any:
    """Does what :func:`_dropping` does, for a backward op, which gets grad_output multiplied by the
    factors of dropout. For an op that writes into grad_output, this product is computed in
    place."""
    grad, y = local["grad_output"], local["probabilities"]
    factor = multiplier(call, part, grad, row_dim_count=1)
    if not call.results:  # the op writes into grad_output
        return call.run(local | {"grad_output": grad.mul_(factor), "p": 0.0})
    wide = {"grad_output": grad * factor, "probabilities": y.to(factor.dtype)}
    return call.run(local | wide | {"p": 0.0})


#: Part of the name of an op after "masked_softmax" -> the function that computes rows whose keys
#: are divided, and the argument that the op writes into, or None.
_OPS = {
    **dict.fromkeys(("", "_dropout", "_sinks"), (forward, None)),
    **dict.fromkeys(("_backward", "_sinks_backward", "_dropout_backward"), (backward, None)),
    "_out": (forward, "out"),
    "_": (forward, "input"),
    **dict.fromkeys(("_backward_", "_dropout_backward_"), (backward, "grad_output")),
}
RULES = {f"masked_softmax{op}": Rule(_space, _on_local_queries, *how) for op, how in _OPS.items()}
