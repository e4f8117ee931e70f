"""Exceptions. Messages name the argument or file, what was expected, what was given, and the remedy.

All derive from `EntformerError`, and each also derives from the built-in exception Python users would expect.
"""


class EntformerError(Exception):
    """Base class of the exceptions of this package."""


class ArgumentError(EntformerError, ValueError):
    """An argument has an invalid value, type or shape."""


class DataError(EntformerError, ValueError):
    """A file, a line of text or a saved run is invalid."""


class ImplUnavailable(EntformerError, RuntimeError):
    """The requested implementation cannot run here, or does not support the call."""


class RunFailed(EntformerError, RuntimeError):
    """A run had to stop: the loss became NaN, the disk is full. What was saved before is intact."""


class MissingExtra(EntformerError, ImportError):
    """A package of an optional extra is not installed, or too old."""
