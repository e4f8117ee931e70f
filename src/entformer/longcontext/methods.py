"""Attention methods and position encodings by name: "asentmax", "entmax-2", "module:MyNormalizer"; "nape", "rope-500000".

A method is a normalizer with an optional length-dependent scaling of the queries. Every method works with every position
encoding. The initialization of "asentmax" depends on the size (identity for laptop, published values for paper);
"asentmax-identity" and "asentmax-paper" fix it.
"""

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

from entformer.errors import ArgumentError
from entformer.models.lm_config import LMAttentionConfig
from entformer.nn.normalizers import get_normalizer
from entformer.nn.positions import nape_slopes

__all__ = ["METHODS", "POSITIONS", "get_method", "get_positions", "scaled_heads", "sort_methods"]

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax": ("softmax", {"normalizer": "softmax"}),
    "softmax-temperature": (
        "softmax(q k / theta), theta learned per head; softmax-temperature-0.1 fixes it",
        {"normalizer": "softmax_temperature"},
    ),
    "softmax1": ("softmax with 1 more in the denominator: a sink of score 0", {"normalizer": "softmax1"}),
    "ssmax": ("softmax of scores times s ln n, s learned per head", {"normalizer": "ssmax"}),
    "adaptive-temperature": (
        "softmax, sharpened in evaluation where its entropy is high",
        {"normalizer": "adaptive_temperature"},
    ),
    "topk": ("softmax over the 32 largest scores; topk-4 over 4", {"normalizer": "topk"}),
    "stickbreaking": ("stick-breaking attention; needs no positions", {"normalizer": "stickbreaking"}),
    "adaptive-span": ("softmax over a span of the past, learned per head", {"normalizer": "adaptive_span"}),
    "entmax": ("1.5-entmax; entmax-2 is sparsemax, entmax-4 and so on", {"normalizer": "entmax", "alpha": 1.5}),
    "entmax-learned": ("entmax, alpha learned per head", {"normalizer": "entmax", "alpha": "learned"}),
    "asentmax": ("1.5-entmax, scale learned per head and token", {"normalizer": "asentmax"}),
    "asentmax-identity": ("ASEntmax initialized at scale 1.05", {"normalizer": "asentmax", "scaling_init": "identity"}),
    "asentmax-paper": (
        "ASEntmax with the published initialization",
        {"normalizer": "asentmax", "scaling_init": "paper"},
    ),
    "asentmax-gamma1": (
        "ASEntmax with gamma fixed to 1 (or another number), beta from 0.7",
        {"normalizer": "asentmax", "scaling_gamma": 1.0, "scaling_init": "paper"},
    ),
    "entmax-ssmax": ("1.5-entmax of scores times s ln n", {"normalizer": "entmax", "alpha": 1.5, "scaling": "ssmax"}),
    "entmax-per-head": (
        "1.5-entmax, 1 + beta (ln n)^gamma learned per head",
        {"normalizer": "entmax", "alpha": 1.5, "scaling": "per_head"},
    ),
    "rela": ("rectified linear attention with a gated norm; rela-none, -rms, -init have another", {"normalizer": "rela"}),
    "relu2": ("ReLA with squared ReLU; relu2-rms and so on", {"normalizer": "relu2"}),
    "gelu": ("ReLA with GELU", {"normalizer": "gelu"}),
    "leaky-relu": ("ReLA with leaky ReLU", {"normalizer": "leaky_relu"}),
    "softmax-norm": ("softmax with ReLA's gated norm", {"normalizer": "softmax", "output_norm": "gated"}),
    "sigmoid": ("sigmoid(score - ln n)", {"normalizer": "sigmoid"}),
    "relu-n": ("max(score, 0) / n", {"normalizer": "relu_n"}),
}
"""Name -> (description, fields of `LMAttentionConfig`)."""

POSITIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "nape": (
        "half of the heads ALiBi with slopes 1, 1/2, 1/3 ..., half without; nape-0.25: a quarter",
        {"positions": "nape"},
    ),
    "nape-exp": ("the same with slopes 1, 1/2, 1/4 ...", {"positions": "nape", "nape_slopes": "exponential"}),
    "rope": ("rotary; rope-500000 has that base", {"positions": "rotary"}),
    "alibi": ("all heads ALiBi", {"positions": "alibi"}),
    "nope": ("none: the causal mask alone", {"positions": "none"}),
    "sinusoidal": ("added to the embeddings", {"positions": "sinusoidal"}),
}
"""Name -> (description, fields of `LMConfig`)."""


def get_method(name: str, *, published: bool = False) -> LMAttentionConfig:
    """Returns the attention of a method; `published` selects the published initialization unless the name fixes it."""
    if ":" in name:
        get_normalizer(name)
        return LMAttentionConfig(normalizer=name)
    known = name.strip().lower().replace("_", "-")
    if known in METHODS:
        config = LMAttentionConfig(**METHODS[known][1])
        unset = config.scaling_init is None and config.scaling_name in ("asentmax", "per_head")
        return dataclasses.replace(config, scaling_init="paper") if published and unset else config
    if (found := re.fullmatch(r"softmax-temperature-(\d+(?:\.\d+)?)", known)) and float(found[1]) > 0.0:
        return LMAttentionConfig(normalizer="softmax_temperature", temperature=float(found[1]))
    if found := re.fullmatch(r"(softmax|rela|relu2|gelu|leaky-relu)-(none|rms|gated|init)", known):
        return LMAttentionConfig.from_dict({"normalizer": found[1].replace("-", "_"), "output_norm": found[2]})
    if (found := re.fullmatch(r"entmax-(\d+(?:\.\d+)?)", known)) and float(found[1]) >= 1.0:
        return LMAttentionConfig(normalizer="entmax", alpha=float(found[1]))
    if found := re.fullmatch(r"topk-([1-9]\d*)", known):
        return LMAttentionConfig(normalizer="topk", options={"k": int(found[1])})
    if found := re.fullmatch(r"asentmax-gamma(-?\d+(?:\.\d+)?)", known):
        return LMAttentionConfig(normalizer="asentmax", scaling_gamma=float(found[1]), scaling_init="paper")
    raise ArgumentError(
        f"unknown method {name!r}; choose from {', '.join(METHODS)}, entmax-ALPHA, topk-K, softmax-temperature-THETA, "
        "rela-NORM, or module:Name of a custom normalizer."
    )


def get_positions(name: str) -> dict[str, Any]:
    """Returns the fields of `LMConfig` for a position encoding."""
    known = name.strip().lower().replace("_", "-")
    if known in POSITIONS:
        return dict(POSITIONS[known][1])
    if (found := re.fullmatch(r"rope-(\d+(?:\.\d+)?(?:e\d+)?)", known)) and float(found[1]) > 1.0:
        return {"positions": "rotary", "rotary_base": float(found[1])}
    if (found := re.fullmatch(r"nape-(\d(?:\.\d+)?)", known)) and float(found[1]) <= 1.0:
        return {"positions": "nape", "nape_share": float(found[1])}
    raise ArgumentError(f"unknown positions {name!r}; choose from {', '.join(POSITIONS)}, rope-BASE, nape-SHARE.")


def scaled_heads(positions: str, heads: int) -> list[int]:
    """Returns the heads with length-dependent scaling: those without ALiBi for NAPE, otherwise all."""
    fields = get_positions(positions)
    if fields["positions"] != "nape":
        return list(range(heads))
    slopes = nape_slopes(heads, fields.get("nape_slopes", "linear"), fields.get("nape_share", 0.5))
    return [head for head, slope in enumerate(slopes.tolist()) if slope == 0.0]


def sort_methods(methods: Iterable[str]) -> list[str]:
    """Returns each method once in the order of `METHODS`, which determines its color; others follow by name."""
    known = list(METHODS)
    return sorted(set(methods), key=lambda name: (known.index(name) if name in METHODS else len(known), name))
