"""The errors a user can meet. One sentence each: what is wrong, where, and what to do about it.

Everything this package raises on purpose derives from `EntformerError`, so `except entformer.EntformerError` catches it all;
each also derives from the built-in error Python users would expect.
"""


class EntformerError(Exception):
    """Base of every error raised on purpose."""


class ArgumentError(EntformerError, ValueError):
    """A function was called with a value or a shape it cannot take."""


class DataError(EntformerError, ValueError):
    """A file, a line of text or a stored run is not what it has to be."""


class ImplUnavailable(EntformerError, RuntimeError):
    """An implementation was asked for by name and cannot run here."""


class RunFailed(EntformerError, RuntimeError):
    """Work that had begun could not go on: the loss became NaN, the disk filled up. What was saved before is intact."""
