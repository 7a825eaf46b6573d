"""The bytes of collectives, as docs/distributed.md has them."""

from __future__ import annotations

#: The numbers of a row that the ranks exchange and sum, where rows are divided: an all-gather
#: forward, an all-reduce forward and an all-reduce backward.
NUMBERS = {
    "softmax": (2, 0, 1),
    "log_softmax": (2, 0, 1),
    "masked_softmax": (2, 0, 1),
    "layer_norm": (2, 0, 2),
    "std_norm": (2, 0, 2),
    "rms_norm": (0, 1, 1),
    "l2_norm": (0, 1, 1),
    "cross_entropy": (3, 0, 0),
}


def exchanged(
    call: str, rows: int, world: int, size: int = 4
) -> tuple[dict[str, int], dict[str, int]]:
    """The bytes of each collective's result, forward and backward; `size` of a number."""
    gathered, summed, summed_backward = (number * size * rows for number in NUMBERS[call])
    forward = {"all_gather_into_tensor": world * gathered, "all_reduce": summed}
    backward = {"all_reduce": summed_backward}
    return _without_zeros(forward), _without_zeros(backward)


def _without_zeros(moved: dict[str, int]) -> dict[str, int]:
    return {collective: size for collective, size in moved.items() if size}


def sent(collective: str, size: int, world: int) -> int:
    """What a rank sends in a ring, for an all-reduce of `size` bytes, and for an all-gather to or a
    reduce-scatter of as many: Thakur, Rabenseifner and Gropp, "Optimization of collective
    communication operations in MPICH" (2005)."""
    passes = 2 if collective == "all-reduce" else 1
    return passes * size * (world - 1) // world
