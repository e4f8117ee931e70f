"""axe-core finds no serious violation in any page, in both themes, on a wide and on a narrow screen."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page
from torch import nn

import entformer as ef
from entformer.analysis.assemble import assemble
from entformer.analysis.training_text import TrainingText
from entformer.checkpoint import LoadedRun
from entformer.explore.live import live_page

from .page_driver import open_page
from .report_data import DATA

SCREENS = [(1280, "light"), (390, "dark")]
READY = {"report": "#head-table tbody tr", "live": "body:not([data-busy]) .outcome", "show": "#grid .head"}


@pytest.fixture(scope="module")
def pages(make_run: Callable[..., LoadedRun], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages as files. The explorer is the live page with a server."""
    directory = tmp_path_factory.mktemp("pages")
    words = TrainingText(pairs=3, words=frozenset(("a", "man")), toy=True)
    live = live_page(make_run(), name="run", examples=["a man in an orange hat"], training_text=words)
    found = {}
    for name, text in {"report": assemble(DATA), "live": live, "show": shown_encoder()}.items():
        found[name] = directory / f"{name}.html"
        found[name].write_text(text, encoding="utf-8")
    return found


def shown_encoder() -> str:
    """The page of ef.show for the heads of an encoder."""
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2)
    ef.MultiheadAttention.convert(encoder, normalizer="entmax")
    with ef.trace_attention(encoder) as traces:
        encoder(torch.randn(2, 6, 16))
    return ef.show(traces, ["the", "cat", "sat", "on", "the", "mat"]).html


def serious(page: Page) -> list[str]:
    """Returns the serious violations, each with the first elements that have it."""
    results: dict[str, Any] = Axe().run(page).response
    return [
        f"{found['id']}: {[(node['target'], node['failureSummary']) for node in found['nodes'][:3]]}"
        for found in results["violations"]
        if found["impact"] in ("serious", "critical")
    ]


@pytest.fixture(params=SCREENS, ids=["wide, light", "narrow, dark"])
def open_named(request: pytest.FixtureRequest, browser: Browser, pages: dict[str, Path]) -> Callable[[str], Iterator[Page]]:
    width, theme = request.param

    def open_one(name: str) -> Iterator[Page]:
        for page in open_page(browser, pages[name], width=width, color_scheme=theme, reduced_motion="reduce"):
            page.locator(READY[name]).first.wait_for()
            yield page

    return open_one


@pytest.mark.parametrize("name", READY)
def test_no_serious_violation(open_named: Callable[[str], Iterator[Page]], name: str) -> None:
    for page in open_named(name):
        page.locator("details").evaluate_all("(all) => all.forEach((one) => (one.open = true))")
        assert serious(page) == []
