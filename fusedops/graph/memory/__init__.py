"""Passes over compiled graphs that save memory: results in place, and none that nothing reads."""
