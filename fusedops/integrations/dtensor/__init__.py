"""Registers rules by which the ops take DTensors, as torch's own ops do. Only linear_cross_entropy
refuses them.

The import of this package registers the rules. The first call of an op with a DTensor imports it
(`first_use.py`). docs/distributed.md says what each rank computes, and which bytes it sends.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from fusedops.integrations.dtensor import dropout, masked_softmax, norm, softmax, stack
from fusedops.integrations.dtensor.call import Call, Rule, run
from fusedops.integrations.dtensor.cross_entropy import RULES as LOSSES
from fusedops.integrations.dtensor.cross_entropy import cross_entropy
from fusedops.ops.registration.libraries import LIBRARY, OPS

__all__ = ["cross_entropy"]

_RULES: dict[str, Rule] = {
    **softmax.RULES,
    **masked_softmax.RULES,
    **dropout.RULES,
    **LOSSES,
    **norm.RULES,
    **stack.RULES,
}


def _register(op: str, rule: Rule) -> None:
    def on_dtensors(
        cls: type, overload: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        # Autograd has recorded the op's own call already, so that the calls by which the rule
        # computes it must not be recorded too.
        with torch.no_grad():
            return run(Call.of(overload, args, kwargs), rule)

    torch.library.register_torch_dispatch(f"fusedops::{op}", DTensor, on_dtensors, lib=LIBRARY)


def _refuse_linear_cross_entropy(
    cls: type, overload: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raises an error that says what to call instead. The op computes one chunk of rows after the
    other, and would have to gather each chunk of a DTensor."""
    names = [argument.name for argument in overload._schema.arguments]
    named = {**dict(zip(names, args, strict=False)), **kwargs}
    name = next(name for name, value in named.items() if isinstance(value, DTensor))
    raise NotImplementedError(
        f"linear_cross_entropy: {name} is a DTensor, wanted plain tensors; make it with "
        ".full_tensor(), or call torch.nn.functional.linear and "
        "fusedops.integrations.dtensor.cross_entropy, which take DTensors"
    )


for _op in OPS:
    # A variant of an op has the op's rule.
    if _op.removeprefix("_") in _RULES:
        _register(_op, _RULES[_op.removeprefix("_")])
    if "linear_cross_entropy" in _op:
        torch.library.register_torch_dispatch(
            f"fusedops::{_op}", DTensor, _refuse_linear_cross_entropy, lib=LIBRARY
        )
