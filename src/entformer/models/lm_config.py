"""What a decoder-only model is made of. In: numbers and names. Out: checked, frozen configurations."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from entformer.models.config import AttentionConfig

__all__ = ["LMAttentionConfig", "LMConfig"]


class LMAttentionConfig(AttentionConfig):
    """How scores become weights, and how queries are scaled by the length before."""

    normalizer: str = "asentmax"


class LMConfig(BaseModel):
    """A decoder-only Transformer. The defaults are the model of the copying experiments, with ASEntmax and NAPE."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    vocab_size: int = Field(ge=2)
    """Special ids included."""
    layers: int = Field(2, ge=1)
    heads: int = Field(8, ge=1)
    width: int = Field(256, ge=1)
    hidden: int = Field(1024, ge=1)
    """Size between the maps of the feed-forward layers."""
    positions: Literal["nape", "rotary", "alibi", "none", "sinusoidal"] = "nape"
    rotary_base: float = Field(10000.0, gt=1.0)
    nape_slopes: Literal["linear", "exponential"] = "linear"
    nape_share: float = Field(0.5, ge=0.0, le=1.0)
    """Share of the heads that have ALiBi."""
    attention: LMAttentionConfig = LMAttentionConfig()
    tied_output: bool = False
    """The output matrix is the embedding."""
    embedding_std: float = Field(1.0, gt=0.0)
    """Deviation of the embedded tokens at the start. The published model: 0.02 sqrt(width)."""
    scaled_embedding: bool = False
    """Embedded tokens are the embedding times sqrt(width), as published, so Adam moves them that much faster."""
    init_std: float | None = Field(None, gt=0.0)
    """Deviation of the matrices at the start; None: 1 / sqrt(inputs). The published model: 0.02."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} must be a multiple of heads {self.heads}")
        if self.positions == "rotary" and (self.width // self.heads) % 2:
            raise ValueError(f"rotary positions need an even head size, not {self.width // self.heads} = width / heads")
        if self.positions in ("alibi", "nape") and self.attention.backend == "sdpa":
            raise ValueError(f'positions "{self.positions}" cannot go with backend "sdpa"')
        return self
