"""Editing a graph: each site that a rule finds is replaced, or left with a reason, and reported."""
