"""The report that `entformer demo` ends with, made by the demo itself and opened in a real browser."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page, expect

from entformer import entmax

from .page_driver import choose_head, open_page, token, weights_shown
from .report_data import read_scores

pytestmark = pytest.mark.slow

HEAD = "encoder.1.1"
QUERY = 3


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quick demo, run once for this file."""
    folder = tmp_path_factory.mktemp("demo") / "out"
    command = [sys.executable, "-m", "entformer.cli.main", "demo", "--quick", "--out", str(folder)]
    source = Path(__file__).resolve().parents[2] / "src"
    environment = {**os.environ, "PYTHONPATH": str(source), "COLUMNS": "100"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    assert (folder / "report.html").as_uri() in done.stdout  # where it is, ready to be clicked
    return folder


@pytest.fixture(scope="module")
def data(demo: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((demo / "report.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture
def page(browser: Browser, demo: Path) -> Iterator[Page]:
    yield from open_page(browser, demo / "report.html")


def test_both_models_stand_side_by_side(page: Page, data: dict[str, Any]) -> None:
    expect(page.locator(".card h3")).to_contain_text(["softmax", "learned alpha"])
    for run, card in zip(data["runs"], page.locator(".card").all(), strict=True):
        expect(card).to_contain_text(f"{len(run['heads'])} heads")
    expect(page.locator("#grid .head")).to_have_count(24)


def test_it_opens_on_the_sparse_model_and_names_its_scores(page: Page, data: dict[str, Any]) -> None:
    expect(page.locator("#run-choice option:checked")).to_have_text("learned alpha")
    for run, card in zip(data["runs"], page.locator(".card").all(), strict=True):
        names = card.locator(".scores span").all_text_contents()
        assert names == [score["name"] for score in run["scores"]]
        assert all(name.startswith(("test ", "validation ")) for name in names)
        assert "test BLEU" in names


def test_it_says_how_far_alphas_are_from_their_start(page: Page, data: dict[str, Any]) -> None:
    correlation = data["runs"][1]["alpha_correlation"]["all"]
    assert correlation > 0.99  # after 20 updates
    expect(page.locator("#alpha-correlation")).to_contain_text("with their random initialization")
    expect(page.locator("#start .dot")).to_have_count(24)
    first = data["runs"][1]["heads"][0]
    row = page.locator('#head-table tr[data-key="encoder.0.0"] td')
    expect(row.nth(0)).to_have_text(f"{first['alpha']:.2f}")
    expect(row.nth(1)).to_have_text(f"{first['alpha_initial']:.2f}")


def test_a_head_a_token_and_the_slider(page: Page, data: dict[str, Any]) -> None:
    page.select_option("#run-choice", label="learned alpha")
    choose_head(page, HEAD)
    expect(page.locator("#head-title")).to_have_text("Encoder self-attention, layer 1, head 1")
    token(page, QUERY)
    index = int(page.locator("#sentence-choice").input_value())
    sentence = data["runs"][1]["sentences"][index]
    rows = sentence["heads"][HEAD]
    inside = slice(rows["crow"][QUERY], rows["crow"][QUERY + 1])
    support = rows["col"][inside]
    expect(page.locator(".says")).to_contain_text(f"puts weight on {len(support)} of {len(sentence['source'])} keys")
    scores = torch.tensor(read_scores(rows["scores"])[QUERY])
    alphas = [
        head["alpha"] for head in data["runs"][1]["heads"] if f"{head['attn_type']}.{head['layer']}.{head['head']}" == HEAD
    ]
    assert entmax(scores, alpha=alphas[0]).nonzero().ravel().tolist() == support  # the page's scores are the head's own
    page.locator("#alpha-slider").fill("2")
    expected = {at: weight for at, weight in enumerate(entmax(scores, alpha=2.0).tolist()) if weight > 0}
    assert len(expected) < len(support)
    assert weights_shown(page) == pytest.approx(expected, abs=6e-5)
    expect(page.locator(f'#grid [data-key="{HEAD}"] .alpha')).to_have_text("α* 2.00")
