"""Replaces the softmaxes, norms and cross entropies that the rules find, or leaves them, and
reports both with the reason for each that was left."""
