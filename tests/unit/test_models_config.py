"""Configurations: what fits is frozen, what does not is named, and JSON brings it back."""

import pytest
import torch
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
    "sdpa nape": ({"decoder": {"normalizer": "softmax", "backend": "sdpa"}, "positions": "nape"}, '"nape" cannot go'),
    "share": ({"positions": "nape", "nape_share": 1.5}, "nape_share"),
    "places in cross": ({"cross": {"normalizer": "adaptive_span"}}, '"adaptive_span" is for self-attention'),
    "back in the encoder": ({"encoder": {"normalizer": "stickbreaking"}}, "looks back only"),
    "norm of another": ({"cross": {"normalizer": "softmax", "rela_norm": "gated"}}, 'output_norm="gated"'),
    "norm of the default": ({"cross": {"rela_norm": "init"}}, 'normalizer="entmax"'),
    "two norms": ({"cross": {"normalizer": "rela", "rela_norm": "init", "output_norm": "rms"}}, "two names"),
    "norm": ({"cross": {"output_norm": "layer"}}, "'layer' is not known"),
    "per head of nothing": ({"cross": {"output_norm_per_head": True}}, "no effect without an output_norm"),
    "options": ({"cross": {"normalizer": "topk", "options": {"n": 3}}}, "no option 'n'"),
    "value of an option": ({"cross": {"normalizer": "topk", "options": {"k": 0}}}, "k=0"),
    "gamma": ({"cross": {"normalizer": "ssmax", "scaling_gamma": 1.0}}, "fixed gamma"),
    "start": ({"cross": {"normalizer": "asentmax", "scaling_init": 0.4}}, "does not fit scaling 'asentmax'"),
    "start of nothing": ({"cross": {"scaling_init": "paper"}}, '"entmax" has none'),
    "temperature": ({"cross": {"normalizer": "softmax", "temperature": 2.0}}, '"softmax" has none'),
}


@pytest.mark.parametrize(("fields", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_are_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Seq2SeqConfig(vocab_size=100, **fields)  # type: ignore[arg-type]


def test_configurations_of_before_output_norms_still_load() -> None:
    """They name every field, and `rela_norm: gated` whatever the normalizer; only ReLA had the norm."""
    old = {"alpha": None, "alpha_tied": "head", "alpha_init": "random", "rela_norm": "gated", "rela_per_head": True}
    old["backend"] = "entformer"
    for name in ("softmax", "entmax", "asentmax"):
        config = AttentionConfig.model_validate({"normalizer": name, **old})
        assert (config.output_norm, config.output_norm_per_head) == ("none", False)
    rela = AttentionConfig.model_validate({"normalizer": "rela", **old, "rela_norm": "plain"})
    assert (rela.output_norm, rela.output_norm_per_head) == ("rms", True)
    assert AttentionConfig.model_validate({"normalizer": "relu2", "rela_norm": "none"}).output_norm == "none"


def test_checking_draws_no_random_number() -> None:
    """One seed gives one model, however often its configuration is checked."""
    torch.manual_seed(0)
    before = torch.get_rng_state()
    AttentionConfig(normalizer="asentmax", scaling_init="paper")
    AttentionConfig(normalizer="adaptive_span", options={"max_span": 100})
    assert torch.equal(torch.get_rng_state(), before)


def test_frozen() -> None:
    with pytest.raises(ValidationError):
        Seq2SeqConfig(vocab_size=100).width = 7  # type: ignore[misc]
