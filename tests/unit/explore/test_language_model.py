"""The explorer of a language model of `entformer train`: continuations, the next token, every head, other alphas."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient

from entformer.checkpoint.language_model import LoadedLM
from entformer.explore.app import create_app
from entformer.models.override import overridden_alphas

MakeLM = Callable[..., LoadedLM]
TEXT = "a man in an orange"


def client_of(run: Any, **options: Any) -> TestClient:
    return TestClient(create_app(run, timeout=900.0, **options), base_url="http://localhost")


@pytest.fixture(scope="module")
def client(make_lm: MakeLM) -> TestClient:
    return client_of(make_lm(), name="small", max_tokens=60)


def ask(client: TestClient, address: str, **body: Any) -> dict[str, Any]:
    answer = client.post(f"/api/{address}", json={"text": TEXT, **body})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def log_prob(run: LoadedLM, ids: list[int], more: list[int]) -> float:
    with torch.no_grad():
        scores = run.model(torch.tensor([[*ids, *more]]))[0].log_softmax(-1)
    return float(sum(scores[len(ids) - 1 + at, token] for at, token in enumerate(more)))


def test_the_model_is_described(client: TestClient, make_lm: MakeLM) -> None:
    facts = client.get("/api/model").json()
    assert (facts["task"], facts["step"], len(facts["heads"])) == ("generation", 7, 4)
    assert facts["normalizers"] == {"decoder": "entmax"}
    own = make_lm().model.alphas()["decoder"].flatten().tolist()
    assert [head["alpha"] for head in facts["heads"]] == pytest.approx(own)
    assert all(head["adjustable"] for head in facts["heads"])
    assert client_of(make_lm()).get("/api/model").json()["limits"]["tokens"] == 512


@pytest.mark.parametrize("beam", [1, 4])
def test_continuations_are_the_most_probable_ones_found(client: TestClient, make_lm: MakeLM, beam: int) -> None:
    run = make_lm()
    ids = [2, *run.tokenizer.encode(TEXT)]
    found = ask(client, "translate", beam=beam, n_best=beam, new_tokens=6)["candidates"]
    assert len(found) == beam
    assert [one["score"] for one in found] == sorted((one["score"] for one in found), reverse=True)
    for one in found:
        more = [*one["ids"], *([3] if one["finished"] else [])]
        assert one["log_prob"] == pytest.approx(log_prob(run, ids, more), abs=1e-4)
        assert one["finished"] or len(one["ids"]) == 6
        assert one["text"] == run.tokenizer.decode([*ids, *one["ids"]])[len(TEXT) :]
    greedy = run.model.generate(torch.tensor([ids]), 6, eos=3)[0].tolist()
    if beam == 1:
        assert found[0]["ids"] == [token for token in greedy if token != 3]
    else:
        assert found[0]["score"] >= log_prob(run, ids, greedy) / 6 - 1e-6 or 3 in greedy


def test_samples_depend_on_seed_and_temperature_only(client: TestClient) -> None:
    def sample(**options: Any) -> list[list[int]]:
        found = ask(client, "translate", n_best=2, new_tokens=8, **options)["candidates"]
        return [one["ids"] for one in found]

    assert sample(temperature=1.0) == sample(temperature=1.0)
    assert sample(temperature=1.0) != sample(temperature=1.0, seed=2)
    assert sample(temperature=1.0) != sample()


def test_the_text_and_its_continuation_are_read(client: TestClient, make_lm: MakeLM) -> None:
    run = make_lm()
    ids = [2, *run.tokenizer.encode(TEXT)]
    more = ask(client, "translate", new_tokens=3)["candidates"][0]["ids"]
    read = ask(client, "attention", target_ids=more)
    assert read["source"] == []
    assert read["target"][:-1] == run.tokenizer.pieces([*ids, *more])
    assert read["target_text"] == run.tokenizer.decode([*ids, *more])
    assert len(read["heads"]) == 4
    head = read["heads"]["decoder.1.1"]
    assert len(head["crow"]) == len(ids) + len(more) + 1
    assert sum(head["weight"][: head["crow"][1]]) == pytest.approx(1.0, abs=1e-3)
    with torch.no_grad():
        expected = run.model(torch.tensor([[*ids, *more]]))[0].softmax(-1)
    for at, token in enumerate([*ids[1:], *more]):
        assert read["steps"][at]["probability"] == pytest.approx(float(expected[at, token]), rel=1e-4)
        assert read["steps"][at]["best"][0]["probability"] == pytest.approx(float(expected[at].max()), rel=1e-4)


def test_an_alpha_is_changed_for_one_request(client: TestClient, make_lm: MakeLM) -> None:
    every = {f"decoder.{layer}.{head}": 1.0 for layer in range(2) for head in range(2)}
    before = ask(client, "translate", n_best=2)
    changed = ask(client, "translate", n_best=2, alphas=every)
    assert ask(client, "translate", n_best=2)["candidates"] == before["candidates"] != changed["candidates"]
    run = make_lm()
    ids = [2, *run.tokenizer.encode(TEXT)]
    best = changed["candidates"][0]
    heads = {("decoder", layer, head): 1.0 for layer in range(2) for head in range(2)}
    with overridden_alphas(run.model, heads):
        more = [*best["ids"], *([3] if best["finished"] else [])]
        assert best["log_prob"] == pytest.approx(log_prob(run, ids, more), abs=1e-4)
    read = ask(client, "attention", target_ids=best["ids"], alphas=every)
    assert all(own["density"] == 1.0 for own in read["measures"].values())


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"prefix": "hat"}, "prefix is for models that translate; add it to the text."),
        ({"text": "a " * 70}, "tokens; at most 60 are allowed. Shorten it, or start the explorer with a larger --max-tokens."),
        ({"alphas": {"decoder.2.0": 1.5}}, "there is no head decoder.2.0; layers are decoder.0 to decoder.1, each with heads"),
        ({"alphas": {"cross.0.0": 1.5}}, "there is no head cross.0.0"),
        ({"new_tokens": 0}, "new_tokens: input should be greater than or equal to 1."),
        ({"temperature": -1}, "temperature: input should be greater than or equal to 0."),
    ],
)
def test_wrong_input_gets_one_sentence(client: TestClient, body: dict[str, Any], said: str) -> None:
    answer = client.post("/api/translate", json={"text": TEXT, **body})
    assert answer.status_code == 422
    assert said in answer.json()["detail"]
    assert "\n" not in answer.json()["detail"]


@pytest.mark.parametrize("text", [" ", "\0", "\n\n", "\u00e4\U0001f600", "x" * 50])
def test_odd_text_is_continued(make_lm: MakeLM, text: str) -> None:
    for tokenizer in ("bpe", "bytes"):
        client = client_of(make_lm(tokenizer=tokenizer), name="small")
        assert client.post("/api/attention", json={"text": text, "new_tokens": 2}).status_code == 200


def test_a_text_longer_than_those_of_training_is_said(client: TestClient) -> None:
    assert ask(client, "attention", new_tokens=2)["notes"] == []
    notes = ask(client, "attention", text="a man " * 20, new_tokens=2)["notes"]
    assert notes == ["The model was trained on 32 tokens at a time."]


def test_a_translation_takes_no_temperature(make_run: Callable[..., Any]) -> None:
    answer = client_of(make_run(), name="small").post("/api/translate", json={"text": TEXT, "temperature": 0.5})
    assert (answer.status_code, answer.json()["detail"]) == (
        422,
        "new_tokens and temperature are for models that continue text; this one translates.",
    )


def test_a_run_directory_is_opened(make_lm: MakeLM, save_lm: Callable[[LoadedLM, Path], Path], tmp_path: Path) -> None:
    client = client_of(save_lm(make_lm(), tmp_path / "my run"))
    assert client.get("/api/model").json()["name"] == "my run"
    assert ask(client, "translate", new_tokens=2)["candidates"]
