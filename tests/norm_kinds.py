"""What the kinds of norms differ in, once for all tests that compute a norm exactly.

This module needs numpy only, so that it runs under sanitizers.

With s the scale and n = (x - mean) / s, a norm is n w + b, and the gradient of x is
(g - mean(g) - n f sum(g n) / count) / s. There is no mean, nor that of g, where not has_mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Array = np.ndarray


def _one(scale: Array, eps: float) -> Array:
    return np.ones_like(scale)


def _of_std(scale: Array, eps: float) -> Array:
    """s / std, and 0 where std is."""
    std = scale - eps
    return np.where(std > 0, scale / np.where(std > 0, std, 1), 0)


class NormKind(NamedTuple):
    has_mean: bool
    #: s, from the sum of squared deviations, their number and eps.
    scale: Callable[[Array, int, float], Array]
    #: What stands for the number of columns where sum(g n) is divided.
    count: Callable[[int], int]
    #: f, from s and eps.
    factor: Callable[[Array, float], Array] = _one


def _root_of_mean(squares: Array, columns: int, eps: float) -> Array:
    return np.sqrt(squares / columns + eps)


def _std_and_eps(squares: Array, columns: int, eps: float) -> Array:
    return np.sqrt(squares / (columns - 1 or np.nan)) + eps


def _norm_or_eps(squares: Array, columns: int, eps: float) -> Array:
    return np.maximum(np.sqrt(squares), eps)


def _above(scale: Array, eps: float) -> Array:
    """1, and 0 where s is eps, which does not depend on x."""
    return np.where(scale > eps, 1.0, 0.0)


#: By the word before "_norm", in the order of NormKind in args.h.
KINDS = {
    "layer": NormKind(True, _root_of_mean, lambda columns: columns),
    "rms": NormKind(False, _root_of_mean, lambda columns: columns),
    "std": NormKind(True, _std_and_eps, lambda columns: columns - 1, _of_std),
    "l2": NormKind(False, _norm_or_eps, lambda columns: 1, _above),
}


def kind_of(op: str) -> NormKind:
    """The kind of the operator with that name; LayerNorm's for an operator that is no norm."""
    return next((kind for name, kind in KINDS.items() if name in op.split("_")), KINDS["layer"])
