"""The explorer follows a training that is still running."""

import json
from pathlib import Path

from playwright.sync_api import Browser, expect

from entformer.checkpoint import RunFolder

from .test_explore_page import Server


def line(kind: str, step: int, **numbers: object) -> str:
    return json.dumps({"kind": kind, "step": step, **numbers}) + "\n"


def test_losses_and_alphas_are_drawn_while_they_are_written(browser: Browser, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.recipe.write_text("training: {steps: 1000}\n", encoding="utf-8")
    first = [line("alphas", 0, encoder=[[1.5, 1.4]]), line("train", 10, loss=4.0), line("alphas", 10, encoder=[[1.6, 1.4]])]
    folder.metrics.write_text("".join(first), encoding="utf-8")
    server = Server(None, folder=tmp_path)
    page = browser.new_page(reduced_motion="reduce")
    try:
        page.goto(server.address)
        expect(page.locator("#no-model")).to_contain_text("no checkpoint yet")
        expect(page.locator("#error")).to_be_hidden()
        expect(page.locator("#go")).to_be_disabled()
        expect(page.locator("#text")).to_be_disabled()
        expect(page.locator("main > section").first).to_have_id("training")
        expect(page.locator("#training-state")).to_have_text("Step 10 of 1,000; this part follows the training.")
        expect(page.locator("#training-alphas .small-path")).to_have_count(2)
        with folder.metrics.open("a", encoding="utf-8") as file:
            file.write(line("train", 1000, loss=2.0) + line("valid", 1000, loss=2.5, bleu=31.25))
        expect(page.locator("#training-state")).to_have_text("Step 1,000 of 1,000.")
        expect(page.locator("#training-charts")).to_contain_text("training 2.00, validation 2.50")
        expect(page.locator("#training-charts")).to_contain_text("BLEU 31.3")
    finally:
        page.close()
        server.stop()
