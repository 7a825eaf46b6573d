"""The norms composed of torch's own operators, for forward-mode AD (forward_mode.py).

A backward op takes the statistics as arguments; these have tangents because the composite of the
forward op computed them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from fusedops.ops.checks import wide
from fusedops.ops.norm_kinds import NORM_OPS, NormOp
from fusedops.ops.norm_second_order import (
    moved_back,
    multiplier,
    normalized_rank,
    projection,
    sum_of_rows,
    with_dim_last,
)
from fusedops.ops.registration.forward_mode import register_composite

Named = dict[str, Any]
Results = tuple[torch.Tensor, ...]


def _norm(op: NormOp, input: torch.Tensor, named: Named) -> dict[str, torch.Tensor]:
    """Returns the output, and the statistics that the kind has, by their names."""
    kind, weight, bias = op.kind, named["weight"], named.get("bias")
    dims, x = tuple(range(-normalized_rank(named), 0)), wide(input)
    statistics = {"mean": x.mean(dims, keepdim=True)} if kind.has_mean else {}
    centered = x - statistics["mean"] if kind.has_mean else x
    statistics["rstd"] = kind.scale.differentiable_rstd(centered, dims, named["eps"])
    output = centered * statistics["rstd"]
    if named.get("rounds_normalized"):
        output = output.to(input.dtype).to(x.dtype)
    if weight is not None:
        output = output * (weight.to(x.dtype) + named.get("weight_offset", 0.0))
    if bias is not None:
        output = output + bias.to(x.dtype)
    return {"output": output, **statistics}


def _gradients(op: NormOp, input: torch.Tensor, named: Named) -> dict[str, torch.Tensor]:
    """Returns the gradients of input, weight and bias, by the names of the results."""
    rank, rstd, weight = normalized_rank(named), named["rstd"], named["weight"]
    project = projection(op.name, input, named.get("mean"), rstd, rank, named.get("eps", 0.0))
    g = dy = named["grad_output"].to(rstd.dtype)
    if weight is not None:
        g = dy * (weight.to(rstd.dtype) + named.get("weight_offset", 0.0))
    return {
        "grad_input": project(g),
        "grad_weight": sum_of_rows(dy * project.n, rank),
        "grad_bias": sum_of_rows(dy, rank),
    }


# --- the ops ------------------------------------------------------------------------------------


def _forward(op: NormOp, call: Any) -> Results:
    """Returns the results of a norm of its input or of dropout(input) + residual."""
    named = call._asdict()
    dim, input = named.get("dim"), _sum(named) if op.has_residual else named["input"]
    results = _norm(op, with_dim_last(input, dim), named) | {"sum": input}
    return tuple(moved_back(results[name], input, dim) for name in op.results)


def _sum(named: Named) -> torch.Tensor:
    """Returns dropout(input) + residual, in the dtype that is normalised."""
    input, residual = named["input"], named["residual"]
    kept = wide(input)
    if named["seed"] is not None and named["p"] > 0:
        kept = kept * multiplier(input, named["normalized_shape"], named["p"], named["seed"])
    return (kept + wide(residual)).to(torch.promote_types(input.dtype, residual.dtype))


def _backward(op: NormOp, call: Any) -> Results:
    """Returns the gradients that a backward op returns, also those that are not needed."""
    named = call._asdict()
    dim, input = named.get("dim"), named[op.input]
    of_rows = ("grad_output", "mean", "rstd")
    moved = {name: with_dim_last(named[name], dim) for name in of_rows if name in named}
    grads = _gradients(op, with_dim_last(input, dim), named | moved)
    grads["grad_input"] = moved_back(grads["grad_input"], input, dim)
    if op.has_residual:
        total = grads["grad_input"]
        if named["grad_sum"] is not None:
            total = total + named["grad_sum"]
        grads |= {"grad_input": total, "grad_residual": total}
        if named["p"] > 0:
            dropout = named["normalized_shape"], named["p"], named["seed"]
            grads["grad_input"] = total * multiplier(total, *dropout)
    return tuple(grads[name] for name in op.results)


for _op in NORM_OPS:
    if not _op.name.startswith("_"):
        register_composite(_op.name, partial(_backward if _op.is_backward else _forward, _op))
