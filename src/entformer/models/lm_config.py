"""Configuration of the decoder-only model."""

from dataclasses import dataclass
from typing import Annotated, Literal

from entformer.errors import ArgumentError
from entformer.models.config import AttentionConfig, Positive, check_head_size
from entformer.models.fields import Bounds, Config

__all__ = ["LMAttentionConfig", "LMConfig"]


@dataclass(frozen=True, kw_only=True)
class LMAttentionConfig(AttentionConfig):
    """`AttentionConfig` with ASEntmax as the default."""

    normalizer: str = "asentmax"


@dataclass(frozen=True, kw_only=True)
class LMConfig(Config):
    """A decoder-only Transformer. The defaults are the model of the copying experiments, with ASEntmax and NAPE."""

    vocab_size: Annotated[int, Bounds(ge=2)]
    """Size of the vocabulary, special tokens included."""
    layers: Positive = 2
    heads: Positive = 8
    width: Positive = 256
    hidden: Positive = 1024
    """Inner size of the feed-forward layers."""
    positions: Literal["nape", "rotary", "alibi", "none", "sinusoidal"] = "nape"
    rotary_base: Annotated[float, Bounds(gt=1.0)] = 10000.0
    nape_slopes: Literal["linear", "exponential"] = "linear"
    nape_share: Annotated[float, Bounds(ge=0.0, le=1.0)] = 0.5
    """Fraction of the heads that have ALiBi."""
    attention: LMAttentionConfig = LMAttentionConfig()
    tied_output: bool = False
    """Use the embedding as the output matrix."""
    embedding_std: Annotated[float, Bounds(gt=0.0)] = 1.0
    """Initial standard deviation of the embedded tokens. The published model: 0.02 sqrt(width)."""
    scaled_embedding: bool = False
    """Multiply the embedding by sqrt(width), as published, so that Adam changes embedded tokens that much faster."""
    init_std: Annotated[float, Bounds(gt=0.0)] | None = None
    """Initial standard deviation of the matrices; None: 1 / sqrt(inputs). The published model: 0.02."""

    @property
    def kinds(self) -> dict[str, AttentionConfig]:
        """The configuration of each attention type: there is one."""
        return {"decoder": self.attention}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_head_size(self.width, self.heads, self.positions)
        if self.positions in ("alibi", "nape") and self.attention.backend == "sdpa":
            raise ArgumentError(f'positions "{self.positions}" cannot go with backend "sdpa"')
