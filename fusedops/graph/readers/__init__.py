"""Recognises softmaxes, norms and losses, and parts of them, for the rules, however many calls
compute them.

A reader returns a description of what it found, or None. A description with a `refusal` is of
something that no op computes; the text of the refusal is the reason that the report gives.
"""
