"""Names the arguments of a call of an op."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch

from fusedops.ops.registration.call import tensors_among
from fusedops.ops.registration.libraries import check_defined

MaybeTensor = torch.Tensor | None


class Signature:
    """Holds what the schema of an op says: the names of its arguments, of the tensors among them
    and of the other arguments, the settings, and of its results."""

    def __init__(self, name: str) -> None:
        check_defined(name)
        self.name = name
        self.overload = getattr(torch.ops.fusedops, name).default
        self.names = [argument.name for argument in self.overload._schema.arguments]
        self.tensors = tensors_among(name)(self.names)
        self.settings = [name for name in self.names if name not in self.tensors]
        self.results = [result.name for result in self.overload._schema.returns]

    @cached_property
    def bind(self) -> Callable[..., Any]:
        """Returns the arguments of a call as a named tuple, with the defaults of the schema."""
        arguments = self.overload._schema.arguments
        defaults = [
            argument.default_value for argument in arguments if argument.has_default_value()
        ]
        return namedtuple(self.name, self.names, defaults=defaults)

    def of_call(self, function: Callable[[Any], Any]) -> Callable[..., Any]:
        """Returns ``function``, which takes what :attr:`bind` returns, as a function of the op's
        arguments."""
        return lambda *args, **kwargs: function(self.bind(*args, **kwargs))

    def needs_gradient(self, ctx: Any, name: str) -> bool:
        """Whether a formula must return the gradient of the argument. The first entry of
        ``ctx.needs_input_grad`` is skipped, as :func:`register_autograd` says."""
        needs: bool = ctx.needs_input_grad[1 + self.tensors.index(name)]
        return needs

    def gradients(self, **of: MaybeTensor) -> tuple[MaybeTensor, ...]:
        """Returns ``of``, gradients by name, in the order of the op's tensors; None for those that
        are missing."""
        return tuple(map(of.get, self.tensors))
