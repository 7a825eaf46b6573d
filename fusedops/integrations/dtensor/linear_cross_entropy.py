"""Makes linear_cross_entropy refuse DTensors. It computes one chunk of rows after the other, and
would have to gather each chunk of a DTensor."""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor import DTensor


def refuse(
    cls: type, overload: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raises an error that says what to call instead."""
    names = [argument.name for argument in overload._schema.arguments]
    named = {**dict(zip(names, args, strict=False)), **kwargs}
    name = next(name for name, value in named.items() if isinstance(value, DTensor))
    raise NotImplementedError(
        f"linear_cross_entropy: {name} is a DTensor, wanted plain tensors; make it with "
        ".full_tensor(), or call torch.nn.functional.linear and "
        "fusedops.integrations.dtensor.cross_entropy, which take DTensors"
    )
