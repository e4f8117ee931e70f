"""How far the kernels of attention may lie from the float64 reference, element by element.

A score is exact to a few units of float32 of the products it adds up, so a weight lies between p(x - dx) and p(x + dx),
x = score - c, and so do its slope w and its derivative by alpha; `Tolerance` carries these intervals to the output and the
gradients. At the edge of the support w jumps (alpha = 2) or is unbounded (alpha > 2), and there alone the bound is wide:
whether such a key has weight is a matter of rounding.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from entformer.kernels.attention.api import attention

from .fuzzing import alpha_slope, exp_e, times

INF = math.inf
EPS = torch.finfo(torch.float32).eps
# float16 has few exponents; below the normal range float32 vectors flush to zero. A hundred for sums of such.
SMALLEST = {torch.float16: 2.0**-24, torch.bfloat16: 1e-36, torch.float32: 1e-36}
# Where weights and their gradients are multiplied they may be rounded to this, on some CPUs.
PRODUCTS = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-15}
FLUSHED = 2.0 * torch.finfo(torch.float32).tiny  # a weight may be lost up to here, and with it what it is multiplied by

# How a tensor (B, H, L, D) may lie in memory.
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x.contiguous(),
    "transposed heads": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "sliced": lambda x: torch.nn.functional.pad(x, (3, 2, 1, 1), value=math.nan)[:, :, 1:-1, 3:-2],
    "expanded batch": lambda x: x[:1].expand(x.shape),
    "expanded heads": lambda x: x[:, :1].contiguous().expand(x.shape),
    "last dimension strided": lambda x: x.repeat_interleave(2, -1)[..., ::2],
}


def dense(support: Any, shape: tuple[int, ...]) -> Tensor:
    """The matrix of weights that a compressed support stands for."""
    counts = support.crow.diff()
    full = torch.zeros(counts.numel(), shape[-1], dtype=torch.float64)
    full[torch.arange(counts.numel()).repeat_interleave(counts), support.col.long()] = support.weight.double()
    return full.reshape(shape)


def log_e(p: Tensor, e: Tensor) -> Tensor:
    return torch.where(e == 0.0, p.log(), torch.expm1(e * p.log()) / torch.where(e == 0.0, 1.0, e))


class ScoreTerms:
    """The scores of a call in float64: (B, H, Lq, Lk), or what broadcasts to it."""

    def __init__(self, how: dict[str, Any], q: Tensor, k: Tensor, scale: float) -> None:
        at, key_at = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
        allowed = torch.ones(at.shape[0], key_at.shape[0], dtype=torch.bool)
        if "cu_seqlens_q" in how:
            begins = [how[name].long() for name in ("cu_seqlens_q", "cu_seqlens_k")]
            of_q, of_k = (torch.searchsorted(b[1:], t, right=True) for b, t in zip(begins, (at, key_at), strict=True))
            allowed = of_q == of_k
            at, key_at = at - begins[0][of_q], key_at - begins[1][of_k]
        ahead = key_at - at - how.get("causal_offset", 0)
        left, right = how.get("window", (None, None))
        allowed = allowed & (ahead <= (INF if right is None else right)) & (-ahead <= (INF if left is None else left))
        if how.get("is_causal"):
            allowed = allowed & (ahead <= 0)
        if "key_mask" in how:
            allowed = allowed & how["key_mask"][:, None, None, :]
        s = scale * (q @ k.mT)
        self.distance, self.cap_slope, self.added = ahead.abs().double(), torch.ones_like(s), torch.zeros_like(s)
        if "softcap" in how:
            s = how["softcap"] * torch.tanh(s / how["softcap"])
            self.cap_slope, self.added = 1.0 - (s / how["softcap"]).square(), s.abs()
        mask = how.get("attn_mask")
        if mask is not None and mask.dtype == torch.bool:
            allowed = allowed & mask
        elif mask is not None:
            hidden = mask.detach().double() <= torch.finfo(torch.bfloat16).min
            bias = torch.where(hidden, 0.0, mask.detach().double())
            s, self.added, allowed = s + bias, self.added + bias.abs() + s.abs(), allowed & ~hidden
        if "alibi_slopes" in how:
            taken = how["alibi_slopes"].detach().double().expand(q.shape[:2])[:, :, None, None] * self.distance
            s, self.added = s - taken, self.added + taken
        self.allowed = allowed.expand(s.shape)
        self.masked = torch.where(allowed, s, -INF)


class Tolerance:
    """How far output and gradients may lie from the reference's. p (B, H, Lq, Lk) are the reference's weights."""

    def __init__(self, case: Any, want: Any, p: Tensor, scale: float) -> None:
        self.eps, self.tiny = torch.finfo(case.dtype).eps, SMALLEST[case.dtype]
        group, keys = case.heads[0] // case.heads[1], want.k.shape[2]
        q, grad = want.q.double(), want.grad.double()
        k, v = (t.double().repeat_interleave(group, 1) for t in (want.k, want.v))
        normalizer = want.how.get("normalizer", "entmax")
        alpha = torch.as_tensor(want.how.get("alpha", 1.0), dtype=torch.float64).expand(q.shape[:2])
        e = alpha[:, :, None, None] - 1.0

        terms = ScoreTerms(want.how, q, k, scale)
        scores = terms.masked
        # A sum of n products is off by about sqrt(n) units of the sum of their sizes; 4 more for what is done to it.
        ds = EPS * ((4.0 + math.sqrt(case.sizes[0])) * abs(scale) * (q.abs() @ k.abs().mT) * terms.cap_slope.clamp(min=1e-3))
        ds += EPS * (4.0 * terms.added + 1e-30)
        sinks = want.how.get("sinks")
        if sinks is not None:  # one more key, whose key and value are zero
            sink = sinks.detach().double().expand(q.shape[:2])[:, :, None, None].expand(*p.shape[:3], 1)
            sink = torch.where((scores > -INF).any(-1, keepdim=True), sink, -INF)
            scores, ds = torch.cat([scores, sink], -1), torch.cat([ds, EPS * sink.abs().nan_to_num(0.0, posinf=0.0)], -1)
            k, v = (torch.nn.functional.pad(t, (0, 0, 0, 1)) for t in (k, v))
            p = torch.cat([p, self._sink_weight(p, scores, e)], -1)
        ds = torch.where(scores == -INF, 0.0, ds)
        if normalizer in ("rela", "sigmoid"):
            slope, d_slope, low, high = self._unnormalized(normalizer, want.how, p, scores, ds)
            slope_high = torch.maximum(slope, slope + d_slope) if normalizer == "sigmoid" else torch.maximum(slope, d_slope)
        else:
            top, at = scores.max(-1, keepdim=True)
            x = log_e(p.gather(-1, at).clamp(min=1e-300), e) + torch.where(top == -INF, -INF, scores - top)
            dx = 8.0 * EPS * (1.0 + x.abs()) + ds + ds.amax(-1, keepdim=True)  # the last: c moves with the scores
            dx = torch.where(x == -INF, 0.0, dx)
            low, high = exp_e(x - dx, e), exp_e(x + dx, e)
            slope, slope_low, slope_high = (torch.where(t > 0.0, t.clamp(min=1e-300).pow(1.0 - e), 0.0) for t in (p, low, high))
            slope_high = torch.where((e > 1.0) & (low == 0.0) & (high > 0.0), INF, torch.maximum(slope_high, slope_low))
            d_slope = torch.maximum(slope_high - slope, slope - torch.minimum(slope_low, slope_high))
            d_slope += EPS * (8.0 + 2.0 * p.clamp(min=1e-300).log().abs()) * slope + FLUSHED * (p > 0.0)
        dp = torch.maximum(high - p, p - low) + 4.0 * EPS * p + FLUSHED * (p > 0.0)
        kept = self._kept(case, want, p.shape[-1])

        g = (grad @ v.mT) * kept
        dg = EPS * (4.0 + math.sqrt(case.sizes[1])) * (grad.abs() @ v.abs().mT) * kept
        if normalizer in ("rela", "sigmoid"):
            off, d_delta, size, delta = g.abs(), 0.0 * g, 0.0 * g, 0.0 * g
        else:
            total = slope.sum(-1, keepdim=True).clamp(min=1e-300)
            delta = (slope * g).sum(-1, keepdim=True) / total
            size = torch.where(p > 0.0, g.abs(), 0.0).amax(-1, keepdim=True)  # a mean is exact to units of the largest
            off = (g - delta).abs()
            least = (slope - d_slope).clamp(min=0.0).sum(-1, keepdim=True)
            d_delta = times(d_slope, off).sum(-1, keepdim=True) / least.clamp(min=1e-300)
            d_delta += (slope * dg).sum(-1, keepdim=True) / total + 8.0 * EPS * size
        d_scores = times(d_slope, off) + 4.0 * EPS * slope * (g.abs() + size)
        d_scores += times(slope_high, d_delta + dg)
        grad_scores = slope * off

        along_keys, along_queries = (EPS * (4.0 + math.sqrt(n)) for n in (p.shape[-1], group * p.shape[-2]))
        d_used, used = dp * kept, p * kept
        along_keys, along_queries = (n + PRODUCTS.get(case.dtype, 0.0) for n in (along_keys, along_queries))
        self.out = d_used @ v.abs() + along_keys * (used @ v.abs())
        self.v = self._group((d_used + along_queries * used).mT @ grad.abs(), group)[:, :, :keys]
        d_head = d_scores + (along_keys + along_queries) * grad_scores
        self.sinks = d_head[..., -1].sum(-1)  # (B, H)
        self.attn_mask = d_head[..., :keys]
        self.alibi_slopes = times(self.attn_mask, terms.distance.expand_as(self.attn_mask)).sum((-1, -2))
        if "softcap" in want.how:  # what reaches q and k has its derivative, which is off with the score
            pad = (0, p.shape[-1] - terms.cap_slope.shape[-1])
            cap_slope = torch.nn.functional.pad(terms.cap_slope, pad)
            d_cap = torch.where(scores == -INF, 0.0, 4.0 * EPS + 2.0 * ds / want.how["softcap"])
            d_scores = times(d_scores, cap_slope + d_cap) + times(d_cap, grad_scores)
            grad_scores = grad_scores * cap_slope
        d_scores, grad_scores, k = d_scores[..., :keys], grad_scores[..., :keys], k[:, :, :keys]  # a sink has no key
        self.q = abs(scale) * ((d_scores + along_keys * grad_scores) @ k.abs())
        self.k = abs(scale) * self._group((d_scores + along_queries * grad_scores).mT @ q.abs(), group)

        a, a_low, a_high = (alpha_slope(t, e) for t in (p, low, high))
        d_a = torch.maximum((a_low - a).abs(), (a_high - a).abs()) + 32.0 * EPS * a.abs()
        d_a = torch.where(slope_high == INF, INF, d_a)
        d_alpha = times(d_a, off) + a.abs() * (dg + 8.0 * EPS * (g.abs() + size))
        d_alpha += times(a.abs() + d_a, d_delta)
        self.alpha = d_alpha.sum((-1, -2))  # (B, H)

    @staticmethod
    def _sink_weight(p: Tensor, scores: Tensor, e: Tensor) -> Tensor:
        """The weight of the last column, from that of the largest key."""
        largest, at = p.max(-1, keepdim=True)
        x = log_e(largest.clamp(min=1e-300), e) + scores[..., -1:] - scores.gather(-1, at)
        alone = (largest == 0.0) & (scores[..., -1:] > -INF)
        return torch.where(alone, 1.0, torch.where(scores[..., -1:] > -INF, exp_e(x, e), 0.0)).nan_to_num(0.0)

    @staticmethod
    def _unnormalized(normalizer: str, how: dict[str, Any], p: Tensor, s: Tensor, ds: Tensor) -> tuple[Tensor, ...]:
        """Slope, how far it may be off, and the bounds of the weights, of weights that follow from their score alone."""
        if normalizer == "rela":
            low, high = (s - ds).clamp(min=0.0), (s + ds).clamp(min=0.0)
            return (p > 0.0).double(), ((low == 0.0) & (high > 0.0)).double(), low, high
        bias = how.get("sigmoid_bias")
        x = s - (s > -INF).sum(-1, keepdim=True).clamp(min=1).log() if bias is None else s + bias
        dx = torch.where(s == -INF, 0.0, ds + 8.0 * EPS * (1.0 + x.abs()))
        low, high = torch.sigmoid(x - dx), torch.sigmoid(x + dx)
        return p * (1.0 - p), (high - low) + 8.0 * EPS * p, low, high

    @staticmethod
    def _kept(case: Any, want: Any, columns: int) -> Tensor:
        """1/(1 - dropout) where dropout keeps a weight, else 0: read off the reference's output with v the identity."""
        if not case.dropout:
            return torch.ones(())
        torch.manual_seed(5)
        keys = want.k.shape[2]
        identity = torch.eye(keys, dtype=torch.float64).expand(*want.k.shape[:2], -1, -1)
        used = attention(want.q.double(), want.k.double(), identity, **want.how, impl="reference")
        kept = (used > 0.0).double() / (1.0 - case.dropout)
        return torch.nn.functional.pad(kept, (0, columns - keys), value=1.0)

    @staticmethod
    def _group(t: Tensor, group: int) -> Tensor:
        return t.unflatten(1, (-1, group)).sum(2)
