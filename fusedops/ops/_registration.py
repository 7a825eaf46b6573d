"""Registers fake kernels, vmap and autocast rules for an op and for its twin without a formula."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from fusedops.ops import _autocast
from fusedops.ops._library import LIBRARY, OPS_WITH_TWIN


def _names(op: str) -> Iterator[str]:
    yield op
    if op in OPS_WITH_TWIN:
        yield f"_{op}"


def register_fake(op: str, fake: Callable) -> None:
    for name in _names(op):
        torch.library.register_fake(f"fusedops::{name}", fake)


def register_vmap(op: str, rule: Callable) -> None:
    for name in _names(op):
        torch.library.register_vmap(f"fusedops::{name}", rule)


def register_float32_output(op: str) -> None:
    for name in _names(op):
        _autocast.register_float32_output(LIBRARY, name)


def register_float32_inputs(op: str) -> None:
    for name in _names(op):
        _autocast.register_float32_inputs(LIBRARY, name)
