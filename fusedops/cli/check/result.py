"""The result of one check."""

from __future__ import annotations

from typing import NamedTuple


class Result(NamedTuple):
    """A claim about this machine.

    found: text, or a number for each dtype.
    wanted: what `found` has to be; empty for a fact that is only reported.
    """

    name: str
    found: str | dict[str, float]
    wanted: str = ""
    passed: bool = True
