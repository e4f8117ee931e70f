"""The page of `ef.show` in a browser: from a file and inside a notebook's frame, with few tokens and with 2,048."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from playwright.sync_api import Browser, Page, expect

import entformer as ef

from .page_driver import nameless_controls, open_page

TOKENS = ["the", "cat", "<b>", "sat", "שלום"]


def small() -> ef.AttentionView:
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    scores = 2 * torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(5))
    return ef.show(ef.entmax(scores, 1.5, mask=mask), TOKENS, title="Two layers")


@pytest.fixture
def shown(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    yield from open_page(browser, small().save(tmp_path / "heads.html"))


def test_a_head_and_a_query_are_chosen(shown: Page) -> None:
    weights = small().panels[1].heads[2]
    shown.click("#grid .layer:nth-child(2) .head:nth-of-type(3)")
    expect(shown.locator("#head-title")).to_have_text("Layer 1, head 2")
    shown.locator(".queries .token").nth(3).click()
    lines = shown.locator(".support li")
    columns = lines.evaluate_all("(items) => items.map((item) => Number(item.dataset.column))")
    found, values = weights.row(3)
    assert sorted(columns) == found.tolist()
    shown_values = [float(text) for text in lines.locator(".value").all_text_contents()]
    np.testing.assert_allclose(sorted(shown_values), np.sort(values), atol=5e-5)
    assert shown.locator(".keys .token.hidden-key").count() == 1  # masked: in the future
    assert shown.locator(".keys .token.zero").count() == 4 - len(found)
    assert nameless_controls(shown) == 0


def test_lines_and_the_other_theme(shown: Page) -> None:
    shown.click("text=Lines")
    expect(shown.locator(".lines svg")).to_be_visible()
    shown.click("#theme")
    expect(shown.locator("html")).to_have_attribute("data-theme", "dark")


def test_a_notebook_shows_it_in_a_frame(browser: Browser, tmp_path: Path) -> None:
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html><title>n</title><body>{small()._repr_html_()}</body>", encoding="utf-8")
    for page in open_page(browser, notebook):
        frame = page.frame_locator("iframe")
        expect(frame.locator("#head-title")).to_have_text("Layer 0, head 0")
        assert page.evaluate("typeof Show") == "undefined"  # the page of the notebook is not touched


def test_long_sequences_draw_what_is_in_view(browser: Browser, tmp_path: Path) -> None:
    length = 2048
    rows = torch.softmax(torch.randn(2, 1, length, generator=torch.Generator().manual_seed(1)), -1)
    view = ef.show(rows.expand(2, length, length), [f"▁w{i}" for i in range(length)], is_causal=False)
    for page in open_page(browser, view.save(tmp_path / "long.html")):
        page.select_option("#head-choice", "1")
        expect(page.locator("#head-title")).to_have_text("Layer 0, head 1")
        size = page.evaluate("(() => { const c = document.querySelector('.scroller canvas'); return c.width * c.height; })()")
        assert 0 < size < 4e6  # not one pixel per weight
        expect(page.locator(".rest")).to_contain_text("less than")  # weights left out are not called zero
        page.locator(".queries .token").nth(2000).evaluate("(token) => token.click()")
        expect(page.locator(".says b")).to_have_text("w2000")
        assert page.locator(".queries .token[aria-pressed=true]").all_text_contents() == ["w2000"]
        page.click("text=Lines")
        page.select_option("#head-choice", "0")  # other lines, the same tokens
        expect(page.locator(".lines svg")).to_have_attribute("aria-label", re.compile("head 0"))
        assert page.locator(".lines .queries .strong").all_text_contents() == ["w2000"]
        stored = page.locator(".says").text_content() or ""
        assert f"or more on {page.locator('.lines .keys .strong').count()} of 2048 keys" in stored


def test_marks_follow_the_query_over_the_same_cells(shown: Page) -> None:
    """The cells are painted once; going to another query and back gives the same picture."""
    picture = "document.querySelector('.scroller canvas').toDataURL()"
    frame = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    pictures = []
    for query in (2, 4, 2):
        shown.locator(".queries .token").nth(query).click()
        shown.evaluate(frame)
        pictures.append(shown.evaluate(picture))
    assert pictures[0] == pictures[2] != pictures[1]
    shown.click("#theme")
    shown.evaluate(frame)
    assert shown.evaluate(picture) != pictures[2]
