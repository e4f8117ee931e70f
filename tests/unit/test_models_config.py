"""Configurations: what fits is frozen, what does not is named, and JSON brings it back."""

import json

import pytest
import torch

from entformer.errors import ArgumentError
from entformer.models.config import PRESETS, AttentionConfig, Seq2SeqConfig


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_configurations(name: str) -> None:
    config = Seq2SeqConfig(vocab_size=100, **PRESETS[name])
    assert Seq2SeqConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_learned() -> None:
    assert not AttentionConfig(normalizer="softmax").learned
    assert not AttentionConfig(alpha=1.5).learned
    assert not AttentionConfig(normalizer="asentmax").learned
    assert AttentionConfig(normalizer="asentmax", alpha="learned").learned


INVALID: dict[str, tuple[dict[str, object], str]] = {
    "width": ({"width": 100, "heads": 3}, "width 100 must be a multiple of heads 3"),
    "unknown": ({"layers": 3}, "layers"),
    "dropout": ({"dropout": 1.0}, "dropout"),
    "rotary": ({"width": 12, "heads": 4, "positions": "rotary"}, "even head size, not 3"),
    "normalizer": ({"encoder": {"normalizer": "softmin"}}, "'softmin' is not known; choose one of softmax"),
    "alpha": ({"cross": {"normalizer": "softmax", "alpha": 1.5}}, '"softmax" has no alpha'),
    "small alpha": ({"cross": {"alpha": 0.5}}, "alpha 0.5 must be at least 1"),
    "alpha_init": ({"cross": {"alpha_init": 2.5}}, "alpha_init 2.5 must lie between 1 and 2"),
    "alpha_init at a bound": ({"cross": {"alpha_init": 1.0}}, "strictly between 1 and 2, or choose alpha_parametrization"),
    "sdpa": ({"decoder": {"backend": "sdpa"}}, "softmax only"),
    "sdpa alibi": ({"decoder": {"normalizer": "softmax", "backend": "sdpa"}, "positions": "alibi"}, '"alibi" cannot go'),
    "type": ({"heads": "8"}, r"heads must be an integer \(at least 1\), not '8'"),
    "type of an option": ({"cross": {"normalizer": "topk", "options": {"k": "4"}}}, "cross: options must be"),
    "output": ({"output": "sparsemax"}, "output"),
    "sdpa nape": ({"decoder": {"normalizer": "softmax", "backend": "sdpa"}, "positions": "nape"}, '"nape" cannot go'),
    "share": ({"positions": "nape", "nape_share": 1.5}, "nape_share"),
    "places in cross": ({"cross": {"normalizer": "adaptive_span"}}, '"adaptive_span" is for self-attention'),
    "back in the encoder": ({"encoder": {"normalizer": "stickbreaking"}}, "is causal"),
    "norm of another": ({"cross": {"normalizer": "softmax", "rela_norm": "gated"}}, 'output_norm="gated"'),
    "norm of the default": ({"cross": {"rela_norm": "init"}}, 'normalizer="entmax"'),
    "two norms": ({"cross": {"normalizer": "rela", "rela_norm": "init", "output_norm": "rms"}}, "two names"),
    "norm": ({"cross": {"output_norm": "layer"}}, "output_norm must be 'none'"),
    "per head of nothing": ({"cross": {"output_norm_per_head": True}}, "no effect without an output_norm"),
    "options": ({"cross": {"normalizer": "topk", "options": {"n": 3}}}, "no option 'n'"),
    "value of an option": ({"cross": {"normalizer": "topk", "options": {"k": 0}}}, "k=0"),
    "gamma": ({"cross": {"normalizer": "ssmax", "scaling_gamma": 1.0}}, "fixed gamma"),
    "start": ({"cross": {"normalizer": "asentmax", "scaling_init": 0.4}}, "does not fit scaling 'asentmax'"),
    "start of nothing": ({"cross": {"scaling_init": "paper"}}, '"entmax" has none'),
    "temperature": ({"cross": {"normalizer": "softmax", "temperature": 2.0}}, '"softmax" has none'),
}


@pytest.mark.parametrize(("fields", "message"), INVALID.values(), ids=INVALID.keys())
def test_invalid_fields_are_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Seq2SeqConfig.from_dict({"vocab_size": 100, **fields})


def test_configurations_of_before_output_norms_still_load() -> None:
    """They name every field, and `rela_norm: gated` whatever the normalizer; only ReLA had the norm."""
    old = {"alpha": None, "alpha_tied": "head", "alpha_init": "random", "rela_norm": "gated", "rela_per_head": True}
    old["backend"] = "entformer"
    for name in ("softmax", "entmax", "asentmax"):
        config = AttentionConfig.from_dict({"normalizer": name, **old})
        assert (config.output_norm, config.output_norm_per_head) == ("none", False)
    rela = AttentionConfig.from_dict({"normalizer": "rela", **old, "rela_norm": "plain"})
    assert (rela.output_norm, rela.output_norm_per_head) == ("rms", True)
    assert AttentionConfig.from_dict({"normalizer": "relu2", "rela_norm": "none"}).output_norm == "none"


def test_checking_draws_no_random_number() -> None:
    """One seed gives one model, however often its configuration is checked."""
    torch.manual_seed(0)
    before = torch.get_rng_state()
    AttentionConfig(normalizer="asentmax", scaling_init="paper")
    AttentionConfig(normalizer="adaptive_span", options={"max_span": 100})
    assert torch.equal(torch.get_rng_state(), before)


def test_integers_become_floats_where_floats_are_expected() -> None:
    config = Seq2SeqConfig(vocab_size=100, dropout=0, cross=AttentionConfig(alpha=2))
    assert isinstance(config.dropout, float)
    assert isinstance(config.cross.alpha, float)
    with pytest.raises(ArgumentError, match="vocab_size"):
        Seq2SeqConfig.from_dict({})


def test_files_written_when_there_was_one_form_of_alpha_keep_it() -> None:
    config = Seq2SeqConfig(vocab_size=9)
    old = config.to_dict()
    for kind in ("encoder", "decoder", "cross"):
        assert old[kind].pop("alpha_parametrization") == "sigmoid"
    assert Seq2SeqConfig.from_dict(old) == config
    tied = {"alpha_tied": "model"}
    mixed = {"vocab_size": 9, "encoder": {**tied, "alpha_parametrization": "projected"}, "cross": tied}
    with pytest.raises(ArgumentError, match="alpha_parametrization must be the same"):
        Seq2SeqConfig.from_dict(mixed)
