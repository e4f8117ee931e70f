"""Layers of the Transformer. In: token states (B, L, d), batch first. Out: the same shape.

    pre-norm :  x + dropout(f(norm(x)))          stable without care
    post-norm:  norm(x + dropout(f(x)))          as in the first Transformer
    encoder layer: f = self-attention, then feed-forward; decoder layer: causal self-attention, cross attention, feed-forward
    feed-forward(x) = W_2 dropout(relu(W_1 x + b_1)) + b_2

Masks of keys have the sense of torch.nn.MultiheadAttention, which they are handed to: True = ignore.
"""

from torch import Tensor, nn

from entformer.nn.cache import KeyValueCache
from entformer.nn.dropout import Dropout
from entformer.nn.multihead_attention import MultiheadAttention

__all__ = ["DecoderLayer", "EncoderLayer", "FeedForward", "Residual"]


class Residual(nn.Module):
    """What stands around a sublayer f: `after(x, f(before(x)))`."""

    def __init__(self, width: int, dropout: float, pre_norm: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.dropout = Dropout(dropout)
        self.pre_norm = pre_norm

    def before(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(x) if self.pre_norm else x
        return normed

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        total: Tensor = self.dropout(y, x)
        return total if self.pre_norm else self.norm(total)


class FeedForward(nn.Module):
    """Two linear maps with a ReLU between them."""

    def __init__(self, width: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.expand = nn.Linear(width, hidden)
        self.dropout = Dropout(dropout)
        self.contract = nn.Linear(hidden, width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for linear in (self.expand, self.contract):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.contract(self.dropout(self.expand(x).relu_()))
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

    def forward(self, x: Tensor, ignored: Tensor | None = None) -> Tensor:
        """x (B, L, d); `ignored` (B, L): True = padding."""
        y = self.around_attention.before(x)
        y, _ = self.attention(y, y, y, key_padding_mask=ignored, need_weights=False)
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
        ignored: Tensor | None = None,
        *,
        cache: KeyValueCache | None = None,
        memory_cache: KeyValueCache | None = None,
    ) -> Tensor:
        """x (B, T, d), memory (B, S, d), `ignored` (B, S): True = padding of the memory.

        `cache` holds the keys and values of earlier tokens. `memory_cache` holds those of the memory; then `memory` is None.
        """
        y = self.around_attention.before(x)
        y, _ = self.attention(y, y, y, need_weights=False, is_causal=True, cache=cache)
        x = self.around_attention.after(x, y)
        y = self.around_cross_attention.before(x)
        y, _ = self.cross_attention(
            y,
            memory,
            memory,
            key_padding_mask=ignored,
            need_weights=False,
            cache=memory_cache,
        )
        x = self.around_cross_attention.after(x, y)
        return self.around_feed_forward.after(x, self.feed_forward(self.around_feed_forward.before(x)))
