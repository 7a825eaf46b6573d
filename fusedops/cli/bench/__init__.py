"""`python -m fusedops bench` measures the speed of the operators on this machine.

`operators` and `attention` define what is measured, `measurement` and `timing` measure it, and
`report` prints the results.
"""

from fusedops.cli.bench.arguments import add_arguments

__all__ = ["add_arguments"]
