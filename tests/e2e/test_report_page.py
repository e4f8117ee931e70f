"""The report in a real browser: what is clicked, hovered and moved does what it says, without an error or a request."""

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, Page, expect

from entformer import entmax
from entformer.analysis.assemble import assemble
from entformer.errors import DataError

from .page_driver import INKED, choose_head, column, nameless_controls, open_page, open_report, token, weights_shown
from .report_data import DATA, LEARNED, PAIRS, head_key, long_report_data, read_scores

PIXELS = "new Uint32Array(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer)"


@pytest.fixture
def phone(browser: Browser, report: Path) -> Iterator[Page]:
    yield from open_page(browser, report, width=360, has_touch=True, is_mobile=True)


def own_rows(key: str, sentence: int = 0, run: int = 0) -> dict[str, list[float]]:
    rows: dict[str, list[float]] = DATA["runs"][run]["sentences"][sentence]["heads"][key]
    return rows


def test_every_head_has_a_picture_an_alpha_and_a_density(page: Page) -> None:
    buttons = page.locator("#grid .head")
    expect(buttons).to_have_count(len(LEARNED["heads"]))
    head = LEARNED["heads"][5]
    button = page.locator(f'#grid [data-key="{head_key(head)}"]')
    expect(button.locator(".alpha")).to_have_text(f"α {head['alpha']:.2f}")
    expect(button.locator(".density")).to_contain_text("%")
    page.wait_for_function("[...document.querySelectorAll('#grid canvas')].every((canvas) => canvas.width !== 300)")
    inked = button.locator("canvas").evaluate(INKED)
    assert inked == len(own_rows("encoder.1.1")["col"])  # a pixel per weight above zero, no more


def test_clicking_a_head_shows_it_large(page: Page) -> None:
    choose_head(page, "decoder.1.3")
    expect(page.locator("#head-title")).to_have_text("Decoder self-attention, layer 1, head 3")
    expect(page.locator('#grid [data-key="decoder.1.3"]')).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".inspector .heatmap canvas")).to_be_visible()
    page.get_by_label("Next head").click()
    expect(page.locator("#head-title")).to_have_text("Decoder self-attention, layer 2, head 0")


def test_hovering_a_token_gives_its_support_and_says_exactly_0_of_the_rest(page: Page) -> None:
    choose_head(page, "encoder.0.1")
    token(page, 4)
    rows = own_rows("encoder.0.1")
    inside = slice(int(rows["crow"][4]), int(rows["crow"][5]))
    expected = dict(zip(rows["col"][inside], rows["weight"][inside], strict=True))
    assert weights_shown(page) == pytest.approx(expected, abs=6e-5)
    keys = len(LEARNED["sentences"][0]["source"])
    expect(page.locator(".says")).to_contain_text(f"puts weight on {len(expected)} of {keys} keys")
    expect(page.locator(".rest")).to_have_text(f"The other {keys - len(expected)} visible keys get exactly 0.")
    expect(page.locator(".reading .keys .zero")).to_have_count(keys - len(expected))
    expect(page.locator('.reading .keys .token[title="exactly 0"]')).to_have_count(keys - len(expected))


def test_focus_and_arrow_keys_do_what_hovering_does(page: Page) -> None:
    choose_head(page, "encoder.0.1")
    page.locator(".reading .queries .token").nth(2).focus()
    chosen = page.locator(".reading .queries .token.chosen")
    expect(chosen).to_have_attribute("data-index", "2")
    page.keyboard.press("ArrowRight")
    expect(chosen).to_have_attribute("data-index", "3")
    page.locator('#grid [data-key="encoder.0.1"]').focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("#head-title")).to_have_text("Encoder self-attention, layer 1, head 1")


def test_cells_of_zero_small_and_masked_weights_look_different(page: Page) -> None:
    page.emulate_media(reduced_motion="reduce")  # else the page may still be scrolling while the mouse moves
    choose_head(page, "decoder.1.0")
    canvas = page.locator(".heatmap canvas")
    page.evaluate("document.querySelector('.heatmap').scrollIntoView()")
    box = canvas.bounding_box()
    assert box is not None
    texts = set()
    for step in range(6, int(box["width"]) - 60, 25):
        page.mouse.move(box["x"] + step + 60, box["y"] + 0.75 * box["height"])
        if page.locator(".tip").is_visible():
            texts.add(page.locator(".tip").inner_text().split(": ")[1])
    assert "exactly 0" in texts
    assert "not visible" in texts
    assert any(text.startswith("0.") for text in texts)
    assert canvas.evaluate(f"(canvas) => new Set({PIXELS}).size") > 5


