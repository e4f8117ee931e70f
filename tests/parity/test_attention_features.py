"""Bias, window, soft-cap, sinks, packed sequences and sigmoid, in any combination, against a dense composition of its own.

`composition` below is plain PyTorch in float64 that shares no code with entformer: every sequence and head on its own, entmax
by bisection. Every value of every axis (`AXES`) has its turn, paired at random with a fixed seed. What no query may attend to
holds garbage in the tensors that `attention` gets.
"""

import functools
import math
import random
import warnings
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from entformer.errors import ArgumentError
from entformer.kernels.attention.api import Attention, attention
from entformer.kernels.registry import Impl

pytestmark = pytest.mark.usefixtures("poisoned_memory")

INF = math.inf


# ---- the composition -----------------------------------------------------------------------------------------------------


def entmax_row(s: Tensor, alpha: Tensor) -> Tensor:
    """alpha-entmax of one row: bisection, then one recorded Newton step, which has the right derivatives."""
    e = alpha - 1.0
    if float(e.detach()) == 0.0:
        return torch.softmax(s, -1)

    def weights(c: Tensor) -> Tensor:
        base = 1.0 + e * (s - c)
        inside = base.detach() > 0.0
        return torch.where(inside, torch.where(inside, base, 1.0).log().div(e).exp(), 0.0)

    with torch.no_grad():
        low, high = s.max(), s.max() + (1.0 / e).clamp(max=60.0)
        for _ in range(200):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if weights(middle).sum() > 1.0 else (low, middle)
        c = 0.5 * (low + high)
        inside = 1.0 + e * (s - c) > 0.0
        slope = torch.where(inside, weights(c) / torch.where(inside, 1.0 + e * (s - c), 1.0), 0.0).sum()
    total = weights(c).sum()
    return weights(c + (total - total.detach()) / slope)


def one_row(s: Tensor, seen: Tensor, how: dict[str, Any], alpha: Tensor, sink: Tensor | None) -> Tensor:
    """The weights of one query over its keys; `seen` says which of them it may attend to."""
    if not seen.any():
        return torch.zeros_like(s)
    visible = s[seen]
    if how["normalizer"] == "rela":
        found = visible.relu()
    elif how["normalizer"] == "sigmoid":
        bias = -math.log(visible.numel()) if how["sigmoid_bias"] is None else how["sigmoid_bias"]
        found = 1.0 / (1.0 + torch.exp(-(visible + bias)))
    elif sink is not None and float(sink.detach()) != -INF:
        found = entmax_row(torch.cat([visible, sink[None]]), alpha)[:-1]
    else:
        found = entmax_row(visible, alpha)
    return torch.zeros_like(s).masked_scatter(seen, found)


