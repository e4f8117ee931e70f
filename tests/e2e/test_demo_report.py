"""The report that `entformer demo` ends with, made by the demo itself and opened in a real browser."""

import json
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, expect

from entformer import entmax

from .page_driver import choose_head, open_page, token, weights_shown
from .report_data import head_key, read_scores

HEAD = "encoder.1.1"
QUERY = 3


@pytest.mark.slow
def test_the_report_of_the_demo(browser: Browser, demo: tuple[Path, str]) -> None:
    path = demo[0] / "report.html"
    runs = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["runs"]
    learned = runs[1]
    for page in open_page(browser, path):
        expect(page.locator(".card h3")).to_contain_text(["softmax", "learned alpha"])
        for run, card in zip(runs, page.locator(".card").all(), strict=True):
            expect(card).to_contain_text(f"{len(run['heads'])} heads")
            names = card.locator(".scores span").all_text_contents()
            assert names == [score["name"] for score in run["scores"]]
            assert "test BLEU" in names
        expect(page.locator("#run-choice option:checked")).to_have_text("learned alpha")  # the sparse one
        assert learned["alpha_correlation"]["all"] > 0.99  # after 20 steps
        expect(page.locator("#alpha-correlation")).to_contain_text("with their random initialization")
        expect(page.locator("#start .dot")).to_have_count(24)
        choose_head(page, HEAD)
        token(page, QUERY)
        rows = learned["sentences"][int(page.locator("#sentence-choice").input_value())]["heads"][HEAD]
        support = rows["col"][rows["crow"][QUERY] : rows["crow"][QUERY + 1]]
        expect(page.locator(".says")).to_contain_text(f"puts weight on {len(support)} of")
        scores = torch.tensor(read_scores(rows["scores"])[QUERY])
        (alpha,) = (head["alpha"] for head in learned["heads"] if head_key(head) == HEAD)
        assert entmax(scores, alpha=alpha).nonzero().ravel().tolist() == support  # the page's scores are the head's own
        page.locator("#alpha-slider").fill("2")
        expected = {at: weight for at, weight in enumerate(entmax(scores, alpha=2.0).tolist()) if weight > 0}
        assert len(expected) < len(support)
        assert weights_shown(page) == pytest.approx(expected, abs=6e-5)
