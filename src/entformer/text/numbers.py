"""Formatting of numbers and labels: a nonzero weight never reads as zero, and a label never becomes markup.

`format_number` and `format_percent` give the same strings as `analysis/page/numbers.js`; a test compares them.
"""

import math
import unicodedata
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal

UNKNOWN = "\u2013"  # a dash
MORE_DIGITS = 3  # decimals that may be added to tell a value from an exact one
LONGEST_LABEL = 60  # characters of a label in a figure


def format_number(value: float | None, digits: int = 2, *, exact: Sequence[float] = (0.0,)) -> str:
    """Formats a number with fixed decimals so that it reads as a value of `exact` only if it is equal to it.

    Args:
        value: The number; None and NaN give a dash.
        digits: Decimals shown in the ordinary case.
        exact: Special values: 0 for weights, 1 and 2 for alpha (softmax and sparsemax).

    Returns:
        "0" for exactly zero; "2.3e-5" or "0.004" where rounding would give zero; more decimals, or "<" and ">", where
        rounding would give another value of `exact`.
    """
    if value is None or math.isnan(value):
        return UNKNOWN
    if value == 0:
        return "0"
    text = _rounded(value, digits)
    if float(text) == 0 and 0.0 in exact:
        return _small(value)
    for more in range(1, MORE_DIGITS + 1):
        if not _misleads(text, value, exact):
            return text
        text = _rounded(value, digits + more)
    if not _misleads(text, value, exact):
        return text
    step = 10.0 ** -(digits + MORE_DIGITS - 1)
    near = float(text)
    sign, bound = (">", near - step) if value < near else ("<", near + step)
    return f"{sign}{bound:.{digits + MORE_DIGITS - 1}f}"


def format_percent(share: float | None, digits: int | None = None) -> str:
    """Formats a fraction as a percentage that reads as 0% or 100% only if the fraction is exactly 0 or 1.

    Args:
        share: From 0 to 1; None and NaN give a dash.
        digits: Decimals; by default one below 10% and none from there on.
    """
    if share is None or math.isnan(share):
        return UNKNOWN
    percent = 100.0 * share
    if digits is None:
        digits = 1 if 0 < abs(percent) < 10 else 0
    return "100%" if share == 1 else f"{format_number(percent, digits, exact=(0.0, 100.0))}%"


def format_short(weight: float) -> str:
    """Formats a weight in four characters, for narrow columns: 0.43, 5e-3, >.99."""
    if round(weight, 2) == 0 and weight != 0:
        return f"{weight:.0e}".replace("e-0", "e-")
    return ">.99" if 0.995 <= weight < 1 else format_number(weight)


def format_alpha(alpha: float | None) -> str:
    """Formats alpha with two decimals; 1.00 and 2.00 mean softmax and sparsemax exactly."""
    return format_number(alpha, 2, exact=(1.0, 2.0))


def _small(value: float) -> str:
    """Formats a value near zero with two significant digits: 0.004, 2.3e-5."""
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    if int(exponent) >= -3:
        return f"{float(f'{value:.1e}'):.4f}".rstrip("0")
    return f"{mantissa}e{int(exponent)}"


def _rounded(value: float, digits: int) -> str:
    """Formats with fixed decimals, rounding halves away from zero like JavaScript's toFixed."""
    if math.isinf(value):
        return str(value)
    return f"{Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP):f}"


def _misleads(text: str, value: float, exact: Sequence[float]) -> bool:
    return any(float(text) == special != value for special in exact)


def plain_label(text: str, longest: int = LONGEST_LABEL) -> str:
    r"""Returns a label that matplotlib shows literally: one line, no mathematics, no control characters, limited length.

    matplotlib parses text between two "$" as mathematics and raises if it cannot; "\$" is a dollar sign.
    """
    return printable(text, longest).replace("$", r"\$")


def encodable(text: str) -> str:
    """Returns text that can be encoded as UTF-8: undecodable bytes of file names become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def printable(text: str, longest: int | None = None) -> str:
    """Returns text on one line without control characters, shortened with an ellipsis if longer than `longest`."""
    line = "".join(" " if unicodedata.category(letter) in ("Cc", "Zl", "Zp") else letter for letter in encodable(text))
    return line if longest is None or len(line) <= longest else f"{line[: longest - 1]}…"
