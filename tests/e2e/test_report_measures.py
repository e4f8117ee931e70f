"""What the report tells about runs: which it opens on, layers, positional heads, the start of alphas, alignment, long names."""

import copy
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from .page_driver import choose_head, open_report
from .report_data import DATA, LEARNED


def test_it_opens_on_the_sparsest_run(browser: Browser, tmp_path: Path) -> None:
    densities = {run["name"]: sum(head["density"] for head in run["heads"]) for run in DATA["runs"]}
    for page in open_report(browser, tmp_path, {**DATA, "runs": DATA["runs"][::-1]}):
        expect(page.locator("#run-choice option:checked")).to_have_text(min(densities, key=lambda name: densities[name]))
        page.select_option("#run-choice", label="softmax")
        page.reload()  # what was chosen stays chosen
        expect(page.locator("#run-choice option:checked")).to_have_text("softmax")


def test_layers_have_both_diversities_and_their_null_rates(browser: Browser, tmp_path: Path, page: Page) -> None:
    layer = LEARNED["layers"][0]
    cells = page.locator('#layer-table tr[data-layer="encoder.0"]')
    expect(cells.locator('[data-measure="js_diversity_keys"]')).to_have_text(f"{layer['js_diversity_keys']:.3f}")
    expect(cells.locator('[data-measure="js_diversity_heads"]')).to_have_text(f"{layer['js_diversity_heads']:.3f}")
    expect(cells.locator('[data-measure="null_rate"]')).to_have_text("0%")
    expect(page.locator('#compare [data-measure="js_diversity_heads"] svg.chart')).to_have_count(3)
    expect(page.locator('#compare [data-measure="null_rate"]')).to_have_count(0)  # there is nothing to show
    rela = copy.deepcopy(DATA["runs"][1])
    for number, own in enumerate(rela["layers"]):
        own["null_rate"] = number / 20
    for other in open_report(browser, tmp_path, {**DATA, "runs": [rela]}):
        expect(other.locator('#compare [data-measure="null_rate"] svg.chart')).to_have_count(3)
        expect(other.locator('#layer-table tr[data-layer="cross.2"] [data-measure="null_rate"]')).to_have_text("40%")


def test_positional_heads_are_counted_per_offset(page: Page) -> None:
    counted = page.locator("#compare .counted")
    expect(counted).to_have_count(9)  # three offsets, three runs
    expect(counted.first).to_have_text("learned alpha: 3 heads, median confidence 94%")
    expect(counted.last).to_have_text("softmax: 0 heads")


def test_alphas_are_read_with_their_start_in_mind(page: Page) -> None:
    expect(page.locator("#alpha-correlation")).to_contain_text("After 8,000 steps alphas correlate 0.93")
    expect(page.locator("#compare figure", has_text="Learned α").first).to_contain_text("correlates 0.93")
    small = page.locator("#start .small-path")
    expect(small).to_have_count(len(LEARNED["heads"]))
    expect(page.locator("#start .small-path.marked")).to_have_count(1)
    expect(page.locator('#start .small-path[data-key="encoder.0.1"] title')).to_contain_text("at 1, a bound")
    choose_head(page, "encoder.0.1")
    start = LEARNED["alpha_paths"]["encoder"][0][1][0]
    expect(page.locator(".measures div", has_text="α before training").locator("dd")).to_have_text(f"{start:.2f}")
    page.select_option("#run-choice", label="softmax")
    expect(page.locator("#alpha-correlation")).to_have_count(0)


def test_alignment_is_of_shares_and_of_raw_weights(page: Page) -> None:
    expect(page.locator("#alignment thead")).to_contain_text("mean of all heads")
    expect(page.locator("#alignment thead")).to_contain_text("mean of all raw weights")
    expect(page.locator("#alignment tbody tr").first).to_contain_text("42%")


def test_long_names_fit_a_phone(browser: Browser, tmp_path: Path) -> None:
    data = {
        **DATA,
        "title": "t" * 300,
        "runs": [{**run, "name": f"{number}{'n' * 200}"} for number, run in enumerate(DATA["runs"])],
    }
    for phone in open_report(browser, tmp_path, data, width=360, has_touch=True, is_mobile=True):
        expect(phone.locator("#compare figure")).not_to_have_count(0)
        assert phone.evaluate("document.documentElement.scrollWidth") <= 360
