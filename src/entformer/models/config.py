"""Configurations of the encoder-decoder model: numbers and names from a recipe or a run's model.json, checked and frozen.

Every value is checked before any tensor is created; errors name the field.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch

from entformer.errors import ArgumentError
from entformer.models.fields import Bounds, Config
from entformer.nn.normalizers import get_normalizer, make_normalizer_fn
from entformer.nn.rela import resolve_output_norm
from entformer.nn.scaling import make_scaling

__all__ = ["PRESETS", "AttentionConfig", "Seq2SeqConfig"]

_BEFORE_OUTPUT_NORM = {"normalizer", "alpha", "alpha_tied", "alpha_init", "rela_norm", "rela_per_head", "backend"}
"""The fields of `AttentionConfig` when ReLA alone had an output norm; files written then hold all of them."""


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(Config):
    """How the heads of one attention type compute weights from scores; as in `entformer.MultiheadAttention`."""

    normalizer: str = "entmax"
    """A name of `nn/normalizers.py`: "softmax", "entmax", "rela", "asentmax", ...; or "module:Name" of your own."""
    options: dict[str, bool | int | float] = field(default_factory=dict)
    """Options of the normalizer: {k: 4} for "topk", {max_span: 256} for "adaptive_span"."""
    alpha: float | Literal["learned"] | None = None
    """For "entmax" and "asentmax". None: learned for "entmax", 1.5 for "asentmax"."""
    alpha_tied: Literal["head", "layer", "kind", "across_kinds", "model"] = "head"
    """What shares one learned alpha: nothing (one per head); the heads of a layer; all layers of this attention type; the same
    layer and head of all attention types with this setting; all heads of the model with this setting."""
    alpha_init: float | Literal["random"] = "random"
    alpha_parametrization: Literal["sigmoid", "projected"] = "sigmoid"
    """How a learned alpha is stored (`nn/alpha.py`). Files without this key are of models that had only the sigmoid; recipes
    default to "projected"."""
    output_norm: Literal["none", "rms", "gated", "init"] | None = None
    """The norm after the heads (`nn/rela.py`). None: "gated" for "rela", "relu2", "gelu" and "leaky_relu", else "none"."""
    output_norm_per_head: bool = False
    scaling: Literal["own", "ssmax", "per_head", "asentmax", "temperature"] = "own"
    """How queries are scaled, mostly by the length. "own": as the normalizer requires, for most of them not at all."""
    scaling_init: float | Literal["identity", "paper"] | None = None
    """Initial value of the scaling: for "ssmax" the mean of s or "paper", 1; for the others "identity" (default) or "paper"."""
    scaling_gamma: float | None = None
    """A fixed gamma for ASEntmax instead of a learned one."""
    temperature: float | Literal["learned"] | None = None
    """Of "softmax_temperature": scores are q k^T / temperature. None: learned per head, from sqrt(head size)."""
    backend: Literal["entformer", "sdpa"] = "entformer"
    """"sdpa": softmax by torch's own kernel, for comparisons of speed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        normalizer = get_normalizer(self.normalizer)
        chosen = resolve_output_norm(self.normalizer, normalizer.needs_output_norm, self.output_norm, None)
        object.__setattr__(self, "output_norm", chosen)
        # Modules of one head, to check their options. (On the meta device, torch would import its compiler to fill them.)
        with torch.device("cpu"), torch.random.fork_rng(devices=()):
            if self.options:
                make_normalizer_fn(normalizer, 1, self.options)
            if self.scaling_name is not None:
                make_scaling(self.scaling_name, 1, 1, **self.scaling_options)
        if self.scaling_name is None and self.scaling_options:
            raise ArgumentError(
                f"scaling_init, scaling_gamma and temperature configure a scaling of queries, and normalizer "
                f'"{self.normalizer}" has none; choose a scaling'
            )
        if self.output_norm_per_head and self.output_norm == "none":
            raise ArgumentError("output_norm_per_head has no effect without an output_norm; choose one")
        if self.alpha is not None and not normalizer.learns_alpha:
            raise ArgumentError(f'normalizer "{self.normalizer}" has no alpha to set; remove alpha, or choose "entmax"')
        if isinstance(self.alpha, float) and not 1.0 <= self.alpha < float("inf"):
            raise ArgumentError(f"alpha {self.alpha:g} must be at least 1; 1 is softmax, 2 sparsemax")
        if isinstance(self.alpha_init, float):
            if not 1.0 <= self.alpha_init <= 2.0:
                raise ArgumentError(f"alpha_init {self.alpha_init:g} must lie between 1 and 2")
            if self.alpha_init in (1.0, 2.0) and self.alpha_parametrization == "sigmoid":
                advice = "or choose alpha_parametrization: projected"
                raise ArgumentError(f"alpha_init {self.alpha_init:g} must lie strictly between 1 and 2, {advice}")
        if self.backend == "sdpa" and self.normalizer != "softmax":
            raise ArgumentError('backend "sdpa" computes softmax only')

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Renames `rela_norm`, `rela_per_head`, `top_k` and the norm "plain" of files of earlier versions."""
        name = values.get("normalizer", cls.normalizer)
        if not isinstance(name, str):
            return values
        now = dict(values)
        norm, per_head, k = (now.pop(former, None) for former in ("rela_norm", "rela_per_head", "top_k"))
        needs_norm = get_normalizer(name).needs_output_norm
        if values.keys() - {"alpha_parametrization"} == _BEFORE_OUTPUT_NORM and not needs_norm:
            norm = per_head = None  # the file holds the defaults, which nothing read
        if norm is not None:
            now["output_norm"] = resolve_output_norm(name, needs_norm, now.get("output_norm"), norm)
        if now.get("output_norm") == "plain":
            now["output_norm"] = "rms"
        if per_head:
            now["output_norm_per_head"] = True
        if k is not None:
            now["options"] = {"k": k, **now.get("options", {})}
        return now

    @property
    def scaling_name(self) -> str | None:
        """The scaling in use; None if there is none."""
        return get_normalizer(self.normalizer).scaling if self.scaling == "own" else self.scaling

    @property
    def scaling_options(self) -> dict[str, Any]:
        """The options of the scaling that are set, as `make_scaling` takes them."""
        chosen = {"init": self.scaling_init, "gamma": self.scaling_gamma, "temperature": self.temperature}
        return {name: value for name, value in chosen.items() if value is not None}

    @property
    def learned(self) -> bool:
        """Whether alpha is a parameter."""
        return (get_normalizer(self.normalizer).alpha if self.alpha is None else self.alpha) == "learned"


Positive = Annotated[int, Bounds(ge=1)]
DropoutRate = Annotated[float, Bounds(ge=0.0, lt=1.0)]


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig(Config):
    """An encoder-decoder Transformer. The defaults are Transformer-Base with a learned alpha for every head."""

    vocab_size: Annotated[int, Bounds(ge=5)]
    """Size of the joint vocabulary, special tokens included."""
    encoder_layers: Positive = 6
    decoder_layers: Positive = 6
    heads: Positive = 8
    width: Positive = 512
    hidden: Positive = 2048
    """Inner size of the feed-forward layers."""
    dropout: DropoutRate = 0.1
    """Of the embeddings and of the output of every sublayer."""
    attention_dropout: DropoutRate = 0.0
    activation_dropout: DropoutRate = 0.0
    norm: Literal["pre", "post"] = "pre"
    positions: Literal["sinusoidal", "rotary", "alibi", "nape", "none"] = "sinusoidal"
    """Rotary, ALiBi and NAPE act in self-attention; cross attention has no positions of its own. In the encoder ALiBi's bias
    is -slope |i - j|, symmetric around the query."""
    rotary_base: Annotated[float, Bounds(gt=1.0)] = 10000.0
    nape_slopes: Literal["linear", "exponential"] = "linear"
    nape_share: Annotated[float, Bounds(ge=0.0, le=1.0)] = 0.5
    """Fraction of NAPE's heads that have ALiBi."""
    tied_embeddings: Literal["all", "decoder", "none"] = "all"
    """"all": one matrix for source, target and output; "decoder": one for target and output."""
    encoder: AttentionConfig = AttentionConfig()
    decoder: AttentionConfig = AttentionConfig()
    cross: AttentionConfig = AttentionConfig()
    output: Literal["softmax", "entmax"] = "softmax"
    """"entmax": the entmax loss and a sparse distribution over the vocabulary."""
    output_alpha: Annotated[float, Bounds(gt=1.0, le=4.0)] = 1.5
    label_smoothing: DropoutRate = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_head_size(self.width, self.heads, self.positions)
        if self.positions in ("alibi", "nape") and "sdpa" in (self.encoder.backend, self.decoder.backend):
            raise ArgumentError(f'positions "{self.positions}" cannot go with backend "sdpa"')
        if get_normalizer(self.cross.normalizer).uses_positions:
            raise ArgumentError(f'normalizer "{self.cross.normalizer}" is for self-attention; choose another for cross')
        if get_normalizer(self.encoder.normalizer).causal_only:
            raise ArgumentError(f'normalizer "{self.encoder.normalizer}" is causal; choose another for the encoder')
        for tied in ("across_kinds", "model"):
            sharing = [kind for kind in self.kinds.values() if kind.learned and kind.alpha_tied == tied]
            for name in ("alpha_init", "alpha_parametrization"):
                if len({getattr(kind, name) for kind in sharing}) > 1:
                    raise ArgumentError(f'alphas tied "{tied}" are the same parameters, so their {name} must be the same')

    @property
    def kinds(self) -> dict[str, AttentionConfig]:
        """The configuration of each attention type."""
        return {"encoder": self.encoder, "decoder": self.decoder, "cross": self.cross}


def check_head_size(width: int, heads: int, positions: str) -> None:
    """Raises ArgumentError unless the width can be split into heads that `positions` can rotate."""
    if width % heads:
        raise ArgumentError(f"width {width} must be a multiple of heads {heads}")
    if positions == "rotary" and (width // heads) % 2:
        raise ArgumentError(f"rotary positions need an even head size, not {width // heads} = width / heads")


PRESETS: dict[str, dict[str, Any]] = {
    "base": {"encoder_layers": 6, "decoder_layers": 6, "heads": 8, "width": 512, "hidden": 2048, "dropout": 0.1},
    "small": {"encoder_layers": 6, "decoder_layers": 6, "heads": 4, "width": 256, "hidden": 1024, "dropout": 0.3},
    "tiny": {"encoder_layers": 4, "decoder_layers": 4, "heads": 4, "width": 128, "hidden": 256, "dropout": 0.3},
    "micro": {"encoder_layers": 2, "decoder_layers": 2, "heads": 4, "width": 64, "hidden": 128, "dropout": 0.1},
}
"""Sizes by name: Transformer-Base, one for about 100,000 sentence pairs, one for Multi30k, one for experiments and tests."""
