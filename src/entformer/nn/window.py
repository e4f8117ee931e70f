"""The finite window of sparse ALiBi heads; `cache.py::WindowedCache` holds no more than the window.

Let x = g * u + b be the input of the layer, |u| <= sqrt(d) after any RMSNorm or LayerNorm. With A = W_q diag(g),
K = W_k diag(g) and c = W_q b + b_q, the scores of one query differ between two keys, before ALiBi, by at most

    spread = (2 d |A^T K| + 2 sqrt(d) |K^T c|) / sqrt(head size)                       |.| the spectral norm

A key has weight only if its score is above the largest minus 1 / (alpha - 1), and the query's own key has distance 0. So the
weight of a key at distance n is exactly zero once slope * n >= spread + 1 / (alpha - 1) (Vasylenko et al. 2025, proposition 6).
This holds for all later queries, so the key can be dropped without changing the output. ReLA's weights are zero once
slope * n >= the largest score. Softmax has no window, nor has a head whose queries are scaled by the length.
"""

import math
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from entformer.nn.alpha import LearnedAlpha
from entformer.nn.execution_mode import normal_tensors
from entformer.nn.multihead_attention import MultiheadAttention

__all__ = ["alibi_windows"]


def alibi_windows(attention: MultiheadAttention, gain: Tensor, shift: Tensor | None = None) -> list[int | None]:
    """Returns for each head how many keys, the query's own included, can have nonzero weight; None: no bound is proven.

    Args:
        attention: a `MultiheadAttention` for self-attention.
        gain, shift: g and b above, (d,): weight and bias of the RMSNorm or LayerNorm before the layer.
    """
    windows: list[int | None] = [None] * attention.num_heads
    slopes, weight = attention.slopes, attention.in_proj_weight
    scaled = attention.scaling is not None and attention.positions != "nape"  # NAPE does not scale its ALiBi heads
    if slopes is None or weight is None or attention.normalizer_fn is not None or scaled:
        return windows
    with torch.no_grad():
        spreads, largest = _cached_score_bounds(attention, weight, gain, shift)
        alphas = attention.alpha() if isinstance(attention.alpha, LearnedAlpha) else attention.alpha
        reach = largest  # of ReLA
        if alphas is not None:
            reach = spreads + 1.0 / (
                torch.as_tensor(alphas, dtype=torch.float64, device=spreads.device) - 1.0
            )  # inf for softmax
    for head, slope in enumerate(slopes.tolist()):
        if slope > 0.0 and math.isfinite(far := float(reach[head]) * (1.0 + 1e-5) / slope):  # float32 rounds the scores
            windows[head] = math.ceil(far) + 1
    return windows


_bounds: WeakKeyDictionary[MultiheadAttention, tuple[list[Tensor], tuple[Tensor, Tensor]]] = WeakKeyDictionary()


def _cached_score_bounds(
    attention: MultiheadAttention, weight: Tensor, gain: Tensor, shift: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`_score_bounds`, computed once while the parameters stay the same."""
    read = (weight, attention.in_proj_bias, gain, shift)
    with normal_tensors():
        now = [_fingerprint(t.detach()) for t in read if t is not None]
        found = _bounds.get(attention)
        if found is None or len(found[0]) != len(now) or not all(map(torch.equal, found[0], now)):
            doubles = gain.detach().double(), None if shift is None else shift.detach().double()
            found = now, _score_bounds(attention, weight, *doubles)
            _bounds[attention] = found
    return found[1]


def _fingerprint(t: Tensor) -> Tensor:
    """Returns a checksum of each row: a version counter misses what is written through `.data`."""
    ramp = torch.arange(1, t.shape[-1] + 1, dtype=torch.float32, device=t.device).cos()
    return t.float() @ ramp if t.dim() == 2 else t.float() * ramp


def _score_bounds(attention: MultiheadAttention, weight: Tensor, gain: Tensor, shift: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns bounds per head, (H,): of the difference of two scores of one query, and of a score."""
    size, heads = gain.numel(), attention.num_heads
    w_q, w_k, _ = weight.detach().double().chunk(3)
    c_q, c_k = torch.zeros_like(gain), torch.zeros_like(gain)
    if attention.in_proj_bias is not None:
        c_q, c_k, _ = attention.in_proj_bias.detach().double().chunk(3)
    if shift is not None:
        c_q, c_k = c_q + w_q @ shift, c_k + w_k @ shift
    a, k = ((w * gain).unflatten(0, (heads, -1)) for w in (w_q, w_k))  # (H, head size, d)
    c_q, c_k = (c.unflatten(0, (heads, -1))[..., None] for c in (c_q, c_k))  # (H, head size, 1)
    # a^T k = Q (R_a R_k^T) Q', so its norm is that of a matrix of the head's size; the d x d one takes ten times as long.
    r_a, r_k = (torch.linalg.qr(t.mT, mode="r").R for t in (a, k))  # (H, head size, head size)
    both = torch.linalg.matrix_norm(r_a @ r_k.mT, ord=2) * size
    of_query = torch.linalg.vector_norm(k.mT @ c_q, dim=(-2, -1)) * math.sqrt(size)
    of_key = torch.linalg.vector_norm(a.mT @ c_k, dim=(-2, -1)) * math.sqrt(size)
    constant = (c_q * c_k).sum((-2, -1)).abs()
    scale = 1.0 / math.sqrt(attention.head_dim)
    return 2.0 * (both + of_query) * scale, (both + of_query + of_key + constant) * scale