def test_the_alpha_slider_computes_the_weights_anew_and_resets(page: Page) -> None:
    choose_head(page, "encoder.2.1")
    token(page, 3)
    more = page.locator(".more")
    if more.is_visible():
        more.click()
    before = weights_shown(page)
    scores = torch.tensor(read_scores(LEARNED["sentences"][0]["heads"]["encoder.2.1"]["scores"])[3])
    for alpha in (1.0, 1.5, 2.6):
        page.locator("#alpha-slider").fill(str(alpha))
        expect(page.locator("#alpha-value")).to_have_text(f"{alpha:.2f}{' (beyond sparsemax)' if alpha > 2.0 else ''}")
        if more.is_visible():
            more.click()
        expected = {column: weight for column, weight in enumerate(entmax(scores, alpha=alpha).tolist()) if weight > 0}
        assert weights_shown(page) == pytest.approx(expected, abs=6e-5)
    expect(page.locator('#grid [data-key="encoder.2.1"] .alpha')).to_have_text("α* 2.60")
    page.locator("#alpha-reset").click()
    assert weights_shown(page) == before
    expect(page.locator("#alpha-reset")).to_be_disabled()


def test_the_theme_switches_and_follows_the_system(browser: Browser, report: Path, page: Page) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.get_by_role("button", name="Dark theme").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert page.evaluate(background) != light
    page.get_by_role("button", name="Light theme").click()
    assert page.evaluate(background) == light
    for dark in open_page(browser, report, color_scheme="dark"):
        expect(dark.locator("html")).to_have_attribute("data-theme", "dark")


def test_the_table_sorts_both_ways_and_puts_unknown_values_last(page: Page) -> None:
    page.click('[data-sort="alpha"]')
    shown = column(page, 2)
    assert shown == sorted(shown, reverse=True)
    assert shown[0] == pytest.approx(max(head["alpha"] for head in LEARNED["heads"]), abs=0.006)
    expect(page.locator("#head-table th", has=page.locator('[data-sort="alpha"]'))).to_have_attribute("aria-sort", "descending")
    page.click('[data-sort="alpha"]')
    assert column(page, 2) == sorted(shown)
    page.click('[data-sort="aer"]')
    keys = page.locator("#head-table tbody tr").evaluate_all("(lines) => lines.map((line) => line.dataset.key)")
    best = min((head for head in LEARNED["heads"] if head["aer"] is not None), key=lambda head: head["aer"])
    assert keys[0] == f"cross.{best['layer']}.{best['head']}"
    assert keys[-1].startswith("decoder")


def test_a_role_leads_to_its_example(page: Page) -> None:
    page.locator('#head-table tr[data-key="encoder.1.3"] [data-role="previous token"]').click()
    expect(page.locator("#head-title")).to_have_text("Encoder self-attention, layer 1, head 3")
    expect(page.locator("#sentence-text")).to_contain_text(PAIRS[1][0])


def test_the_best_candidates_of_a_role_are_listed(page: Page) -> None:
    found = [(role, head_key(head)) for head in LEARNED["heads"] for role in head["roles"]]
    best = max((role["score"], key) for role, key in found if role["role"] == "previous token")
    first = page.locator(".head-roles dt", has_text="previous token").locator("+ dd button").first
    expect(first).to_have_text(f"{best[1]} {best[0]:.2f}")
    first.click()
    expect(page.locator(".inspector code").first).to_have_text(best[1])


def test_a_head_is_shown_on_its_sparsest_and_densest_sentence(page: Page) -> None:
    buttons = page.locator("#varied .head")
    expect(buttons).to_have_count(2)
    expect(buttons.nth(1)).to_contain_text("42%")
    buttons.nth(1).click()
    expect(page.locator("#sentence-text")).to_contain_text(PAIRS[3][0])
    expect(page.locator(".inspector code").first).to_have_text("encoder.1.0")


def test_sentences_and_runs_are_chosen(page: Page) -> None:
    page.select_option("#sentence-choice", "3")
    expect(page.locator("#sentence-text")).to_contain_text(PAIRS[3][1])
    page.select_option("#run-choice", label="softmax")
    expect(page.locator("#sentence-text")).to_contain_text(PAIRS[3][1])  # the same sentence, in another run
    expect(page.locator("#grid .alpha").first).to_have_text("α 1.00")
    expect(page.locator("#paths")).to_contain_text("softmax learns no α")
    page.reload()
    expect(page.locator("#run-choice")).to_have_value("2")
    expect(page.locator("#sentence-text")).to_contain_text(PAIRS[3][1])


