"""The top of the report, its links and what it marks: a headline, three heads, exact zeros in every picture, shared state."""

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from .page_driver import choose_head, open_report
from .report_data import DATA

COMPARISON = {"baseline": "softmax", "difference": -0.84, "low": -1.61, "high": 0.04, "p_value": 0.214}


def data() -> dict[str, Any]:
    """Two runs of which the second is sparser; the first sentence has a word that is not in the training data, and bytes."""
    found = copy.deepcopy(DATA)
    found["runs"] = found["runs"][:2]
    for index, run in enumerate(found["runs"]):
        for head in run["heads"]:
            head["density"] = 0.9 - 0.3 * index + 0.01 * head["head"]
        run["alpha_sentence"] = "After 1,800 steps alphas correlate 0.91 with their random initialization."
        run["training_text"] = "A toy: trained for minutes."
        run["scores"] = [{"name": "test BLEU", "value": 30.0 - 0.84 * index, "signature": None, "about": "on the test set"}]
        run["sentences"][0]["unknown"] = ["beach"]
        run["sentences"][0]["source"][1:4] = ["<0xE7>", "<0x8A>", "<0xAC>"]
    found["runs"][1]["scores"][0]["comparison"] = COMPARISON
    return found


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    for page in open_report(browser, tmp_path, data(), reduced_motion="reduce"):
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        yield page


def test_the_headline_tells_of_the_sparsest_run_with_interval_and_p_value(page: Page) -> None:
    heads = data()["runs"][1]["heads"]
    expect(page.locator(".headline")).to_contain_text(f"{len(heads)} heads; the sparsest reads 60% of the keys")
    expect(page.locator(".headline")).to_contain_text(
        "test BLEU differs by \N{MINUS SIGN}0.8 from softmax (95% interval \N{MINUS SIGN}1.6 to 0.04, p = 0.21)"
    )
    expect(page.locator("#run-choice")).to_have_value("1")
    expect(page.locator("#knows")).to_have_text("A toy: trained for minutes.")
    expect(page.locator(".headline + #alphas-moved")).to_contain_text("alphas correlate 0.91 with their random initialization")


def test_a_difference_without_test_is_called_so(browser: Browser, tmp_path: Path) -> None:
    content = data()
    del content["runs"][1]["scores"][0]["comparison"]
    name = content["runs"][0]["name"]
    for page in open_report(browser, tmp_path, content):
        expect(page.locator(".headline")).to_contain_text(f"test BLEU 29.2, 30.0 for {name} (difference not tested)")


def test_three_heads_of_different_roles_are_introduced_and_open(page: Page) -> None:
    cards = page.locator(".meeting .head")
    expect(cards).to_have_count(3)
    keys = cards.locator("code").all_text_contents()
    assert len(set(keys)) == 3
    assert all(re.search(r"reads \d+% of the keys", text) for text in cards.locator(".does").all_text_contents())
    cards.nth(1).click()
    expect(page.locator("#one-head code").first).to_have_text(keys[1])


@pytest.mark.parametrize(
    ("densities", "titles"),
    [
        ((0.5, 0.6, 0.7), ["A sparse head", "Another sparse head", "A third sparse head"]),
        ((0.5, 1.0, 1.0), ["A sparse head", "A dense head", "Another dense head"]),
    ],
)
def test_heads_without_a_role_have_different_titles(
    browser: Browser, tmp_path: Path, densities: tuple[float, ...], titles: list[str]
) -> None:
    content = data()
    run = content["runs"][1]
    for head, density in zip(run["heads"], (*densities, *[1.0] * len(run["heads"])), strict=False):
        head["roles"], head["density"] = [], density
    content["runs"] = [run]
    for page in open_report(browser, tmp_path, content):
        expect(page.locator(".meeting .head b")).to_have_text(titles)


def test_the_first_head_is_the_sparsest_cross_head(page: Page) -> None:
    expect(page.locator("#one-head code").first).to_have_text("cross.0.0")


def test_unknown_words_and_spelled_characters_are_readable(page: Page) -> None:
    page.select_option("#sentence-choice", "0")
    expect(page.locator("#sentence-text mark")).to_have_text("beach")
    choose_head(page, "encoder.0.0")
    shown = page.locator("#one-head .keys .token").all_text_contents()
    assert shown[1:4] == ["犬 1/3", "犬 2/3", "犬 3/3"]


def test_thumbnails_show_masked_zero_and_small_weights_in_three_ways(page: Page) -> None:
    canvas = page.locator('#grid [data-key="decoder.0.0"] canvas')
    expect(canvas).to_be_visible()
    page.wait_for_function("(node) => node.width > 1", arg=canvas.element_handle())
    pixels = canvas.evaluate(
        """(node) => { const { data, width, height } = node.getContext("2d").getImageData(0, 0, node.width, node.height);
        const at = (row, column) => [...data.slice(4 * (row * width + column), 4 * (row * width + column) + 4)];
        return Array.from({ length: height }, (_, row) => Array.from({ length: width }, (_, column) => at(row, column))); }"""
    )
    rows = data()["runs"][1]["sentences"][0]["heads"]["decoder.0.0"]
    zero = page.evaluate("Colors.zeroRgb()")
    assert any(pixels[row][column][:3] == zero for row in range(len(pixels)) for column in range(row))
    for row, line in enumerate(pixels):
        support = set(rows["col"][rows["crow"][row] : rows["crow"][row + 1]])
        for column, pixel in enumerate(line):
            expected = "masked" if column > row else "weight" if column in support else "zero"
            found = "masked" if pixel[3] == 0 else "zero" if pixel[:3] == zero else "weight"
            assert found == expected
    assert zero != page.evaluate("Colors.weightRgb(0)")


def test_alpha_and_query_are_in_the_link(page: Page) -> None:
    choose_head(page, "encoder.0.1")
    page.locator("#one-head .queries .token").nth(4).click()
    page.evaluate("""() => { const slider = document.getElementById("alpha-slider"); slider.value = 2.5;
        slider.dispatchEvent(new Event("input")); }""")
    expect(page.locator("#alpha-value")).to_have_text("2.50 (beyond sparsemax)")
    expect(page.locator('#grid [data-key="encoder.0.1"] .density')).to_contain_text("here")
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("button", name="Link copied")).to_be_visible()
    link = page.evaluate("navigator.clipboard.readText()")
    page.goto("about:blank")
    page.goto(link)
    expect(page.locator("#one-head code").first).to_have_text("encoder.0.1")
    expect(page.locator("#alpha-value")).to_have_text("2.50 (beyond sparsemax)")
    expect(page.locator("#one-head .queries .chosen")).to_have_attribute("data-index", "4")


def test_the_map_is_saved_as_a_picture(page: Page) -> None:
    choose_head(page, "encoder.0.1")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save PNG").click()
    assert download.value.suggested_filename == "encoder.0.1.png"
    assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")


def test_texts_say_what_is_true_in_the_theme(page: Page) -> None:
    lead = page.locator("#heads .lead")
    assert "darker blue" in lead.inner_text()
    page.click("#theme")
    assert "brighter blue" in lead.inner_text()
    assert "darker" not in lead.inner_text()
