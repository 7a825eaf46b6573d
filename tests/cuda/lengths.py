"""Row lengths at which another kernel, or another number of threads, takes over."""

# Ends of the lines of the launch tables (csrc/include/fusedops/cuda/launch_plan.h), and a warp's
# share of a row.
ENDS = [128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536]
# Off a multiple of a wide vector, of a pair of 16-bit elements, or of neither: the next narrower
# kernels. Eight is one wide vector of 16 bits.
OFFSETS = [-8, -2, -1, 0, 1, 2, 4, 8]

SHORT = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 72, 96, 100, 256]
AT_EVERY_PLAN = SHORT + [end + offset for end in ENDS for offset in OFFSETS]

# One length of every kernel and width, for what does not depend on the length.
ONE_OF_EACH_KERNEL = [8, 33, 130, 520, 1000, 1023, 1026, 4100, 8193, 9000, 20000, 33000, 40000]


def rows_for(cols: int, elements: int = 400_000) -> int:
    """As many rows as let errors be typical."""
    return max(4, elements // cols)
