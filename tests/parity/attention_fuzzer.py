"""Random problems for attention; see kernel_fuzzer.py."""

import math
import random
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from entformer.kernels.attention.api import Attention
from entformer.kernels.registry import Impl

from .attention_tolerance import LAYOUTS, SMALLEST, ScoreTerms, Tolerance, dense
from .fuzzing import GARBAGE, LENGTHS, SIZES, compare, draw_alpha, fail_unless, on_each, run_attention

PARAMETERS = ("alpha", "sinks", "alibi_slopes", "attn_mask")  # whose gradients are summed over what is broadcast


class Problem:
    """A call of attention: tensors, options, and what may be attended to."""

    case: Any  # has dtype, heads, sizes and dropout
    q: Tensor
    k: Tensor
    v: Tensor
    grad: Tensor
    how: dict[str, Any]
    scale: float
    fixed: tuple[str, ...] = ()  # parameters that need no gradient

    def allowed(self) -> Tensor:
        """(B, H, Lq, Lk): which keys a query may attend to."""
        keys = self.k.double().repeat_interleave(self.case.heads[0] // self.case.heads[1], 1)
        return ScoreTerms(self.how, self.q.double(), keys, self.scale).allowed

    def run(self, impl: Impl, dtype: torch.dtype, q: Tensor, k: Tensor, v: Tensor) -> tuple[dict[str, Tensor], Attention]:
        leaves = {name: t.to(dtype) for name, t in (("q", q), ("k", k), ("v", v))}
        for name in PARAMETERS:
            given = self.how.get(name)
            if isinstance(given, Tensor) and given.is_floating_point() and name not in self.fixed:
                leaves[name] = given
        return run_attention(leaves, self.how, self.grad, impl)


class RandomProblem(Problem):
    """Everything about it is drawn, by its number, but for the dtype where one is given."""

    def __init__(self, number: int, dtype: torch.dtype | None = None) -> None:
        self.number = number
        self.draw, self.seed = random.Random(number), torch.Generator().manual_seed(number)
        draw = self.draw
        drawn = draw.choice([torch.float32, torch.float32, torch.float32, torch.bfloat16, torch.float16])
        dtype = dtype or drawn
        many = draw.random() < 0.04
        lengths = (
            (draw.choice([1, 3, 37, 60]), draw.choice([300, 700])) if many else (draw.choice(LENGTHS), draw.choice(LENGTHS))
        )
        if draw.random() < 0.02:
            lengths = draw.choice([(0, lengths[1]), (lengths[0], 0), (0, 0)])
        sizes = (draw.choice(SIZES), draw.choice(SIZES))
        if draw.random() < 0.03:
            sizes = draw.choice([(0, sizes[1]), (sizes[0], 0), (0, 0)])
        heads = draw.choice([(1, 1), (2, 2), (2, 1), (4, 2), (3, 1)])
        self.packed = draw.random() < 0.2
        batch = 1 if self.packed else draw.choice([1, 1, 1, 2]) if draw.random() < 0.98 else 0
        self.case = SimpleNamespace(dtype=dtype, heads=heads, sizes=sizes, lengths=lengths, dropout=0.0, alpha=0.0)
        self.layout = draw.choice(list(LAYOUTS)) if batch and 0 not in lengths + sizes else "contiguous"
        self._draw_tensors(batch)
        self.how = {"enable_gqa": True} | self._draw_masks(batch) | self._draw_alpha(batch)
        if draw.random() < 0.2:
            self.case.dropout = self.how["dropout_p"] = draw.choice([0.1, 0.5, 0.9])
        if draw.random() < 0.2:
            self.how["alibi_slopes"] = torch.rand(batch, heads[0], generator=self.seed)
        if draw.random() < 0.2:
            self.how["scale"] = draw.choice([0.3, -0.2, 1.0])
        self.scale = self.how.get("scale", 1.0 / math.sqrt(max(sizes[0], 1)))
        self.how |= self._draw_features(batch)

    def __str__(self) -> str:
        fields = {name: tuple(t.shape) if isinstance(t, Tensor) and name != "alpha" else t for name, t in self.how.items()}
        return f"attention {self.number}: {vars(self.case)}, batch {self.q.shape[0]}, {self.layout}, {fields}"

    def _draw_tensors(self, batch: int) -> None:
        draw, case = self.draw, self.case
        (heads, key_heads), (queries, keys), (size, value_size) = case.heads, case.lengths, case.sizes

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=self.seed)

        q, k = normal(batch, heads, queries, size), normal(batch, key_heads, keys, size)
        kind = draw.choice(["plain", "plain", "plain", "ties", "equal", "zero queries", "shifted"])
        if kind == "ties" and keys:
            k = k[:, :, torch.randint(max(keys // 6, 1), (keys,), generator=self.seed)]
        elif kind == "equal" and keys:
            k = k[:, :, :1].expand(k.shape)
        elif kind == "zero queries":
            q = 0.0 * q
        elif kind == "shifted" and size:
            q[..., 0], k[..., 0] = 30.0, 4.0
        q = q * draw.choice([1e-3, 0.1, 1.0, 1.0, 2.0, 4.0, 10.0, 100.0 if case.dtype != torch.float16 else 10.0])
        layout = LAYOUTS[self.layout]
        v, grad = normal(batch, key_heads, keys, value_size), normal(batch, heads, queries, value_size)
        v[..., -1:] = 1.0  # so that the last column of the output is the sum of the weights
        self.q, self.k, self.v, self.grad = (layout(t.to(case.dtype)) for t in (q, k, v, grad))

    def _draw_masks(self, batch: int) -> dict[str, Any]:
        draw, (queries, keys) = self.draw, self.case.lengths
        how: dict[str, Any] = {}
        if draw.random() < 0.4:
            share = draw.choice([0.0, 0.1, 0.5, 0.9])
            shape = draw.choice(
                [(batch, self.case.heads[0], queries, keys), (queries, keys), (batch, 1, 1, keys), (batch, 1, queries, 1)]
            )
            how["attn_mask"] = torch.rand(shape, generator=self.seed) < share
        if draw.random() < 0.4:
            lengths = torch.randint(0, keys + 1, (batch, 1), generator=self.seed)
            how["key_mask"] = (torch.arange(keys) < lengths) ^ draw.choice([True, False])
        if draw.random() < 0.4:
            how |= {"is_causal": True, "causal_offset": draw.choice([0, keys - queries, draw.randint(-queries - 2, keys + 2)])}
        return how

    def _draw_features(self, batch: int) -> dict[str, Any]:
        draw, (heads, _), (queries, keys) = self.draw, self.case.heads, self.case.lengths
        how: dict[str, Any] = {}
        if draw.random() < 0.3:
            how["window"] = tuple(draw.choice([None, 0, 1, 3, 10, 40, 200]) for _ in range(2))
        if draw.random() < 0.25:
            how["softcap"] = draw.choice([0.5, 3.0, 30.0, 1e4])
        if draw.random() < 0.25 and self.how.get("normalizer", "entmax") == "entmax":
            how["sinks"] = draw.choice([0.0, 1.0, 5.0]) * torch.randn(heads, generator=self.seed) + draw.choice(
                [0.0, 3.0, -9.0]
            )
        if draw.random() < 0.3 and "attn_mask" not in self.how:
            shape = [size if draw.random() < 0.6 else 1 for size in (batch, heads, queries, keys)]
            bias = draw.choice([0.1, 1.0, 10.0]) * torch.randn(shape, generator=self.seed)
            if draw.random() < 0.3:
                bias = torch.where(torch.rand(shape, generator=self.seed) < 0.3, draw.choice([-math.inf, -3.4e38]), bias)
            how["attn_mask"] = bias
        if self.packed:
            for name, n in (("cu_seqlens_q", queries), ("cu_seqlens_k", keys)):
                cuts = torch.randint(0, n + 1, (2,), generator=self.seed).sort().values.tolist()
                how[name] = torch.tensor([0, *cuts, n], dtype=torch.int32)
        return how

    def _draw_alpha(self, batch: int) -> dict[str, Any]:
        draw, heads = self.draw, self.case.heads[0]
        if draw.random() < 0.1:
            self.case.alpha = draw.choice(["rela", "sigmoid"])
            bias = {"sigmoid_bias": draw.choice([None, -2.0, 1.0])} if self.case.alpha == "sigmoid" else {}
            return {"normalizer": self.case.alpha, **bias}
        if draw.random() < 0.5:
            return {"alpha": draw_alpha(draw)}
        shape = draw.choice([(heads,), (batch, heads)])
        values = [draw_alpha(draw) for _ in range(math.prod(shape))]
        return {"alpha": torch.tensor(values, dtype=torch.float64).reshape(shape)}

    def spoiled(self) -> tuple[Tensor, Tensor]:
        """k and v with garbage in keys that no query may attend to."""
        group = self.case.heads[0] // self.case.heads[1]
        dead = ~self.allowed().unflatten(1, (-1, group)).any(2).any(2)  # (B, G, Lk)
        some = dead & (torch.rand(dead.shape, generator=self.seed) < 0.8)
        kinds = [self.draw.choice(GARBAGE) for _ in range(2)]
        return tuple(torch.where(some[..., None], kind, t) for kind, t in zip(kinds, (self.k, self.v), strict=True))  # type: ignore[return-value]


def check_attention(number: int, isas: list[str], dtype: torch.dtype | None = None) -> None:
    """One random call of `attention`: output, statistics and all gradients, with garbage behind the masks."""
    want = RandomProblem(number, dtype)
    impl: Impl = "cpu" if want.case.lengths[1] else "auto"  # without keys there is nothing to fuse
    right, answer = want.run("reference", torch.float64, want.q, want.k, want.v)
    k, v = want.spoiled()
    if number % 5 == 0:
        exact, _ = want.run("reference", torch.float64, want.q, k, v)
        for name, value in exact.items():
            compare(f"{want}, {name} of the reference", value, right[name], 1e-12 * (1.0 + right[name].abs()))
    answers = on_each(isas, lambda: want.run(impl, want.case.dtype, want.q, k, v))
    if 0 in (*want.q.shape[:3], want.case.lengths[1]):
        for ours, _ in answers.values():
            assert all(ours[name].shape == right[name].shape for name in right), str(want)
            assert all((t == 0).all() for t in ours.values()), str(want)
        return
    weights = dense(answer.support, (*want.q.shape[:3], want.case.lengths[1]))
    tolerance = Tolerance(want.case, want, weights, want.scale)  # type: ignore[arg-type]
    for isa, (ours, found) in answers.items():
        check_answer(f"{isa}, {want}", want, ours, found, right, tolerance)
        check_sums(f"{isa}, {want}", want, ours["out"])
    if number % 3 == 0:
        check_broken_rows(want, isas, right, tolerance)


def check_answer(
    what: str, want: Problem, ours: dict[str, Tensor], found: Attention, right: dict[str, Tensor], tolerance: Tolerance
) -> None:
    """Output and gradients within the tolerance, zeros in rows without keys."""
    eps, tiny = torch.finfo(want.case.dtype).eps, SMALLEST[want.case.dtype]
    for name, value in ours.items():
        assert value.shape == right[name].shape, what
        assert value.dtype == (want.how[name] if name in PARAMETERS else want.q).dtype, what
        bound = getattr(tolerance, name)
        if name in PARAMETERS:
            bound = bound.sum_to_size(value.shape) + 1e-6 * right[name].abs() + 1e-12
        else:
            bound = bound + eps * right[name].abs() + tiny
        compare(f"{what}, {name}", value, right[name], bound)
    dead = ~want.allowed().any(-1)
    assert all((t[dead] == 0).all() for t in (ours["out"], ours["q"], found.stats.support_size)), f"{what}: a row without keys"


def check_sums(what: str, want: Problem, out: Tensor) -> None:
    """The weights of a row sum to one: the last column of the values is one."""
    sums_to_one = want.how.get("normalizer", "entmax") == "entmax" and "sinks" not in want.how
    if not want.case.dropout and sums_to_one and want.case.sizes[1]:
        total = out[..., -1].double()
        off = torch.where(want.allowed().any(-1), (total - 1.0).abs(), 0.0)
        most = torch.as_tensor(want.how["alpha"], dtype=torch.float64).expand(total.shape[:2])[..., None]
        allowed = torch.where(most > 2.0, 1e-3, 1e-5) + 2.0 * torch.finfo(want.case.dtype).eps
        fail_unless(off <= allowed, f"{what}, sum of the weights", total, torch.ones_like(total), allowed)


def check_broken_rows(want: RandomProblem, isas: list[str], clean: dict[str, Tensor], tolerance: Tolerance) -> None:
    """NaN or infinity in some queries and keys: NaN where the contract has it, and nowhere else."""
    draw, eps, tiny = want.draw, torch.finfo(want.case.dtype).eps, SMALLEST[want.case.dtype]
    if want.case.sizes[0] == 0:
        return
    q, k = want.q.clone(), want.k.clone()
    for t in (q, k):
        if draw.random() < 0.6:
            row = tuple(draw.randrange(size) for size in t.shape)
            t[row] = draw.choice(GARBAGE[:3])
    right, _ = want.run("reference", torch.float64, q, k, want.v)
    for isa, (ours, _) in on_each(isas, lambda: want.run("cpu", want.case.dtype, q, k, want.v)).items():
        for name, value in ours.items():
            bound = getattr(tolerance, name)
            bound = bound.sum_to_size(value.shape) + 1e-12 if name in PARAMETERS else bound + tiny
            bound = bound + (eps + 1e-6) * torch.maximum(right[name].nan_to_num(0.0).abs(), clean[name].abs())
            compare(f"{isa}, {want}, {name} with broken rows", value, right[name], bound)
