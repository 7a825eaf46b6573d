"""What a derivative formula needs of a call, if that is arguments and results as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from fusedops.ops.registration.libraries import argument_names

#: An op's only result, if the schema gives it no name.
RESULT = "result"
_DTYPE = ".dtype"

#: Stores in ``ctx`` what a formula needs of ``(args, results)``.
SetupContext = Callable[[Any, tuple[Any, ...], Any], None]


def _setting(values: tuple[Any, ...], index: int) -> Any:
    """Returns a value, or the dtype of the tensor ``~index``. A list is copied, because the caller
    may change it."""
    value = values[index] if index >= 0 else values[~index].dtype
    return tuple(value) if isinstance(value, list) else value


class Saved(NamedTuple):
    """Names the arguments and results of an op that its derivative formula needs.

    tensors: the tensors, or arguments that are None in their place. The formula finds them in
        ``ctx.saved_tensors``.
    settings: the arguments that are no tensors, or "name.dtype", which is the dtype of a tensor.
        The formula finds them in ``ctx.settings``.
    constants: the results that are not differentiable.

    The formula of an op with several results gets None in place of the gradient of a result that
    has none. That of an op with one result gets zeros.
    """

    tensors: Sequence[str]
    settings: Sequence[str] = ()
    constants: Sequence[str] = ()

    def indices(self, op: str) -> tuple[tuple[int, ...], ...]:
        """Returns the position of each name among the arguments and, behind these, the results of
        an op, in the order of the fields. A dtype has ``~i``, where its tensor has ``i``."""
        returns = getattr(torch.ops.fusedops, op).default._schema.returns
        names = [*argument_names(op), *(result.name or RESULT for result in returns)]

        def index(name: str) -> int:
            tensor = name.removesuffix(_DTYPE)
            return names.index(name) if tensor == name else ~names.index(tensor)

        return tuple(tuple(map(index, field)) for field in self)

    def setup_context(self, op: str) -> SetupContext:
        """Returns a function that stores what the formula needs of a call of an op."""
        tensors, settings, constants = self.indices(op)

        def setup_context(ctx: Any, args: tuple[Any, ...], results: Any) -> None:
            has_one = isinstance(results, torch.Tensor)
            values = (*args, results) if has_one else (*args, *results)
            ctx.settings = tuple(_setting(values, i) for i in settings)
            ctx.save_for_backward(*(values[i] for i in tensors))
            if not has_one:
                ctx.mark_non_differentiable(*(values[i] for i in constants))
                ctx.set_materialize_grads(False)

        return setup_context
