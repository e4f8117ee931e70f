"""`ef.show`: attention weights of any form become the same heads; a mistake is one sentence."""

import base64
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import entformer as ef
from entformer.decoding.records import AttentionRecord, HeadKey
from entformer.decoding.sparse_rows import SparseRows
from entformer.errors import ArgumentError
from entformer.widget import view as view_module

TOKENS = ["the", "cat", "sat", "down"]


def weights(*shape: int, causal: bool = False) -> torch.Tensor:
    scores = 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(3))
    mask = torch.ones(shape[-2:], dtype=torch.bool)
    return ef.entmax(scores, 1.5, mask=mask.tril() if causal else mask)


def dense(view: ef.AttentionView) -> list[list[np.ndarray[Any, Any]]]:
    return [[rows.dense() for rows in panel.heads] for panel in view.panels]


def page_data(view: ef.AttentionView) -> dict[str, Any]:
    (text,) = re.findall(r'<script type="application/json" id="entformer-data">(.*?)</script>', view.html, re.DOTALL)
    return json.loads(text)


@pytest.mark.parametrize(
    "change",
    [
        lambda w: w,
        lambda w: w.numpy(),
        lambda w: list(w),
        lambda w: tuple(w[:, None]),
        lambda w: w.tolist(),
        lambda w: {"layer 0": w[0], "layer 1": w[1]},
        lambda w: SimpleNamespace(attentions=tuple(w[:, None])),
        lambda w: w.double().requires_grad_(),
    ],
    ids=["tensor", "numpy", "layers", "hugging-face", "lists", "dict", "model-output", "double"],
)
def test_all_forms_give_the_same_heads(change: Any) -> None:
    w = weights(2, 3, 4, 4)
    view = ef.show(change(w), TOKENS)
    assert [panel.name for panel in view.panels] == ["layer 0", "layer 1"]
    np.testing.assert_allclose(dense(view), w.numpy(), rtol=1e-6)
    assert view.panels[0].queries == view.panels[0].keys == ("▁the", "▁cat", "▁sat", "▁down")


@pytest.mark.parametrize(
    ("shape", "batch", "layers", "heads", "text"),
    [
        ((4, 4), None, 1, 1, "shape (4, 4) read as (queries, keys)."),
        ((3, 4, 4), None, 1, 3, "read as (heads, queries, keys); if the first axis is a batch, give batch=0."),
        ((3, 4, 4), 1, 1, 1, "read as (batch, queries, keys), sequence 1 of 3."),
        ((2, 3, 4, 4), None, 2, 3, "read as (layers, heads, queries, keys); if the first axis is a batch, give batch=0."),
        ((2, 3, 4, 4), 1, 1, 3, "read as (batch, heads, queries, keys), sequence 1 of 2."),
        ((5, 2, 3, 4, 4), None, 5, 3, "read as (batch, heads, queries, keys), sequence 0 of 2."),
    ],
)
def test_the_page_says_how_it_read_the_axes(
    shape: tuple[int, ...], batch: int | None, layers: int, heads: int, text: str
) -> None:
    w = weights(*shape)
    view = ef.show(w, batch=batch)
    assert (len(view.panels), len(view.panels[0].heads)) == (layers, heads)
    assert view.read_as.endswith(text)
    assert page_data(view)["read_as"] == view.read_as
    assert view.read_as in repr(view)
    if batch is not None:
        np.testing.assert_array_equal(np.squeeze(dense(view)), w[batch])


@pytest.mark.parametrize("batched", [True, False], ids=["batch", "one"])
@pytest.mark.parametrize("average", [True, False], ids=["mean", "heads"])
def test_what_an_attention_module_returns(average: bool, batched: bool) -> None:
    layer = ef.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(3, 4, 8) if batched else torch.randn(4, 8)
    result = layer(x, x, x, average_attn_weights=average)
    view = ef.show(result, TOKENS, batch=2 if batched else None)
    want = result[1][2] if batched else result[1]
    np.testing.assert_array_equal(np.squeeze(dense(view)), want.detach())
    assert len(view.panels[0].heads) == (1 if average else 2)
    assert ("mean of the heads; average_attn_weights=False returns every head" in view.read_as) == average
    with pytest.raises(ArgumentError, match="holds no weights; call it with need_weights=True"):
        ef.show(layer(x, x, x, need_weights=False))


