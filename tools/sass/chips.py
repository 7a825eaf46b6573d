"""Has the facts and assumptions about GPUs that the report uses."""

from __future__ import annotations

from dataclasses import dataclass

WARP_LANES = 32
SCHEDULERS = 4  # a multiprocessor has 4, each of which issues one instruction of a warp per clock
REGISTERS = 65536  # a multiprocessor has this many registers of 32 bits
REGISTER_UNIT = 8  # registers are allocated to threads in units of 8
BLOCK_RESERVED_BYTES = 1024  # shared memory that the runtime reserves for each block
# How many seconds pass from a load to its use on a busy memory system. On an idle one it is 0.6 us.
LATENCY = 0.8e-6
# The part of the datasheet's bandwidth that a copy reaches. On an H200 it moves 4.3 of 4.8 TB/s.
SUSTAINED = 0.9


@dataclass(frozen=True)
class Chip:
    """A GPU of an architecture, according to its datasheet and the CUDA programming guide.

    boost_clock: in Hz.
    peak_bandwidth: in bytes per second.
    max_threads, max_blocks, shared_bytes: the limits of one multiprocessor.
    """

    name: str
    multiprocessors: int
    boost_clock: float
    peak_bandwidth: float
    max_threads: int
    max_blocks: int
    shared_bytes: int

    @property
    def bandwidth(self) -> float:
        """The bandwidth of one multiprocessor in bytes per second."""
        return SUSTAINED * self.peak_bandwidth / self.multiprocessors

    @property
    def needed_in_flight(self) -> float:
        """How many bytes a multiprocessor must have requested at any time, so that the memory is
        busy all the time: bandwidth times latency (Little's law)."""
        return self.bandwidth * LATENCY


CHIPS = {
    "80": Chip("A100", 108, 1.41e9, 2.04e12, 2048, 32, 164 * 1024),
    "90": Chip("H200", 132, 1.98e9, 4.8e12, 2048, 32, 228 * 1024),
    "100": Chip("B200", 148, 1.97e9, 8.0e12, 2048, 32, 228 * 1024),
    "120": Chip("RTX 5090", 170, 2.41e9, 1.79e12, 1536, 24, 100 * 1024),
}
