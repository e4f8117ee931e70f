"""Fused attention, `impl="cpu"`, against `impl="reference"` in float64: output and every gradient, over everything it can do.

`CASES` gives every value of every axis its turn (`AXES`) and pairs them at random, with a fixed seed. The tolerance is a bound,
element by element: a score is exact to a few units of float32 of the products it adds up, so a weight lies between
p(x - dx) and p(x + dx), x = score - c, and so do its slope w and its derivative by alpha; `Tolerance` carries these intervals
to the output and the gradients. At the edge of the support w jumps (alpha = 2) or is unbounded (alpha > 2), and there alone the
bound is wide: whether such a key has weight is a matter of rounding.
"""

import functools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from entformer.kernels.attention.api import Attention, attention
from entformer.kernels.entmax import reference as rows_reference
from entformer.kernels.registry import Impl

pytestmark = pytest.mark.usefixtures("poisoned_memory")

INF = math.inf
EPS = torch.finfo(torch.float32).eps
# float16 has few exponents; below the normal range float32 vectors flush to zero. A hundred for sums of such.
SMALLEST = {torch.float16: 2.0**-24, torch.bfloat16: 1e-36, torch.float32: 1e-36}
FLUSHED = 2.0 * torch.finfo(torch.float32).tiny  # a weight may be lost up to here, and with it what it is multiplied by
ALPHAS = (1.0, 1.01, 1.25, 1.5, 1.75, 2.0, 2.5)

# How a tensor (B, H, L, D) may lie in memory.
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x.contiguous(),
    "transposed heads": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "sliced": lambda x: torch.nn.functional.pad(x, (3, 2, 1, 1), value=math.nan)[:, :, 1:-1, 3:-2],
    "expanded batch": lambda x: x[:1].expand(x.shape),
    "expanded heads": lambda x: x[:, :1].contiguous().expand(x.shape),
    "last dimension strided": lambda x: x.repeat_interleave(2, -1)[..., ::2],
}


@dataclass(frozen=True)
class Case:
    dtype: torch.dtype
    lengths: tuple[int, int]  # queries, keys
    sizes: tuple[int, int]  # head size of query and key, of value
    heads: tuple[int, int]  # of query, of key and value
    alpha: float | str
    alpha_form: str
    mask: str
    alibi: str
    layout: str
    dropout: float
    scale: float | None
    logits: float  # spread of the scores
    shift: float  # added to all scores

    def __str__(self) -> str:
        fields = vars(self) | {"dtype": str(self.dtype).removeprefix("torch.")}
        return "-".join(str(value) for value in fields.values())


AXES: dict[str, list[Any]] = {
    "dtype": [torch.float32, torch.bfloat16, torch.float32, torch.float16],
    "lengths": [(1, 1), (3, 3), (63, 63), (65, 65), (1, 513), (513, 1), (3, 65), (65, 3), (63, 130), (129, 257), (513, 513)],
    "sizes": [(8, 8), (16, 16), (33, 33), (64, 64), (100, 100), (256, 256), (16, 40), (64, 33), (1, 8), (8, 1)],
    "heads": [(2, 2), (8, 2), (3, 1), (1, 1)],
    "alpha": [*ALPHAS, 1.5, "each head its own", "rela"],
    "alpha_form": ["number", "scalar", "per head", "per head, fixed", "per batch and head"],
    "mask": [
        *("none", "none", "full", "transposed", "over batch", "over heads", "one row", "one column", "padding", "causal"),
        *("causal, cached keys", "causal, negative offset", "causal, padding and full", "some rows dead", "a batch dead"),
    ],
    "alibi": ["none", "none", "per head", "per batch and head"],
    "layout": list(LAYOUTS),
    "dropout": [0.0, 0.0, 0.0, 0.3],
    "scale": [None, None, 0.3, -0.2],
    "logits": [1.0, 1.0, 3.0, 10.0],
    "shift": [0.0, 0.0, 300.0],
}


