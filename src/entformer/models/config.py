"""What a model is made of. In: numbers and names from a recipe or a run's model.json. Out: checked, frozen configurations.

A mistake is found here, before any tensor is made, and named by its field.
"""

from typing import Any, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator

from entformer.nn.normalizers import normalizer_fn_of, normalizer_of
from entformer.nn.rela import chosen_output_norm
from entformer.nn.scaling import scaling_of

__all__ = ["PRESETS", "AttentionConfig", "Seq2SeqConfig"]

_BEFORE_OUTPUT_NORM = {"normalizer", "alpha", "alpha_tied", "alpha_init", "rela_norm", "rela_per_head", "backend"}
"""The fields of `AttentionConfig` when ReLA alone had an output norm; files written then hold all of them."""


class AttentionConfig(BaseModel):
    """How one kind of attention turns scores into weights; as in `entformer.MultiheadAttention`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    normalizer: str = "entmax"
    """A name of `nn/normalizers.py`: "softmax", "entmax", "rela", "asentmax", ...; or "module:Name" of your own."""
    options: dict[str, bool | int | float] = {}
    """Options of the normalizer: {k: 4} for "topk", {max_span: 256} for "adaptive_span"."""
    alpha: float | Literal["learned"] | None = None
    """For "entmax" and "asentmax". None: learned for "entmax", 1.5 for "asentmax"."""
    alpha_tied: Literal["head", "layer", "kind", "across_kinds", "model"] = "head"
    """One learned alpha per head; per layer; one for all layers of this kind; per layer and head, the same in all kinds of
    attention that say so; or one for the whole model, in all kinds that say so."""
    alpha_init: float | Literal["random"] = "random"
    output_norm: Literal["none", "rms", "gated", "init"] = "none"
    """The norm after the heads (`nn/rela.py`). Unless given, "gated" for "rela", "relu2", "gelu" and "leaky_relu". Its former
    name, `rela_norm`, is taken for these four, and "plain" for "rms"."""
    output_norm_per_head: bool = False
    scaling: Literal["own", "ssmax", "per_head", "asentmax", "temperature"] = "own"
    """How queries are scaled, by the length mostly. "own": what the normalizer comes with, for most of them nothing."""
    scaling_init: float | Literal["identity", "paper"] | None = None
    """Start of the scaling: for "ssmax" the mean of s or "paper", 1; for the others "identity" (the default) or "paper"."""
    scaling_gamma: float | None = None
    """ASEntmax with this gamma, not learned."""
    temperature: float | Literal["learned"] | None = None
    """Of "softmax_temperature": scores are q k^T / temperature. None: learned per head, from sqrt(head size)."""
    backend: Literal["entformer", "sdpa"] = "entformer"
    """"sdpa": softmax by torch's own kernel, for comparisons of speed."""

    @model_validator(mode="before")
    @classmethod
    def _former_names(cls, given: Any) -> Any:
        """`rela_norm`, `rela_per_head` and `top_k` as they are called now, and the output norm written out."""
        if not isinstance(given, dict) or not isinstance(given.get("normalizer", ""), str):
            return given
        now = dict(given)
        name = now.get("normalizer", cls.model_fields["normalizer"].default)
        norm, per_head, k = (now.pop(former, None) for former in ("rela_norm", "rela_per_head", "top_k"))
        needs_norm = normalizer_of(name).needs_output_norm
        if given.keys() == _BEFORE_OUTPUT_NORM and not needs_norm:
            norm = per_head = None  # nobody chose them, and nothing had them
        chosen = chosen_output_norm(name, needs_norm, now.get("output_norm"), norm)
        now["output_norm"] = "rms" if chosen == "plain" else chosen
        if per_head:
            now["output_norm_per_head"] = True
        if k is not None:
            now["options"] = {"k": k, **now.get("options", {})}
        return now

    @model_validator(mode="after")
    def _fits(self) -> Self:
        traits = normalizer_of(self.normalizer)  # a mistake in the name shows before any tensor is made
        with torch.device("meta"):  # nothing is stored, and no random number is drawn
            if self.options:
                normalizer_fn_of(traits, 1, self.options)
            if self.scaling_name is not None:
                scaling_of(self.scaling_name, 1, 1, **self.scaling_options)
        if self.scaling_name is None and self.scaling_options:
            raise ValueError(
                f'{next(iter(self.scaling_options))} is of a scaling of queries, and normalizer "{self.normalizer}" has none; '
                "choose a scaling"
            )
        if self.output_norm_per_head and self.output_norm == "none":
            raise ValueError("output_norm_per_head has no effect without an output_norm; choose one")
        if self.alpha is not None and not normalizer_of(self.normalizer).learns_alpha:
            raise ValueError(f'normalizer "{self.normalizer}" has no alpha to set; leave alpha out, or choose "entmax"')
        if isinstance(self.alpha, float) and not 1.0 <= self.alpha < float("inf"):
            raise ValueError(f"alpha {self.alpha:g} must be at least 1; 1 is softmax, 2 sparsemax")
        if isinstance(self.alpha_init, float) and not 1.0 < self.alpha_init < 2.0:
            raise ValueError(f"alpha_init {self.alpha_init:g} must lie strictly between 1 and 2")
        if self.backend == "sdpa" and self.normalizer != "softmax":
            raise ValueError('backend "sdpa" computes softmax only')
        return self

    @property
    def scaling_name(self) -> str | None:
        """The scaling in force; None: there is none."""
        return normalizer_of(self.normalizer).scaling if self.scaling == "own" else self.scaling

    @property
    def scaling_options(self) -> dict[str, Any]:
        """What was chosen about it, as `scaling_of` takes it."""
        chosen = {"init": self.scaling_init, "gamma": self.scaling_gamma, "temperature": self.temperature}
        return {name: value for name, value in chosen.items() if value is not None}

    @property
    def learned(self) -> bool:
        """Whether alpha is a parameter."""
        return (normalizer_of(self.normalizer).alpha if self.alpha is None else self.alpha) == "learned"


