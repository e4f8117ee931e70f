"""The explorer in a real browser: a sentence is translated, an alpha changes weights and translation, nothing else loads."""

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, Route, expect

from entformer.checkpoint import LoadedRun
from entformer.explore import create_app

from .page_driver import INKED, nameless_controls, open_address, weights_shown

SENTENCE = "a man in an orange hat"
EXAMPLE = "two dogs play"


class Server:
    """An explorer on a free port of this machine."""

    def __init__(self, run: LoadedRun | tuple[Any, Any] | None, **options: Any) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}/"
        app = create_app(run, name="small <b>run</b>", max_tokens=40, timeout=900.0, **options)
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()


@pytest.fixture(scope="module")
def server(make_run: Callable[..., LoadedRun]) -> Iterator[Server]:
    server = Server(make_run(), examples=[EXAMPLE])
    yield server
    server.stop()


def open_page(browser: Browser, server: Server, *, text: str = SENTENCE, **options: Any) -> Iterator[Page]:
    """The page with a sentence translated. It may load from its own server only, and say nothing on the console."""
    address = f"{server.address}#text={text}" if text else server.address
    for page in open_address(browser, address, server.address, reduced_motion="reduce", **options):
        wait_until_idle(page)
        yield page


def wait_until_idle(page: Page) -> None:
    """The page shows the answer to what was asked last."""
    page.locator("body:not([data-busy]) .outcome").first.wait_for(timeout=90_000)


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    yield from open_page(browser, server)


def ask(page: Page, server: Server, kind: str, **body: Any) -> dict[str, Any]:
    """What the server itself answers."""
    answer = page.request.post(f"{server.address}api/{kind}", data={"text": SENTENCE, "beam": 5, **body})
    assert answer.ok
    found: dict[str, Any] = answer.json()
    return found


def texts(page: Page, side: str) -> list[str]:
    return page.locator(f'.outcome[data-side="{side}"] .candidate').evaluate_all(
        """(nodes) => nodes.map((node) => {
            const text = node.querySelector(".translation").cloneNode(true);
            text.querySelectorAll("del").forEach((gone) => gone.remove());
            return text.textContent.trim().replace(/\\s+/g, " ");
        })"""
    )


def one_spaced(candidates: list[dict[str, Any]]) -> list[str]:
    return [" ".join(candidate["text"].split()) or "(empty)" for candidate in candidates]


def row_of(answer: dict[str, Any], key: str, row: int) -> dict[int, float]:
    rows = answer["heads"][key]
    inside = slice(rows["crow"][row], rows["crow"][row + 1])
    return dict(zip(rows["col"][inside], rows["weight"][inside], strict=True))


def test_small_weights_of_the_alignment_do_not_look_like_zero(page: Page) -> None:
    def shrink(route: Route) -> None:
        answer = route.fetch()
        found = answer.json()
        for key, rows in found["heads"].items():
            if key.startswith("cross"):
                rows["weight"] = [2.3e-5 for _ in rows["weight"]]
        for step in found["steps"]:
            step["probability"] = 2.3e-5
            step["best"] = [{**other, "probability": 2.3e-5} for other in step["best"]]
        route.fulfill(response=answer, json=found)

    page.route("**/api/attention", shrink)
    page.fill("#text", "the red ball")
    page.keyboard.press("Enter")
    expect(page.locator("#alignment .next-token .value").first).to_have_text("2.3e-5", timeout=90_000)
    wait_until_idle(page)
    shown = [page.locator(f"#alignment {place}").all_text_contents() for place in (".lines .number", ".support .value")]
    assert all(shown)
    assert not [text for texts in shown for text in texts if float(text) == 0]
    page.unroute("**/api/attention")


def test_a_typed_sentence_is_translated_and_every_head_drawn(page: Page, server: Server) -> None:
    page.fill("#text", "the red ball")
    page.keyboard.press("Enter")
    expected = ask(page, server, "translate", text="the red ball", n_best=3)
    expect(page.locator("#counted")).to_contain_text(f"{len(expected['source']) - 1} subwords")
    wait_until_idle(page)
    assert texts(page, "trained") == one_spaced(expected["candidates"])
    expect(page.locator("#grid .head")).to_have_count(10)
    expect(page.locator("#title")).to_have_text("small <b>run</b>")
    inked = page.locator('#grid [data-key="encoder.0.1"] canvas').evaluate(INKED)
    heads = ask(page, server, "attention", text="the red ball")["heads"]
    assert inked == len(heads["encoder.0.1"]["col"])  # a pixel per weight above zero, no more