def _cases(count: int) -> list[Case]:
    """Every value of an axis appears count / len(axis) times, in an order of its own."""
    draw = random.Random(1)
    columns = []
    for values in AXES.values():
        column = [values[i % len(values)] for i in range(count)]
        draw.shuffle(column)
        columns.append(column)
    cases = [Case(*row) for row in zip(*columns, strict=True)]
    cases = [replace(case, heads=(2, 1)) if case.lengths == (513, 513) else case for case in cases]  # the reference is slow
    # Of supports larger than 85 forward saves the columns alone.
    far = [replace(case, lengths=(37, 1801), sizes=(64, 100), heads=(2, 1)) for case in cases[:12]]
    return cases + far


CASES = _cases(66)


def _masks(case: Case, batch: int, seed: torch.Generator) -> dict[str, Any]:
    heads, (queries, keys) = case.heads[0], case.lengths

    def some(*shape: int) -> Tensor:
        return torch.rand(shape, generator=seed) < 0.6

    full = some(batch, heads, queries, keys)
    dead_rows = full.clone()
    dead_rows[:, :, :: min(queries, 3)] = False
    seen = torch.randint(1, keys + 1, (batch, 1), generator=seed)
    padding = torch.arange(keys) < seen  # (B, Lk)
    dead_batch = padding.clone()
    dead_batch[-1] = False
    kinds: dict[str, dict[str, Any]] = {
        "none": {},
        "full": {"attn_mask": full},
        "transposed": {"attn_mask": full.mT.contiguous().mT},
        "over batch": {"attn_mask": full[0]},
        "over heads": {"attn_mask": full[:, :1]},
        "one row": {"attn_mask": full[0, 0, 0]},
        "one column": {"attn_mask": full[:, :, :, :1]},
        "padding": {"key_mask": padding},
        "causal": {"is_causal": True},
        "causal, cached keys": {"is_causal": True, "causal_offset": max(keys - queries, 0)},
        "causal, negative offset": {"is_causal": True, "causal_offset": -2},
        "causal, padding and full": {"is_causal": True, "causal_offset": 1, "key_mask": padding, "attn_mask": full},
        "some rows dead": {"attn_mask": dead_rows},
        "a batch dead": {"key_mask": dead_batch},
    }
    return kinds[case.mask]


def _alpha(case: Case, batch: int, seed: torch.Generator) -> dict[str, Any]:
    heads = case.heads[0]
    if case.alpha == "rela":
        return {"normalizer": "rela"}
    if case.alpha == "each head its own":
        each = torch.tensor([ALPHAS[int(i)] for i in torch.randint(len(ALPHAS), (batch * heads,), generator=seed)])
        by_batch = case.alpha_form == "per batch and head"
        return {"alpha": each.reshape(batch, heads) if by_batch else each[:heads]}
    assert isinstance(case.alpha, float)
    shape = {"scalar": (), "per batch and head": (batch, heads)}.get(case.alpha_form, (heads,))
    return {"alpha": case.alpha if case.alpha_form == "number" else torch.full(shape, case.alpha)}


