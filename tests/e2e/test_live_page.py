"""The live page: a model in one file, run by the browser, gives what Python gives with the same half-float weights."""

import base64
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from playwright.sync_api import Browser, Page, expect

from entformer.analysis.training_text import TrainingText
from entformer.checkpoint import LoadedRun
from entformer.data.builtin import builtin_corpus
from entformer.decoding.attention_record import record_attention
from entformer.decoding.translate import Translator
from entformer.explore.live import live_page, stored_parameters
from entformer.models.config import Seq2SeqConfig
from entformer.models.override import overridden_alphas
from entformer.models.seq2seq import Seq2Seq
from entformer.text.tokenizer import SubwordTokenizer

from .page_driver import open_page

DEMO = Path(__file__).parents[2] / "docs" / "demo.html"
SENTENCE = "a man in an orange hat"
TEXTS = (SENTENCE, "two dogs play with the red ball .", "Der Mann !", "Zürich  ▁ 犬 hat", "an")
SETTINGS: dict[str, dict[str, Any]] = {
    "published": {},
    "post-norm": {"norm": "post", "positions": "rotary", "tied_embeddings": "none", "output": "entmax"},
    "fixed": {
        "positions": "alibi",
        "tied_embeddings": "decoder",
        "encoder": {"normalizer": "softmax"},
        "decoder": {"normalizer": "sparsemax"},
        "cross": {"normalizer": "entmax15"},
    },
    "tied": {"positions": "nape", "encoder": {"alpha_tied": "kind"}, "cross": {"alpha": 1.3}},
}


def stored_run(page: str) -> LoadedRun:
    """Returns the model in a page."""
    found = re.search(r'<script type="application/json" id="entformer-data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    model = Seq2Seq(Seq2SeqConfig.from_dict(data["model"]["config"])).eval()
    values = torch.from_numpy(np.frombuffer(base64.b64decode(data["model"]["weights"]), "<f2").astype(np.float32))
    named = stored_parameters(model)
    for (name, size), part in zip(
        data["model"]["tensors"], values.split([size for _, size in data["model"]["tensors"]]), strict=True
    ):
        assert named[name].numel() == size
        named[name].copy_(part.view_as(named[name]))
    for attn_type, layer, attention in model.attention_layers():
        attention.alpha_override = torch.tensor(data["model"]["layers"][f"{attn_type}.{layer}"]["alphas"])
    subwords = SubwordTokenizer(base64.b64decode(data["tokenizer"]["model"]))
    facts = data["facts"]
    source, target = facts["languages"]
    info = {"lowercase": facts["lowercase"]}
    return LoadedRun(
        model=model, subwords=subwords, source_language=source, target_language=target, info=info, step=facts["step"]
    )


@pytest.fixture(scope="module", params=SETTINGS)
def live(
    request: pytest.FixtureRequest,
    browser: Browser,
    make_run: Callable[..., LoadedRun],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Page, LoadedRun]]:
    text = live_page(make_run(**SETTINGS[request.param]), name="small <b>run</b>", examples=[SENTENCE])
    path = tmp_path_factory.mktemp("live") / "live.html"
    path.write_text(text, encoding="utf-8")
    for page in open_page(browser, path):
        yield page, stored_run(text)


def browser_translations(page: Page, texts: list[str], **options: Any) -> list[list[dict[str, Any]]]:
    found: list[list[dict[str, Any]]] = page.evaluate(
        "async ([texts, options]) => { const found = []; for (const text of texts) "
        "found.push((await Api.translate({ text, ...options })).candidates); return found; }",
        [texts, {"beam": 5, "n_best": 3, **options}],
    )
    return found


def test_translations_and_scores_are_those_of_python(live: tuple[Page, LoadedRun]) -> None:
    page, run = live
    for beam, n_best in ((1, 1), (4, 3)):
        expected = list(Translator(run, beam=beam, n_best=n_best).translate(TEXTS))
        for own, other in zip(browser_translations(page, list(TEXTS), beam=beam, n_best=n_best), expected, strict=True):
            assert [candidate["text"] for candidate in own] == [candidate.text for candidate in other.candidates]
            assert [candidate["ids"] for candidate in own] == [list(candidate.tokens) for candidate in other.candidates]
            scores = [candidate.score for candidate in other.candidates]
            assert [candidate["score"] for candidate in own] == pytest.approx(scores, abs=2e-5)


@pytest.mark.parametrize("alphas", [{}, {"cross.1.0": 1.0, "encoder.0.1": 2.5}])
def test_weights_of_every_head_are_those_of_python(live: tuple[Page, LoadedRun], alphas: dict[str, float]) -> None:
    page, run = live
    source, target = run.subwords.encode(TEXTS[1]), run.subwords.encode("Der Mann !")
    body = {"text": TEXTS[1], "target_ids": target, "alphas": alphas}
    answer = page.evaluate("(body) => Api.attention(body)", body)
    changed: dict[Any, float] = {}
    for key, alpha in alphas.items():
        attn_type, layer, head = key.split(".")
        changed[attn_type, int(layer), int(head)] = alpha
    with overridden_alphas(run.model, changed):
        record = record_attention(run.model, source, target, subwords=run.subwords)
    for head_key, rows in record.heads.items():
        own = answer["heads"][".".join(map(str, head_key))]
        found = np.zeros((len(rows.crow) - 1, rows.keys))
        for i in range(len(found)):
            inside = slice(own["crow"][i], own["crow"][i + 1])
            found[i, own["col"][inside]] = own["weight"][inside]
        np.testing.assert_allclose(found, rows.dense(), atol=2e-5)
    assert len(answer["heads"]) == len(record.heads)


