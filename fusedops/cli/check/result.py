"""Defines the result of one check."""

from __future__ import annotations

from typing import NamedTuple


class Result(NamedTuple):
    """A fact about this machine, and whether it is as it should be.

    name: what the fact is about.
    found: the fact, as a text or as a number for each dtype.
    wanted: what `found` has to be; empty for a fact that is only reported.
    """

    name: str
    found: str | dict[str, float]
    wanted: str = ""
    passed: bool = True
