"""Row lengths at which the kernel or the number of threads changes."""

# The longest rows of the plans in csrc/cuda/launch/plans.def, and of a single warp.
ENDS = [64, 128, 256, 512, 640, 1024, 2048, 4096, 6144, 8192, 14336, 16384, 32768, 65536]
# Lengths that are no multiple of a wide vector, or of a pair of 16-bit elements, need narrower
# kernels. Eight elements of 16 bits are one wide vector.
OFFSETS = [-8, -2, -1, 0, 1, 2, 4, 8]

SHORT = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 96, 100]
AT_EVERY_PLAN = SHORT + [end + offset for end in ENDS for offset in OFFSETS]

# One length for every kernel and width, for tests whose claim does not depend on the length.
ONE_OF_EACH_KERNEL = [
    *[8, 33, 34, 101, 102, 130, 197, 301, 302, 520, 1000, 1002, 1023, 1026, 1027],
    *[4100, 8193, 9000, 20000, 33000, 40000],
]


def rows_for(cols: int, elements: int = 400_000) -> int:
    """Enough rows for errors to be typical."""
    return max(4, elements // cols)
