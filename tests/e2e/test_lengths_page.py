"""The report of long-context sweeps in a real browser: values under the pointer, switches, measures, themes, small screens."""

import dataclasses
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from entformer.analysis.assemble import assemble_lengths
from entformer.analysis.lengths import find_sweeps, lengths_data
from entformer.files import write_json
from entformer.longcontext.registry import get_task_config

from .page_driver import open_page

TITLE = "Length generalization: copy, <sort>"
LENGTHS = [16, 32, 64, 128]
METHODS = ("softmax", "ssmax", "entmax", "asentmax")
POSITIONS = ("nape", "rope")


def records(task: str) -> Iterator[dict[str, Any]]:
    """Accuracy falls with the length, the faster the lower the number of the method; rotary faster than NAPE."""
    for (number, method), place, seed, (times, length) in itertools.product(
        enumerate(METHODS), POSITIONS, (0, 1), enumerate(LENGTHS)
    ):
        right = max(99 - 2 * seed - times * (20 - 4 * number) * (1.5 if place == "rope" else 1.0), 0.0) / 100
        keys = length if method in ("softmax", "ssmax") else 3 + times
        heads = {"entropy": [0.5, 0.5, 0.7, 0.7], "support": [keys] * 4, "top": [0.4, 0.4, 0.2, 0.2]}
        if method in ("ssmax", "asentmax"):
            heads |= {"beta": [0.0, 0.1, 0.2, 0.3], "gamma": [-0.5] * 4, "scale": [1.0, 2.0, 3.0, 4.0]}
        yield {
            **{"task": task, "method": method, "positions": place, "seed": seed, "length": length, "train_length": 16},
            **{"token_accuracy": right, "exact_match": right / (1 + times), "sequences": 128, "diverged": False},
            **{"parameters": 1, "steps": 1, "seconds": 1.0, "heads": {name: [own] * 2 for name, own in heads.items()}},
        }


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("lengths")
    for task in ("copy", "sort"):
        config = dataclasses.replace(get_task_config(task), heads=4, eval_lengths=LENGTHS)
        run = directory / task / "runs" / "one"
        run.mkdir(parents=True)
        write_json(run / "run.json", {"recipe": dataclasses.asdict(config)})
        lines = "".join(json.dumps(record) + "\n" for record in records(task))
        (directory / task / "results.jsonl").write_text(lines, encoding="utf-8")
    path = directory / "report.html"
    path.write_text(assemble_lengths(lengths_data(find_sweeps([directory]), TITLE)), encoding="utf-8")
    return path


def shown(page: Page) -> dict[str, float]:
    """What the box beside the curves of the first sweep says."""
    rows = page.locator("#sweep-copy .values tr")
    names = rows.locator("th").all_text_contents()
    numbers = rows.locator("td").evaluate_all("(cells) => cells.map((cell) => parseFloat(cell.firstChild.textContent))")
    return dict(zip(names, numbers, strict=True))


def point_at(page: Page, length: int) -> None:
    """Move the pointer over the large chart, at a length."""
    chart = page.locator("#sweep-copy .curves .chart")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    dots = chart.locator("circle").evaluate_all("(dots) => dots.slice(0, 4).map((dot) => dot.getBoundingClientRect().x + 3)")
    page.mouse.move(dots[LENGTHS.index(length)], box["y"] + box["height"] / 2)


def test_the_pointer_reads_the_values_of_a_length(page: Page) -> None:
    expect(page.locator("#sweep-copy .values h4")).to_contain_text("Length 32")  # twice the training length, to begin with
    point_at(page, 128)
    expect(page.locator("#sweep-copy .values h4")).to_contain_text("Length 128")
    values = shown(page)
    assert list(values.values()) == sorted(values.values(), reverse=True)
    assert values["asentmax, nape"] == pytest.approx(98.0 - 3 * 8)
    assert values["softmax, rope"] == pytest.approx(98.0 - 3 * 30)
    assert page.locator("#sweep-copy .reading[visibility=visible]").count() == 4  # the line stands in every chart of the sweep
    page.locator("#sweep-copy .curves .chart").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#sweep-copy .values h4")).to_contain_text("Length 64")


def test_methods_and_positions_can_be_deselected(page: Page) -> None:
    lines = page.locator("#sweep-copy .curves .line")
    assert lines.count() == 8
    page.get_by_role("button", name="rope").click()
    assert lines.count() == 4
    page.get_by_role("button", name="softmax").click()
    expect(page.get_by_role("button", name="softmax")).to_have_attribute("aria-pressed", "false")
    assert lines.evaluate_all("(all) => all.map((line) => line.dataset.series)") == [
        f"{name}, nape" for name in METHODS if name != "softmax"
    ]
    assert page.locator("#sweep-sort .means tbody tr").count() == 3
    for name in ("ssmax", "entmax", "asentmax"):
        page.get_by_role("button", name=name, exact=True).click()
    expect(page.locator("#sweep-copy .values")).to_contain_text("Nothing is selected")
    page.get_by_role("button", name="entmax", exact=True).click()
    assert lines.count() == 1


def test_the_measure_changes_curves_values_and_table(page: Page) -> None:
    best = page.locator("#sweep-copy .means tbody tr").first
    assert best.locator("th").all_text_contents() == ["asentmax", "nape"]
    assert best.locator("td").nth(1).text_content() == "90.0 ± 1.4"
    page.get_by_role("button", name="exact match").click()
    expect(page.locator("#sweep-copy .means h3")).to_contain_text("Exact match")
    assert best.locator("td").nth(1).text_content() == "45.0 ± 0.7"
    assert shown(page)["asentmax, nape"] == pytest.approx(45.0)


def test_attention_of_the_heads_without_alibi(page: Page) -> None:
    entropy = page.locator("#sweep-copy .curve-row .chart").first.locator("circle").first
    before = entropy.get_attribute("cy")
    page.get_by_role("button", name="without ALiBi").click()
    assert page.locator("#sweep-copy .curve-row .chart").first.locator("circle").first.get_attribute("cy") != before


def test_learned_scales_of_every_scaled_head(page: Page) -> None:
    charts = page.locator("#sweep-copy .curve-row").nth(1).locator(".chart")
    assert charts.count() == 3
    for chart in charts.all():
        assert (
            chart.locator(".dot").count() == 2 * (2 + 4) * 2 * 2
        )  # methods, scaled heads of NAPE and of rotary, layers, seeds
    assert "layer 0, head 2, seed 0" in (charts.first.locator("title").first.text_content() or "")


def test_command_settings_and_titles_are_text(page: Page) -> None:
    assert page.locator("h1").text_content() == TITLE
    page.locator("#sweep-copy summary").click()
    expect(page.locator("#sweep-copy pre")).to_contain_text("entformer longctx copy --methods softmax,ssmax,entmax,asentmax")
    page.get_by_role("button", name="exact match").click()  # draws everything again
    expect(page.locator("#sweep-copy pre")).to_be_visible()


def test_dark_theme_has_its_own_colors(page: Page) -> None:
    line = page.locator("#sweep-copy .curves .line").first
    light = line.get_attribute("stroke")
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.locator("#sweep-copy .curves .line").first.get_attribute("stroke") != light


def test_nothing_overflows_on_a_phone(browser: Browser, report: Path) -> None:
    for page in open_page(browser, report, width=360, has_touch=True, is_mobile=True):
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.locator("#sweep-copy .curves .chart").tap()
        expect(page.locator("#sweep-copy .values")).to_be_visible()