def test_text_is_encoded_and_decoded_as_by_sentencepiece(live: tuple[Page, LoadedRun]) -> None:
    page, run = live
    rng = random.Random(5)
    letters = "anmhtoDr  ▁.!ü犬🐕é\u0301\t\u00a0\ufdd0\x01م"
    texts = ["".join(rng.choices(letters, k=rng.randrange(1, 40))) for _ in range(300)]
    texts += ["<s> </s> <0x41> <unk>", "▁", "an  orange   hat", " x ", "orangeorange manman", *TEXTS]
    encoded = page.evaluate("(texts) => texts.map((text) => Api.tokenizer.encode(text))", texts)
    assert encoded == run.subwords.encode_lines(texts)
    ids = [[rng.randrange(run.subwords.size) for _ in range(12)] for _ in range(300)]
    ids += [[run.subwords.byte_id(byte) for byte in rng.choices(range(256), k=8)] for _ in range(300)]
    decoded = page.evaluate("(ids) => ids.map((one) => Api.tokenizer.decode(one))", ids)
    joined = [re.sub("[\n\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\r]", " ", run.subwords.decode(one)) for one in ids]
    assert decoded == joined


@pytest.fixture
def page(browser: Browser, make_run: Callable[..., LoadedRun], tmp_path: Path) -> Iterator[Page]:
    """The page of a run that was trained on four words."""
    text = TrainingText(pairs=9000, words=frozenset(("a", "man", "orange", "hat")), toy=True)
    path = tmp_path / "live.html"
    path.write_text(live_page(make_run(), name="small <b>run</b>", examples=[SENTENCE], training_text=text), encoding="utf-8")
    for page in open_page(browser, path, reduced_motion="reduce"):
        wait_until_idle(page)
        yield page


def wait_until_idle(page: Page) -> None:
    page.locator("body:not([data-busy]) .outcome").first.wait_for()


def test_a_changed_alpha_translates_again_without_any_request(page: Page) -> None:
    expect(page.locator("#title")).to_have_text("small <b>run</b>")
    expect(page.locator("#text")).to_have_value(SENTENCE)
    page.click('[data-all="1"]')  # all heads as softmax
    expect(page.locator('.outcome[data-side="changed"] .candidate').first).to_be_visible()
    wait_until_idle(page)
    assert page.locator("#grid .density").all_text_contents() == ["100%"] * 10
    page.reload()  # changed alphas are in the address
    expect(page.locator('.outcome[data-side="changed"] .candidate').first).to_be_visible()


def test_unknown_words_are_marked(page: Page) -> None:
    expect(page.locator("#knows")).to_contain_text("A toy")
    expect(page.locator("#knows")).to_contain_text("9,000 sentence pairs with 4 different source words")
    assert page.locator("#unknown mark").all_text_contents() == ["in", "an"]
    page.fill("#text", 'A "Man", (orange) zebra!')
    page.keyboard.press("Enter")
    expect(page.locator("#unknown mark")).to_have_text(["zebra"])
    page.fill("#text", "a man.")
    page.keyboard.press("Enter")
    expect(page.locator("#unknown")).to_have_count(0)


def test_a_sentence_that_is_too_long_or_empty_is_refused_in_words(page: Page) -> None:
    page.fill("#text", "x y " * 100)
    page.keyboard.press("Enter")
    expect(page.locator("#error")).to_contain_text("at most 100 are allowed")


def test_the_first_head_shown_is_the_sparsest_cross_head(page: Page) -> None:
    shown = page.locator('#grid [data-key^="cross"]').evaluate_all(
        "(nodes) => nodes.map((node) => [parseFloat(node.querySelector('.density').textContent), node.dataset.key])"
    )
    expect(page.locator("#one-head code")).to_have_text(min(shown)[1])
    expect(page.locator("#alignment-choice")).to_have_value(min(shown)[1])


def test_the_demo_in_the_documentation_translates_as_python(browser: Browser) -> None:
    sentences = [source for source, _ in builtin_corpus()["test"][:10]]
    expected = [found.text for found in Translator(stored_run(DEMO.read_text(encoding="utf-8")), beam=5).translate(sentences)]
    for page in open_page(browser, DEMO):
        wait_until_idle(page)
        found = []
        for sentence in sentences:
            page.fill("#text", sentence)
            page.keyboard.press("Enter")
            expect(page.locator("body:not([data-busy]) #counted")).not_to_be_empty()
            found.append(page.locator('.outcome[data-side="trained"] .candidate.best .translation').text_content())
        assert found == expected
