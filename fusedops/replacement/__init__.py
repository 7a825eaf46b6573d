"""Replaces the modules of a model by those of :mod:`fusedops.nn`."""

from fusedops.replacement.api import replace_modules
from fusedops.replacement.report import ReplacedModule, Replacements

__all__ = ["ReplacedModule", "Replacements", "replace_modules"]
