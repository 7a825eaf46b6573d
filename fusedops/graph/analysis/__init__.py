"""Finds out what a node computes, where its memory is, and in which modes it runs."""
