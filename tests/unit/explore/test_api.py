"""What the explorer answers: the model's translations and weights, with alphas tried out, and a sentence for what is wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi import FastAPI

from entformer.checkpoint import LoadedRun
from entformer.decoding.attention_record import record_attention
from entformer.decoding.records import SparseRows
from entformer.decoding.translate import Translator
from entformer.errors import ArgumentError
from entformer.explore import create_app
from entformer.models.override import overridden_alphas

from .conftest import SENTENCE, Client, sentence_of

MakeRun = Callable[..., LoadedRun]


def test_the_model_is_described(client: Client, make_run: MakeRun) -> None:
    facts = client.get("/api/model").json()
    run = make_run()
    assert facts["name"] == "small"
    assert facts["languages"] == ["en", "de"]
    assert facts["normalizers"] == {"encoder": "entmax", "decoder": "entmax", "cross": "entmax"}
    assert facts["limits"] == {
        **{"characters": 4000, "tokens": 30, "target_tokens": 70, "beam": 10, "n_best": 10},
        **{"alpha": [1.0, 4.0], "seconds": 900.0},
    }
    named = {(head["attn_type"], head["layer"], head["head"]): head["alpha"] for head in facts["heads"]}
    for kind, alphas in run.model.alphas().items():
        for layer, own in enumerate(alphas.tolist()):
            assert [named[kind, layer, head] for head in range(2)] == pytest.approx(own)
    assert all(head["adjustable"] for head in facts["heads"])


def test_translations_are_those_of_the_translator(client: Client, make_run: MakeRun) -> None:
    (expected,) = Translator(make_run(), beam=4, n_best=3).translate([SENTENCE])
    found = client.translate(beam=4, n_best=3).json()
    assert [candidate["text"] for candidate in found["candidates"]] == [one.text for one in expected.candidates]
    assert [candidate["ids"] for candidate in found["candidates"]] == [list(one.tokens) for one in expected.candidates]
    assert [candidate["score"] for candidate in found["candidates"]] == pytest.approx(
        [one.score for one in expected.candidates]
    )
    assert found["source"][-1] == "</s>"


def test_the_weights_are_those_of_a_record(client: Client, make_run: MakeRun) -> None:
    run, alphas = make_run(), {"cross.1.0": 1.0, "encoder.0.1": 3.5}
    ids = client.translate(alphas=alphas).json()["candidates"][0]["ids"]
    found = client.attention(alphas=alphas).json()
    with overridden_alphas(run.model, {("cross", 1, 0): 1.0, ("encoder", 0, 1): 3.5}):
        record = record_attention(run.model, run.subwords.encode(SENTENCE), ids, subwords=run.subwords)
    assert found["source"] == list(record.source_pieces)
    assert found["target"] == list(record.target_pieces)
    assert len(found["heads"]) == len(record.heads) == 10
    for key, rows in record.heads.items():
        own = found["heads"][f"{key.kind}.{key.layer}.{key.head}"]
        np.testing.assert_allclose(SparseRows.from_lists(own, rows.keys).dense(), rows.dense(), rtol=1e-3, atol=1e-6)
        assert found["alphas"][f"{key.kind}.{key.layer}.{key.head}"] == pytest.approx(record.alphas[key])
        assert found["measures"][f"{key.kind}.{key.layer}.{key.head}"]["support"] == pytest.approx(len(rows.col) / rows.queries)
    softmax = found["heads"]["cross.1.0"]
    assert len(softmax["col"]) == len(found["source"]) * (len(found["target"]) - 1)  # no zeros in a softmax head


def test_steps_are_the_probabilities_of_the_target(client: Client, make_run: MakeRun) -> None:
    run, found = make_run(), client.attention(target="Der Mann !").json()
    source, target = run.subwords.encode(SENTENCE), run.subwords.encode("Der Mann !")
    with torch.no_grad():
        logits = run.model(torch.tensor([[*source, 3]]), torch.tensor([[2, *target]]))[0]
    probabilities = logits.softmax(-1)
    assert [step["piece"] for step in found["steps"]] == found["target"][1:]
    for step, row, token in zip(found["steps"], probabilities, [*target, 3], strict=True):
        assert step["probability"] == pytest.approx(float(row[token]), rel=1e-4)
        assert [one["probability"] for one in step["best"]] == pytest.approx(row.topk(5).values.tolist(), rel=1e-4)
    assert found["target_text"] == "Der Mann !"


def test_a_target_may_be_ids_or_begin_with_a_prefix(client: Client) -> None:
    second = client.translate(n_best=2).json()["candidates"][1]
    found = client.attention(target_ids=second["ids"]).json()
    assert found["target"][1:-1] == second["pieces"]
    begun = client.attention(prefix="two dogs").json()
    assert begun["target_text"].startswith("two dogs")
    assert client.translate(prefix="two dogs").json()["candidates"][0]["text"] == begun["target_text"]


def test_an_override_changes_this_answer_and_no_other(client: Client) -> None:
    before = client.translate().json()["candidates"]
    every = dict.fromkeys(client.attention().json()["heads"], 1.0)
    assert client.translate(alphas=every).json()["candidates"] != before
    assert client.translate(alphas={"cross.5.0": 1.0}).status_code == 422
    assert client.translate().json()["candidates"] == before


def test_only_some_heads_on_request(client: Client) -> None:
    assert set(client.attention(heads=["cross.0.1"]).json()["heads"]) == {"cross.0.1"}
    assert "no head cross.0.9" in sentence_of(client.attention(heads=["cross.0.9"]), 422)


def test_an_answer_that_grows_too_large_leaves_heads_out_and_says_so(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("entformer.explore.engine.MOST_WEIGHTS", 150)
    client = Client(create_app(make_run()))
    found = client.attention().json()
    assert found["omitted"]
    assert set(found["heads"]) | set(found["omitted"]) == set(found["alphas"])
    missing = found["omitted"][0]
    assert set(client.attention(heads=[missing]).json()["heads"]) == {missing}


@pytest.mark.parametrize(
    ("normalizer", "takes"),
    [("softmax", True), ("entmax15", True), ("ssmax", True), ("asentmax", True), ("rela", False), ("topk", False)],
)
def test_every_normalizer_can_be_looked_at(make_run: MakeRun, normalizer: str, takes: bool) -> None:
    client = Client(create_app(make_run(cross={"normalizer": normalizer})))
    facts = client.get("/api/model").json()
    assert {head["adjustable"] for head in facts["heads"] if head["attn_type"] == "cross"} == {takes}
    assert client.attention().status_code == 200
    changed = client.attention(target="Der Mann", alphas={"cross.0.0": 1.01})  # dense, unlike most
    if takes:
        assert changed.json()["heads"]["cross.0.0"] != client.attention(target="Der Mann").json()["heads"]["cross.0.0"]
    else:
        assert f"its weights are {normalizer}, not alpha-entmax" in sentence_of(changed, 422)


def test_text_is_lower_cased_where_the_run_was(make_run: MakeRun) -> None:
    client = Client(create_app(make_run(info={"lowercase": True, "tokenized": True})))
    found = client.translate("A MAN in an orange hat.").json()
    assert found["source"][:2] == client.translate("a man in an orange hat .").json()["source"][:2]
    assert found["notes"] == ["This model was trained on tokenized text: put a space before punctuation."]


def test_language_warnings_about_the_language_are_said(make_run: MakeRun) -> None:
    client = Client(create_app(make_run()))
    (note,) = client.translate("Собака бежит по зелёной траве", beam=1).json()["notes"]
    assert note.startswith("The input is mostly in Cyrillic letters")


@pytest.mark.parametrize(
    "text", ["a\nman\r\nin", "a\0man", "<s> </s> ▁", "🙂 \u202e", "a" * 25, "'\"<script>alert(1)</script>"[:25]]
)
def test_odd_text_is_translated(client: Client, text: str) -> None:
    assert client.translate(text).status_code == 200


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"text": ""}, "at least 1 character"),
    ({"text": " \n "}, "text contains no word"),
    ({"text": "a" * 4001}, "at most 4000 characters"),
    ({"text": "hat " * 100}, "at most 30 are allowed"),
    ({"text": "a", "alphas": {"cross.0.0": 0.5}}, "alphas cross.0.0: input should be greater than or equal to 1"),
    ({"text": "a", "alphas": {"cross.0.0": 4.5}}, "less than or equal to 4"),
    ({"text": "a", "alphas": {"cross": 1.5}}, 'such as "cross.1.2"'),
    ({"text": "a", "alphas": {"cross.0.7": 1.5}}, "there is no head cross.0.7"),
    ({"text": "a", "alphas": {"encoder.1.0": 1.5}}, "there is no head encoder.1.0"),
    ({"text": "a", "beam": 11}, "beam: input should be less than or equal to 10"),
    ({"text": "a", "beam": 2, "n_best": 3}, "n_best=3 must be at most beam=2"),
    ({"text": "a", "prefix": "hat " * 100}, "the prefix has"),
    ({"text": "a", "alpha": 1.5}, "alpha: extra inputs are not permitted"),
    ({"text": "a", "target": "a", "prefix": "b"}, "pass one of target, target_ids and prefix"),
    ({"text": "a", "target_ids": [2, 3]}, "target_ids must be between 4 and"),
    ({"text": "a", "target_ids": [10**9]}, "target_ids must be between"),
    ({"text": "a", "target_ids": [20] * 71}, "at most 70 are allowed"),
    ({"text": "a", "target": "hat " * 400}, "at most 70 are allowed"),
    ({"text": 7}, "text: input should be a valid string"),
    ({}, "text: field required"),
]


@pytest.mark.parametrize(("body", "said"), WRONG)
def test_wrong_input_gets_one_sentence(client: Client, body: dict[str, Any], said: str) -> None:
    address = "/api/attention" if body.keys() & {"target", "target_ids"} else "/api/translate"
    assert said in sentence_of(client.request("POST", address, json=body), 422)


@pytest.mark.parametrize(
    ("content", "status", "said"),
    [
        (b"{", 422, "the body is not JSON"),
        (b"[]", 422, "send a JSON object"),
        (b"", 422, "field required"),
        (b'{"text": "\\ud800"}', 422, "text: input should be a valid string"),
        (b'{"text": "a", "\\ud800": 1}', 422, "valid string"),
        (b'{"text": "a", "alphas": {"cross.0.0": NaN}}', 422, "finite number"),
        (b'{"text": "\xff"}', 400, "cannot be read"),
        (b"[" * 100_000, 400, "cannot be read"),
        (b" " * (2 << 20), 413, "larger than"),
    ],
)
def test_malformed_bodies_get_one_sentence(client: Client, content: bytes, status: int, said: str) -> None:
    answer = client.request("POST", "/api/translate", content=content, headers={"Content-Type": "application/json"})
    assert said in sentence_of(answer, status)


def test_unknown_addresses_and_methods_get_one_sentence(client: Client) -> None:
    for path in ("/nothing", "/api/../../etc/passwd", "/api/translate/%2e%2e/%2e%2e/etc/passwd", "/docs"):
        assert "not found" in sentence_of(client.get(path), 404)
    assert client.get("/api/translate").status_code == 405


def test_text_that_is_not_declared_as_json_is_not_read(client: Client) -> None:
    """So that a page elsewhere cannot post here without asking first."""
    answer = client.request("POST", "/api/translate", content=b'{"text": "a"}', headers={"Content-Type": "text/plain"})
    assert answer.status_code == 422


@pytest.mark.parametrize("wrong", [{"max_tokens": 0}, {"timeout": 0}, {"waiting": 0}, {"hosts": "localhost"}, {"hosts": []}])
def test_an_app_is_checked_when_it_is_made(make_run: MakeRun, wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        create_app(make_run(), **wrong)


def test_it_can_be_mounted_into_another_application(app: FastAPI) -> None:
    outer = FastAPI()
    outer.mount("/explore", app)
    client = Client(outer)
    assert client.request("POST", "/explore/api/translate", json={"text": "a man"}).status_code == 200
    assert "entformer" in client.get("/explore/").text


def test_a_run_folder_tells_how_alphas_were_learned(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run()
    alphas = {kind: values.tolist() for kind, values in run.model.alphas().items()}
    start = {kind: [[min(alpha + 0.1, 2.0) for alpha in layer] for layer in layers] for kind, layers in alphas.items()}
    lines = [{"kind": "alphas", "step": step, **values} for step, values in ((0, start), (run.step, alphas))]
    densities = {kind: [[0.25, *(0.75 for _ in layer[1:])] for layer in layers] for kind, layers in alphas.items()}
    lines.append({"kind": "densities", "step": run.step, **densities})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text("training: {density_target: 0.5}\n", encoding="utf-8")
    facts = Client(create_app(run, folder=tmp_path)).get("/api/model").json()
    assert facts["alpha_steps"] == [0, run.step]
    assert facts["alpha_paths"]["cross"][0][0] == [start["cross"][0][0], alphas["cross"][0][0]]
    assert facts["alpha_sentence"].endswith("weight) of 0.5; it is 0.50 on a sample of the training data.")
    assert Client(create_app(run)).get("/api/model").json()["alpha_sentence"] is None
