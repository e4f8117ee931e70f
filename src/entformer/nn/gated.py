"""The layer of the decoder-only model. In: token states (B, L, d), batch first. Out: the same shape.

    x = x + norm(attention(norm(x)))                      RMSNorm before and after, each with its own gain
    x = x + norm(feed_forward(norm(x)))
    feed_forward(x) = W_down (gelu(W_gate x) * W_up x)    no biases

The norm after a sublayer keeps what it adds at one size, however large its weights become.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from entformer.nn.cache import KeyValueCache
from entformer.nn.multihead_attention import MultiheadAttention
from entformer.nn.window import WindowedCache, alibi_windows

__all__ = ["CausalLayer", "GatedFeedForward"]

EPS = 1e-6


class GatedFeedForward(nn.Module):
    """A gated feed-forward layer; W_gate and W_up are the two halves of one matrix."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.expand = nn.Linear(width, 2 * hidden, bias=False)
        self.contract = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.expand(x).chunk(2, -1)
        y: Tensor = self.contract(F.gelu(gate, approximate="tanh") * up)
        return y


class CausalLayer(nn.Module):
    """Causal self-attention and a gated feed-forward layer. `attention` must be batch first."""

    def __init__(self, attention: MultiheadAttention, hidden: int) -> None:
        super().__init__()
        width = attention.embed_dim
        self.attention = attention
        self.feed_forward = GatedFeedForward(width, hidden)
        self.before_attention = nn.RMSNorm(width, eps=EPS)
        self.after_attention = nn.RMSNorm(width, eps=EPS)
        self.before_feed_forward = nn.RMSNorm(width, eps=EPS)
        self.after_feed_forward = nn.RMSNorm(width, eps=EPS)

    def forward(
        self,
        x: Tensor,
        ignored: Tensor | None = None,
        *,
        cache: KeyValueCache | WindowedCache | None = None,
        hidden_pairs: Tensor | None = None,
    ) -> Tensor:
        """x (B, L, d). `ignored` (B, past + L): True = padding. `cache` holds the keys and values of earlier tokens.

        hidden_pairs: (B * H, L, L), True = this query may not see this key, in place of the causal rule.
        """
        y = self.before_attention(x)
        y, _ = self.attention(
            y,
            y,
            y,
            key_padding_mask=ignored,
            need_weights=False,
            attn_mask=hidden_pairs,
            is_causal=hidden_pairs is None,
            cache=cache,
        )
        x = x + self.after_attention(y.to(x.dtype))  # under autocast norms and sums stay in the precision of x
        y = self.feed_forward(self.before_feed_forward(x))
        out: Tensor = x + self.after_feed_forward(y.to(x.dtype))
        return out

    def windows(self) -> list[int | None]:
        """How many keys each head can give weight to, from its weights as they are now; None: any number."""
        gain = self.before_attention.weight
        if gain is None:
            gain = torch.ones(self.attention.embed_dim, device=self.attention.out_proj.weight.device)
        return alibi_windows(self.attention, gain)