def test_cross_attention_is_drawn_as_lines_between_the_sentences(page: Page) -> None:
    choose_head(page, "encoder.0.0")
    choose_head(page, "cross.1.0")
    lines = page.locator(".lines")
    expect(lines.locator(".all path")).to_have_count(len(own_rows("cross.1.0")["col"]))  # none for a weight of zero
    words = lines.locator(".queries text")
    expect(words.nth(1)).to_have_text("Wo")
    words.nth(3).hover()
    rows = own_rows("cross.1.0")
    expect(lines.locator(".keys .strong")).to_have_count(int(rows["crow"][4] - rows["crow"][3]))
    expect(page.locator(".says")).to_contain_text("to predict kleine")
    page.get_by_label("name rows by the token predicted").check()
    expect(words.nth(0)).to_have_text("Wo")


def test_the_step_slider_reads_alphas_of_that_step(page: Page) -> None:
    page.locator("#step-slider").fill("3")
    expect(page.locator("#step-value")).to_have_text("400")
    then = [path[3] for layer in LEARNED["alpha_paths"]["encoder"] for path in layer]
    expect(page.locator(".path-panel .note").first).to_contain_text(f"α from {min(then):.2f} to {max(then):.2f}")
    page.locator('.alpha-path[data-key="cross.0.2"]').dispatch_event("click")
    expect(page.locator("#head-title")).to_have_text("Cross attention, layer 0, head 2")


def test_runs_stand_side_by_side_with_scores_settings_and_signatures(page: Page) -> None:
    expect(page.locator(".card")).to_have_count(3)
    for run, card in zip(DATA["runs"], page.locator(".card").all(), strict=True):
        expect(card).to_contain_text(run["name"])
        expect(card).to_contain_text(f"{run['scores'][0]['value']:.1f}")
        expect(card).to_contain_text(run["scores"][0]["signature"])
    titles = page.locator("#compare h3").all_text_contents()
    assert len(titles) == 6
    figure = page.locator("#compare figure", has_text="How dense attention is")
    expect(figure.locator("svg.chart")).to_have_count(9)  # three kinds by three runs
    page.locator(".settings summary").click()
    expect(page.locator(".settings .differs th")).to_have_text(["model.normalizer"])
    expect(page.locator("#alignment")).to_contain_text("31% cross.1.2where the word is read")


def test_markup_in_texts_stays_text(page: Page) -> None:
    page.select_option("#sentence-choice", "2")
    expect(page.locator("#sentence-text")).to_contain_text(PAIRS[2][0])
    expect(page.locator("#sentence-text")).to_contain_text(PAIRS[2][1])
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2


def test_a_title_cannot_become_markup(browser: Browser, tmp_path: Path) -> None:
    nasty = "</script><script>throw 1</script><!--<script> {{ script }}"
    data = {**DATA, "title": nasty, "runs": [{**DATA["runs"][1], "name": nasty, "settings": {nasty: nasty}}]}
    for page in open_report(browser, tmp_path, data):
        expect(page.locator("#title")).to_have_text(nasty)
        assert page.title() == nasty
        expect(page.locator(".card h3")).to_contain_text(nasty)
        expect(page.locator("#grid .head")).to_have_count(36)


def test_a_phone_shows_everything_without_scrolling_sideways(phone: Page) -> None:
    assert phone.evaluate("document.documentElement.scrollWidth") <= 360
    choose_head(phone, "cross.0.1")
    phone.locator(".reading .queries .token").nth(2).tap()
    expect(phone.locator(".reading .queries .token.chosen")).to_have_attribute("data-index", "2")
    assert phone.evaluate("document.documentElement.scrollWidth") <= 360
    small = """[...document.querySelectorAll('main *:not(svg *)')].filter((node) => node.childElementCount === 0
        && node.textContent.trim() && node.checkVisibility() && parseFloat(getComputedStyle(node).fontSize) < 11).length"""
    assert phone.evaluate(small) == 0


def test_controls_have_names(page: Page) -> None:
    assert nameless_controls(page) == 0
    assert page.locator("svg.chart:not([aria-label])").count() == 0


