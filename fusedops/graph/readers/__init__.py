"""Recognises softmaxes, norms, losses and parts of them that several calls compute, for the rules.

A reader returns a description of what it found, or None. A description with a `refusal` is of
something that no op computes; its text is the reason that the report gives.
"""
