"""Reads the attention mask that a graph computes: as bounds on the columns that each row sees,
where these are known, else as bool tensors."""

from fusedops.graph.analysis.masks.reading import Mask, read_added, read_bool, why_unknown

__all__ = ["Mask", "read_added", "read_bool", "why_unknown"]
