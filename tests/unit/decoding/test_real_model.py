"""Beam search on the real Transformer: scores are those of the teacher-forced model, and so are the recorded weights."""

import numpy as np
import pytest
import torch
from torch import Tensor

from entformer.decoding.attention_record import record_attention
from entformer.decoding.beam import beam_search
from entformer.decoding.records import AttentionRecord
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


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("output", ["softmax", "entmax"])
def test_a_score_is_the_log_probability_of_the_teacher_forced_model(output: str, normalizer: str) -> None:
    model = tiny(normalizer, output=output).double()
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
    assert back.to_json(line=17) == text
    for key, rows in record.heads.items():
        for name in ("crow", "col", "weight"):
            np.testing.assert_array_equal(getattr(back.heads[key], name), getattr(rows, name), strict=True)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": 99}', "not json"])
def test_what_is_no_attention_record_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="attention record"):
        AttentionRecord.from_json(text)


def test_ids_outside_of_the_vocabulary_are_refused() -> None:
    with pytest.raises(ArgumentError, match="between 0 and 29"):
        record_attention(tiny(), [5, 30], [6])
