"""Computes masked_softmax where the keys of each row are divided among ranks.

Each rank computes the scores of its keys by torch's own functions, in float32 or wider. In the
forward pass the ranks exchange the maximum and the sum of their parts, as in softmax.py. In the
backward pass they all-reduce the sum over the keys that occurs in the gradient's formula
(fusedops/ops/masked_softmax.py). A sink, one more score of each row, counts as one more part.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from fusedops.integrations.dtensor.call import Call
from fusedops.integrations.dtensor.partition import Partition
from fusedops.integrations.dtensor.softmax import local_statistics, merged
from fusedops.ops.softmax_composites import masked_gradient, masked_scores

ops = torch.ops.fusedops

_KEYS = -1


def at_local_positions(part: Partition, local: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments with diagonals and bounds that are relative to this rank's first query
    and first key."""
    first_query, first_key = (part.start(len(part.sizes) - back) for back in (2, 1))
    moves = dict.fromkeys(("diagonal", "lower_diagonal"), first_query - first_key)
    moves |= dict.fromkeys(("start", "end"), -first_key)
    moved = {name: local[name] + by for name, by in moves.items() if local[name] is not None}
    return local | moved if first_query or first_key else local


def forward(call: Call, part: Partition, local: dict[str, Any]) -> Any:
    """Returns the op's results for this rank's keys."""
    # The ops that write into an argument have no argument `dtype`.
    arguments = SimpleNamespace(**{"dtype": None} | at_local_positions(part, local))
    scores, hides_all = masked_scores(arguments)
    of_part = [*local_statistics(scores, _KEYS)]
    if arguments.zero_masked_rows:
        of_part.append(hides_all.to(scores.dtype))
    maxima, sums, *hides = part.all_gather(of_part, _keys(part))
    max, sum = merged(*_with_sink(arguments.sinks, maxima, sums))
    y = ops.softmax_apply.default(scores, max, sum, _KEYS, arguments.dtype or arguments.input.dtype)
    if arguments.zero_masked_rows:
        y = y.masked_fill(hides[0].amin(0) > 0, 0)
    by_name = {"output": y, "probabilities": y}
    if "sink_probabilities" in call.results:
        by_name["sink_probabilities"] = ((_column(arguments.sinks, max) - max).exp() / sum).squeeze(
            -1
        )
        # Without dropout the op returns the probabilities only as its output.
        by_name["probabilities"] = y.new_empty(0) if arguments.seed is None else y
    return _results(call, y, by_name)


def _with_sink(
    sinks: torch.Tensor | None, maxima: torch.Tensor, sums: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the maximum and the sum of exponentials of each part of the rows, with the sinks as
    one more part."""
    if sinks is None:
        return maxima, sums
    sink = _column(sinks, maxima[0]).unsqueeze(0)
    return torch.cat([maxima, sink]), torch.cat([sums, torch.ones_like(sink)])


def _column(sinks: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Returns the sinks in the shape and dtype of ``like``, a tensor with one column."""
    return sinks.to(like.dtype).unsqueeze(-1).expand_as(like)


def backward(call: Call, part: Partition, local: dict[str, Any]) -> Any:
    """Returns the gradients for this rank's keys. There is no dropout, with which the keys would
    have been gathered."""
    arguments = SimpleNamespace(**at_local_positions(part, local))
    wide = torch.promote_types(arguments.probabilities.dtype, torch.float32)
    # In products of g and y, torch converts g to the dtype of y, which is the wider one.
    g, y = arguments.grad_output, arguments.probabilities.to(wide)
    total = part.all_reduce((g * y).sum(_KEYS, keepdim=True), _keys(part))
    grad = masked_gradient(arguments, g, y, total)
    by_name = {"grad_input": grad}
    if "grad_sinks" in call.results:
        by_name["grad_sinks"] = arguments.sink_probabilities * -total.squeeze(_KEYS)
    return _results(call, grad, by_name)


def _keys(part: Partition) -> tuple[int]:
    return (len(part.sizes) - 1,)


def _results(call: Call, only: torch.Tensor, by_name: dict[str, torch.Tensor]) -> Any:
    """Returns ``only`` if the op has a single result, else the results in the op's order. A result
    that would share memory with the first one is cloned, since an op must not return aliases."""
    if len(call.results) < 2:
        return only
    first, *others = (by_name[name] for name in call.results)
    return [first, *(other.clone() if other is first else other for other in others)]
