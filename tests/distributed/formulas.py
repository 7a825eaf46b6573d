"""The bytes of collectives, as docs/distributed.md has them."""

from __future__ import annotations

#: The numbers of a row that a call reduces, forward and backward, where rows are divided.
NUMBERS = {
    "softmax": (2, 1),
    "log_softmax": (2, 1),
    "layer_norm": (2, 2),
    "std_norm": (2, 2),
    "rms_norm": (1, 1),
    "l2_norm": (1, 1),
    "cross_entropy": (3, 0),
}


def reduced(call: str, rows: int, size: int = 4) -> tuple[dict[str, int], dict[str, int]]:
    """The bytes of each collective, forward and backward; `size` of a number."""
    forward, backward = (
        {"all_reduce": numbers * size * rows} if numbers else {} for numbers in NUMBERS[call]
    )
    return forward, backward


def sent(collective: str, size: int, world: int) -> int:
    """What a rank sends in a ring: Thakur, Rabenseifner and Gropp, "Optimization of collective
    communication operations in MPICH" (2005)."""
    passes = 2 if collective == "all-reduce" else 1
    return passes * size * (world - 1) // world
