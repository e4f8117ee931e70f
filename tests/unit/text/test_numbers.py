"""Numbers as people read them: what is not zero does not look like zero, and names do not become markup."""

import math
import re

import pytest

from entformer.text.numbers import format_alpha, format_number, format_percent, format_short, plain_label, printable

LOOKS_LIKE_ZERO = re.compile(r"-?0*\.?0*%?")
SMALL = [5e-324, 1e-45, 2.3e-5, 0.000999, 0.00049, 0.004, 0.0049999, -2.3e-5]


@pytest.mark.parametrize("value", SMALL)
@pytest.mark.parametrize("digits", [0, 1, 2, 3, 4])
def test_nothing_but_zero_looks_like_zero(value: float, digits: int) -> None:
    for text in (format_number(value, digits), format_percent(value), format_percent(value, digits), format_short(value)):
        assert not LOOKS_LIKE_ZERO.fullmatch(text), text
    assert format_number(0.0, digits) == "0"
    assert format_percent(0.0, digits) == "0%"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.50"),
        (0.125, "0.13"),
        (0.004, "0.004"),
        (0.0048, "0.0048"),
        (2.3e-5, "2.3e-5"),
        (1e-12, "1.0e-12"),
        (-2.3e-5, "-2.3e-5"),
        (123.456, "123.46"),
        (None, "–"),  # noqa: RUF001
        (math.nan, "–"),  # noqa: RUF001
    ],
)
def test_two_decimals_or_two_digits(value: float | None, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (1.0, "100%"),
        (0.9997, "99.97%"),
        (0.99996, "99.996%"),
        (1 - 1e-9, ">99.99%"),
        (math.nextafter(1.0, 0.0), ">99.99%"),
        (0.996, "99.6%"),
        (0.5, "50%"),
        (0.05, "5.0%"),
        (0.0004, "0.04%"),
        (0.00004, "0.004%"),
        (2.3e-7, "2.3e-5%"),
        (0.0, "0%"),
    ],
)
def test_percentages_reach_their_ends_only_exactly(share: float, text: str) -> None:
    assert format_percent(share) == text


@pytest.mark.parametrize(
    ("alpha", "text"), [(1.0, "1.00"), (1.004, "1.004"), (1.73, "1.73"), (1.9999999, ">1.9999"), (2.0, "2.00")]
)
def test_alpha_reads_as_softmax_or_sparsemax_only_if_it_is(alpha: float, text: str) -> None:
    assert format_alpha(alpha) == text


def test_short_weights_have_four_characters() -> None:
    assert [format_short(weight) for weight in (0.43, 0.0048, 2.6e-5, 0.9999, 1.0, 0.0)] == [
        "0.43",
        "5e-3",
        "3e-5",
        ">.99",
        "1.00",
        "0",
    ]


def test_labels_are_literal_single_lines_of_bounded_length() -> None:
    assert plain_label(r"run$\frac$") == r"run\$\frac\$"
    assert plain_label("two\nlines\x00and\x1b[31m\u2028more") == "two lines and [31m more"
    assert plain_label("x" * 500, 10) == "x" * 9 + "…"
    assert printable("broken \udcff name") == "broken ? name"
    assert plain_label("ein größeres Modell, α = 1.5") == "ein größeres Modell, α = 1.5"
