"""The report of long-context sweeps in a real browser: values under the pointer, switches, measures, themes, small screens."""

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from entformer.analysis.assemble import assemble_lengths
from entformer.analysis.lengths import _spread as spread

from .page_driver import open_page

LENGTHS = [16, 32, 64, 128]
METHODS = ("softmax", "ssmax", "entmax", "asentmax")
POSITIONS = ("nape", "rope")


def series(number: int, method: str, positions: str) -> dict[str, Any]:
    """Falls with the length, the faster the lower its number; rotary faster than NAPE."""
    points = []
    for times, length in enumerate(LENGTHS):
        fall = times * (20 - 4 * number) * (1.5 if positions == "rope" else 1.0)
        right = [max(99.0 - fall - seed, 0.0) for seed in (0, 2)]
        keys = [float(length if method in ("softmax", "ssmax") else 3 + times), float(length)]
        points.append(
            {
                "length": length,
                "token_accuracy": spread(right),
                "exact_match": spread([value / (1 + times) for value in right]),
                "entropy": {"all": spread([0.5, 0.6]), "free": spread([0.7, 0.8])},
                "support": {"all": spread(keys), "free": spread(keys)},
                "top": {"all": spread([0.4, 0.3]), "free": spread([0.2, 0.3])},
            }
        )
    scaled = method in ("ssmax", "asentmax")
    learned = [
        {"seed": seed, "length": 128, "layer": layer, "head": head, "beta": 0.1 * head, "gamma": -0.5, "scale": 1.0 + head}
        for seed in (0, 1)
        for layer in (0, 1)
        for head in (2, 3)
    ]
    return {
        "method": method,
        "positions": positions,
        "about": f"about {method}",
        "seeds": [0, 1],
        "diverged": 0,
        "points": points,
        "learned": learned if scaled else [],
    }


def sweep(task: str) -> dict[str, Any]:
    return {
        "name": task,
        "task": task,
        "about": "Say the tokens again.",
        "train_length": 16,
        "lengths": LENGTHS,
        "one_answer": False,
        "seeds": [0, 1],
        "sequences": 128,
        "command": f"entformer longctx {task} --seeds 2",
        "settings": {"lr": 0.001, "seconds": None, "eval_lengths": LENGTHS},
        "series": [series(number, method, place) for place in POSITIONS for number, method in enumerate(METHODS)],
    }


DATA = {
    "title": "Length generalization: copy, <sort>",
    "created": "2026-11-16T00:00:00+00:00",
    "entformer": "0.1.0",
    "sweeps": [sweep("copy"), sweep("sort")],
}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lengths") / "report.html"
    path.write_text(assemble_lengths(DATA), encoding="utf-8")
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
        assert chart.locator(".dot").count() == 4 * 8  # two methods with two kinds of positions; heads, layers and seeds
    assert "layer 0, head 2, seed 0" in (charts.first.locator("title").first.text_content() or "")


def test_command_settings_and_titles_are_text(page: Page) -> None:
    assert page.locator("h1").text_content() == DATA["title"]
    page.locator("#sweep-copy summary").click()
    expect(page.locator("#sweep-copy pre")).to_have_text("entformer longctx copy --seeds 2")
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
