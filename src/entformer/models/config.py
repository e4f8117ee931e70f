"""What a model is made of. In: numbers and names from a recipe or a run's model.json. Out: checked, frozen configurations.

A mistake is found here, before any tensor is made, and named by its field.
"""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from entformer.nn.normalizers import normalizer_of

__all__ = ["PRESETS", "AttentionConfig", "Seq2SeqConfig"]


class AttentionConfig(BaseModel):
    """How one kind of attention turns scores into weights; as in `entformer.MultiheadAttention`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    normalizer: str = "entmax"
    """A name of `nn/normalizers.py`: "softmax", "entmax", "rela", "asentmax", ...; or "module:Name" of your own."""
    alpha: float | Literal["learned"] | None = None
    """For "entmax" and "asentmax". None: learned for "entmax", 1.5 for "asentmax"."""
    alpha_tied: Literal["head", "layer", "kind"] = "head"
    """One learned alpha per head, per layer, or one for all layers of this kind."""
    alpha_init: float | Literal["random"] = "random"
    rela_norm: Literal["gated", "init", "plain", "none"] = "gated"
    rela_per_head: bool = False
    backend: Literal["entformer", "sdpa"] = "entformer"
    """"sdpa": softmax by torch's own kernel, for comparisons of speed."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        normalizer_of(self.normalizer)  # a mistake in the name shows before any tensor is made
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
    positions: Literal["sinusoidal", "rotary", "alibi", "none"] = "sinusoidal"
    """Rotary and ALiBi act in self-attention; cross attention has no positions of its own."""
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
        if self.positions == "alibi" and "sdpa" in (self.encoder.backend, self.decoder.backend):
            raise ValueError('positions "alibi" cannot go with backend "sdpa"')
        return self


PRESETS: dict[str, dict[str, Any]] = {
    "base": {"encoder_layers": 6, "decoder_layers": 6, "heads": 8, "width": 512, "hidden": 2048, "dropout": 0.1},
    "small": {"encoder_layers": 6, "decoder_layers": 6, "heads": 4, "width": 256, "hidden": 1024, "dropout": 0.3},
    "tiny": {"encoder_layers": 4, "decoder_layers": 4, "heads": 4, "width": 128, "hidden": 256, "dropout": 0.3},
    "micro": {"encoder_layers": 2, "decoder_layers": 2, "heads": 4, "width": 64, "hidden": 128, "dropout": 0.1},
}
"""Sizes by name: Transformer-Base, one for corpora of some 100,000 pairs, one for Multi30k, one for trials and tests."""
