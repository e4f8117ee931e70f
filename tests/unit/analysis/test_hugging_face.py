"""Heads of Hugging Face models are measured from exact sparse weights, with roles that compare tokens."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers as t

import entformer as ef
from entformer.analysis.positional import repeated_token_weight
from entformer.analysis.rows import LayerRows

SIZES = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}


def llama(**more: int) -> t.LlamaForCausalLM:
    torch.manual_seed(0)
    return t.LlamaForCausalLM(t.LlamaConfig(vocab_size=97, num_key_value_heads=2, **SIZES, **more)).eval()


def test_repeated_tokens_by_hand() -> None:
    """Tokens 7 8 9 7 8: query 3 (7) repeats 0, query 4 (8) repeats 1."""
    weights = np.zeros((1, 1, 5, 5))
    weights[0, 0, range(3), range(3)] = 1.0
    weights[0, 0, 3] = [0.2, 0.5, 0.1, 0.2, 0.0]  # duplicate at key 0, induction at key 1
    weights[0, 0, 4] = [0.0, 0.1, 0.7, 0.1, 0.1]  # duplicate at key 1, induction at key 2
    rows = replace(LayerRows.from_dense("decoder", 0, weights, causal=True), tokens=np.array([[7, 8, 9, 7, 8]]))
    assert repeated_token_weight(rows, 0) == pytest.approx((0.2 + 0.1) / 2)
    assert repeated_token_weight(rows, 1) == pytest.approx((0.5 + 0.7) / 2)
    distinct = replace(rows, tokens=np.array([[1, 2, 3, 4, 5]]))
    assert np.isnan(repeated_token_weight(distinct, 0)).all()


def test_later_occurrences_count_without_a_causal_mask() -> None:
    rows = replace(LayerRows.from_dense("encoder", 0, np.full((1, 1, 3, 3), 1 / 3)), tokens=np.array([[4, 5, 4]]))
    assert repeated_token_weight(rows, 0) == pytest.approx(1 / 3)  # queries 0 and 2
    assert repeated_token_weight(rows, 1) == pytest.approx(1 / 3)  # query 2: key 1 follows key 0; nothing follows key 2


def test_measures_are_those_of_the_weights() -> None:
    model = ef.hf.sparsify(llama(), alpha=1.5)
    for _, heads in ef.hf.heads.sparse_heads(model):
        heads.set(scale=30.0)
    ids = torch.randint(3, 90, (1, 24), generator=torch.Generator().manual_seed(0))
    table = ef.analysis.collect(model, [ids[0].tolist()])
    with torch.no_grad():
        weights = model(ids, output_attentions=True).attentions
    assert len(table) == 8
    for row in table:
        own = weights[row.layer][0, row.head]
        assert row.alpha == pytest.approx(1.5)
        assert row.support == pytest.approx(float((own > 0).sum() / 24))
        assert row.first_key == pytest.approx(float(own[1:, 0].mean()), abs=2e-3)
        assert row.attn_type == "decoder"
    assert table.normalizers == {"decoder": "entmax"}


def test_a_planted_induction_head_is_found() -> None:
    text = list(range(10, 40)) * 2

    def collect(offset: int) -> ef.analysis.HeadRow:
        collector = ef.analysis.Collector()
        weights = np.zeros((1, 1, 60, 60))
        for query in range(60):
            weights[0, 0, query, max(query - 30 + offset, 0)] = 1.0
        collector.add(replace(LayerRows.from_dense("decoder", 0, weights, causal=True), tokens=np.array([text])))
        collector.end_batch({0: ((), tuple(text))})
        return collector.table().heads[0]

    assert {role.role: role.score for role in collect(1).roles}["induction"] == pytest.approx(1.0)
    assert {role.role: role.score for role in collect(0).roles}["duplicate token"] == pytest.approx(1.0)
    assert "induction" not in {role.role for role in collect(0).roles}


def test_dense_models_and_encoder_decoders() -> None:
    model = llama()
    implementation = model.config._attn_implementation
    table = ef.analysis.collect(model, [list(range(5, 25))])
    assert model.config._attn_implementation == implementation
    assert {row.density for row in table} == {1.0}
    assert table.normalizers == {"decoder": "softmax"}
    config = t.MarianConfig(
        vocab_size=97,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=40,
        decoder_ffn_dim=40,
        max_position_embeddings=64,
        pad_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    marian = ef.hf.sparsify(t.MarianMTModel(config).eval(), alpha=1.5, kinds="cross")
    pairs = [{"input_ids": torch.tensor([[5, 6, 7, 8]]), "decoder_input_ids": torch.tensor([[1, 6, 7]])}]
    table = ef.analysis.collect(marian, pairs)
    assert [row.key for row in table][::4] == ["encoder.0.0", "decoder.0.0", "cross.0.0"]
    assert {row.attn_type: row.alpha for row in table} == {"encoder": 1.0, "decoder": 1.0, "cross": 1.5}
    assert table.head("cross", 0, 0).induction is None
