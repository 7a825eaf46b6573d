"""Has the settings. They are read once from the variables `FUSEDOPS_*` of the environment, and can
be changed by assignment, or for a block with `patch`.

`fusedops.config.fuse` reads the active value, and `fusedops.config.fuse = "always"` changes it. A
site is one softmax, norm, cross entropy or dropout in a model:

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

The first mode of `fuse` applies to all rewrite rules. Single rules, whose names are in `RULES`, can
have modes of their own after it: `fuse="profitable,softmax=always,rms_norm=never"`. The rule
`linear_cross_entropy` applies only if `fuse` contains `linear_cross_entropy=always`.

A setting takes effect when a graph is compiled, not when the compiled code runs. Like
`torch.no_grad`, a patch applies to the thread that entered it. An assignment applies to all
threads, or, inside of a patch, to the rest of the patch's block, and `del` restores the initial
value. An unknown name raises AttributeError, a wrong value ValueError, and a value that is no
string TypeError.
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

_NORMS = ("layer_norm", "layer_norm_decomposed", "rms_norm", "rms_norm_decomposed")
#: The names of the rewrite rules in `fusedops.graph`. "expand" stands for the decomposition of
#: opaque calls, such as multi-head attention, which lets the rules match what is inside.
RULES = (
    "masked_softmax",
    "softmax",
    "softmax_decomposed",
    *_NORMS,
    "l2_norm_decomposed",
    "spatial_layer_norm_decomposed",
    "spatial_rms_norm_decomposed",
    "group_norm",
    *(f"permuted_{norm}" for norm in _NORMS),
    *(f"add_{norm}" for norm in _NORMS),
    "stack",
    "cross_entropy",
    "linear_cross_entropy",
    "dropout",
    "expand",
)
#: Setting -> what it may be, as error messages say it.
_WANTED = {
    "fuse": 'a string as "profitable" or "always,layer_norm=never"',
    "repair_inductor": '"always" or "never"',
}
# The build, the kernel library and the policy tables read these variables; this module does not.
_READ_ELSEWHERE = frozenset(
    {"FUSEDOPS_BUILD_CUDA", "FUSEDOPS_BUILD_NATIVE", "FUSEDOPS_CPU_ISA", "FUSEDOPS_CACHE_DIR"}
)


@dataclasses.dataclass(frozen=True)
class Config:
    """An immutable set of settings. It is part of Inductor's cache key for every graph that is
    compiled with it."""

    fuse: str = "profitable"
    repair_inductor: str = "always"

    def __post_init__(self) -> None:
        """Raises TypeError for a setting that is no string, and ValueError for an unknown value."""
        for name in _WANTED:
            value = getattr(self, name)
            found = f"fusedops.config: {name} is {value!r}"
            if not isinstance(value, str):
                raise TypeError(f"{found}, of type {type(value).__name__}; {_wanted(name)}")
            problem = self._problem_of_fuse() if name == "fuse" else _unknown(value, _SWITCH)
            if problem:
                raise ValueError(f"{found}: {problem}; {_wanted(name)}")

    def _problem_of_fuse(self) -> str | None:
        """Returns what is wrong with `fuse`, or None. It must begin with a mode, which applies to
        all rules that it does not name. Known rules with known modes may follow."""
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
        """Whether `fuse` has "RULE=always" for this rule. Some rules apply only if it has."""
        return (rule, "always") in self._rules_and_modes()

    def _rules_and_modes(self) -> list[tuple[str, str]]:
        """Returns the (rule, mode) pairs of `fuse`. The first pair has the rule "" and the mode for
        all rules that have no pair of their own."""
        parts = (part.strip().rpartition("=") for part in self.fuse.split(","))
        return [(rule, mode) for rule, _, mode in parts]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Config:
        """Returns the settings in `environment`.

        Warns about a `FUSEDOPS_*` variable that nothing reads. Raises ValueError for an unknown
        value.
        """
        fields = {_PREFIX + name.upper(): name for name in _WANTED}
        ours = {name for name in environment if name.startswith(_PREFIX)}
        for name in sorted(ours - fields.keys() - _READ_ELSEWHERE):
            known = ", ".join(sorted(fields.keys() | _READ_ELSEWHERE))
            warnings.warn(f"fusedops: nothing reads {name}; known names: {known}", stacklevel=2)
        return cls(**{fields[name]: environment[name] for name in ours & fields.keys()})


def _wanted(name: str) -> str:
    """Returns the part of an error message that says how to change the setting `name`, and which
    values it may have."""
    places = f"{_PREFIX}{name.upper()}, fusedops.config.{name} or fusedops.config.patch({name}=...)"
    return f"set it with {places} to {_WANTED[name]}"


def _unknown(value: str, choices: tuple[str, ...]) -> str | None:
    """Returns the part of an error message that says that `value` is not among `choices`; None if
    it is."""
    wanted = " or ".join(map(repr, choices))
    return None if value in choices else f"{value!r} is unknown, wanted {wanted}"


# `_initial` has the values that `del fusedops.config.NAME` restores. `_default` has those that are
# active outside of patches; an assignment outside of patches replaces it.
_initial = _default = Config.from_environment(os.environ)
#: The settings of the innermost patch that is active in the current context, or None.
_patched: ContextVar[Config | None] = ContextVar("fusedops.config", default=None)


def active() -> Config:
    """Returns the settings of the current context."""
    return _patched.get() or _default


@contextmanager
def patch(**changes: Any) -> Iterator[Config]:
    """Changes settings for a block: `with fusedops.config.patch(fuse="never"): ...`.

    The first call of a compiled model, which compiles it, must be inside the block.

    Args:
        changes: a setting of the table above, by its name, and the value that it has in the block.

    Returns:
        A context manager, whose value is the settings of the block.

    Raises:
        TypeError: an unknown setting, or a value that is not a string.
        ValueError: an unknown value.

    Source: `torch._inductor.config.patch`.
    """
    unknown = sorted(changes.keys() - _WANTED.keys())
    if unknown:
        known = ", ".join(_WANTED)
        raise TypeError(f"fusedops.config.patch: no setting {unknown[0]!r}; known: {known}")
    token = _patched.set(dataclasses.replace(active(), **changes))
    try:
        yield active()
    finally:
        _patched.reset(token)


def _no_setting(name: str) -> AttributeError:
    known = ", ".join(_WANTED)
    return AttributeError(f"fusedops.config has no setting {name!r}; known: {known}")


class _Module(ModuleType):
    """Makes the settings attributes of this module, and checks what is assigned to them."""

    def __getattr__(self, name: str) -> Any:
        if name in _WANTED:
            return getattr(active(), name)
        raise _no_setting(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _WANTED:
            _assign(name, value)
        elif name in vars(self) or name.startswith("_"):
            super().__setattr__(name, value)
        else:
            raise _no_setting(name)

    def __delattr__(self, name: str) -> None:
        if name in _WANTED:
            _assign(name, getattr(_initial, name))
        else:
            super().__delattr__(name)


def _assign(name: str, value: Any) -> None:
    """Changes a setting: in the active patch if there is one, else for all threads."""
    global _default
    changed = dataclasses.replace(active(), **{name: value})
    if _patched.get() is None:
        _default = changed
    else:
        _patched.set(changed)


sys.modules[__name__].__class__ = _Module
