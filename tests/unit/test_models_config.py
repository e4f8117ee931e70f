"""Configurations: what fits is frozen, what does not is named, and JSON brings it back."""

import pytest
from pydantic import ValidationError

from entformer.models.config import PRESETS, AttentionConfig, Seq2SeqConfig


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_configurations(name: str) -> None:
    config = Seq2SeqConfig(vocab_size=100, **PRESETS[name])
    assert Seq2SeqConfig.model_validate_json(config.model_dump_json()) == config


def test_defaults_are_transformer_base_with_learned_alphas() -> None:
    config = Seq2SeqConfig(vocab_size=32000)
    assert (config.encoder_layers, config.heads, config.width, config.hidden) == (6, 8, 512, 2048)
    assert config.encoder.learned
    assert config.decoder.learned
    assert config.cross.learned


def test_learned() -> None:
    assert not AttentionConfig(normalizer="softmax").learned
    assert not AttentionConfig(alpha=1.5).learned
    assert not AttentionConfig(normalizer="asentmax").learned
    assert AttentionConfig(normalizer="asentmax", alpha="learned").learned


MISTAKES: dict[str, tuple[dict[str, object], str]] = {
    "width": ({"width": 100, "heads": 3}, "width 100 must be a multiple of heads 3"),
    "unknown": ({"layers": 3}, "layers"),
    "dropout": ({"dropout": 1.0}, "dropout"),
    "rotary": ({"width": 12, "heads": 4, "positions": "rotary"}, "even head size, not 3"),
    "normalizer": ({"encoder": {"normalizer": "softmin"}}, "'softmin' is not known; choose one of softmax"),
    "alpha": ({"cross": {"normalizer": "softmax", "alpha": 1.5}}, '"softmax" has no alpha'),
    "small alpha": ({"cross": {"alpha": 0.5}}, "alpha 0.5 must be at least 1"),
    "alpha_init": ({"cross": {"alpha_init": 2.5}}, "strictly between 1 and 2"),
    "sdpa": ({"decoder": {"backend": "sdpa"}}, "softmax only"),
    "sdpa alibi": ({"decoder": {"normalizer": "softmax", "backend": "sdpa"}, "positions": "alibi"}, '"alibi" cannot go'),
    "output": ({"output": "sparsemax"}, "output"),
}


@pytest.mark.parametrize(("fields", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_are_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Seq2SeqConfig(vocab_size=100, **fields)  # type: ignore[arg-type]


def test_frozen() -> None:
    with pytest.raises(ValidationError):
        Seq2SeqConfig(vocab_size=100).width = 7  # type: ignore[misc]
