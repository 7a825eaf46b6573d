"""dropout as an op: fake kernel, derivative formula and vmap rule.

Formula: y = m x, where m is dropout's factor for each element, 0 or 1 / (1 - p). It depends on the
seed and the element's place alone, so that the gradient is dropout of dy with the same seed, and
nothing but the seed is saved.

With relu, y = m max(x, 0). Where y > 0, m is 1 / (1 - p) and x is above 0. So the gradient is
dy / (1 - p) there and 0 elsewhere, and only y is saved, which a linear layer after it saves too.
Where y is NaN, which only x that are NaN or infinite give, the gradient is dy / (1 - p) as well.
"""

from __future__ import annotations

from typing import Any

import torch

from fusedops.ops import checks
from fusedops.ops.registration import vmap
from fusedops.ops.registration.autograd import gradient, register_autograd
from fusedops.ops.registration.forward_mode import register_composite
from fusedops.ops.registration.signature import MaybeTensor
from fusedops.ops.registration.variants import register_fake

ops = torch.ops.fusedops


def multiplier(p: float, seed: MaybeTensor, like: torch.Tensor) -> torch.Tensor:
    """Returns m of the formula for elements of ``like``, in its dtype or float32 if that is
    16-bit."""
    factors: torch.Tensor = ops._dropout.default(checks.wide(torch.ones_like(like)), p, seed)
    return factors


def _fake(call: Any) -> torch.Tensor:
    op, input = "dropout", call.input
    checks.check_dtype_of(op, "input", input)
    checks.check_seed(op, call.p, call.seed, ("input", input))
    checks.check_cols(op, input.shape[-1] if input.dim() else 1)
    return torch.empty_like(input, memory_format=torch.contiguous_format)


def _formula(ctx: Any, grad_output: torch.Tensor) -> tuple[MaybeTensor, ...]:
    (output, seed), (p, relu) = ctx.saved_tensors, ctx.settings
    if relu:
        scale = 1 / (1 - p) if p < 1 else 0.0
        return torch.ops.aten.threshold_backward(grad_output * scale, output, 0), None
    return gradient("dropout", grad_output, p, seed, False), None


def _setup(ctx: Any, args: tuple[Any, ...], output: torch.Tensor) -> None:
    _, p, seed, relu = args
    ctx.settings = p, relu
    ctx.save_for_backward(output if relu else None, None if relu else seed)


def _composite(call: Any) -> torch.Tensor:
    x = checks.wide(call.input)
    kept = multiplier(call.p, call.seed, call.input.detach())
    return (x.relu() if call.relu else x) * kept


register_fake("dropout", _fake)
register_autograd("dropout", _formula, _setup)
register_composite("dropout", _composite)
# Random numbers depend on a row's index in the call, so that in one call for the batch, slices with
# the same seed would get different numbers.
vmap.register_loop("dropout")
