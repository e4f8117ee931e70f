"""Numbers and names as people read them: a small weight never looks like zero, and a name never becomes markup.

`format_number` and `format_percent` follow the same rules as `analysis/page/numbers.js`, value for value; a test compares them.
"""

import math
import unicodedata
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal

UNKNOWN = "\u2013"  # a dash
MORE_DIGITS = 3  # decimals that may be added so that a value does not look like a value it is not
LONGEST_LABEL = 60  # characters of a name in a figure


def format_number(value: float | None, digits: int = 2, *, exact: Sequence[float] = (0.0,)) -> str:
    """Formats a number with a fixed number of decimals that never reads as one of `exact` unless it is equal to it.

    Args:
        value: The number; None and NaN give a dash.
        digits: Decimals shown in the ordinary case.
        exact: Values with a meaning of their own: 0 for weights, 1 and 2 for alpha (softmax and sparsemax).

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
    """Formats a share as a percentage that reads as 0% or 100% only where the share is exactly 0 or 1.

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
    """Two significant digits of a value near zero: 0.004, 2.3e-5."""
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    if int(exponent) >= -3:
        return f"{float(f'{value:.1e}'):.4f}".rstrip("0")
    return f"{mantissa}e{int(exponent)}"


def _rounded(value: float, digits: int) -> str:
    """Fixed decimals, halves away from zero as JavaScript's toFixed rounds them."""
    if math.isinf(value):
        return str(value)
    return f"{Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP):f}"


def _misleads(text: str, value: float, exact: Sequence[float]) -> bool:
    return any(float(text) == special != value for special in exact)


def plain_label(text: str, longest: int = LONGEST_LABEL) -> str:
    r"""Returns a name or token as matplotlib shows it literally: one line, no mathematics, no control characters, not endless.

    matplotlib reads text between two "$" as mathematics and raises on what it cannot parse; "\$" is a dollar sign to it.
    """
    return printable(text, longest).replace("$", r"\$")


def encodable(text: str) -> str:
    """Returns text that UTF-8 can hold: names of files may hold bytes that are no text, which become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def printable(text: str, longest: int | None = None) -> str:
    """Returns text on one line that any file and terminal can hold; what was cut is marked by an ellipsis."""
    line = "".join(" " if unicodedata.category(letter) in ("Cc", "Zl", "Zp") else letter for letter in encodable(text))
    return line if longest is None or len(line) <= longest else f"{line[: longest - 1]}…"
