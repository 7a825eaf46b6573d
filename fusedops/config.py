"""Settings, read once from `FUSEDOPS_*`, changed by assignment, or for a block with `patch`.

`fusedops.config.fuse` reads the active value, and `fusedops.config.fuse = "always"` changes it:

===============  ========================  ================================================
setting          environment               meaning
===============  ========================  ================================================
fuse             FUSEDOPS_FUSE             "profitable": replace the sites where the op is
                                           measured to be 3% faster than Inductor's own code
                                           (default)
                                           "always": replace every site that the kernels
                                           support
                                           "never": replace nothing; `fusedops.explain`
                                           still lists all
repair_inductor  FUSEDOPS_REPAIR_INDUCTOR  "always": in graphs that fusedops compiles, generate
                                           the right index where Inductor of torch 2.10 to
                                           2.13 writes outside of tensors (default)
                                           "never": leave Inductor as it is
===============  ========================  ================================================

After the first mode of `fuse`, rules can have modes of their own:
`fuse="profitable,softmax=always,rms_norm=never"`. `RULES` are their names; `linear_cross_entropy`
applies only where `fuse` contains `linear_cross_entropy=always`. A setting takes effect when a
graph is compiled, not when the compiled code runs. Like `torch.no_grad`, a patch applies to the
thread that entered it; an assignment applies to all threads, or, inside of a patch, to the rest of
its block, and `del` restores the initial value. An unknown name raises AttributeError, a wrong
value ValueError, and one that is no string TypeError.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

_PREFIX = "FUSEDOPS_"
_MODES = ("profitable", "always", "never")
_SWITCH = ("always", "never")

#: The rules of `fusedops.graph`. "expand" decomposes opaque calls, so that the others can match.
RULES = (
    "masked_softmax",
    "softmax",
    "softmax_decomposed",
    "layer_norm",
    "layer_norm_decomposed",
    "rms_norm",
    "rms_norm_decomposed",
    "l2_norm_decomposed",
    "spatial_layer_norm_decomposed",
    "spatial_rms_norm_decomposed",
    "group_norm",
    "permuted_layer_norm",
    "permuted_layer_norm_decomposed",
    "permuted_rms_norm",
    "permuted_rms_norm_decomposed",
    "add_layer_norm",
    "add_layer_norm_decomposed",
    "add_rms_norm",
    "add_rms_norm_decomposed",
    "stack",
    "cross_entropy",
    "linear_cross_entropy",
    "expand",
)
#: What each setting may be, in the words of error messages.
_WANTED = {
    "fuse": 'a string as "profitable" or "always,layer_norm=never"',
    "repair_inductor": '"always" or "never"',
}
# This module does not read these: the build, the kernel library and the policy tables do.
_READ_ELSEWHERE = frozenset(
    {"FUSEDOPS_BUILD_CUDA", "FUSEDOPS_BUILD_NATIVE", "FUSEDOPS_CPU_ISA", "FUSEDOPS_CACHE_DIR"}
)


@dataclasses.dataclass(frozen=True)
class Config:
    """An immutable set of settings; part of the cache key of every graph compiled with it."""

    fuse: str = "profitable"
    repair_inductor: str = "always"

    def __post_init__(self) -> None:
        """Raises TypeError for a setting that is no string, and ValueError for an unknown value."""
        for name in _WANTED:
            value = getattr(self, name)
            if not isinstance(value, str):
                of_type = f"{value!r}, of type {type(value).__name__}"
                raise TypeError(f"fusedops.config: {name} is {of_type}; {_wanted(name)}")
        problems = {
            "fuse": self._problem_of_fuse(),
            "repair_inductor": _unknown(self.repair_inductor, _SWITCH),
        }
        for name, problem in problems.items():
            if problem:
                value = getattr(self, name)
                raise ValueError(
                    f"fusedops.config: {name} is {value!r}: {problem}; {_wanted(name)}"
                )

    def _problem_of_fuse(self) -> str | None:
        """Returns what is wrong with `fuse`, or None: it must begin with the mode of all other
        rules, and go on with rules and modes that are known."""
        default, *others = self._rules_and_modes()
        problem = _unknown(default[1], _MODES)
        if default[0]:
            problem = f"it begins with {default[0]}=, not with a default mode"
        for rule, mode in others:
            problem = problem or _unknown(rule, RULES) or _unknown(mode, _MODES)
        return problem

    def fuse_for(self, rule: str) -> str:
        """Returns the mode of one rule: "profitable", "always" or "never"."""
        (_, default), *others = self._rules_and_modes()
        return dict(others).get(rule, default)

    def asks_for(self, rule: str) -> bool:
        """Whether `fuse` has "rule=always", without which some rules do not apply."""
        return (rule, "always") in self._rules_and_modes()

    def _rules_and_modes(self) -> list[tuple[str, str]]:
        """Returns the (rule, mode) pairs of `fuse`. The first pair has the rule "" and the mode of
        all rules that have no pair."""
        parts = (part.strip().rpartition("=") for part in self.fuse.split(","))
        return [(rule, mode) for rule, _, mode in parts]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Config:
        """Returns the settings in `environment`.

        Warns about a `FUSEDOPS_*` variable that nothing reads. Raises ValueError for an unknown
        value.
        """
        fields = {_PREFIX + field.name.upper(): field.name for field in dataclasses.fields(cls)}
        ours = {name for name in environment if name.startswith(_PREFIX)}
        for name in sorted(ours - fields.keys() - _READ_ELSEWHERE):
            known = ", ".join(sorted(fields.keys() | _READ_ELSEWHERE))
            warnings.warn(f"fusedops: nothing reads {name}; known names: {known}", stacklevel=2)
        return cls(**{fields[name]: environment[name] for name in ours & fields.keys()})


def _wanted(name: str) -> str:
    """Returns the part of an error that says how to change the setting `name`, and to what."""
    places = f"{_PREFIX}{name.upper()}, fusedops.config.{name} or fusedops.config.patch({name}=...)"
    return f"set it with {places} to {_WANTED[name]}"


def _unknown(value: str, choices: tuple[str, ...]) -> str | None:
    """Returns the part of an error that says that `value` is none of `choices`; None if it is
    one."""
    wanted = " or ".join(map(repr, choices))
    return None if value in choices else f"{value!r} is unknown, wanted {wanted}"


# `del fusedops.config.NAME` restores the setting's value in `_initial`; assigning to a setting
# outside of a patch replaces `_default` (see `_Module`).
_initial = _default = Config.from_environment(os.environ)
#: The settings of the innermost patch that is active in the current context, or None.
_patched: ContextVar[Config | None] = ContextVar("fusedops.config", default=None)


def active() -> Config:
    """Returns the settings of the current context."""
    return _patched.get() or _default


@contextmanager
def patch(**changes: Any) -> Iterator[Config]:
    """Changes settings for a block: `with fusedops.config.patch(fuse="never"): ...`.

    The first call of a compiled model, which compiles it, must be inside the block. Raises
    TypeError for an unknown setting or a value that is not a string, and ValueError for an unknown
    value.
    """
    unknown = sorted(changes.keys() - set(_setting_names()))
    if unknown:
        known = ", ".join(_setting_names())
        raise TypeError(f"fusedops.config.patch: no setting {unknown[0]!r}; known: {known}")
    token = _patched.set(dataclasses.replace(active(), **changes))
    try:
        yield active()
    finally:
        _patched.reset(token)


def _setting_names() -> list[str]:
    return [field.name for field in dataclasses.fields(Config)]


def _no_setting(name: str) -> AttributeError:
    known = ", ".join(_setting_names())
    return AttributeError(f"fusedops.config has no setting {name!r}; known: {known}")


class _Module(ModuleType):
    """Makes the settings attributes of this module, and checks what is assigned to them."""

    def __getattr__(self, name: str) -> Any:
        if name in _setting_names():
            return getattr(active(), name)
        raise _no_setting(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _setting_names():
            _assign(name, value)
        elif name in vars(self) or name.startswith("_"):
            super().__setattr__(name, value)
        else:
            raise _no_setting(name)

    def __delattr__(self, name: str) -> None:
        if name in _setting_names():
            _assign(name, getattr(_initial, name))
        else:
            super().__delattr__(name)


def _assign(name: str, value: Any) -> None:
    """Changes a setting of the active patch or, outside of patches, for all threads."""
    global _default
    changed = dataclasses.replace(active(), **{name: value})
    if _patched.get() is None:
        _default = changed
    else:
        _patched.set(changed)


sys.modules[__name__].__class__ = _Module
