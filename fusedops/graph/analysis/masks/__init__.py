"""Reads the mask that a graph computes, as bounds of rows where these are known."""

from fusedops.graph.analysis.masks.reading import Mask, read_added, read_bool, why_unknown

__all__ = ["Mask", "read_added", "read_bool", "why_unknown"]
