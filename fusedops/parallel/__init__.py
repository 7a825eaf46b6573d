"""Runs independent functions concurrently and writes each result into its slot of one stack."""

from fusedops.parallel.api import parallel_stack

__all__ = ["parallel_stack"]
