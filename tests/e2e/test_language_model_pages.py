"""The report on a language model over long text, and its explorer, in a real browser."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from entformer.checkpoint.language_model import LoadedLM
from entformer.cli.text_score import language_report

from .page_driver import choose_head, nameless_controls, open_report, weights_shown
from .test_explore_page import Server, open_page, wait_until_idle

MakeLM = Callable[..., LoadedLM]
LENGTH = 2048
TEXT = "a man in an orange"


@pytest.fixture(scope="module")
def folder(make_lm: MakeLM, save_lm: Callable[[LoadedLM, Path], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_lm(make_lm(tokenizer="bytes", layers=1), tmp_path_factory.mktemp("run") / "small")


def test_a_report_over_long_text(browser: Browser, folder: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Two dogs play with the red ball. " * 70, encoding="utf-8")
    settings = {"checkpoint": "best", "title": None, "length": LENGTH, "texts": 2, "examples": 2}
    data = language_report({folder: "small"}, data=str(text), split="test", progress=lambda *_: None, **settings)
    (run,) = data["runs"]
    assert max(len(one["target"]) for one in run["sentences"]) == LENGTH + 1
    for page in open_report(browser, tmp_path, data):
        expect(page.locator("#heads-title")).to_have_text("Every head on one text")
        expect(page.locator("#sentence-choice option").first).to_contain_text("Two dogs")
        expect(page.locator(".card .note")).to_contain_text("tokens)")
        expect(page.locator(".card")).not_to_contain_text("source and")
        choose_head(page, "decoder.0.1")
        index = next(at for at, one in enumerate(run["sentences"]) if len(one["target"]) == LENGTH + 1)
        page.locator("#sentence-choice").select_option(str(index))
        expect(page.locator("#one-head .queries .token")).to_have_count(LENGTH)
        page.locator("#one-head .queries .token").nth(1).hover()
        rows = run["sentences"][index]["heads"]["decoder.0.1"]
        inside = slice(rows["crow"][1], rows["crow"][2])
        expected = dict(zip(rows["col"][inside], rows["weight"][inside], strict=True))
        assert weights_shown(page) == pytest.approx(expected, abs=6e-5)
        expect(page.locator('#compare path[data-key="decoder.0.1"]')).to_have_count(1)  # density against position
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280


@pytest.fixture
def page(browser: Browser, folder: Path, make_lm: MakeLM) -> Iterator[Page]:
    server = Server(make_lm(), examples=[TEXT], folder=folder)
    yield from open_page(browser, server, text="")
    server.stop()


def test_a_text_is_continued_and_an_alpha_changed(page: Page) -> None:
    expect(page.locator("#go")).to_have_text("Continue")
    expect(page.locator("#text")).to_have_value(TEXT)
    before = page.locator(".candidate .translation").all_text_contents()
    assert len(before) == 3
    chosen = page.locator("#alignment-view .queries .token.chosen")
    first = page.locator(".next-token li.predicted .key")
    expect(first).to_have_text(chosen.text_content() or "")  # the first token after the text, and what else it might be
    assert page.locator(".next-token li").count() >= 5
    page.locator("#tokens").select_option("32")
    wait_until_idle(page)
    assert len(page.locator(".candidate.best .translation").text_content() or "") > len(before[0])
    page.locator("#temperature").select_option("1")
    wait_until_idle(page)
    sampled = page.locator(".candidate .translation").all_text_contents()
    assert sampled != before
    page.locator("#change-type").select_option("all")
    page.click('[data-all="1"]')
    expect(page.locator('.outcome[data-side="changed"] .difference')).to_contain_text("The continuation")
    expect(page.locator('#grid [data-key="decoder.0.0"] .density')).to_have_text("100%")
    page.reload()
    wait_until_idle(page)
    expect(page.locator("#tokens")).to_have_value("32")
    expect(page.locator("#temperature")).to_have_value("1")
    expect(page.locator('.outcome[data-side="changed"]')).to_be_visible()
    assert nameless_controls(page) == 0