def test_an_alpha_changes_weights_and_translation_and_can_be_undone(page: Page, server: Server) -> None:
    before = texts(page, "trained")
    page.click('#grid [data-key="cross.0.1"]')
    page.locator("#one-head .queries .token").nth(2).hover()
    trained = weights_shown(page)
    assert trained == pytest.approx(row_of(ask(page, server, "attention"), "cross.0.1", 2), abs=6e-5)
    page.get_by_role("button", name="as softmax").click()
    expect(page.locator('.outcome[data-side="changed"]')).to_be_visible()
    wait_until_idle(page)
    changed = ask(page, server, "attention", alphas={"cross.0.1": 1.0})
    assert weights_shown(page) == pytest.approx(row_of(changed, "cross.0.1", 2), abs=6e-5)
    assert weights_shown(page) != trained
    assert texts(page, "changed") == one_spaced(
        ask(page, server, "translate", n_best=3, alphas={"cross.0.1": 1.0})["candidates"]
    )
    assert texts(page, "changed") != before
    assert texts(page, "trained") == before
    expect(page.locator('#grid [data-key="cross.0.1"] .alpha')).to_have_text("α* 1.00")
    expect(page.locator("#bar")).to_be_visible()  # the translations are out of sight, and the bar stands in
    page.locator(".change .undo").click()
    expect(page.locator('.outcome[data-side="changed"]')).to_have_count(0)
    wait_until_idle(page)
    assert weights_shown(page) == trained


def test_the_slider_and_the_words_before_and_after(page: Page, server: Server) -> None:
    page.click('#grid [data-key="encoder.0.0"]')
    page.locator("#alpha-slider").fill("2.5")
    expect(page.locator(".changed-heads")).to_contain_text("→ 2.50")
    expect(page.locator('.outcome[data-side="changed"] .difference')).not_to_be_empty()
    page.locator("#change-type").select_option("all")
    page.click('[data-all="1"]')
    expect(page.locator(".change")).to_have_count(3)  # a chip for each kind
    wait_until_idle(page)
    every = dict.fromkeys(ask(page, server, "attention")["heads"], 1.0)
    best = one_spaced(ask(page, server, "translate", n_best=3, alphas=every)["candidates"])
    assert texts(page, "changed") == best
    marked = page.locator('.outcome[data-side="changed"] .candidate.best')
    assert marked.locator("ins").count() + marked.locator("del").count() > 0
    page.locator("#reset-all").click()
    expect(page.locator('.outcome[data-side="changed"]')).to_have_count(0)


def test_a_target_step_is_chosen_everywhere(page: Page, server: Server) -> None:
    page.click('#grid [data-key="cross.1.0"]')
    page.locator("#alignment-choice").select_option("cross.1.0")
    page.locator("#alignment-view .queries .token").nth(3).hover()
    expect(page.locator("#one-head .queries .token.chosen")).to_have_attribute("data-index", "3")
    answer = ask(page, server, "attention")
    row = row_of(answer, "cross.1.0", 3)
    zeros = page.locator('#alignment-view .keys .token[title="exactly 0"]')
    expect(zeros).to_have_count(len(answer["source"]) - len(row))
    best = page.locator("#alignment-view .next .value").all_text_contents()
    assert float(best[0]) == pytest.approx(answer["steps"][3]["best"][0]["probability"], abs=6e-5)
    page.locator("#alignment-choice").select_option("layer 1")
    both = {column for head in (0, 1) for column in row_of(answer, f"cross.1.{head}", 3)}
    expect(zeros).to_have_count(len(answer["source"]) - len(both))
    page.locator("#one-head .queries .token").nth(1).hover()
    expect(page.locator("#alignment-view .queries .token.chosen")).to_have_attribute("data-index", "1")


def test_another_candidate_can_be_looked_at(page: Page, server: Server) -> None:
    page.locator(".candidate").nth(1).click()
    wait_until_idle(page)
    pieces = ask(page, server, "translate", n_best=3)["candidates"][1]["pieces"]
    expect(page.locator("#alignment-view .queries .token")).to_have_count(len(pieces) + 1)
    expect(page.locator(".candidate").nth(1)).to_have_attribute("aria-pressed", "true")


