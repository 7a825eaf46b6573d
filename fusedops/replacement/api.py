"""Replaces the modules of a model by those of :mod:`fusedops.nn`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from fusedops import nn as ours
from fusedops.graph.availability import KERNEL_DTYPES, has_kernels, ops_take
from fusedops.replacement.known_norms import known_norm
from fusedops.replacement.report import Change, ReplacedModule, Replacements

#: Module class of torch -> our class, which reads the same attributes. Our RMSNorm also reads
#: `variant`, which `_replace` adds.
_COUNTERPARTS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Softmax: ours.Softmax,
    nn.LogSoftmax: ours.LogSoftmax,
    nn.LayerNorm: ours.LayerNorm,
    nn.RMSNorm: ours.RMSNorm,
}


def replace_modules(model: nn.Module) -> Replacements:
    """Makes the softmax and norm modules of a model those of :mod:`fusedops.nn`, in place.

    These are ``torch.nn.Softmax``, ``LogSoftmax``, ``LayerNorm`` and ``RMSNorm``, and the RMSNorm
    classes of Hugging Face's transformers and others, if their source shows that they compute it as
    torch, Llama, T5 or Gemma do. The module objects stay and change their class: parameters,
    buffers, hooks, the training flag and all references to a module stay as they are, and so do the
    keys of state dicts and the parameters of optimizers. Call this function before the model is
    compiled, or wrapped by ``fully_shard``.

    Args:
        model: the model; it may be one of these modules itself.

    Returns: what was replaced, and why the rest was not; its ``undo()`` takes all of it back.

    Raises:
        TypeError: `model` is not a module.

    Source: `torch.nn.utils.parametrize`, which changes the class of a module in the same way.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"replace_modules: model is of type {type(model).__name__}, wanted a torch.nn.Module"
        )
    modules, changes = [], []
    for module, paths in _modules(model):
        target = _counterpart(module)
        if target is None:
            continue
        old_class, reason = type(module), _reason_to_leave(module)
        if reason:
            modules.append(ReplacedModule(paths, old_class.__name__, reason=reason))
            continue
        changes.append(_replace(module, target))
        modules.append(ReplacedModule(paths, old_class.__name__, _name(target)))
    return Replacements(tuple(modules), changes)


def _modules(model: nn.Module) -> Iterator[tuple[nn.Module, tuple[str, ...]]]:
    """Yields each module once, with all paths under which the model has it."""
    paths: dict[nn.Module, tuple[str, ...]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        paths[module] = (*paths.get(module, ()), path)
    return iter(paths.items())


def _counterpart(module: nn.Module) -> type[nn.Module] | None:
    """Returns our class for a softmax or norm module, or None for other modules and for ours. Also
    returns one for modules that `_reason_to_leave` will refuse, so that the report lists them: a
    subclass of torch's class, or an unknown class with RMSNorm in its name."""
    if type(module) in _COUNTERPARTS.values():
        return None
    counterparts = (target for base, target in _COUNTERPARTS.items() if isinstance(module, base))
    is_rms_norm = "RMSNorm" in type(module).__name__ or known_norm(module) is not None
    return next(counterparts, ours.RMSNorm if is_rms_norm else None)


def _reason_to_leave(module: nn.Module) -> str:
    """Returns why a module for which there is a class of ours must not be replaced, or "" if it may
    be replaced."""
    if parametrize.is_parametrized(module):
        return "its parameters are parametrized; replace it before that"
    if "forward" in vars(module):
        return "its forward was replaced on the object"
    base = next((base for base in _COUNTERPARTS if isinstance(module, base)), None)
    if base is not None and type(module) is not base:
        return f"a subclass of torch.nn.{base.__name__}, which may compute something else"
    if base is None and known_norm(module) is None:
        return "its forward is not one that is known; call fusedops.rms_norm in it"
    if getattr(module, "dim", 0) is None:
        return "its dim is None, which torch guesses; give it a dim"
    weight = module._parameters.get("weight")
    if base is None and getattr(weight, "ndim", 0) != 1:
        return "its weight is not a parameter of one dimension"
    if base is None and weight is not None and weight.numel() == 1:
        return "its weight is one number, which fits rows of any length"
    return _why_attributes_conflict(module) or _unsupported_parameters(module)


def _why_attributes_conflict(module: nn.Module) -> str:
    """Returns why the module cannot become one of our class in place, or "" if it can. The reason
    is an attribute that our class reads, and that the module has with another value than needed."""
    for name, value in _settings(module).items():
        if getattr(module, name, value) != value:
            return f"its attribute {name} means something else in {_name(ours.RMSNorm)}"
    return ""


def _unsupported_parameters(module: nn.Module) -> str:
    """Returns why the operators cannot take a parameter of the module, or "" if they take all."""
    for name, tensor in module.named_parameters(recurse=False):
        if not ops_take(tensor.data):
            return f"its {name} is a {type(tensor.data).__name__}, which the operators do not take"
        if tensor.dtype not in KERNEL_DTYPES:
            return f"its {name} is {tensor.dtype}, which no kernel reads"
        # Parameters on the meta device move to another device later, as with fully_shard.
        if not tensor.is_meta and not has_kernels(tensor.device.type):
            return f"its {name} is on {tensor.device}, for which this build has no kernels"
    return ""


def _replace(module: nn.Module, target: type[nn.Module]) -> Change:
    """Changes the class of a module to ``target``, and returns what is needed to undo that."""
    added = {name: value for name, value in _settings(module).items() if not hasattr(module, name)}
    change = Change(module, type(module), target, tuple(added))
    for name, value in added.items():
        setattr(module, name, value)
    module.__class__ = target
    return change


def _settings(module: nn.Module) -> dict[str, Any]:
    """Returns the attributes that our RMSNorm needs and the module may lack, with their values; {}
    for a module that is no RMSNorm."""
    if isinstance(module, nn.RMSNorm):
        return {"variant": "torch"}
    norm = known_norm(module)
    if norm is None:
        return {}
    weight: torch.Tensor = module.get_parameter("weight")
    return {
        "normalized_shape": tuple(weight.shape),
        "eps": getattr(module, norm.eps),
        "elementwise_affine": True,
        "variant": norm.variant,
    }


def _name(target: type[nn.Module]) -> str:
    return f"fusedops.nn.{target.__name__}"
