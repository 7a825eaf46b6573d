"""Settings, read once from `FUSEDOPS_*` and changed for a block with `patch`.

`fusedops.config.fuse` reads the active value:

========  ==============  ==========================================================
setting   environment     meaning
========  ==============  ==========================================================
fuse      FUSEDOPS_FUSE   "profitable": replace the sites where that is measured to be
                          no slower than what Inductor makes of them (default)
                          "always": replace every site the kernels can take
                          "never": replace nothing; `fusedops.explain` still lists all
========  ==============  ==========================================================

Behind a comma, rules get settings of their own: `fuse="profitable,softmax=always,rms_norm=never"`.
`RULES` are their names. A setting acts when a graph is compiled, not when the compiled code runs.
Like `torch.no_grad`, a patch holds in the thread that entered it.
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_PREFIX = "FUSEDOPS_"
_MODES = ("profitable", "always", "never")

#: The rules of `fusedops.graph`; "expand" writes opaque calls out, for the others to see.
RULES = (
    "masked_softmax",
    "softmax",
    "softmax_decomposed",
    "layer_norm",
    "layer_norm_decomposed",
    "rms_norm",
    "rms_norm_decomposed",
    "add_layer_norm",
    "add_layer_norm_decomposed",
    "add_rms_norm",
    "add_rms_norm_decomposed",
    "stack",
    "expand",
)
_WANTED = (
    f'set it with {_PREFIX}FUSE or fusedops.config.patch(fuse=...) to a string as "profitable" or '
    '"always,layer_norm=never"'
)
# Read by the build, by the kernel library and where the tables of costs are, not here.
_READ_ELSEWHERE = frozenset(
    {"FUSEDOPS_BUILD_CUDA", "FUSEDOPS_BUILD_NATIVE", "FUSEDOPS_CPU_ISA", "FUSEDOPS_CACHE_DIR"}
)


@dataclasses.dataclass(frozen=True)
class Config:
    """The settings of one moment; part of the cache key of every graph compiled with them."""

    fuse: str = "profitable"

    def __post_init__(self) -> None:
        if not isinstance(self.fuse, str):
            given = f"{self.fuse!r}, of type {type(self.fuse).__name__}"
            raise TypeError(f"fusedops.config: fuse is {given}; {_WANTED}")
        default, *others = self._settings()
        problem = _unknown(default[1], _MODES) if not default[0] else f"{default[0]}= stands first"
        for rule, mode in others:
            problem = problem or _unknown(rule, RULES) or _unknown(mode, _MODES)
        if problem:
            raise ValueError(f"fusedops.config: fuse is {self.fuse!r}: {problem}; {_WANTED}")

    def fuse_for(self, rule: str) -> str:
        """The mode of one rule: "profitable", "always" or "never"."""
        (_, default), *others = self._settings()
        return dict(others).get(rule, default)

    def _settings(self) -> list[tuple[str, str]]:
        """Rule and mode of each part of `fuse`; the first, which is for all rules, names none."""
        parts = (part.strip().rpartition("=") for part in self.fuse.split(","))
        return [(rule, mode) for rule, _, mode in parts]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Config:
        """The settings that `environment` asks for.

        Warns of a `FUSEDOPS_*` name that nothing reads. Raises ValueError on an unknown value.
        """
        fields = {_PREFIX + field.name.upper(): field.name for field in dataclasses.fields(cls)}
        ours = {name for name in environment if name.startswith(_PREFIX)}
        for name in sorted(ours - fields.keys() - _READ_ELSEWHERE):
            known = ", ".join(sorted(fields.keys() | _READ_ELSEWHERE))
            warnings.warn(f"fusedops: nothing reads {name}; known names: {known}", stacklevel=2)
        return cls(**{fields[name]: environment[name] for name in ours & fields.keys()})


def _unknown(given: str, choices: tuple[str, ...]) -> str | None:
    wanted = " or ".join(map(repr, choices))
    return None if given in choices else f"{given!r} is unknown, wanted {wanted}"


_default = Config.from_environment(os.environ)
_active: ContextVar[Config] = ContextVar("fusedops.config", default=_default)


def active() -> Config:
    """The settings in force here and now."""
    return _active.get()


@contextmanager
def patch(**changes: Any) -> Iterator[Config]:
    """Change settings for a block: `with fusedops.config.patch(fuse="never"): ...`.

    The compilation, which is the first call of a compiled model, must happen inside the block.
    Raises TypeError on an unknown setting or a value that is no string, and ValueError on an
    unknown value.
    """
    unknown = sorted(changes.keys() - set(_settings()))
    if unknown:
        known = ", ".join(_settings())
        raise TypeError(f"fusedops.config.patch: no setting {unknown[0]!r}; known: {known}")
    token = _active.set(dataclasses.replace(active(), **changes))
    try:
        yield active()
    finally:
        _active.reset(token)


def _settings() -> list[str]:
    return [field.name for field in dataclasses.fields(Config)]


def __getattr__(name: str) -> Any:
    if name in _settings():
        return getattr(active(), name)
    raise AttributeError(
        f"fusedops.config has no setting {name!r}; known: {', '.join(_settings())}"
    )
