"""Registers the ops' derivative formulas, runs an eager call with as few layers as it can have, and
keeps forward mode from being silently wrong.

An op has a formula in two places. ``torch.ops.fusedops.<op>`` has it at the dispatcher's autograd
key: compilers, modes, tensor subclasses and ``torch.func`` meet it there, at each of their levels.
An eager call on plain tensors that is recorded goes through :class:`EagerOp` instead: one
``torch.autograd.Function`` around the op's no-autograd variant, without the dispatcher's detour
through Python.

``torch.library.register_autograd`` takes no transform of ``torch.func``, and runs an op whose
inputs need no gradient without its formula, so that a forward-mode tangent on such an input would
be lost. Here reverse mode works under transforms, and forward mode raises.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import torch
from torch._C import _are_functorch_transforms_active
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from fusedops.ops._call import PLAIN, WATCHED, direct, state
from fusedops.ops._library import LIBRARY, OPS_WITH_VARIANT

Result = TypeVar("Result")

#: By op: its formula and what saves for it.
_FORMULAS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}


def _is_dual(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and forward_ad.unpack_dual(value).tangent is not None


def refuse_forward_mode(op: str, args: Iterable[Any]) -> None:
    """Raises where an argument carries a tangent, which would be lost."""
    # The level is -1 outside forward mode, where unpacking every argument would cost 1 us.
    if forward_ad._current_level >= 0 and any(map(_is_dual, args)):
        raise NotImplementedError(
            f"{op} has no forward-mode derivative (jvp, jacfwd): use reverse mode "
            "(torch.autograd.grad, vjp), or torch's own function for this call"
        )


# --- at the dispatcher --------------------------------------------------------------------------


def _apply_of(
    name: str, forward: Callable[..., Any], backward: Callable[..., Any]
) -> Callable[..., Any]:
    """``apply`` of an autograd function made of these two.

    It is that of the base class: ``Function.apply`` refuses transforms where there is no
    ``setup_context``, and inspects a signature at each call, for 10 us, where there is one.
    """
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function: type[torch.autograd.Function] = type(name, (torch.autograd.Function,), members)
    base: Any = super(torch.autograd.Function, function)  # torch's stubs know no `apply` of it
    apply: Callable[..., Any] = base.apply
    return apply


def _below_autograd(overload: Any, keys: Any) -> Callable[..., Any]:
    """The op as its formula runs it."""

    def run(*args: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return overload.redispatch(keys & torch._C._after_autograd_keyset, *args)

    return run


def _recorded(apply: Callable[..., Any], run: Callable[..., Any], *args: Any) -> Any:
    """``apply(run, *args)``, at one level of ``torch.func`` where there are any.

    An autograd function turns reverse and forward mode off in its forward pass. This level's
    autograd is passed by then, but the levels outside are yet to record the op, or to refuse it.
    """
    if not _are_functorch_transforms_active():
        return apply(run, *args)

    def run_outside(*args: Any) -> Any:
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
            return run(*args)

    with enable_single_level_autograd_function():
        return apply(run_outside, *args)


def register_autograd(
    op: str, backward: Callable[..., Any], setup_context: Callable[..., Any]
) -> None:
    """``backward(ctx, *grads)`` returns a gradient or None for each argument of ``fusedops::op``,
    from what ``setup_context(ctx, args, results)`` has saved; ``ctx.needs_input_grad`` has one
    entry, that counts for nothing, in front of the arguments'."""
    overload = getattr(torch.ops.fusedops, op).default
    defaults = tuple(argument.default_value for argument in overload._schema.arguments)
    _FORMULAS[op] = backward, setup_context
    apply = _apply_of(f"fusedops_{op}", *_function(backward, setup_context))

    def kernel(keys: Any, *args: Any) -> Any:
        refuse_forward_mode(f"fusedops::{op}", args)
        run = _below_autograd(overload, keys)
        if torch.is_grad_enabled() and any(_requires_grad(arg) for arg in args):
            # The dispatcher leaves out trailing arguments that have their default.
            return _recorded(apply, run, *args, *defaults[len(args) :])
        return run(*args)

    LIBRARY.impl(op, kernel, "Autograd", with_keyset=True)


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _function(
    backward: Callable[..., Any],
    setup_context: Callable[..., Any],
    returned: int | slice = slice(None),
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The forward and backward of an autograd function of (run, *args), which returns of several
    results those ``returned``."""

    def record(ctx: Any, run: Callable[..., Any], *args: Any) -> Any:
        results = run(*args)
        setup_context(ctx, args, results)
        return results if isinstance(results, torch.Tensor) else results[returned]

    def differentiate(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        return None, *backward(ctx, *grads)

    return record, differentiate


def register_autograd_of_lists(
    op: str, backward: Callable[..., Any], setup_context: Callable[..., Any]
) -> None:
    """The same for an op that takes lists of tensors, and has no arguments with defaults.

    ``backward`` returns the gradients of all tensors, one after the other as the lists are in the
    arguments; ``ctx.needs_input_grad`` has two entries, then one for each of them. Where
    ``torch.library.register_autograd`` takes lists apart it costs 100 us for 16 tensors.
    """
    overload = getattr(torch.ops.fusedops, op).default

    def record(ctx: Any, run: Callable[..., Any], args: tuple[Any, ...], *_: torch.Tensor) -> Any:
        results = run(*args)
        setup_context(ctx, args, results)
        return results

    def differentiate(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        return None, None, *backward(ctx, *grads)

    apply = _apply_of(f"fusedops_{op}", record, differentiate)

    def kernel(keys: Any, *args: Any) -> Any:
        lists = (arg if isinstance(arg, list) else [arg] for arg in args)
        tensors = [t for given in lists for t in given if isinstance(t, torch.Tensor)]
        refuse_forward_mode(f"fusedops::{op}", tensors)
        run = _below_autograd(overload, keys)
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            return _recorded(apply, run, args, *tensors)
        return run(*args)

    LIBRARY.impl(op, kernel, "Autograd", with_keyset=True)


# --- eager calls --------------------------------------------------------------------------------


def _is_converted(tensor: torch.Tensor) -> bool:
    """Whether autocast will convert a tensor, or a transform of ``torch.func`` left it behind."""
    if tensor.is_cuda and torch.is_autocast_enabled("cuda"):
        return True
    return torch._C._functorch.is_gradtrackingtensor(tensor)


class EagerOp(Generic[Result]):
    """``fusedops::op`` in the form that a call needs: ``EagerOp(op).on(*tensors)(*args)``.

    Result: the type of what a call returns.

    plain: the overload for calls that nothing records, without results that only a derivative
        needs; by default the no-autograd variant.
    returned: which of several results a call returns; those that it leaves out have no derivative,
        or a second derivative would miss theirs.
    """

    def __init__(
        self, op: str, plain: str | None = None, returned: int | slice = slice(None)
    ) -> None:
        overload = getattr(torch.ops.fusedops, op).default
        unrecorded = _unrecorded(op)
        self.dispatched: Callable[..., Result] = _some(overload, returned)
        self.plain: Callable[..., Result]
        if plain is None:
            self.plain = _some(unrecorded, returned)
        else:
            self.plain = direct(plain)
        self.recorded = self.dispatched
        if op in _FORMULAS:
            apply = _apply_of(f"fusedops_{op}", *_function(*_FORMULAS[op], returned))
            self.recorded = functools.partial(apply, unrecorded)

    def on(self, *tensors: torch.Tensor | None) -> Callable[..., Result]:
        """What runs a call on these tensors, of which the op says what is wrong with them."""
        if is_dynamo_compiling():
            return self.dispatched
        how = state(*tensors)
        if how == PLAIN:
            return self.plain
        if how == WATCHED or any([t is not None and _is_converted(t) for t in tensors]):
            return self.dispatched
        return self.recorded


def _some(run: Callable[..., Any], returned: int | slice) -> Callable[..., Any]:
    """``run`` as it is where all of its results are returned."""
    if returned == slice(None):
        return run
    return lambda *args: run(*args)[returned]


def _unrecorded(op: str) -> Callable[..., Any]:
    """``fusedops::op`` without its formula and with all its results."""
    if op in OPS_WITH_VARIANT:
        return direct(f"_{op}")
    call = direct(op)

    def run(*args: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return call(*args)

    return run


@functools.cache
def _gradient_forms(op: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return direct(f"_{op}"), getattr(torch.ops.fusedops, op).default


def gradient(op: str, *args: Any) -> Any:
    """Calls ``fusedops::op`` in a formula: its no-autograd variant where no second derivative is
    asked for."""
    plain, dispatched = _gradient_forms(op)
    is_seen = torch.is_grad_enabled() or is_dynamo_compiling() or state() == WATCHED
    return dispatched(*args) if is_seen else plain(*args)