class Expected:
    """Inputs of a case, the reference's float64 answers, and how close `cpu` must come."""

    def __init__(self, case: Case) -> None:
        seed = torch.Generator().manual_seed(CASES.index(case))
        (heads, key_heads), (queries, keys), (size, value_size) = case.heads, case.lengths, case.sizes
        batch = 1 if queries * keys > 100_000 else 2

        def normal(*shape: int) -> Tensor:
            return LAYOUTS[case.layout](torch.randn(shape, generator=seed).to(case.dtype))

        self.q, self.k = normal(batch, heads, queries, size), normal(batch, key_heads, keys, size)
        self.v, self.grad = normal(batch, key_heads, keys, value_size), normal(batch, heads, queries, value_size)
        scale = 1.0 / math.sqrt(size) if case.scale is None else case.scale
        self.q = self.q * (case.logits / (abs(scale) * math.sqrt(size)))
        if case.shift:
            self.q = self.q.clone()  # before writing: expanded tensors share memory
            self.k = self.k.clone()
            self.q[..., 0], self.k[..., 0] = case.shift / scale / 16.0, 16.0
        self.how: dict[str, Any] = {"scale": case.scale, "enable_gqa": True, "dropout_p": case.dropout}
        self.how |= _masks(case, batch, seed) | _alpha(case, batch, seed)
        if case.alibi != "none":
            slopes = 0.5 * torch.rand(batch, heads, generator=seed)
            self.how["alibi_slopes"] = slopes[0] if case.alibi == "per head" else slopes
        self.needs_alpha_grad = isinstance(self.how.get("alpha"), Tensor) and case.alpha_form != "per head, fixed"

        self.out, self.grads, answer = self.run("reference", torch.float64)
        assert answer.stats is not None
        self.dead = (answer.stats.support_size == 0) & (case.alpha != "rela")  # (B, H, Lq): may attend to nothing
        weights = dense(answer.support, (batch, heads, queries, keys))
        self.tolerance = Tolerance(case, self, weights, scale)

    def run(self, impl: Impl, dtype: torch.dtype) -> tuple[Tensor, dict[str, Tensor], Attention]:
        """Output, gradients, and all that `attention` returns; the support only with the reference."""
        exact = impl == "reference"
        names = ("q", "k", "v")
        leaves = {name: getattr(self, name).to(dtype).detach().requires_grad_() for name in names}
        how = dict(self.how)
        if self.needs_alpha_grad:
            leaves["alpha"] = how["alpha"] = how["alpha"].detach().clone().requires_grad_()
        torch.manual_seed(5)  # dropout draws its seed from torch's generator
        answer = attention(*(leaves[name] for name in names), **how, return_stats=True, return_support=exact, impl=impl)
        assert isinstance(answer, Attention)
        grads = torch.autograd.grad(answer.output, list(leaves.values()), self.grad.to(dtype))
        return answer.output.detach(), dict(zip(leaves, grads, strict=True)), answer


expected_of = functools.cache(Expected)


def dense(support: Any, shape: tuple[int, ...]) -> Tensor:
    """The matrix of weights that a compressed support stands for."""
    counts = support.crow.diff()
    full = torch.zeros(counts.numel(), shape[-1], dtype=torch.float64)
    full[torch.arange(counts.numel()).repeat_interleave(counts), support.col.long()] = support.weight.double()
    return full.reshape(shape)


def exp_e(x: Tensor, e: Tensor) -> Tensor:
    y = e * x
    power = torch.where(e == 0.0, x, torch.log1p(y.clamp(min=-1.0)) / torch.where(e == 0.0, 1.0, e))
    return torch.where(y > -1.0, power.exp(), 0.0)


def log_e(p: Tensor, e: Tensor) -> Tensor:
    return torch.where(e == 0.0, p.log(), torch.expm1(e * p.log()) / torch.where(e == 0.0, 1.0, e))


def times(a: Tensor, b: Tensor) -> Tensor:
    """a b where infinity times nothing is nothing."""
    return torch.where((a == 0.0) | (b == 0.0), 0.0, a * b)


