"""What tools/train_translation.py is made of."""


class UserError(Exception):
    """Something that the user can mend; its text is the whole message."""
