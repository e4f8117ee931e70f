"""The errors a user can meet. One sentence each: what is wrong, where, and what to do about it.

Everything this package raises on purpose derives from `EntformerError`, so `except entformer.EntformerError` catches it all;
each also derives from the built-in error Python users would expect.
"""


class EntformerError(Exception):
    """Base of every error raised on purpose."""


class ArgumentError(EntformerError, ValueError):
    """A function was called with a value or a shape it cannot take."""


class ImplUnavailable(EntformerError, RuntimeError):
    """An implementation was asked for by name and cannot run here."""
