"""Philox4x32-7 in numpy, and the elements that dropout keeps."""

from __future__ import annotations

import numpy as np

_MULTIPLIERS = np.array([0xD2511F53, 0xCD9E8D57], np.uint64)
_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
#: kPhiloxRounds of args.h.
ROUNDS = 7
#: The seed of every case that has dropout.
SEED = 0x0123_4567_89AB_CDEF
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def philox(counter: np.ndarray, key: tuple[int, int], rounds: int = ROUNDS) -> np.ndarray:
    """Four words for each counter of four words, along the last dimension."""
    x0, x1, x2, x3 = np.moveaxis(counter.astype(np.uint64), -1, 0)
    k0, k1 = key
    for _ in range(rounds):
        even, odd = x0 * _MULTIPLIERS[0], x2 * _MULTIPLIERS[1]
        x0, x1 = odd >> _HALF ^ x1 ^ np.uint64(k0), odd & _LOW
        x2, x3 = even >> _HALF ^ x3 ^ np.uint64(k1), even & _LOW
        k0, k1 = ((k0 + _INCREMENTS[0]) & 0xFFFFFFFF, (k1 + _INCREMENTS[1]) & 0xFFFFFFFF)
    return np.stack([x0, x1, x2, x3], -1).astype(np.uint32)


def words(rows: int, cols: int, seed: int, first_row: int = 0, rounds: int = ROUNDS) -> np.ndarray:
    """The word of each element, as args.h defines for Dropout."""
    row = np.arange(first_row, first_row + rows, dtype=np.uint64)[:, None]
    column = np.arange((cols + 3) // 4, dtype=np.uint64)[None]
    parts = np.broadcast_arrays(column, row & _LOW, row >> _HALF, np.uint64(0))
    key = (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF)
    return philox(np.stack(parts, -1), key, rounds).reshape(rows, -1)[:, :cols]


def kept(rows: int, cols: int, seed: int, threshold: int, first_row: int = 0) -> np.ndarray:
    """Whether each element is kept."""
    return words(rows, cols, seed, first_row) >= threshold


def threshold(p: float) -> int:
    """The least word of an element that is kept, where others are dropped with probability p."""
    return min(round(p * 2**32), 2**32 - 1)


def scale(p: float) -> float:
    return 0.0 if p == 1 else 1 / (1 - p)


def factors(rows: int, cols: int, p: float) -> np.ndarray:
    """What dropout with SEED multiplies with."""
    if not p:
        return np.ones((rows, cols))
    return np.where(kept(rows, cols, SEED, threshold(p)), scale(p), 0.0)
