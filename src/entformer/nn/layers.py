"""Layers of the two Transformers. Inputs and outputs are token states (B, L, d), batch first.

    pre-norm:   x + dropout(f(norm(x)))             trains without tuning
    post-norm:  norm(x + dropout(f(x)))             as in the first Transformer
    causal LM:  x + norm(f(norm(x)))                RMSNorm before and after f; the second fixes the size of what is added

    EncoderLayer: self-attention, feed-forward       DecoderLayer: causal self-attention, cross attention, feed-forward
    CausalLayer:  causal self-attention, gated feed-forward

Boolean masks: True = may attend.
"""

import torch
from torch import Tensor, nn

from entformer.nn.cache import KeyValueCache, WindowedCache
from entformer.nn.dropout import Dropout
from entformer.nn.gelu import gated_gelu
from entformer.nn.linear import Linear, linear
from entformer.nn.multihead_attention import MultiheadAttention
from entformer.nn.rms_norm import RMSNorm
from entformer.nn.window import alibi_windows

__all__ = ["LAYERS", "CausalLayer", "DecoderLayer", "EncoderLayer", "FeedForward", "GatedFeedForward", "Residual"]

EPS = 1e-6


class Residual(nn.Module):
    """The norm and residual connection of a sublayer f: `after(x, f(before(x)))`."""

    def __init__(self, width: int, dropout: float, pre_norm: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.dropout = Dropout(dropout)
        self.pre_norm = pre_norm

    def before(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(x) if self.pre_norm else x
        return normed

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        total: Tensor = x + self.dropout(y)
        return total if self.pre_norm else self.norm(total)


class FeedForward(nn.Module):
    """W_2 dropout(relu(W_1 x + b_1)) + b_2."""

    def __init__(self, width: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.expand = Linear(width, hidden)
        self.dropout = Dropout(dropout)
        self.contract = Linear(hidden, width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for layer in (self.expand, self.contract):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.contract(self.dropout(self.expand(x).relu_()))
        return y


class GatedFeedForward(nn.Module):
    """W_down (gelu(W_gate x) * W_up x) without biases; W_gate and W_up are the two halves of one matrix.

    The halves are multiplied one by one: rows of both together are often 4,096 bytes or a multiple apart, where they compete
    for the same places in the cache. At 2 x 512 that takes an eighth of the layer's time on the CPU.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.expand = Linear(width, 2 * hidden, bias=False)
        self.contract = Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = (linear(x, half) for half in self.expand.weight.chunk(2))
        y: Tensor = self.contract(gated_gelu(gate, up))
        return y


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward. `attention` must be batch first."""

    def __init__(
        self,
        attention: MultiheadAttention,
        hidden: int,
        *,
        dropout: float = 0.1,
        activation_dropout: float = 0.0,
        pre_norm: bool = True,
    ) -> None:
        super().__init__()
        width = attention.embed_dim
        self.attention = attention
        self.feed_forward = FeedForward(width, hidden, activation_dropout)
        self.around_attention = Residual(width, dropout, pre_norm)
        self.around_feed_forward = Residual(width, dropout, pre_norm)

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """x (B, L, d), key_mask (B, L)."""
        y = self.around_attention.before(x)
        y, _ = self.attention(y, y, y, key_mask=key_mask, need_weights=False)
        x = self.around_attention.after(x, y)
        return self.around_feed_forward.after(x, self.feed_forward(self.around_feed_forward.before(x)))


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to a memory, feed-forward. Both attentions must be batch first."""

    def __init__(
        self,
        attention: MultiheadAttention,
        cross_attention: MultiheadAttention,
        hidden: int,
        *,
        dropout: float = 0.1,
        activation_dropout: float = 0.0,
        pre_norm: bool = True,
    ) -> None:
        super().__init__()
        width = attention.embed_dim
        self.attention = attention
        self.cross_attention = cross_attention
        self.feed_forward = FeedForward(width, hidden, activation_dropout)
        self.around_attention = Residual(width, dropout, pre_norm)
        self.around_cross_attention = Residual(width, dropout, pre_norm)
        self.around_feed_forward = Residual(width, dropout, pre_norm)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None,
        memory_mask: Tensor | None = None,
        *,
        cache: KeyValueCache | None = None,
        memory_cache: KeyValueCache | None = None,
    ) -> Tensor:
        """x (B, T, d), memory (B, S, d), memory_mask (B, S).

        `cache` holds the keys and values of earlier tokens. `memory_cache` holds those of the memory; `memory` is then None.
        """
        y = self.around_attention.before(x)
        y, _ = self.attention(y, y, y, need_weights=False, is_causal=True, cache=cache)
        x = self.around_attention.after(x, y)
        y = self.around_cross_attention.before(x)
        y, _ = self.cross_attention(y, memory, memory, key_mask=memory_mask, need_weights=False, cache=memory_cache)
        x = self.around_cross_attention.after(x, y)
        return self.around_feed_forward.after(x, self.feed_forward(self.around_feed_forward.before(x)))


class CausalLayer(nn.Module):
    """Causal self-attention and a gated feed-forward layer. `attention` must be batch first."""

    def __init__(self, attention: MultiheadAttention, hidden: int) -> None:
        super().__init__()
        width = attention.embed_dim
        self.attention = attention
        self.feed_forward = GatedFeedForward(width, hidden)
        self.before_attention = RMSNorm(width, eps=EPS)
        self.after_attention = RMSNorm(width, eps=EPS)
        self.before_feed_forward = RMSNorm(width, eps=EPS)
        self.after_feed_forward = RMSNorm(width, eps=EPS)

    def forward(
        self,
        x: Tensor,
        key_mask: Tensor | None = None,
        *,
        cache: KeyValueCache | WindowedCache | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """x (B, L, d), key_mask (B, past + L). `cache` holds the keys and values of earlier tokens.

        cu_seqlens: (n + 1,), where the sequences packed into x (1, L, d) begin, and the end.
        """
        y = self.before_attention(x)
        options = {"key_mask": key_mask, "cache": cache, "cu_seqlens": cu_seqlens}
        y, _ = self.attention(y, y, y, need_weights=False, is_causal=True, **options)
        x = x + self.after_attention(y.to(x.dtype))  # under autocast norms and sums stay in the precision of x
        y = self.feed_forward(self.before_feed_forward(x))
        out: Tensor = x + self.after_feed_forward(y.to(x.dtype))
        return out

    def windows(self) -> list[int | None]:
        """Returns how many keys each head can give weight to with its present parameters; None: any number."""
        gain = self.before_attention.weight
        if gain is None:
            gain = torch.ones(self.attention.embed_dim, device=self.attention.out_proj.weight.device)
        return alibi_windows(self.attention, gain)


LAYERS = (EncoderLayer, DecoderLayer, CausalLayer)
"""The layers of which models are made: what FSDP shards, and what recomputes its activations, one at a time."""
