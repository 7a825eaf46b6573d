"""Has the benchmarks of whole models, of peak memory and of the overhead of a call.

They need a checkout, and build on `python -m fusedops bench`, which times the operators and is part
of the package.
"""
