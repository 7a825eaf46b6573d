"""Dropout's random words: the published ones, and nothing that statistics can tell from chance."""

from __future__ import annotations

import numpy as np
import pytest

from .philox import ROUNDS, philox, words

#: From the file kat_vectors of Random123: counter, key, words.
KNOWN = [
    ([0] * 4, (0, 0), [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]),
    (
        [0xFFFFFFFF] * 4,
        (0xFFFFFFFF, 0xFFFFFFFF),
        [0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662],
    ),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        (0xA4093822, 0x299F31D0),
        [0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A],
    ),
]
SEED, ROWS, COLS = 9, 512, 1024
#: Standard deviations. With chance in place of Philox, one of the 20,500 numbers that are compared
#: here would be beyond them in one run of 25,000.
LIMIT = 6.0


@pytest.mark.parametrize("counter, key, expected", KNOWN)
def test_philox_in_numpy_gives_the_published_words(counter, key, expected):
    assert philox(np.array([counter], np.uint32), key)[0].tolist() == expected


def bit_frequencies(rounds: int) -> float:
    """The worst deviation of a bit from being set half of the time."""
    mask = words(ROWS, COLS, SEED, rounds=rounds).ravel()
    ones = [np.count_nonzero(mask >> np.uint32(bit) & np.uint32(1)) for bit in range(32)]
    return float(np.abs((np.array(ones) - mask.size / 2) / np.sqrt(mask.size / 4)).max())


def neighbour_correlations(rounds: int) -> float:
    """The worst correlation of a mask with one of the next column, vector, row or seed."""
    here = words(ROWS, COLS, SEED, rounds=rounds) / 2**32 - 0.5
    seeds = [words(ROWS, COLS, seed, rounds=rounds) / 2**32 - 0.5 for seed in (8, SEED + 2**32)]
    pairs = [(here[:, :-step], here[:, step:]) for step in (1, 2, 3, 4, 8)]
    pairs += [(here[:-step], here[step:]) for step in (1, 2, 64)]
    pairs += [(here, other) for other in seeds]
    return max(abs(float((a * b).mean())) * 12 * a.size**0.5 for a, b in pairs)


def pair_counts(rounds: int) -> float:
    """Chi-square of how often each pair of upper bytes is in neighbouring columns or rows."""
    top = words(ROWS, COLS, SEED, rounds=rounds) >> np.uint32(24)
    worst = 0.0
    for first, second in [(top[:, :-1], top[:, 1:]), (top[:-1], top[1:])]:
        counts = np.bincount((first * np.uint32(256) + second).ravel(), minlength=65536)
        expected = first.size / 65536
        chi_square = ((counts - expected) ** 2 / expected).sum()
        worst = max(worst, abs(float(chi_square) - 65535) / (2 * 65535) ** 0.5)
    return worst


def avalanche(rounds: int) -> float:
    """How far each bit of the words is from changing half of the time with a bit of the counter or
    the key."""
    random, trials = np.random.default_rng(0), 2048
    counter = random.integers(2**32, size=(trials, 4), dtype=np.uint32)
    key, worst = (0x12345678, 0x9ABCDEF0), 0.0
    before = philox(counter, key, rounds)
    for bit in range(160):
        flip = np.uint32(1 << bit % 32)
        if bit < 96:
            flipped = counter.copy()
            flipped[:, bit // 32] ^= flip
            after = philox(flipped, key, rounds)
        else:
            other = tuple(k ^ int(flip) if i == bit // 32 - 3 else k for i, k in enumerate(key))
            after = philox(counter, other, rounds)
        changed = np.unpackbits((before ^ after).view(np.uint8), axis=1).sum(0)
        worst = max(worst, float(np.abs(changed - trials / 2).max()) / (trials / 4) ** 0.5)
    return worst


STATISTICS = [bit_frequencies, neighbour_correlations, pair_counts, avalanche]


@pytest.mark.parametrize("statistic", STATISTICS)
def test_no_statistic_tells_the_words_from_chance(statistic):
    assert statistic(ROUNDS) < LIMIT


@pytest.mark.parametrize("rounds", [2, 3])
@pytest.mark.parametrize("statistic", STATISTICS)
def test_each_statistic_tells_two_and_three_rounds_from_chance(statistic, rounds):
    assert statistic(rounds) > 2 * LIMIT
