"""Beam search on the real Transformer: the same with and without caches, and the same weights trace afterwards."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from entformer.decoding.attention_record import record_attention
from entformer.decoding.beam import beam_search
from entformer.decoding.records import AttentionRecord, HeadKey
from entformer.errors import ArgumentError, DataError
from entformer.models.config import AttentionConfig, Seq2SeqConfig
from entformer.models.seq2seq import Seq2Seq
from entformer.text.tokenizer import BOS, EOS, PAD

NORMALIZERS = ("softmax", "entmax15", "entmax", "rela")


def tiny(normalizer: str = "entmax", **options: object) -> Seq2Seq:
    """A model with weights of some size, so that its choices are not all alike."""
    torch.manual_seed(1)
    kinds = {kind: AttentionConfig(normalizer=normalizer) for kind in ("encoder", "decoder", "cross")}
    config = Seq2SeqConfig.from_dict(
        {"vocab_size": 30, "encoder_layers": 2, "decoder_layers": 2, "heads": 2, "width": 16, "hidden": 32, **kinds, **options}
    )
    model = Seq2Seq(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.mul_(1.8)
    return model


def batch_of_sources(count: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    source = torch.full((count, 9), PAD)
    for b in range(count):
        length = 3 + b
        source[b, : length - 1] = torch.randint(4, 30, (length - 1,), generator=generator)
        source[b, length - 1] = EOS
    return source


@dataclass
class _Everything:
    memory: Tensor
    mask: Tensor
    tokens: Tensor

    def reorder(self, index: Tensor) -> None:
        self.memory, self.mask, self.tokens = (t.index_select(0, index) for t in (self.memory, self.mask, self.tokens))


class WithoutCache:
    """The same model, which computes all from the start in every step."""

    def __init__(self, model: Seq2Seq) -> None:
        self.model = model

    def start(self, source: Tensor, source_mask: Tensor | None) -> _Everything:
        assert source_mask is not None
        nothing = torch.zeros((len(source), 0), dtype=torch.int64)
        return _Everything(self.model.encode(source, source_mask), source_mask, nothing)

    def step(self, tokens: Tensor, state: _Everything) -> Tensor:
        state.tokens = torch.cat([state.tokens, tokens.view(len(state.tokens), -1)], 1)
        return self.model.logits(self.model.decode(state.tokens, state.memory, state.mask)[:, -1])

    def log_probs(self, logits: Tensor) -> Tensor:
        return self.model.log_probs(logits)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("beam", [1, 4])
def test_with_and_without_cache_agree(normalizer: str, beam: int) -> None:
    model = tiny(normalizer).double()
    prefix = [[], [7, 8], [9], [], [], [10, 11, 12]]
    cached = beam_search(model, batch_of_sources(), beam=beam, n_best=beam, prefix=prefix)
    plain = beam_search(WithoutCache(model), batch_of_sources(), beam=beam, n_best=beam, prefix=prefix)
    assert [[h.tokens for h in found] for found in cached] == [[h.tokens for h in found] for found in plain]
    assert [h.score for found in cached for h in found] == pytest.approx([h.score for found in plain for h in found], rel=1e-9)


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "alibi", "none"])
def test_with_and_without_cache_agree_for_every_kind_of_position(positions: str) -> None:
    model = tiny(positions=positions).double()
    cached = beam_search(model, batch_of_sources(), beam=3)
    assert [h.tokens for [h] in cached] == [h.tokens for [h] in beam_search(WithoutCache(model), batch_of_sources(), beam=3)]


@pytest.mark.parametrize("output", ["softmax", "entmax"])
def test_a_score_is_the_log_probability_of_the_teacher_forced_model(output: str) -> None:
    model = tiny(output=output).double()
    source = batch_of_sources()
    for b, hypotheses in enumerate(beam_search(model, source, beam=4, n_best=4, length_penalty="none")):
        assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
        for h in hypotheses:
            if h.finished:
                target = torch.tensor([[BOS, *h.tokens, EOS]])
                row = source[b : b + 1][:, : int((source[b] != PAD).sum())]
                with torch.no_grad():
                    log_probs = model.log_probs(model(row, target[:, :-1]))
                assert float(log_probs.gather(2, target[:, 1:, None]).sum()) == pytest.approx(h.log_prob, abs=1e-8)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_attention_of_a_translation_is_what_the_layers_compute(normalizer: str) -> None:
    model = tiny(normalizer)
    source_ids, target_ids = [5, 6, 7, 8], [9, 10, 11]
    record = record_attention(model, source_ids, target_ids)
    assert record.source == (5, 6, 7, 8, EOS)
    assert record.target == (BOS, 9, 10, 11, EOS)
    assert len(record.heads) == 3 * 2 * 2
    assert record.normalizers == dict.fromkeys(("encoder", "decoder", "cross"), normalizer)
    assert all(module.hook is None for _, _, module in model.attention_layers())

    seen: dict[tuple[str, int], Tensor] = {}
    for kind, layer, module in model.attention_layers():

        def keep(
            _module: object, inputs: tuple[Tensor, ...], options: dict[str, Tensor], _out: object, key: object = (kind, layer)
        ) -> None:
            plain = {name: value for name, value in options.items() if name in ("is_causal", "key_padding_mask")}
            seen[key] = type(_module).forward(_module, *inputs, **plain, need_weights=True, average_attn_weights=False)[1]  # type: ignore[index, arg-type]

        module.register_forward_hook(keep, with_kwargs=True)
    with torch.no_grad():
        model.decode(torch.tensor([record.target[:-1]]), model.encode(torch.tensor([record.source])))
    assert len(seen) == 6
    for (kind, layer), weights in seen.items():  # (1, H, Lq, Lk)
        for head in range(2):
            rows = record.head(kind, layer, head)
            assert rows.dense() == pytest.approx(weights[0, head].numpy(), abs=1e-6)
            if normalizer != "rela":
                assert rows.dense().sum(1) == pytest.approx(np.ones(rows.queries), abs=1e-5)
    if normalizer == "entmax":
        assert len(record.alphas) == 12
    if normalizer == "rela":
        assert record.alphas == {}


@pytest.mark.parametrize("normalizer", ["entmax", "rela"])
def test_an_attention_record_survives_json(normalizer: str) -> None:
    record = record_attention(tiny(normalizer), [5, 6, 7], [9, 10])
    text = record.to_json(line=17)
    assert "\n" not in text
    back = AttentionRecord.from_json(text)
    assert (back.source, back.target, back.normalizers, back.alphas) == (
        record.source,
        record.target,
        record.normalizers,
        record.alphas,
    )
    assert back.heads.keys() == record.heads.keys()
    for key, rows in record.heads.items():
        again = back.heads[key]
        assert again.keys == rows.keys
        for name in ("crow", "col", "weight"):
            assert np.array_equal(getattr(again, name), getattr(rows, name))
            assert getattr(again, name).dtype == getattr(rows, name).dtype


def test_an_empty_row_of_rela_is_an_empty_row() -> None:
    record = record_attention(tiny("rela"), [5, 6, 7, 8, 9, 10], [9, 10])
    sizes = np.concatenate([np.diff(rows.crow) for rows in record.heads.values()])
    assert (sizes == 0).any()
    key = next(key for key, rows in record.heads.items() if (np.diff(rows.crow) == 0).any())
    empty = int(np.flatnonzero(np.diff(record.heads[key].crow) == 0)[0])
    assert len(record.heads[key].row(empty)[0]) == 0
    assert isinstance(key, HeadKey)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": 99}', "not json"])
def test_what_is_no_attention_record_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="attention record"):
        AttentionRecord.from_json(text)


def test_ids_outside_of_the_vocabulary_are_refused() -> None:
    with pytest.raises(ArgumentError, match="between 0 and 29"):
        record_attention(tiny(), [5, 30], [6])
