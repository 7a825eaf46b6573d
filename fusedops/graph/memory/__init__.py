"""Passes over compiled graphs that save memory: in-place ops, and no unused outputs."""