def test_an_error_is_shown_and_the_text_stays(browser: Browser, make_run: Callable[..., LoadedRun]) -> None:
    server = Server(make_run())
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{server.address}#text={SENTENCE}")
    wait_until_idle(page)
    long = "hat " * 60
    page.fill("#text", long)
    page.keyboard.press("Enter")
    expect(page.locator("#error")).to_contain_text("subwords; at most 40 are allowed")
    expect(page.locator("#text")).to_have_value(long)
    expect(page.locator("#grid .head").first).to_be_visible()  # what was there stays
    server.stop()
    page.fill("#text", EXAMPLE)
    page.keyboard.press("Enter")
    expect(page.locator("#error")).to_contain_text("The server does not respond")
    expect(page.locator("#text")).to_have_value(EXAMPLE)
    context.close()


def test_the_address_holds_what_was_tried(browser: Browser, server: Server, page: Page) -> None:
    page.click('#grid [data-key="decoder.1.1"]')
    page.get_by_role("button", name="as sparsemax").click()
    expect(page.locator('.outcome[data-side="changed"]')).to_be_visible()
    wait_until_idle(page)
    page.reload()
    wait_until_idle(page)
    expect(page.locator('.outcome[data-side="changed"]')).to_be_visible()
    expect(page.locator(".inspector code").last).to_have_text("decoder.1.1")
    expect(page.locator("#text")).to_have_value(SENTENCE)


def test_while_it_works_it_does_not_say_that_there_is_nothing(browser: Browser, server: Server) -> None:
    page = browser.new_page()
    page.route("**/api/*translate*", lambda route: None)  # no answer
    page.goto(f"{server.address}#text={SENTENCE}")
    expect(page.locator("#working")).to_be_visible()
    expect(page.locator(".outcomes > .note")).to_have_count(1)
    expect(page.locator(".outcomes > .note")).to_be_hidden()
    page.evaluate("document.body.removeAttribute('data-busy')")
    expect(page.locator(".outcomes > .note")).to_be_visible()
    page.close()


def test_an_empty_page_begins_with_an_example(browser: Browser, server: Server) -> None:
    for page in open_page(browser, server, text=""):
        expect(page.locator("#text")).to_have_value(EXAMPLE)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_without_scrolling_sideways(browser: Browser, server: Server, scheme: str) -> None:
    for page in open_page(browser, server, width=360, has_touch=True, is_mobile=True, color_scheme=scheme):
        expect(page.locator("html")).to_have_attribute("data-theme", scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.locator('#grid [data-key="cross.0.0"]').tap()
        page.locator("#one-head .queries .token").nth(1).tap()
        expect(page.locator("#one-head .says")).to_contain_text("puts weight on")


def test_controls_have_names(page: Page) -> None:
    assert nameless_controls(page) == 0


def test_heads_without_an_alpha_say_so(browser: Browser, make_run: Callable[..., LoadedRun]) -> None:
    server = Server(make_run(cross={"normalizer": "rela"}))
    for page in open_page(browser, server):
        page.click('#grid [data-key="cross.0.0"]')
        expect(page.locator("#alpha-note")).to_contain_text("there is no α to change")
        expect(page.locator("#alpha-slider")).to_be_disabled()
        expect(page.get_by_role("button", name="as softmax")).to_be_disabled()
        page.click('[data-all="2"]')  # changes the heads that can be
        expect(page.locator(".change")).to_have_count(2)
        wait_until_idle(page)
    server.stop()


def test_a_text_is_continued_and_an_alpha_changed(browser: Browser, tiny_llama: Callable[..., tuple[Any, Any]]) -> None:
    """With a Hugging Face decoder."""
    server = Server(tiny_llama(layers=1), examples=["the cat sat on the"])
    for page in open_page(browser, server, text=""):
        expect(page.locator("#go")).to_have_text("Continue")
        expect(page.locator(".candidate").first).to_be_visible()
        expect(page.locator(".next-token li").first).to_be_visible()
        expect(page.locator('#grid [data-key="decoder.0.1"]')).to_be_visible()
        page.click('.presets button[data-alpha="1"]')
        expect(page.locator('[data-side="changed"].outcome')).to_be_visible()
    server.stop()