class Tolerance:
    """How far output and gradients may lie from the reference's. p (B, H, Lq, Lk) are the reference's weights."""

    def __init__(self, case: Case, want: "Expected", p: Tensor, scale: float) -> None:
        self.eps, self.tiny = torch.finfo(case.dtype).eps, SMALLEST[case.dtype]
        group = case.heads[0] // case.heads[1]
        q, grad = want.q.double(), want.grad.double()
        k, v = (t.double().repeat_interleave(group, 1) for t in (want.k, want.v))
        rela = case.alpha == "rela"
        alpha = torch.as_tensor(want.how.get("alpha", 1.0), dtype=torch.float64).expand(q.shape[:2])
        e = alpha[:, :, None, None] - 1.0

        scores, distance = self._scores(want.how, q, k, scale)
        # A sum of n products is off by about sqrt(n) units of the sum of their sizes; 4 more for scaling, ALiBi and bias.
        ds = EPS * ((4.0 + math.sqrt(case.sizes[0])) * abs(scale) * (q.abs() @ k.abs().mT) + 4.0 * distance + 1e-30)
        ds = torch.where(scores == -INF, 0.0, ds)
        if rela:
            low, high = (scores - ds).clamp(min=0.0), (scores + ds).clamp(min=0.0)
            slope = (p > 0.0).double()
            d_slope = ((low == 0.0) & (high > 0.0)).double()
            slope_high = torch.maximum(slope, d_slope)
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
        kept = self._kept(case, want, p)

        g = (grad @ v.mT) * kept
        dg = EPS * (4.0 + math.sqrt(case.sizes[1])) * (grad.abs() @ v.abs().mT) * kept
        if rela:
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
        self.out = d_used @ v.abs() + along_keys * (used @ v.abs())
        self.q = abs(scale) * ((d_scores + along_keys * grad_scores) @ k.abs())
        self.k = abs(scale) * self._group((d_scores + along_queries * grad_scores).mT @ q.abs(), group)
        self.v = self._group((d_used + along_queries * used).mT @ grad.abs(), group)

        a, a_low, a_high = (self._alpha_slope(t, e) for t in (p, low, high))
        d_a = torch.maximum((a_low - a).abs(), (a_high - a).abs()) + 32.0 * EPS * a.abs()
        d_a = torch.where(slope_high == INF, INF, d_a)
        d_alpha = times(d_a, off) + a.abs() * (dg + 8.0 * EPS * (g.abs() + size))
        d_alpha += times(a.abs() + d_a, d_delta)
        self.alpha = d_alpha.sum((-1, -2))  # (B, H)

    @staticmethod
    def _scores(how: dict[str, Any], q: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Masked scores, and what ALiBi takes from them."""
        offset = how.get("causal_offset", 0)
        at, key_at = torch.arange(q.shape[2])[:, None] + offset, torch.arange(k.shape[2])
        slopes = how.get("alibi_slopes", torch.zeros(())).double().expand(q.shape[:2])
        distance = slopes[:, :, None, None] * (at - key_at).abs()
        allowed = how.get("attn_mask", torch.tensor(True)) & (key_at <= at if "is_causal" in how else torch.tensor(True))
        if "key_mask" in how:
            allowed = allowed & how["key_mask"][:, None, None, :]
        return torch.where(allowed, scale * (q @ k.mT) - distance, -INF), distance

    @staticmethod
    def _kept(case: Case, want: "Expected", p: Tensor) -> Tensor:
        """1/(1 - dropout) where dropout keeps a weight, else 0: read off the reference's output with v the identity."""
        if not case.dropout:
            return torch.ones(())
        torch.manual_seed(5)
        identity = torch.eye(p.shape[-1], dtype=torch.float64).expand(*want.k.shape[:2], -1, -1)
        used = attention(want.q.double(), want.k.double(), identity, **want.how, impl="reference")
        assert isinstance(used, Tensor)
        return (used > 0.0).double() / (1.0 - case.dropout)

    @staticmethod
    def _group(t: Tensor, group: int) -> Tensor:
        summed: Tensor = t.unflatten(1, (-1, group)).sum(2)
        return summed

    @staticmethod
    def _alpha_slope(p: Tensor, e: Tensor) -> Tensor:
        log_p = p.clamp(min=1e-300).log()
        return torch.where(p > 0.0, -p * log_p.square() * rows_reference._psi(-e * log_p), 0.0)

    def check(self, name: str, actual: Tensor, right: Tensor) -> None:
        bound = getattr(self, name)
        if name == "alpha":
            bound = bound.sum_to_size(actual.shape) + 1e-6 * right.abs() + 1e-12  # alpha and its gradient are float32
        else:
            bound = bound + self.eps * right.abs() + self.tiny
            # A bound that excuses everything tests nothing.
            assert bound.isfinite().double().mean() > 0.5 or bound.numel() < 500
        error = (actual.double() - right.double()).abs()
        bad = ~(error <= bound)
        assert not bad.any(), (
            f"{name}: {int(bad.sum())} of {bad.numel()} elements are off; the first, at {bad.nonzero()[0].tolist()}, is "
            f"{actual[bad][0].item()} where {right[bad][0].item()} +- {bound[bad][0].item()} is right"
        )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_output_and_gradients(case: Case, isa: str) -> None:
    want = expected_of(case)
    out, grads, answer = want.run("cpu", case.dtype)
    assert out.dtype == grads["q"].dtype == grads["k"].dtype == grads["v"].dtype == case.dtype
    want.tolerance.check("out", out, want.out)
    for name, grad in grads.items():
        want.tolerance.check(name, grad, want.grads[name])
    assert answer.stats is not None
    for zero in (out, grads["q"], answer.stats.support_size):
        assert (zero[want.dead] == 0).all()
