"""Benchmarks of whole models, of peak memory and of the overhead of a call, from a checkout.

`python -m fusedops bench` times the operators; it is part of the package, and these build on it.
"""
