"""Independent functions at the same time, each result written into its slot of one stack."""

from fusedops.parallel.api import parallel_stack

__all__ = ["parallel_stack"]
