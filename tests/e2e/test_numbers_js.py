"""Numbers on the pages: written as Python writes them, and nothing that is not zero looks like zero, wherever it stands."""

import copy
import random
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from entformer.analysis.assemble import assemble
from entformer.pages import page_file
from entformer.text.numbers import format_alpha, format_number, format_percent, format_short

from .page_driver import choose_head, token
from .report_data import report_data

TINY = 2.3e-5
NEARLY_ALL = 0.9997
ZERO = re.compile(r"(?<![\w.>])-?0(\.0+)?%?(?![\w.%])")
MEASURES = ("entropy", "null_rate", "first_key", "last_key", "merging", "interrogation", "density_spread")

# Every text of the page that is not an axis: numbers in cells, lists and labels, and what is read out or shown on hovering.
TEXTS = """() => [
    ...[...document.querySelectorAll(
        'td, .measures dd, .value, .number, .density, .facts span, .facts b, .scores b, small, .counted')]
        .map((node) => node.textContent),
    ...[...document.querySelectorAll('#compare .dot title, #compare [data-measure] g g title, .alpha-path title, #start title')]
        .map((node) => node.textContent),
    ...[...document.querySelectorAll('.head')].flatMap((node) => [node.title, node.getAttribute('aria-label') || '']),
    ...[...document.querySelectorAll('.keys .token')].map((node) => node.title),
]"""


def values() -> list[float]:
    rng = random.Random(3)
    spread = [rng.random() * 10.0 ** -rng.randrange(12) for _ in range(300)]
    ends = [1 - 10.0**-power for power in range(1, 16)] + [10.0**-power for power in range(1, 16)]
    halves = [0.125, 0.375, 0.005, 0.015, 0.0005, 0.625, 0.5, 0.0625]
    return [0.0, 1.0, 2.0, 1.004, 1.99996, 5.0, 17.25, 123.456, *halves, *ends, *spread, *(-value for value in spread[:50])]


def test_python_and_the_pages_write_numbers_alike(browser: Browser) -> None:
    page = browser.new_page()
    page.add_script_tag(content=page_file("numbers.js"))
    for script, python in (
        ("Numbers.fixed", format_number),
        ("((value) => Numbers.fixed(value, 4, [0, 1]))", lambda value: format_number(value, 4, exact=(0.0, 1.0))),
        ("Numbers.percent", format_percent),
        ("Numbers.alpha", format_alpha),
        ("Numbers.short", format_short),
    ):
        found = page.evaluate(f"(values) => values.map((value) => {script}(value))", values())
        assert dict(zip(values(), found, strict=True)) == {value: python(value) for value in values()}
    page.close()


def tiny_report() -> dict[str, Any]:
    """One run whose measures are all tiny but one, and a query with a weight of 2.3e-5."""
    data = report_data(layers=1, heads=2)
    run = copy.deepcopy(data["runs"][0])
    for head in run["heads"]:
        head.update(dict.fromkeys(MEASURES, TINY))
        head.update({name: TINY for name, value in head.items() if name.startswith("positional.") and value is not None})
        head["density"] = NEARLY_ALL if head["head"] else TINY
        head["roles"] = [{"role": "previous token", "score": TINY, "examples": [0]}]
    for layer in run["layers"]:
        layer.update(density=TINY, union_density=NEARLY_ALL, null_rate=TINY, js_diversity_keys=TINY, js_diversity_heads=TINY)
    rows = run["sentences"][0]["heads"]["cross.0.0"]
    rows["weight"] = [NEARLY_ALL if at in rows["crow"] else TINY for at in range(len(rows["weight"]))]
    rows["scores"] = None
    run["positional_heads"][0]["median_confidence"] = TINY
    run["alpha_correlation"] = {"all": 0.99997}
    return {**data, "runs": [run]}


TINY_REPORT = tiny_report()
CROW = TINY_REPORT["runs"][0]["sentences"][0]["heads"]["cross.0.0"]["crow"]
BROADEST = max(range(len(CROW) - 1), key=lambda row: CROW[row + 1] - CROW[row])  # the query with most keys


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "report.html"
    path.write_text(assemble(TINY_REPORT), encoding="utf-8")
    return path


def test_small_weights_are_small_in_lines_lists_titles_and_tips(page: Page) -> None:
    choose_head(page, "cross.0.0")
    token(page, BROADEST)
    expect(page.locator(".lines .number")).not_to_have_count(0)
    texts = page.locator(".lines .number").all_text_contents()
    assert "0.9997" in texts
    assert set(texts) <= {"0.9997", "2.3e-5"}
    assert "2.3e-5" in page.locator(".support .value").all_text_contents()
    assert "2.3e-5" in page.locator(".reading .keys .token").evaluate_all("(tokens) => tokens.map((one) => one.title)")
    page.get_by_role("button", name="Map").click()
    page.locator(".heatmap canvas").focus()
    tips = set()
    for _ in range(12):
        page.keyboard.press("ArrowRight")
        tips.add(page.locator(".tip").inner_text().split(": ")[1])
    assert "2.3e-5" in tips
    assert tips <= {"2.3e-5", "0.9997", "exactly 0"}


def test_no_text_of_the_page_rounds_to_zero_or_to_all(page: Page) -> None:
    choose_head(page, "cross.0.0")
    token(page, BROADEST)
    expect(page.locator("#compare figure")).not_to_have_count(0)
    texts = [text for text in page.evaluate(TEXTS) if text]
    assert len(texts) > 100
    counted = re.compile(r"exactly 0|\b0 heads|(?:layer|head) 0")  # what is really zero
    assert [text for text in texts if ZERO.search(counted.sub("", text))] == []
    density = page.locator('#grid [data-key="encoder.0.1"] .density')
    expect(density).to_have_text("99.97%")
    expect(page.locator('#grid [data-key="encoder.0.0"] .density')).to_have_text("0.0023%")
    assert not any("100%" in text for text in texts)


def test_an_alpha_beside_a_bound_is_short_and_not_the_bound(page: Page) -> None:
    shown = page.evaluate("[1, 1.00001, 1.004, 1.5, 1.99996, 2, 2.001, 12.5].map(Numbers.shortAlpha)")
    assert shown == ["1.00", ">1.00", ">1.00", "1.50", "<2.00", "2.00", ">2.00", "12.50"]
