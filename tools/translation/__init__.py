"""What tools/train_translation.py is made of."""

Pair = tuple[str, str]  # a source sentence and its target


class UserError(Exception):
    """Something that the user can mend; its text is the whole message."""
