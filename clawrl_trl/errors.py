"""The one error a person is meant to read.

`UserError` carries one line that says what is wrong and what to do about it; entry points print it without
a traceback. Everything else is a programmer's error and propagates.
"""


class UserError(Exception):
    """A mistake or a condition that the user can remedy; its text is one line with the remedy."""
