"""Registers the ops' derivative formulas, and runs eager calls through as few layers as possible.

A formula is registered in two places. ``torch.ops.fusedops.<op>`` has it at the dispatcher's
autograd key, which compilers, modes, tensor subclasses and ``torch.func`` use at each of their
levels. An eager call on plain tensors that autograd records goes through :func:`eager_op` instead:
one ``torch.autograd.Function`` around ``_<op>``, the op's no-autograd variant, without the
dispatcher's detour through Python.

``torch.library.register_autograd`` is not used because it does not support the transforms of
``torch.func``, and because it skips the formula where no input requires grad, which would lose a
forward-mode tangent of the input. Here reverse mode works under transforms, and a call that has a
tangent runs as the op's composite (forward_mode.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._C import _are_functorch_transforms_active
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction
from torch.compiler import is_dynamo_compiling

from fusedops.ops.registration.call import (
    WATCHED,
    by_path,
    call_path,
    direct,
    first,
    saving,
    tensors_among,
)
from fusedops.ops.registration.forward_mode import composite_results, has_tangent
from fusedops.ops.registration.libraries import (
    LIBRARY,
    OPS_WITH_VARIANT,
    argument_names,
    function_name,
)
from fusedops.ops.registration.saved import Saved, SetupContext
from fusedops.ops.registration.schema_errors import explained
from fusedops.ops.registration.signature import Signature

#: Holds each op's derivative formula, and what it needs of a call or a function that stores it.
_FORMULAS: dict[str, tuple[Callable[..., Any], Saved | SetupContext]] = {}


# --- at the dispatcher --------------------------------------------------------------------------


def _apply_of(
    op: str, run: Callable[..., Any] | None = None, returned: int | None = None
) -> Callable[..., Any]:
    """Returns the ``apply`` of an autograd function that runs ``run(*args)`` and has the op's
    formula. It takes the tuple ``args`` or, where ``run`` is None, ``(run, args)``, and then the
    tensors among the arguments. If all arguments were passed one by one, torch would take 50 ns for
    each to find out that it is no tensor. It returns the first ``returned`` results, as call.first
    does.

    The function is of the class that torch derives those of one level of ``torch.func`` from.
    ``Function.apply`` refuses transforms if there is no ``setup_context``; if there is one, it
    inspects a signature at each call, which takes 10 us.
    """
    backward, _ = _FORMULAS[op]
    forward = _forward_of(op, run, returned)

    def differentiate(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        return None, *backward(ctx, *grads)

    members = {
        "forward": staticmethod(forward),
        "backward": staticmethod(differentiate),
        "_compiled_autograd_key": staticmethod(torch.autograd.Function._compiled_autograd_key),
    }
    function: Any = type(f"fusedops_{op}", (_SingleLevelFunction,), members)
    apply: Callable[..., Any] = function.apply
    return apply


def _forward_of(
    op: str, run: Callable[..., Any] | None, returned: int | None
) -> Callable[..., Any]:
    """Returns the forward pass of an autograd function, which :func:`_apply_of` describes. It
    stores in ``ctx`` what the op's formula needs."""
    _, saved = _FORMULAS[op]
    if isinstance(saved, Saved):
        forward = None if run is None else saving(run, op, saved, returned)
        if forward is not None:
            return forward
        setup_context = saved.setup_context(op)
    else:
        setup_context = saved
    selected = 0 if returned == 1 else slice(returned)

    def forward_by_python(ctx: Any, call: tuple[Any, ...], *_: torch.Tensor | None) -> Any:
        run_now, args = call if run is None else (run, call)
        results = run_now(*args)
        setup_context(ctx, args, results)
        return results if isinstance(results, torch.Tensor) else results[selected]

    return forward_by_python