def test_a_sentence_of_512_tokens_open_in_a_file_below_10_mb(browser: Browser, tmp_path: Path) -> None:
    text = assemble(long_report_data())
    assert len(text.encode()) < 10_000_000
    path = tmp_path / "long.html"
    path.write_text(text, encoding="utf-8")
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(path.as_uri())
    expect(page.locator(".reading .queries .token")).to_have_count(512)
    expect(page.locator(".lines svg")).to_be_visible()
    expect(page.locator("#alpha-slider")).to_be_disabled()  # no scores are stored for a sentence this long
    choose_head(page, "encoder.0.1")
    expect(page.locator(".heatmap canvas")).to_be_visible()
    token(page, 400)
    expect(page.locator(".says")).to_contain_text("of 512 keys")
    context.close()


def test_a_cut_head_never_says_exactly_0(browser: Browser, tmp_path: Path) -> None:
    """Of a dense head in a long sentence the small weights are left out; what is not there is then not known to be 0."""
    run = copy.deepcopy(DATA["runs"][2])
    sentence = run["sentences"][0]
    rows = sentence["heads"]["encoder.0.1"]
    kept = [weight >= 0.05 for weight in rows["weight"]]
    rows["crow"] = [sum(kept[:at]) for at in rows["crow"]]
    rows["col"], rows["weight"] = ([x for x, keep in zip(rows[name], kept, strict=True) if keep] for name in ("col", "weight"))
    rows["cut"] = 0.05
    del sentence["heads"]["encoder.0.2"]
    sentence["omitted"] = ["encoder.0.2"]
    for page in open_report(browser, tmp_path, {**DATA, "runs": [run]}):
        expect(page.locator("#dropped")).to_contain_text("of 1 head only the largest weights, down to 0.05 or lower")
        expect(page.locator("#dropped")).to_contain_text("of 1 head nothing")
        choose_head(page, "encoder.0.1")
        token(page, 4)
        found, keys = rows["crow"][5] - rows["crow"][4], len(sentence["source"])
        expect(page.locator(".says")).to_contain_text(f"puts 0.05 or more on {found} of {keys} keys")
        expect(page.locator(".rest")).to_have_text(
            f"The other {keys - found} visible keys get less than 0.05 each; what exactly is not in this page."
        )
        expect(page.locator(".reading .keys .zero")).to_have_count(0)
        expect(page.locator(".legend .without")).to_have_text("below 0.05")
        page.locator("#alpha-slider").fill("2")  # from the scores, which are whole
        expect(page.locator(".rest")).to_contain_text("exactly 0")
        choose_head(page, "encoder.0.2")
        expect(page.locator(".figure")).to_contain_text("are not stored for this sentence")
        page.select_option("#sentence-choice", "1")
        expect(page.locator("#dropped")).to_have_count(0)


def test_a_run_without_sentences_alphas_or_settings_still_opens(browser: Browser, tmp_path: Path) -> None:
    absent = {"roles": [], **dict.fromkeys(("positional.-1", "positional.0", "positional.1"))}
    bare = {**DATA["runs"][2], "sentences": [], "settings": {}, "scores": [], "alignment": None, "layers": []}
    bare["heads"] = [{**head, **absent} for head in bare["heads"]]
    for runs in ([bare], []):
        for page in open_report(browser, tmp_path, {**DATA, "runs": runs}):
            expect(page.locator("#cards")).to_contain_text("softmax" if runs else "no runs")


def test_a_head_without_alpha_may_give_no_weight_at_all_and_can_be_tried_as_entmax(browser: Browser, tmp_path: Path) -> None:
    """As ReLA does."""
    run = copy.deepcopy(DATA["runs"][1])
    run["normalizers"] = dict.fromkeys(run["normalizers"], "rela")
    rows = run["sentences"][0]["heads"]["encoder.0.1"]
    first, second = rows["crow"][3:5]
    del rows["col"][first:second], rows["weight"][first:second]
    rows["crow"] = [*rows["crow"][:4], *(at - (second - first) for at in rows["crow"][4:])]
    for page in open_report(browser, tmp_path, {**DATA, "runs": [run]}):
        choose_head(page, "encoder.0.1")
        expect(page.locator("#grid .alpha.none").first).to_contain_text("α")
        token(page, 3)
        expect(page.locator(".says")).to_contain_text("puts weight on no key at all")
        page.locator("#alpha-slider").fill("2")
        assert sum(weights_shown(page).values()) == pytest.approx(1, abs=1e-3)
        page.get_by_role("button", name="Reset to rela").click()
        expect(page.locator(".says")).to_contain_text("puts weight on no key at all")


def test_numbers_that_json_does_not_know_are_refused() -> None:
    with pytest.raises(DataError, match="null where a number is unknown"):
        assemble({"title": "x", "runs": [float("nan")]})