class Seq2SeqConfig(BaseModel):
    """An encoder-decoder Transformer. The defaults are Transformer-Base with a learned alpha for every head."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    vocab_size: int = Field(ge=5)
    """The joint vocabulary, special ids included."""
    encoder_layers: int = Field(6, ge=1)
    decoder_layers: int = Field(6, ge=1)
    heads: int = Field(8, ge=1)
    width: int = Field(512, ge=1)
    hidden: int = Field(2048, ge=1)
    """Size between the two maps of the feed-forward layers."""
    dropout: float = Field(0.1, ge=0.0, lt=1.0)
    """Of the embeddings and of what every sublayer adds."""
    attention_dropout: float = Field(0.0, ge=0.0, lt=1.0)
    activation_dropout: float = Field(0.0, ge=0.0, lt=1.0)
    norm: Literal["pre", "post"] = "pre"
    positions: Literal["sinusoidal", "rotary", "alibi", "nape", "none"] = "sinusoidal"
    """Rotary, ALiBi and NAPE act in self-attention; cross attention has no positions of its own. In the encoder ALiBi's bias
    is -slope |i - j|, before and after the query alike."""
    nape_slopes: Literal["linear", "exponential"] = "linear"
    nape_share: float = Field(0.5, ge=0.0, le=1.0)
    """Share of NAPE's heads that have ALiBi."""
    tied_embeddings: Literal["all", "decoder", "none"] = "all"
    """"all": one matrix for source, target and output; "decoder": one for target and output."""
    encoder: AttentionConfig = AttentionConfig()
    decoder: AttentionConfig = AttentionConfig()
    cross: AttentionConfig = AttentionConfig()
    output: Literal["softmax", "entmax"] = "softmax"
    """"entmax": the entmax loss and a sparse distribution over the vocabulary."""
    output_alpha: float = Field(1.5, gt=1.0, le=4.0)
    label_smoothing: float = Field(0.1, ge=0.0, lt=1.0)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} must be a multiple of heads {self.heads}")
        if self.positions == "rotary" and (self.width // self.heads) % 2:
            raise ValueError(f"rotary positions need an even head size, not {self.width // self.heads} = width / heads")
        if self.positions in ("alibi", "nape") and "sdpa" in (self.encoder.backend, self.decoder.backend):
            raise ValueError(f'positions "{self.positions}" cannot go with backend "sdpa"')
        if normalizer_of(self.cross.normalizer).uses_positions:
            raise ValueError(f'normalizer "{self.cross.normalizer}" is for self-attention; choose another for cross')
        if normalizer_of(self.encoder.normalizer).causal_only:
            raise ValueError(f'normalizer "{self.encoder.normalizer}" looks back only; choose another for the encoder')
        for tied in ("across_kinds", "model"):
            starts = {kind.alpha_init for kind in self.kinds.values() if kind.learned and kind.alpha_tied == tied}
            if len(starts) > 1:
                raise ValueError(f'alphas tied "{tied}" are the same parameters, so alpha_init must be the same in all kinds')
        return self

    @property
    def kinds(self) -> dict[str, AttentionConfig]:
        """The attention of each kind."""
        return {"encoder": self.encoder, "decoder": self.decoder, "cross": self.cross}


PRESETS: dict[str, dict[str, Any]] = {
    "base": {"encoder_layers": 6, "decoder_layers": 6, "heads": 8, "width": 512, "hidden": 2048, "dropout": 0.1},
    "small": {"encoder_layers": 6, "decoder_layers": 6, "heads": 4, "width": 256, "hidden": 1024, "dropout": 0.3},
    "tiny": {"encoder_layers": 4, "decoder_layers": 4, "heads": 4, "width": 128, "hidden": 256, "dropout": 0.3},
    "micro": {"encoder_layers": 2, "decoder_layers": 2, "heads": 4, "width": 64, "hidden": 128, "dropout": 0.1},
}
"""Sizes by name: Transformer-Base, one for corpora of some 100,000 pairs, one for Multi30k, one for trials and tests."""