def test_traces_of_a_hook() -> None:
    layer = ef.MultiheadAttention(8, 2, batch_first=True)
    seen: list[ef.AttentionTrace] = []
    layer.hook = seen.append
    x = torch.randn(1, 4, 8)
    _, want = layer(x, x, x, average_attn_weights=False)
    for given in (seen, seen[0], {"layer 0": seen[0]}):
        view = ef.show(given, TOKENS)
        np.testing.assert_allclose(dense(view)[0], want[0].detach(), atol=1e-6)
        assert view.panels[0].alphas == pytest.approx(layer.alphas.tolist())
    with pytest.raises(ArgumentError, match="batch=1, but layer 0 has a batch of 1"):
        ef.show(seen, batch=1)


def test_the_result_of_attention_and_its_support() -> None:
    q, k, v = torch.randn(3, 2, 3, 4, 8, generator=torch.Generator().manual_seed(1)).unbind()
    found = ef.attention(q, k, v, is_causal=True, return_support=True)
    want = ef.entmax(q @ k.mT / 8**0.5, 1.5, mask=torch.ones(4, 4, dtype=torch.bool).tril())
    view = ef.show(found, TOKENS, batch=1)
    np.testing.assert_allclose(dense(view)[0], want[1], atol=1e-6)
    assert view.panels[0].causal
    one = ef.attention(q[:1], k[:1], v[:1], return_support=True)
    np.testing.assert_array_equal(dense(ef.show(one.support, TOKENS)), dense(ef.show([one], TOKENS)))


def test_a_record_keeps_its_kinds_and_alphas() -> None:
    rows = SparseRows.from_dense(weights(4, 4).numpy())
    keys = [HeadKey("encoder", 0, 0), HeadKey("decoder", 0, 0), HeadKey("cross", 0, 0)]
    ahead = SparseRows.from_dense(weights(3, 3, causal=True).numpy())
    cross = SparseRows.from_dense(weights(3, 4).numpy())
    heads = dict(zip(keys, (rows, ahead, cross), strict=True))
    pieces = ("▁a", "b", "▁c", "</s>"), ("<s>", "▁d", "▁e", "</s>")
    record = AttentionRecord((1, 2, 3, 4), (1, 2, 3, 4), heads, {}, {keys[2]: 1.7}, *pieces)
    view = ef.show(record)
    assert [(panel.name, panel.causal) for panel in view.panels] == [
        ("encoder layer 0", False),
        ("decoder layer 0", True),
        ("cross layer 0", False),
    ]
    assert view.panels[2].queries == ("<s>", "▁d", "▁e")
    assert page_data(view)["panels"][2]["heads"][0]["alpha"] == 1.7


def test_the_page_holds_every_weight_exactly() -> None:
    w = weights(1, 4, 4)
    w[0, 0] = torch.tensor([1.0, 1e-30, 0.0, 0.0])
    (head,) = page_data(ef.show(w.double()))["panels"][0]["heads"]
    data = base64.b64decode(head["weights"]["data"])
    crow = np.frombuffer(data, "<u4", 5)
    values = np.frombuffer(data, "<f4", head["weights"]["size"], offset=20)
    col = np.frombuffer(data, "<u2", head["weights"]["size"], offset=20 + 4 * head["weights"]["size"])
    rows = SparseRows(crow.astype(np.int64), col.astype(np.int32), values, 4)
    np.testing.assert_array_equal(rows.dense(), w[0].numpy())
    assert rows.dense()[0, 1] > 0


def test_weights_left_out_are_not_called_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_module, "MOST_WEIGHTS", 40)
    (head,) = page_data(ef.show(torch.softmax(torch.randn(1, 16, 16), -1)))["panels"][0]["heads"]
    assert head["density"] == 1.0
    assert 0 < head["weights"]["size"] <= 40
    assert head["weights"]["cut"] > 0


def test_causal_weights_are_recognized_and_may_be_overridden() -> None:
    w = weights(1, 4, 4, causal=True)
    assert ef.show(w).panels[0].causal
    assert not ef.show(w, is_causal=False).panels[0].causal
    assert not ef.show(weights(1, 4, 4)).panels[0].causal


