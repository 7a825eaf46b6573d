"""Computes stacks of softmaxes and norms of DTensors. Rows that are divided among ranks are
gathered, because a stacked op is there to save kernel launches, and each step of a computation on
divided rows would be a launch of its own."""

from __future__ import annotations

from fusedops.integrations.dtensor.call import Call, Rule
from fusedops.integrations.dtensor.partition import Dims, Result, Space


def _space(call: Call) -> Space:
    """Returns the Space that describes a call. Its dimensions are those of one input, and the new
    dimension of the stack corresponds to none of them."""
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