def _below_autograd(overload: Any, keys: Any) -> Callable[..., Any]:
    """Returns a function that calls the op's next kernel below the autograd key."""

    def run(*args: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return overload.redispatch(keys & torch._C._after_autograd_keyset, *args)

    return run


def _recorded(
    apply: Callable[..., Any], run: Callable[..., Any], args: tuple[Any, ...], tensors: list[Any]
) -> Any:
    """Returns ``apply((run, args), *tensors)``, at a single level of ``torch.func`` if a transform
    is active.

    An autograd function disables reverse and forward mode in its forward pass. That is right for
    the current level, but the outer levels still have to record the op or refuse it, so both modes
    are enabled again.
    """
    if not _are_functorch_transforms_active():
        return apply((run, args), *tensors)

    def run_outside(*args: Any) -> Any:
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
            return run(*args)

    with enable_single_level_autograd_function():
        return apply((run_outside, args), *tensors)


def register_autograd(
    op: str,
    backward: Callable[..., Any],
    saved: Saved | SetupContext,
    other_op: Callable[[Any], Any] | None = None,
) -> None:
    """Registers a derivative formula for ``fusedops::op``.

    ``backward(ctx, *grads)`` returns a gradient or None for each tensor among the arguments, also
    for one that is None and for each element of a list. What it needs of the call is stored in
    ``ctx``, as ``saved`` says, or by ``saved(ctx, args, results)`` if that is a function.
    ``ctx.needs_input_grad`` has one unused entry before those of the tensors.
    ``other_op(call)`` returns NotImplemented where this formula serves the call, whose arguments it
    gets as a named tuple, and otherwise the results of the op whose formula does.
    """
    _FORMULAS[op] = backward, saved
    bind = Signature(op).bind

    apply = _apply_of(op)

    def recorded(run: Callable[..., Any], args: tuple[Any, ...], tensors: list[Any]) -> Any:
        # The call may need a gradient that only the formula of another op has.
        results = NotImplemented if other_op is None else other_op(bind(*args))
        return _recorded(apply, run, args, tensors) if results is NotImplemented else results

    _register_kernel(op, recorded)


def register_composed_autograd(op: str, composed: Callable[[Any], Any]) -> None:
    """Registers that a call of ``fusedops::op`` that autograd records is ``composed(call)``, which
    gets the arguments as a named tuple, and calls ops that have formulas."""
    bind = Signature(op).bind
    _register_kernel(op, lambda run, args, tensors: composed(bind(*args)))


def _register_kernel(op: str, recorded: Callable[..., Any]) -> None:
    """Registers the kernel of ``fusedops::op`` at the autograd key. For a call that autograd
    records it returns ``recorded(run, args, tensors)``: ``run`` is the op's kernel below the key,
    ``args`` are all arguments, and ``tensors`` those among them that are tensors."""
    overload = getattr(torch.ops.fusedops, op).default
    defaults = tuple(argument.default_value for argument in overload._schema.arguments)
    tensors_of = tensors_among(op)

    # The dispatcher omits trailing arguments that have their default.
    def kernel(keys: Any, *args: Any) -> Any:
        run, all_args = _below_autograd(overload, keys), (*args, *defaults[len(args) :])
        tensors = tensors_of(all_args)
        if has_tangent(tensors):
            return composite_results(op, all_args)
        if torch.is_grad_enabled() and any(map(requires_grad, tensors)):
            return recorded(run, all_args, tensors)
        return run(*args)

    LIBRARY.impl(op, kernel, "Autograd", with_keyset=True)


def requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


# --- eager calls --------------------------------------------------------------------------------


def eager_op(op: str, plain: str | None = None, returned: int | None = None) -> Callable[..., Any]:
    """Returns the cheapest form of ``fusedops::op``, a function of all its arguments, by position.

    plain: the op for calls that autograd does not record, without the results that only a
        derivative needs; by default the no-autograd variant. The returned function takes the
        arguments of this op; ``op`` may lack one of them.
    returned: how many of the op's results a call returns, as in call.first. The others must not be
        differentiable, or second derivatives would lack their gradients.
    """
    overload = getattr(torch.ops.fusedops, op).default
    select = _argument_selector(op, plain or op)
    apply = _apply_of(op, _unrecorded(op), returned)
    dispatched = first(returned, overload)
    by_schema = explained(op, overload, _with_known_sizes(overload, dispatched))
    eager = by_path(
        plain or op,
        _unrecorded(op, returned) if plain is None else direct(plain, returned),
        apply if select is None else lambda args, *tensors: apply(select(args), *tensors),
        by_schema if select is None else lambda *args: by_schema(*select(args)),
    )

    def call(*args: Any) -> Any:
        if is_dynamo_compiling():
            return dispatched(*(args if select is None else select(args)))
        return eager(*args)

    return call


def _with_known_sizes(overload: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """Returns ``call``, a way to call ``overload``, for torch.jit.trace too. To it sizes are
    tensors, and it fails where a list of them is an argument of an op that is not torch's own. The
    trace keeps the numbers, of which int() warns."""
    are_sizes = [str(argument.type) == "List[int]" for argument in overload._schema.arguments]

    def known(arg: Any, is_sizes: bool) -> Any:
        if not is_sizes or not isinstance(arg, (list, tuple)):
            return arg
        return [int(size) if isinstance(size, torch.Tensor) else size for size in arg]

    def run(*args: Any) -> Any:
        return call(*(map(known, args, are_sizes) if torch._C._is_tracing() else args))

    return run if any(are_sizes) else call


def _argument_selector(op: str, plain: str) -> Callable[[tuple[Any, ...]], tuple[Any, ...]] | None:
    """Returns a function that selects the arguments of ``op`` from those of ``plain``, which has
    one more, or None if both have the same."""
    names, names_of_plain = map(argument_names, (op, plain))
    if names == names_of_plain:
        return None
    (extra,) = (i for i, name in enumerate(names_of_plain) if name not in names)
    return lambda args: (*args[:extra], *args[extra + 1 :])


def through_dispatcher(op: str) -> Callable[..., Any]:
    """Returns ``fusedops::op`` with errors that name its arguments, for calls to which a few
    microseconds do not matter. Unlike :func:`eager_op`, it lets autocast see the call on the CPU
    too."""
    overload = getattr(torch.ops.fusedops, op).default
    by_schema = explained(function_name(op), overload, overload)

    def run(*args: Any) -> Any:
        return overload(*args) if is_dynamo_compiling() else by_schema(*args)

    return run


def _unrecorded(op: str, returned: int | None = None) -> Callable[..., Any]:
    """Returns ``fusedops::op`` without its derivative formula."""
    if op in OPS_WITH_VARIANT:
        return direct(f"_{op}", returned)
    call = direct(op, returned)

    def run(*args: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return call(*args)

    return run


@functools.cache
def _gradient_forms(op: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return direct(f"_{op}"), getattr(torch.ops.fusedops, op).default


def gradient(op: str, *args: Any) -> Any:
    """Calls ``fusedops::op`` inside a formula: as its no-autograd variant, unless a second
    derivative is recorded or a compiler, mode or transform has to see the call."""
    if is_dynamo_compiling():  # compiled autograd traces formulas, and not how a call is bound
        return getattr(torch.ops.fusedops, op).default(*args)
    plain, dispatched = _gradient_forms(op)
    is_dispatched = torch.is_grad_enabled() or call_path() == WATCHED
    return dispatched(*args) if is_dispatched else plain(*args)


def is_observed() -> bool:
    """Whether a compiler, mode or transform has to see the calls of a formula."""
    return is_dynamo_compiling() or call_path() == WATCHED
