"""Stacks of DTensors. Rows that are divided among ranks are gathered: a stack saves launches, which
the steps of a divided row would lose again."""

from __future__ import annotations

from fusedops.integrations.dtensor.call import Call, Rule
from fusedops.integrations.dtensor.partition import Dims, Result, Space


def _space(call: Call) -> Space:
    """Describes a call by the dimensions of one input; the stack's new one corresponds to none."""
    sizes = tuple(call["inputs"][0].shape)
    every: Dims = tuple(range(len(sizes)))
    slot = call["stack_dim"] % (len(sizes) + 1)
    stacked = (*every[:slot], None, *every[slot:])
    reduced = call.reduced_dims(len(sizes))
    statistic: Dims = (None, *(None if dim in reduced else dim for dim in every))
    tensors = {"inputs": every, "grad_output": stacked, "mean": statistic, "rstd": statistic}
    tensors |= {"weights": reduced, "biases": reduced}
    of = {
        "grad_inputs": Result((None, *every)),
        "grad_weights": Result((None, *reduced), summed=True),
        "grad_biases": Result((None, *reduced), summed=True),
        "mean": Result(statistic),
        "rstd": Result(statistic),
    }
    results = tuple(of.get(name, Result(stacked)) for name in call.results)
    deciding = tuple(name for name in ("inputs", "grad_output") if name in call)
    return Space(sizes, tensors, results, deciding, frozenset(reduced))


RULES = {
    op: Rule(_space)
    for op in (
        "stack_softmax",
        "stack_log_softmax",
        "stack_layer_norm",
        "stack_layer_norm_backward",
    )
}