def test_padding_is_left_out() -> None:
    mask = torch.tensor([[1, 1, 1, 0]])
    w = ef.entmax(torch.randn(1, 2, 4, 4), 1.5, mask=mask.bool())
    (panel,) = ef.show([w], [*TOKENS[:3], "<pad>"], key_mask=mask).panels
    assert panel.keys == panel.queries == ("▁the", "▁cat", "▁sat")
    np.testing.assert_array_equal(panel.heads[1].dense(), w[0, 1, :3, :3])


@pytest.mark.parametrize(
    ("tokens", "shown"),
    [
        (["▁un", "able", "</s>"], ("▁un", "able", "</s>")),
        (["Hello", "Ġw", "Ã©"], ("Hello", "▁w", "é")),
        (["[CLS]", "un", "##able"], ("▁[CLS]", "▁un", "able")),
        (torch.tensor([5, 6, 7]), ("▁5", "▁6", "▁7")),
        (None, ("▁0", "▁1", "▁2")),
    ],
    ids=["sentencepiece", "bytes", "wordpiece", "ids", "none"],
)
def test_marks_of_tokenizers_are_read(tokens: Any, shown: tuple[str, ...]) -> None:
    assert ef.show(weights(1, 3, 3), tokens).panels[0].keys == shown


def test_queries_of_a_cache_are_the_last_tokens() -> None:
    (panel,) = ef.show(weights(1, 1, 4), TOKENS).panels
    assert panel.queries == ("▁down",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("the cat",), "weights must be an array .* str"),
        ((np.ones(3),), r"shape \(3,\)"),
        ((torch.randn(2, 4, 4),), "negative weights; give the weights after softmax"),
        ((torch.full((1, 4, 4), torch.nan),), "NaN"),
        ((weights(1, 4, 4), "the cat sat down"), "tokens must be a list .* split it first"),
        ((weights(1, 4, 4), [["the"], ["cat"]]), "not a batch"),
        ((weights(1, 4, 4), TOKENS[:3]), "tokens has 3 entries, but the weights have 4 queries"),
        ((weights(1, 3, 4), TOKENS[:3], TOKENS[:2]), "key_tokens has 2 entries, but the weights have 4 keys"),
        (((None, None),), "attn_implementation='eager'"),
        ((SimpleNamespace(attentions=None),), "output_attentions=True"),
        ((SimpleNamespace(attentions=()),), "attn_implementation='eager' and call it with output_attentions=True"),
        (([],), "shape"),
        (({},), "no layer"),
    ],
)
def test_mistakes_are_one_sentence(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as caught:
        ef.show(*arguments)
    assert "\n" not in str(caught.value)


def test_mistakes_in_options_are_one_sentence(tmp_path: Path) -> None:
    w = weights(2, 1, 4, 4)
    with pytest.raises(ArgumentError, match="batch=1, but layer 0 has a batch of 1"):
        ef.show([w[:1]], batch=1)
    with pytest.raises(ArgumentError, match="weights on keys after the query"):
        ef.show(w, is_causal=True)
    with pytest.raises(ArgumentError, match="key_mask excludes keys that have weight"):
        ef.show(w, key_mask=[True, True, True, False])
    with pytest.raises(ArgumentError, match="every key of layer 0 is masked in this sequence"):
        ef.show(w, key_mask=[False] * 4)
    with pytest.raises(ArgumentError, match="is a directory"):
        ef.show(w).save(tmp_path)
    without = ef.attention(*torch.randn(3, 1, 1, 4, 8).unbind(), return_stats=True)
    with pytest.raises(ArgumentError, match="return_support=True"):
        ef.show(without)


def test_names_never_become_markup(tmp_path: Path) -> None:
    hostile = ["</script><b>", "{{ script }}", '"onload="', "d"]
    view = ef.show(weights(1, 4, 4), hostile, title="<i>")
    page = view.save(tmp_path / "heads.html").read_text(encoding="utf-8")
    assert page == view.html
    assert "</script><b>" not in page
    assert "<title>&lt;i&gt;</title>" in page
    frame = view._repr_html_()
    assert frame.startswith("<iframe ")
    assert frame.count("<") == 2  # the page inside is escaped
    assert "4 queries" in repr(view)
