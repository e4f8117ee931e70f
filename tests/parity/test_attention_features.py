"""Bias, window, soft-cap, sinks, packed sequences and sigmoid, in any combination, against a dense composition of its own.

The composition (attention_composition.py) is plain PyTorch in float64 that shares no code with entformer. Every value of every
axis (`AXES`) has its turn, paired at random with a fixed seed. What no query may attend to holds garbage in the tensors that
`attention` gets.
"""

import functools
import math
import warnings
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from entformer.kernels.attention.api import Attention, attention
from entformer.kernels.registry import Impl

from .attention_composition import composition
from .fuzzing import paired, run_attention

pytestmark = pytest.mark.usefixtures("poisoned_memory")

INF = math.inf


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


CASES = [Case(*row) for row in paired(AXES, 72, seed=4)]


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
        shapes["one a head"] = (1, heads, 1, 1)
        shape = shapes.get(case.mask, (batch, heads, queries, keys))
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
        how: dict[str, Any] = self.how | {"alpha": self.alpha, "enable_gqa": True}
        if how["attn_mask"] is not None and how["attn_mask"].is_floating_point():
            how["attn_mask"] = how["attn_mask"].to(dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return run_attention({name: t.to(dtype) for name, t in leaves.items()}, how, self.grad, impl)


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
    assert torch.equal(answer.stats.support_size.long(), (weights > 0.0).sum(-1))
    entropy = -torch.where(weights > 0.0, weights * weights.clamp(min=1e-300).log(), 0.0).sum(-1)
    torch.testing.assert_close(answer.stats.entropy.double(), entropy, rtol=1e-5, atol=1e-5)
    dead = (weights == 0.0).all(-1) & (want.how["normalizer"] != "rela")
    assert (found["out"][dead] == 0.0).all()
    assert (found["q"][dead] == 0.0).all()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_kernels_are_the_composition(case: Case, isa: str) -> None:
    want = problem_of(case)
    right, weights = want.right
    found, answer = want.run("cpu", torch.float32, want.spoiled())
    check(found, right, 2e-4 if case.alpha == 2.5 else 3e-5)
    dead = (weights == 0.0).all(-1) & (want.how["normalizer"] != "rela")
    for zero in (found["out"], found["q"], answer.stats.support_size):
        assert (zero[dead] == 0.0).all()


# ---- what is equal to what -----------------------------------------------------------------------------------------------


def tensors(*shape: int, count: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(shape, generator=generator) for _ in range(count)]


LENGTHS = [(7, 30), (0, 1), (13, 0), (60, 70), (1, 9), (300, 200), (2, 1500)]  # queries and keys of each sequence


@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0, 2.5])
@pytest.mark.parametrize("more", [{}, {"is_causal": True, "causal_offset": 1}, {"window": (9, 4), "softcap": 3.0}])
def test_packed_sequences_are_separate_calls_to_the_bit(alpha: float, more: dict[str, Any], isa: str) -> None:
    check_packed_sequences(alpha, more, torch.float32)


