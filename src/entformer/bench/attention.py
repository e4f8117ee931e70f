"""Benchmark of `attention` against scaled_dot_product_attention (SDPA) and a dense composition with the `entmax` package.

    1.5, 2, 1.01    fixed alpha; 1.01 has hardly any zeros, the worst case
    learned         alpha is a parameter with gradient; all heads at 1.49, so the density of 1.5 without its closed form
    learned spread  the same with heads from 1.18 to 1.82
    rela, softmax   other normalizers through the same kernel
    entmax package  q k^T, `entmax.entmax15`, times v: stores all scores

Queries and keys are normal, so scores are too; queries times a scale make them wider and the weights sparser. Each measurement
carries the density, the fraction of weights that are not zero, which explains the ratio.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from entformer.bench.harness import (
    SEED,
    Measurement,
    Report,
    entmax_package,
    forward,
    forward_backward,
    get_signature,
    measurements,
    threads,
    time_interleaved,
)
from entformer.errors import ArgumentError
from entformer.kernels.attention.api import Attention, attention
from entformer.kernels.registry import resolve
from entformer.nn.positions import nape_slopes

BASELINE = "SDPA"
IMPLEMENTATIONS = ("1.5", "learned", "learned spread", "2", "rela", "1.01", "softmax")
DENSE = ("learned spread", "rela", "1.01", "softmax")  # many nonzero weights: fewer rounds at large sizes
PACKAGE = "entmax package"
MAX_DENSE_LENGTH = 2048  # beyond, the scores of the composition with the package would fill the memory


class AttentionShape(NamedTuple):
    """(batch, heads, length, head size) of self-attention."""

    batch: int
    heads: int
    length: int
    size: int


SHAPES = tuple(AttentionShape(*s) for s in ((16, 8, 64, 64), (4, 8, 512, 64), (1, 8, 2048, 64), (1, 8, 8192, 64)))
QUICK_SHAPES = (AttentionShape(4, 8, 64, 64), AttentionShape(1, 8, 512, 64))


@dataclass(frozen=True, kw_only=True)
class Case:
    """One problem: sizes, masks, threads."""

    batch: int
    heads: int
    queries: int
    keys: int
    size: int
    kind: str = "plain"  # or "causal", "padded" (a quarter of the keys of every second sequence), "cross", "decode", "prefill"
    scale: float = 1.0  # of the queries, hence the standard deviation of the scores
    threads: int = 1

    def __str__(self) -> str:
        length = str(self.keys) if self.queries == self.keys else f"{self.queries}/{self.keys}"
        parts = [f"{self.batch}x{self.heads}x{length}x{self.size}"]
        parts += [self.kind] if self.kind != "plain" else []
        parts += [f"logits x{self.scale:g}"] if self.scale != 1.0 else []
        return ", ".join([*parts, f"{self.threads} thread{'s' if self.threads > 1 else ''}"])

    @property
    def num_scores(self) -> int:
        return self.batch * self.heads * self.queries * self.keys


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The tensors of one case."""

    q: Tensor  # (B, H, Lq, D)
    k: Tensor  # (B, H, Lk, D)
    v: Tensor  # (B, H, Lk, D)
    grad: Tensor  # (B, H, Lq, D), of the output
    key_mask: Tensor | None  # (B, Lk), True = may attend
    is_causal: bool

    @property
    def num_allowed(self) -> int:
        """Number of (query, key) pairs that may have weight."""
        batch, heads, queries, _ = self.q.shape
        if self.key_mask is not None:
            return heads * queries * int(self.key_mask.sum())
        return batch * heads * (queries * (queries + 1) // 2 if self.is_causal else queries * self.k.shape[2])


def benchmark_attention(
    shapes: Sequence[AttentionShape] | None = None,
    thread_counts: Sequence[int] = (1, 2),
    *,
    quick: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Report:
    """Runs the benchmark: about five minutes on two cores for the default shapes, some seconds if `quick`."""
    if not thread_counts or min(thread_counts) < 1:
        raise ArgumentError(f"threads={','.join(map(str, thread_counts))} must be numbers of at least 1, like 1,2.")
    if resolve("auto", "cpu") != "cpu":  # the dense reference in float64 is some hundred times slower
        shapes, quick = (AttentionShape(1, 8, 32, 64),), True
    cases = _quick_cases(shapes, thread_counts) if quick else _cases(shapes or SHAPES, thread_counts)
    found: list[Measurement] = []
    for number, case in enumerate(cases):
        progress(f"{number + 1} of {len(cases)}: {case}")
        with threads(case.threads):
            found.extend(measure(case, rounds=3 if quick else None))
    with threads(max(thread_counts)):
        return Report(benchmark="attention", baseline=BASELINE, signature=get_signature(), measurements=tuple(found))


def _cases(shapes: Sequence[AttentionShape], thread_counts: Sequence[int]) -> list[Case]:
    """Every shape at two logit scales with the most threads; around it, at scale 1, masks, cross, decode, fewer threads."""
    most, *fewer = sorted(set(thread_counts), reverse=True)
    cases = [_self_attention(shape, most, scale=scale) for scale in (1.0, 2.0) for shape in shapes]
    cases += [_self_attention(shape, most, kind="causal") for shape in shapes]
    cases += [_self_attention(shape, most, kind="padded") for shape in shapes if 512 <= shape.length <= MAX_DENSE_LENGTH]
    cases += [Case(batch=4, heads=8, queries=128, keys=2048, size=64, kind="cross", threads=most)]
    cases += [Case(batch=1, heads=8, queries=1, keys=8192, size=64, kind="decode", threads=most)]
    return cases + [_self_attention(s, count) for count in fewer for s in shapes if s.length <= MAX_DENSE_LENGTH]


def _quick_cases(shapes: Sequence[AttentionShape] | None, thread_counts: Sequence[int]) -> list[Case]:
    most = max(thread_counts)
    small = AttentionShape(2, 8, 64, 64)
    cases = [_self_attention(shape, most) for shape in shapes or QUICK_SHAPES]
    cases += [_self_attention(small, most, kind=kind) for kind in ("causal", "padded")]
    cases += [Case(batch=1, heads=8, queries=16, keys=256, size=64, kind="cross", threads=most)]
    return [*cases, Case(batch=1, heads=8, queries=1, keys=1024, size=64, kind="decode", threads=most)]


def _self_attention(shape: AttentionShape, num_threads: int, *, kind: str = "plain", scale: float = 1.0) -> Case:
    sizes = {"batch": shape.batch, "heads": shape.heads, "queries": shape.length, "keys": shape.length, "size": shape.size}
    return Case(**sizes, kind=kind, scale=scale, threads=num_threads)


def measure(case: Case, names: Sequence[str] | None = None, rounds: int | None = None) -> Iterator[Measurement]:
    """Yields the measurements of one case; all implementations, and rounds chosen by the number of scores, by default."""
    scores = case.num_scores
    full = 31 if scores <= 2**20 else 11 if scores <= 2**24 else 5 if scores <= 2**26 else 3
    rounds = rounds or full
    limits = {} if scores <= 2**24 else dict.fromkeys(DENSE, 1)
    chosen = list(IMPLEMENTATIONS if names is None else names)
    if names is None and case.kind == "plain" and case.keys <= MAX_DENSE_LENGTH and entmax_package():
        chosen.append(PACKAGE)
        limits[PACKAGE] = 1
    inputs = make_inputs(case)
    functions = {name: implementation(name, inputs) for name in (BASELINE, *chosen)}
    details = {name: {"case": vars(case), "density": density(name, inputs)} for name in chosen}
    warmup = 2 if scores <= 2**20 else 1 if scores <= 2**26 else 0
    repeats: dict[str, Any] = {"rounds": rounds, "warmup": warmup, "max_rounds": limits}
    once = {name: forward(function) for name, (function, _) in functions.items()}
    yield from measurements(time_interleaved(once, **repeats), BASELINE, str(case), "forward", details)
    if case.kind not in ("decode", "prefill"):
        leaves = [inputs.q, inputs.k, inputs.v]
        both = {n: forward_backward(function, [*leaves, *extra], inputs.grad) for n, (function, extra) in functions.items()}
        yield from measurements(time_interleaved(both, **repeats), BASELINE, str(case), "forward+backward", details)


def make_inputs(case: Case) -> Inputs:
    """Returns normal deviates, the same numbers for the same sizes."""
    generator = torch.Generator(device="cpu").manual_seed(SEED + case.keys)

    def normal(length: int) -> Tensor:
        return torch.randn(case.batch, case.heads, length, case.size, generator=generator)

    key_mask = None
    if case.kind == "padded":
        key_mask = torch.ones(case.batch, case.keys, dtype=torch.bool)
        key_mask[::2, case.keys - case.keys // 4 :] = False
    return Inputs(
        q=normal(case.queries).mul_(case.scale).requires_grad_(),
        k=normal(case.keys).requires_grad_(),
        v=normal(case.keys).requires_grad_(),
        grad=normal(case.queries),
        key_mask=key_mask,
        is_causal=case.kind in ("causal", "prefill"),
    )


def implementation(name: str, inputs: Inputs) -> tuple[Callable[[], Tensor], list[Tensor]]:
    """Returns the attention of `name` on `inputs`, and its parameters beside q, k and v."""
    if name == BASELINE:
        mask = None if inputs.key_mask is None else inputs.key_mask[:, None, None, :]  # broadcasts over heads and queries
        return lambda: scaled_dot_product_attention(inputs.q, inputs.k, inputs.v, mask, is_causal=inputs.is_causal), []
    if name == PACKAGE:
        normalize = entmax_package()["1.5"]
        scale = 1.0 / math.sqrt(inputs.q.shape[-1])
        return lambda: torch.matmul(normalize(inputs.q @ inputs.k.transpose(-1, -2) * scale, None), inputs.v), []
    options = _options(name, inputs.q)
    parameters = [value for key, value in options.items() if key == "alpha" and isinstance(value, Tensor)]
    return lambda: _attend(inputs, options, return_stats=False).output, parameters


def density(name: str, inputs: Inputs) -> float:
    """Returns the fraction of allowed weights that are not zero, counted by the kernel."""
    if name == BASELINE:
        return 1.0
    options = _options("1.5" if name == PACKAGE else name, inputs.q)
    with torch.no_grad():
        stats = _attend(inputs, options, return_stats=True).stats
    return math.nan if stats is None else float(stats.support_size.sum()) / inputs.num_allowed


def _options(name: str, q: Tensor) -> dict[str, Any]:
    """Returns the arguments of `attention`; "NAME nape" adds ALiBi with NAPE's slopes to half of the heads."""
    heads = q.shape[1]
    if name.endswith(" nape"):
        return _options(name.removesuffix(" nape"), q) | {"alibi_slopes": nape_slopes(heads)}
    if name == "learned":
        return {"alpha": torch.full((heads,), 1.49, device=q.device, requires_grad=True)}
    if name == "learned spread":
        return {"alpha": (1.0 + torch.sigmoid(torch.linspace(-1.5, 1.5, heads))).requires_grad_()}
    return {"normalizer": name} if name in ("rela", "softmax") else {"alpha": float(name)}


def _attend(inputs: Inputs, options: dict[str, Any], *, return_stats: bool) -> Attention:
    is_causal = inputs.is_causal or "alibi_slopes" in options
    offset = inputs.k.shape[2] - inputs.q.shape[2] if "alibi_slopes" in options else 0  # queries are the last positions
    out = attention(
        inputs.q,
        inputs.k,
        inputs.v,
        key_mask=inputs.key_mask,
        is_causal=is_causal,
        causal_offset=offset,
        return_stats=return_stats,
        **options,
    )
    return out if isinstance(out, Attention) else Attention(out, None, None)
