"""The explorer of a Hugging Face decoder: continuations, the next token, every head, other alphas."""

from collections.abc import Callable
from typing import Any

import pytest
import transformers as t
from fastapi.testclient import TestClient

from entformer.errors import ArgumentError
from entformer.explore.app import create_app

TinyLlama = Callable[..., tuple[Any, Any]]


@pytest.fixture(scope="module")
def client(tiny_llama: TinyLlama) -> TestClient:
    model, tokenizer = tiny_llama()
    for name, parameter in model.named_parameters():
        if "proj" in name or "embed" in name or "lm_head" in name:
            parameter.data.mul_(8.0)
    app = create_app((model, tokenizer), name="tiny", max_tokens=40, timeout=300.0)
    return TestClient(app, base_url="http://localhost")


def test_the_model_is_described(client: TestClient) -> None:
    facts = client.get("/api/model").json()
    assert facts["task"] == "generation"
    assert len(facts["heads"]) == 8
    assert all(head["adjustable"] and head["alpha"] == 1.5 for head in facts["heads"])


def test_a_text_is_continued_and_read(client: TestClient) -> None:
    text = {"text": "the cat sat on the"}
    found = client.post("/api/translate", json={**text, "beam": 2, "n_best": 2}).json()
    assert len(found["candidates"]) == 2
    ids = found["candidates"][0]["ids"]
    read = client.post("/api/attention", json={**text, "target_ids": ids}).json()
    assert read["target"][:5] == text["text"].split()
    assert len(read["target"]) == 5 + len(ids) + 1
    assert len(read["steps"]) == 5 + len(ids)
    head = read["heads"]["decoder.1.2"]
    assert len(head["crow"]) == 5 + len(ids) + 1
    assert sum(head["weight"][: head["crow"][1]]) == pytest.approx(1.0, abs=1e-3)
    assert read["measures"]["decoder.1.2"]["density"] <= 1.0
    assert sum(other["probability"] for other in read["steps"][0]["best"]) <= 1.0 + 1e-6


def test_an_alpha_is_changed_for_one_request(client: TestClient) -> None:
    question = {"text": "the cat sat on the mat", "target_ids": [7, 1]}
    before = client.post("/api/attention", json=question).json()
    softmax = client.post("/api/attention", json={**question, "alphas": {"decoder.0.0": 1.0}}).json()
    after = client.post("/api/attention", json=question).json()
    assert softmax["measures"]["decoder.0.0"]["density"] == 1.0
    assert softmax["alphas"]["decoder.0.0"] == 1.0
    assert after["heads"] == before["heads"] != softmax["heads"]


def test_impossible_requests(client: TestClient, tiny_llama: TinyLlama) -> None:
    assert client.post("/api/attention", json={"text": "the", "alphas": {"decoder.9.0": 1.2}}).status_code == 422
    assert client.post("/api/attention", json={"text": "the", "target_ids": [99]}).status_code == 422
    assert "tokens" in client.post("/api/translate", json={"text": "the " * 60}).json()["detail"]
    decoder, tokenizer = tiny_llama()
    with pytest.raises(ArgumentError, match="tokenizer"):
        create_app((decoder, None))
    sizes = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 1, "num_attention_heads": 4}
    with pytest.raises(ArgumentError, match="decoder"):
        create_app((t.BertModel(t.BertConfig(vocab_size=8, **sizes)), tokenizer))
