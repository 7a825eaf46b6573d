"""Reads parts of a softmax or norm from several calls, for the rules."""