@pytest.mark.parametrize("alpha", [1.0, 1.3, 2.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_packed_sequences_of_half_precision(alpha: float, dtype: torch.dtype, half_isa: str) -> None:
    check_packed_sequences(alpha, {"is_causal": True}, dtype)


def check_packed_sequences(alpha: float, more: dict[str, Any], dtype: torch.dtype) -> None:
    how: dict[str, Any] = {"alpha": alpha, "enable_gqa": True, **more}
    cu_q, cu_k = (torch.tensor([0, *n]).cumsum(0).int() for n in zip(*LENGTHS, strict=True))
    generator = torch.Generator().manual_seed(3)
    q, grad = (torch.randn(1, 4, int(cu_q[-1]), 24, generator=generator).to(dtype) for _ in range(2))
    k, v = (torch.randn(1, 2, int(cu_k[-1]), 24, generator=generator).to(dtype) for _ in range(2))
    packed = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}
    together, _ = run_attention({"q": q, "k": k, "v": v}, how | packed, grad, "cpu")
    for n, (_, key_count) in enumerate(LENGTHS):
        rows, keys = slice(*cu_q[n : n + 2].tolist()), slice(*cu_k[n : n + 2].tolist())
        leaves = {"q": q[:, :, rows].clone(), "k": k[:, :, keys].clone(), "v": v[:, :, keys].clone()}
        alone, _ = run_attention(leaves, how, grad[:, :, rows], "cpu" if key_count else "auto")
        for name, value in alone.items():
            assert torch.equal(together[name][:, :, keys if name in ("k", "v") else rows], value)


@pytest.mark.parametrize("alpha", [1.0, 1.05, 1.3, 1.5, 2.0, 2.5])
@pytest.mark.parametrize("more", [{}, {"is_causal": True}, {"window": (9, 4)}])
@pytest.mark.parametrize("keys", [35, 300])
def test_padding_changes_nothing(alpha: float, more: dict[str, Any], keys: int, isa: str) -> None:
    """Keys before the first and behind the last that may be attended: each batch is that of its own keys alone."""
    ranges = [(0, keys), (0, keys // 2 + 1), (keys - 3, keys), (keys // 3, keys - 1), (0, 1), (5, 5)]
    names = ("q", "k", "v")
    padded = dict(zip(names, tensors(len(ranges), 2, keys, 24), strict=True))
    grad = torch.randn(len(ranges), 2, keys, 24, generator=torch.Generator().manual_seed(8))
    mask = torch.zeros(len(ranges), keys, dtype=torch.bool)
    for n, (first, end) in enumerate(ranges):
        mask[n, first:end] = True
    for name in ("k", "v"):
        padded[name].masked_fill_(~mask[:, None, :, None], math.nan)
    found, _ = run_attention(padded, {"alpha": alpha, "key_mask": mask, **more}, grad, "cpu")
    for n, (first, end) in enumerate(ranges):
        alone = {"q": padded["q"][n, None], "k": padded["k"][n, None, :, first:end], "v": padded["v"][n, None, :, first:end]}
        how = {"alpha": alpha, "causal_offset": -first, **more}
        wanted, _ = run_attention({name: t.clone() for name, t in alone.items()}, how, grad[n, None], "auto")
        for name, value in wanted.items():
            own = found[name][n, None, :, first:end] if name in ("k", "v") else found[name][n, None]
            torch.testing.assert_close(own, value, rtol=1e-4, atol=1e-4)
        for name in ("k", "v"):
            assert found[name][n][:, ~mask[n]].eq(0.0).all()


def test_a_mask_that_queries_share_is_one_of_keys(isa: str) -> None:
    """With any of the forms in which it comes, and with a key mask beside it."""
    leaves = dict(zip(("q", "k", "v"), tensors(3, 2, 40, 16), strict=True))
    grad = torch.randn(3, 2, 40, 16, generator=torch.Generator().manual_seed(8))
    mask = torch.arange(40) < torch.tensor([[40], [13], [0]])
    wanted, _ = run_attention(leaves, {"key_mask": mask}, grad, "cpu")
    four = mask[:, None, None]
    forms: list[dict[str, Tensor]] = [
        {"attn_mask": four},
        {"attn_mask": four.expand(3, 1, 40, 40)},
        {"attn_mask": torch.zeros(four.shape).masked_fill(~four, -INF)},
        {"attn_mask": torch.arange(40) != 50, "key_mask": mask},
    ]
    for form in forms:
        found, _ = run_attention(leaves, form, grad, "cpu")
        assert all(torch.equal(found[name], value) for name, value in wanted.items())
    whole = {"attn_mask": four.expand(3, 2, 40, 40).contiguous()}
    found, _ = run_attention(leaves, whole, grad, "cpu")
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value)
    supports = [attention(*leaves.values(), **form, return_support=True, impl="cpu").support for form in (forms[0], whole)]
    for own, other in zip(*supports, strict=True):
        torch.testing.assert_close(own, other)


@pytest.mark.parametrize("normalizer", ["entmax", "rela", "sigmoid"])
@pytest.mark.parametrize("spread", [0.3, 4.0])  # dense and sparse rows
def test_weights_of_the_support_have_gradients(normalizer: str, spread: float, impl: Impl) -> None:
    q, k, v = tensors(2, 4, 11, 8)
    q, k, v = spread * q, k[:, :2], v[:, :2]
    bias = torch.linspace(-1.0, 1.0, 44).reshape(4, 11, 1).expand(4, 11, 11).tril().contiguous()
    alpha, sinks = torch.tensor([1.1, 1.4, 1.5, 1.9]), torch.tensor([0.5, -0.3, 0.0, 1.0])
    how: dict[str, Any] = {"normalizer": normalizer, "is_causal": True, "enable_gqa": True, "softcap": 5.0}

    def gradients(support: bool) -> list[Tensor]:
        leaves = [t.clone().requires_grad_() for t in (q, k, alpha, bias, sinks)]
        how["attn_mask"], how["sinks"] = leaves[3], leaves[4] if normalizer == "entmax" else None
        if support:
            answer = attention(*leaves[:2], v, alpha=leaves[2], **how, return_support=True, impl=impl)
            weights = answer.support.weight
        else:  # with the identity for values the output is the matrix of weights
            eye = torch.eye(11).expand(2, 2, 11, 11)
            full = attention(*leaves[:2], eye, alpha=leaves[2], **how, impl="reference")
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
    out = attention(q, k, v, attn_mask=bias, impl=impl)
    broken = out.isnan().all(-1)
    assert broken[0, 1, 3]
    assert broken.sum() == 1
    assert out[~broken].isfinite().all()


def test_vmap_over_biases_and_samples(kernels: None) -> None:
    """Gradients of each sample to a bias they share, and to one of their own."""
    q, k, v = tensors(3, 2, 2, 9, 8)  # three samples of a batch of two
    bias = torch.linspace(-1.0, 1.0, 2 * 9 * 9).reshape(1, 2, 9, 9)

    def loss(bias: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = attention(q, k, v, attn_mask=bias, sinks=torch.zeros(2), window=(4, 3), softcap=4.0)
        return out.square().sum()

    for dims, given in (((None, 0, 0, 0), bias), ((0, 0, 0, 0), torch.stack([bias, 2.0 * bias, -bias]))):
        found = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1)), in_dims=dims)(given, q, k, v)
        for n in range(3):
            right = torch.func.grad(loss, argnums=(0, 1))(given if dims[0] is None else given[n], q[n], k[n], v[n])
            for ours, expected in zip(found, right, strict=True):
                torch.testing.assert_close(ours[n], expected, rtol=1e-4, atol=1e-5)


def test_the_gradient_of_a_bias_has_its_shape(impl: Impl) -> None:
    q, k, v = tensors(2, 2, 9, 8)
    for shape in ((9, 9), (9,), (1, 1), (2, 9, 9), (2, 1, 1, 9), (1, 2, 9, 1), (2, 2, 9, 9)):
        bias = torch.linspace(-1.0, 1.0, math.prod(shape)).reshape(shape).requires_grad_()
        sinks = torch.zeros(2)  # else what is added to a whole row has no effect
        (attention(q, k, v, attn_mask=bias, sinks=sinks, impl=impl) * v).sum().backward()
        assert bias.grad.shape == shape
        assert bias.grad.abs().max() > 0.0
