"""Settings, read once from `FUSEDOPS_*` and changed for a block with `patch`.

`fusedops.config.fuse` reads the active value:

========  ==============  ==========================================================
setting   environment     meaning
========  ==============  ==========================================================
fuse      FUSEDOPS_FUSE   "always": replace every site the kernels can take (default)
                          "never": replace nothing; `fusedops.explain` still lists all
========  ==============  ==========================================================

A setting acts when a graph is compiled, not when the compiled code runs. Like `torch.no_grad`, a
patch holds in the thread that entered it.
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
_CHOICES = {"fuse": ("always", "never")}
# Read by the build and by the kernel library, not here.
_READ_ELSEWHERE = frozenset({"FUSEDOPS_BUILD_CUDA", "FUSEDOPS_CPU_ISA"})


@dataclasses.dataclass(frozen=True)
class Config:
    """The settings of one moment; part of the cache key of every graph compiled with them."""

    fuse: str = "always"

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                wanted = " or ".join(repr(choice) for choice in choices)
                raise ValueError(
                    f"fusedops.config: {name} is {value!r}, wanted {wanted}; set it with "
                    f"{_PREFIX}{name.upper()} or fusedops.config.patch({name}=...)"
                )

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


_default = Config.from_environment(os.environ)
_active: ContextVar[Config] = ContextVar("fusedops.config", default=_default)


def active() -> Config:
    """The settings in force here and now."""
    return _active.get()


@contextmanager
def patch(**changes: Any) -> Iterator[Config]:
    """Change settings for a block: `with fusedops.config.patch(fuse="never"): ...`.

    The compilation, which is the first call of a compiled model, must happen inside the block.
    Raises TypeError on an unknown setting and ValueError on an unknown value.
    """
    token = _active.set(dataclasses.replace(active(), **changes))
    try:
        yield active()
    finally:
        _active.reset(token)


def __getattr__(name: str) -> Any:
    if name in _CHOICES:
        return getattr(active(), name)
    raise AttributeError(f"fusedops.config has no setting {name!r}; known: {', '.join(_CHOICES)}")