def composition(q: Tensor, k: Tensor, v: Tensor, how: dict[str, Any], alpha: Tensor) -> tuple[Tensor, Tensor]:
    """Output and weights (B, H, Lq, Lk), row by row; alpha (B, H)."""
    batch, heads, queries, size = q.shape
    keys, group = k.shape[2], heads // k.shape[1]
    scale = 1.0 / math.sqrt(size) if how["scale"] is None else how["scale"]
    left, right = how["window"] or (None, None)
    cu_q, cu_k = how["cu_seqlens_q"], how["cu_seqlens_k"]
    bounds = [(0, queries, 0, keys)]
    if cu_q is not None:
        bounds = [(*cu_q[n : n + 2].tolist(), *cu_k[n : n + 2].tolist()) for n in range(len(cu_q) - 1)]
    mask, bias = how["attn_mask"], None
    if mask is not None and mask.dtype != torch.bool:
        mask, bias = mask.detach() > torch.finfo(torch.float32).min, mask
    outputs, matrices = [], []
    for b in range(batch):
        for h in range(heads):
            rows = []
            for first, last, first_key, last_key in bounds:
                for i in range(first, last):
                    at = i - first + how["causal_offset"]
                    j = torch.arange(last_key - first_key)
                    seen = torch.ones(len(j), dtype=torch.bool)
                    if how["is_causal"]:
                        seen = seen & (j <= at)
                    if left is not None:
                        seen = seen & (j >= at - left)
                    if right is not None:
                        seen = seen & (j <= at + right)
                    here = (b, h, i, slice(first_key, last_key))
                    if mask is not None:
                        seen = seen & mask.expand(batch, heads, queries, keys)[here]
                    if how["key_mask"] is not None:
                        seen = seen & how["key_mask"][b, first_key:last_key]
                    s = scale * (k[b, h // group, first_key:last_key] @ q[b, h, i])
                    if how["softcap"] is not None:
                        s = how["softcap"] * torch.tanh(s / how["softcap"])
                    if bias is not None:
                        s = s + torch.where(seen, bias.expand(batch, heads, queries, keys)[here], 0.0)
                    if how["alibi_slopes"] is not None:
                        s = s - how["alibi_slopes"].expand(batch, heads)[b, h] * (at - j).abs()
                    sink = None if how["sinks"] is None else how["sinks"].expand(batch, heads)[b, h]
                    found = one_row(s, seen, how, alpha[b, h], sink)
                    rows.append(torch.nn.functional.pad(found, (first_key, keys - last_key)))
            weights = torch.stack(rows) if rows else k.new_zeros(0, keys)
            matrices.append(weights)
            outputs.append(weights @ v[b, h // group])
    shape = (batch, heads, queries)
    return torch.stack(outputs).reshape(*shape, -1), torch.stack(matrices).reshape(*shape, keys)


# ---- the cases -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    lengths: tuple[int, int]
    size: tuple[int, int]
    heads: tuple[int, int]
    alpha: float | str
    mask: str
    window: tuple[int | None, int | None] | None
    softcap: float | None
    sinks: str
    packed: bool
    padding: bool
    causal: int | None
    alibi: bool
    scale: float

    def __str__(self) -> str:
        return "-".join(str(value).replace(" ", "") for value in vars(self).values())


AXES: dict[str, list[Any]] = {
    "lengths": [(1, 1), (7, 7), (33, 33), (50, 21), (3, 70), (1, 40), (21, 1), (70, 70), (2, 17), (60, 130)],
    "size": [(8, 8), (5, 3), (16, 33), (64, 64), (1, 7)],
    "heads": [(2, 2), (4, 2), (3, 1)],
    "alpha": [1.0, 1.0, 1.1, 1.3, 1.5, 1.5, 2.0, 2.5, "heads", "heads", "rela", "sigmoid", "sigmoid -2"],
    "mask": [
        "none",
        "bias",
        "per head",
        "per key",
        "per query",
        "one a head",
        "bias with -inf",
        "lowest",
        "bool",
        "fixed bias",
    ],
    "window": [None, None, (0, 0), (3, 0), (5, 2), (None, 1), (4, None), (40, 40), (1, 60)],
    "softcap": [None, None, 2.0, 30.0],
    "sinks": ["none", "none", "zero", "random", "large", "low", "-inf"],
    "packed": [False, False, True],
    "padding": [False, False, True],
    "causal": [None, 0, None, 3, -2],
    "alibi": [False, False, True],
    "scale": [1.0, 1.0, 3.0, 0.05],
}


def _cases(count: int) -> list[Case]:
    draw, columns = random.Random(4), []
    for values in AXES.values():
        column = [values[i % len(values)] for i in range(count)]
        draw.shuffle(column)
        columns.append(column)
    return [Case(*row) for row in zip(*columns, strict=True)]


CASES = _cases(72)


class Problem:
    """The tensors and options of a case, and what the composition makes of them."""

    def __init__(self, case: Case) -> None:
        seed = torch.Generator().manual_seed(CASES.index(case) if case in CASES else 0)
        (heads, key_heads), (queries, keys), (size, value_size) = case.heads, case.lengths, case.size
        batch = 1 if case.packed else 2

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=seed, dtype=torch.float64)

        self.q, self.k = case.scale * normal(batch, heads, queries, size), normal(batch, key_heads, keys, size)
        self.v, self.grad = normal(batch, key_heads, keys, value_size), normal(batch, heads, queries, value_size)
        self.how: dict[str, Any] = dict.fromkeys(
            ("attn_mask", "key_mask", "window", "softcap", "sinks", "cu_seqlens_q", "cu_seqlens_k", "alibi_slopes", "scale")
        )
        self.how |= {"is_causal": case.causal is not None, "causal_offset": case.causal or 0, "normalizer": "entmax"}
        self.how |= {"window": case.window, "softcap": case.softcap, "sigmoid_bias": None}
        self.leaves = {"q": self.q, "k": self.k, "v": self.v}
        self.alpha = torch.ones(batch, heads, dtype=torch.float64)
        if isinstance(case.alpha, float):
            self.alpha = self.alpha * case.alpha
        elif case.alpha == "heads":
            self.leaves["alpha"] = torch.tensor([1.05, 1.2, 1.5, 1.8], dtype=torch.float64)[:heads]
        else:
            self.how["normalizer"] = case.alpha.split()[0]
            self.how["sigmoid_bias"] = -2.0 if case.alpha == "sigmoid -2" else None
        if case.sinks != "none" and self.how["normalizer"] == "entmax":
            values = {"zero": 0.0, "random": 1.0, "large": 1.0, "low": 0.1, "-inf": 1.0}[case.sinks] * normal(heads)
            shift = {"large": 4.0, "low": -20.0, "-inf": -INF}.get(case.sinks, 0.0)
            self.leaves["sinks"] = values + shift
        if case.alibi:
            self.leaves["alibi_slopes"] = 0.1 * torch.rand(heads, generator=seed, dtype=torch.float64)
        if case.padding:
            seen = torch.randint(0, keys + 1, (batch, 1), generator=seed)
            self.how["key_mask"] = torch.arange(keys) < seen
        if case.packed:
            cuts = [torch.randint(0, n + 1, (3,), generator=seed).sort().values for n in (queries, keys)]
            ends = [torch.tensor([0, *c.tolist(), n, n], dtype=torch.int32) for c, n in zip(cuts, (queries, keys), strict=True)]
            self.how["cu_seqlens_q"], self.how["cu_seqlens_k"] = ends
        shapes = {"per head": (1, heads, queries, keys), "per key": (batch, 1, 1, keys), "per query": (queries, 1)}
        shape = shapes.get(case.mask, (1, heads, 1, 1) if case.mask == "one a head" else (batch, heads, queries, keys))
        if case.mask == "bool":
            self.how["attn_mask"] = torch.rand(shape, generator=seed) < 0.7
        elif case.mask != "none":
            bias = normal(*shape)
            hidden = {"bias with -inf": -INF, "lowest": torch.finfo(torch.float32).min}.get(case.mask)
            if hidden is not None:
                bias = torch.where(torch.rand(shape, generator=seed) < 0.3, hidden, bias)
            if case.mask == "fixed bias":
                self.how["attn_mask"] = bias
            else:
                self.leaves["attn_mask"] = bias
        self.case = case

    @functools.cached_property
    def right(self) -> tuple[dict[str, Tensor], Tensor]:
        """Output and gradients of the composition, and its weights."""
        leaves = {name: t.clone().requires_grad_() for name, t in self.leaves.items()}
        how = self.how | {name: t for name, t in leaves.items() if name not in ("q", "k", "v", "alpha")}
        alpha = leaves["alpha"].expand(self.alpha.shape) if "alpha" in leaves else self.alpha
        out, weights = composition(leaves["q"], leaves["k"], leaves["v"], how, alpha)
        grads = torch.autograd.grad(out, list(leaves.values()), self.grad, allow_unused=True)
        found = {"out": out.detach()}
        for (name, t), g in zip(leaves.items(), grads, strict=True):
            found[name] = torch.zeros_like(t) if g is None else g
        return found, weights.detach()

    def spoiled(self) -> dict[str, Tensor]:
        """The leaves with garbage in keys and values that no query may attend to, as far as padding tells."""
        leaves = dict(self.leaves)
        if self.how["key_mask"] is not None:
            hidden = ~self.how["key_mask"][:, None, :, None]
            leaves["k"], leaves["v"] = torch.where(hidden, math.nan, self.k), torch.where(hidden, INF, self.v)
            if "attn_mask" in leaves and leaves["attn_mask"].shape[-1] == self.k.shape[2] and self.case.mask == "per key":
                leaves["attn_mask"] = torch.where(hidden[:, :, None, :, 0], math.nan, leaves["attn_mask"])
        return leaves

    def run(self, impl: Impl, dtype: torch.dtype, leaves: dict[str, Tensor]) -> tuple[dict[str, Tensor], Attention]:
        leaves = {name: t.to(dtype).clone().requires_grad_() for name, t in leaves.items()}
        how: dict[str, Any] = self.how | {"alpha": self.alpha} | {n: t for n, t in leaves.items() if n not in ("q", "k", "v")}
        if how["attn_mask"] is not None and how["attn_mask"].is_floating_point():
            how["attn_mask"] = how["attn_mask"].to(dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answer = attention(leaves["q"], leaves["k"], leaves["v"], **how, enable_gqa=True, return_stats=True, impl=impl)
        assert isinstance(answer, Attention)
        grads = torch.autograd.grad(answer.output, list(leaves.values()), self.grad.to(dtype), allow_unused=True)
        found = {"out": answer.output.detach()}
        for (name, t), g in zip(leaves.items(), grads, strict=True):
            found[name] = torch.zeros_like(t) if g is None else g
        return found, answer


problem_of = functools.cache(Problem)


def check(found: dict[str, Tensor], right: dict[str, Tensor], tolerance: float) -> None:
    for name, value in found.items():
        expected = right[name]
        assert value.shape == expected.shape, name
        size = max(expected.abs().max().item(), 1.0) if expected.numel() else 1.0
        if name in ("attn_mask", "sinks", "alibi_slopes"):  # sums over what was broadcast, whose terms cancel
            size *= max(1.0, math.sqrt(right["out"].numel() / max(expected.numel(), 1)))
        torch.testing.assert_close(value.double(), expected, rtol=0.0, atol=tolerance * size, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_reference_is_the_composition(case: Case) -> None:
    want = problem_of(case)
    right, weights = want.right
    found, answer = want.run("reference", torch.float64, want.spoiled())
    check(found, right, 1e-7)
    assert answer.stats is not None
    assert torch.equal(answer.stats.support_size.long(), (weights > 0.0).sum(-1))
    entropy = -torch.where(weights > 0.0, weights * weights.clamp(min=1e-300).log(), 0.0).sum(-1)
    torch.testing.assert_close(answer.stats.entropy.double(), entropy, rtol=1e-5, atol=1e-5)
    dead = (weights == 0.0).all(-1) & (want.how["normalizer"] != "rela")
    assert (found["out"][dead] == 0.0).all()
    assert (found["q"][dead] == 0.0).all()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_auto_is_the_composition(case: Case, kernels: None) -> None:
    want = problem_of(case)
    found, _ = want.run("auto", torch.float32, want.spoiled())
    check(found, want.right[0], 2e-4 if case.alpha == 2.5 else 3e-5)


# ---- what is equal to what -----------------------------------------------------------------------------------------------


def tensors(*shape: int, count: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(shape, generator=generator) for _ in range(count)]


def test_a_window_is_the_mask_it_stands_for(impl: Impl) -> None:
    q, k, v = tensors(1, 2, 37, 8)
    distance = torch.arange(37)[:, None] - torch.arange(37)
    for left, right in ((0, 0), (5, 0), (None, 2), (3, None), (100, 100)):
        seen = (distance <= (INF if left is None else left)) & (-distance <= (INF if right is None else right))
        auto: Impl = "auto" if impl == "cpu" else impl
        windowed = attention(q, k, v, window=(left, right), impl=auto)
        torch.testing.assert_close(windowed, attention(q, k, v, attn_mask=seen, impl=impl), rtol=0.0, atol=2e-6)
        causal = attention(q, k, v, window=(left, right), is_causal=True, impl=auto)
        masked = attention(q, k, v, attn_mask=seen & (distance >= 0), impl=impl)
        torch.testing.assert_close(causal, masked, rtol=0.0, atol=2e-6)


def test_sinks_of_zero_give_softmax1() -> None:
    q, k, v = tensors(1, 2, 9, 8)
    found = attention(q, k, v, normalizer="softmax", sinks=torch.zeros(2), impl="reference")
    scores = (q @ k.mT / math.sqrt(8)).exp()
    torch.testing.assert_close(found, scores / (1.0 + scores.sum(-1, keepdim=True)) @ v)


def test_a_sink_is_one_more_key_without_value() -> None:
    q, k, v = tensors(1, 1, 9, 8)
    sink = torch.tensor([0.7])
    bias = torch.cat([torch.zeros(9, 9), sink.expand(9, 1)], -1)
    longer = [torch.cat([t, torch.zeros(1, 1, 1, 8)], 2) for t in (k, v)]
    expected = attention(q, *longer, attn_mask=bias, alpha=1.3, impl="reference")
    torch.testing.assert_close(attention(q, k, v, alpha=1.3, sinks=sink, impl="reference"), expected)


@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0])
def test_packed_sequences_are_separate_calls(alpha: float) -> None:
    q, k, v = tensors(1, 2, 40, 8)
    cu_q, cu_k = torch.tensor([0, 7, 7, 20, 40]), torch.tensor([0, 30, 31, 31, 40])
    how: dict[str, Any] = {"alpha": alpha, "is_causal": True, "causal_offset": 1, "window": (9, None)}
    packed = attention(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, **how, impl="reference")
    assert isinstance(packed, Tensor)
    for n in range(4):
        rows, keys = slice(*cu_q[n : n + 2].tolist()), slice(*cu_k[n : n + 2].tolist())
        alone = attention(q[:, :, rows], k[:, :, keys], v[:, :, keys], **how, impl="reference")
        torch.testing.assert_close(packed[:, :, rows], alone)


@pytest.mark.parametrize("normalizer", ["entmax", "rela", "sigmoid"])
@pytest.mark.parametrize("impl", ["reference", "auto"])
def test_weights_of_the_support_have_gradients(normalizer: str, impl: Impl, kernels: None) -> None:
    q, k, v = tensors(2, 4, 11, 8)
    k, v = k[:, :2], v[:, :2]
    alpha = torch.tensor([1.1, 1.4, 1.5, 1.9])
    how: dict[str, Any] = {"normalizer": normalizer, "is_causal": True, "enable_gqa": True}

    def gradients(support: bool) -> list[Tensor]:
        leaves = [t.clone().requires_grad_() for t in (q, k, alpha)]
        if support:
            answer = attention(*leaves[:2], v, alpha=leaves[2], **how, return_support=True, impl=impl)
            assert isinstance(answer, Attention)
            assert answer.support is not None
            weights = answer.support.weight
        else:  # with the identity for values the output is the matrix of weights
            eye = torch.eye(11).expand(2, 2, 11, 11)
            full = attention(*leaves[:2], eye, alpha=leaves[2], **how, impl="reference")
            assert isinstance(full, Tensor)
            weights = full[full.detach() > 0.0]
        loss = (weights * torch.linspace(-1.0, 1.0, weights.numel())).sum()
        found = torch.autograd.grad(loss, leaves, allow_unused=True)
        return [torch.zeros_like(t) if g is None else g for t, g in zip(leaves, found, strict=True)]

    for ours, right in zip(gradients(True), gradients(False), strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-5)


def test_nan_in_a_visible_bias_stays_in_its_row(impl: Impl) -> None:
    q, k, v = tensors(1, 2, 9, 8)
    bias = torch.zeros(2, 9, 9)
    bias[1, 3, 4] = math.nan
    out = attention(q, k, v, attn_mask=bias, impl="auto" if impl == "cpu" else impl)
    assert isinstance(out, Tensor)
    broken = out.isnan().all(-1)
    assert broken[0, 1, 3]
    assert broken.sum() == 1
    assert out[~broken].isfinite().all()


def test_the_gradient_of_a_bias_has_its_shape(impl: Impl) -> None:
    q, k, v = tensors(2, 2, 9, 8)
    for shape in ((9, 9), (9,), (1, 1), (2, 9, 9), (2, 1, 1, 9), (1, 2, 9, 1), (2, 2, 9, 9)):
        bias = torch.linspace(-1.0, 1.0, math.prod(shape)).reshape(shape).requires_grad_()
        sinks = torch.zeros(2)  # else what is added to a whole row has no effect
        out = attention(q, k, v, attn_mask=bias, sinks=sinks, impl="auto" if impl == "cpu" else impl)
        assert isinstance(out, Tensor)
        (out * v).sum().backward()
        assert bias.grad is not None
        assert bias.grad.shape == shape
        assert bias.grad.abs().max() > 0.0


# ---- what is refused -----------------------------------------------------------------------------------------------------

CU = torch.tensor([0, 4, 9], dtype=torch.int32)
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"window": 3}, "window must be a pair"),
    ({"window": (-1, -1)}, "at least 0 or None"),
    ({"window": (1.5, 0)}, "window must be a pair"),
    ({"window": (True, 0)}, "window must be a pair"),
    ({"softcap": 0.0}, "softcap=0.0 must be a positive number"),
    ({"softcap": math.nan}, "must be a positive number"),
    ({"softcap": "30"}, "softcap must be a number"),
    ({"sinks": torch.zeros(2), "normalizer": "rela"}, "sinks need weights that sum to one"),
    ({"sinks": torch.zeros(2), "normalizer": "sigmoid"}, "sinks need weights that sum to one"),
    ({"sinks": torch.zeros(3)}, "sinks must have shape"),
    ({"sinks": torch.zeros(2, dtype=torch.int32)}, "sinks must be a floating-point tensor"),
    ({"sinks": 0.0}, "sinks must be a tensor"),
    ({"sigmoid_bias": -1.0}, "sigmoid_bias is for normalizer='sigmoid' alone"),
    ({"sigmoid_bias": torch.zeros(()), "normalizer": "sigmoid"}, "pass a learned one as attn_mask"),
    ({"sigmoid_bias": INF, "normalizer": "sigmoid"}, "must be finite"),
    ({"cu_seqlens_q": CU}, "cu_seqlens_k is missing"),
    ({"cu_seqlens_k": CU}, "cu_seqlens_q is missing"),
    ({"cu_seqlens_q": CU, "cu_seqlens_k": CU[:2]}, "must begin with 0"),
    ({"cu_seqlens_q": CU, "cu_seqlens_k": torch.tensor([0, 9])}, "equally many"),
    ({"cu_seqlens_q": CU, "cu_seqlens_k": CU.float()}, "int32 tensor"),
    ({"cu_seqlens_q": CU + 1, "cu_seqlens_k": CU}, "must begin with 0"),
    ({"cu_seqlens_q": torch.tensor([0, 5, 4, 9]), "cu_seqlens_k": torch.tensor([0, 4, 4, 9])}, "never decrease"),
]


@pytest.mark.parametrize(("how", "message"), REFUSED)
def test_what_makes_no_sense_is_refused(how: dict[str, Any], message: str) -> None:
    q, k, v = tensors(1, 2, 9, 8)
    with pytest.raises(ArgumentError, match=message):
        attention(q, k, v, **how)


def test_packed_sequences_need_a_batch_of_one() -> None:
    q, k, v = tensors(2, 2, 9, 8)
    with pytest.raises(ArgumentError, match="in one batch entry"):
        attention(q, k, v, cu_seqlens_q=CU, cu_seqlens_k=CU)
