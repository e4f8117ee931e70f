"""Random problems for the C++ kernels, against the float64 reference: weights, outputs and every gradient.

In: a seed. Out: nothing, or an AssertionError that names the seed and the problem. Shapes (odd and zero sizes), strides,
dtypes, alphas in [1, 4], ties, extreme scores, masks that hide NaN and infinity, causal offsets, ALiBi, shared key heads
and dropout are drawn independently. Tolerances are those of test_entmax.py and test_attention.py. By hand, for as many cases as
you like:

    python benchmarks/fuzz_kernels.py --cases 20000 --isa avx2,portable --seed 1
"""

import math
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch import Tensor

from entformer.kernels import native
from entformer.kernels.attention.api import Attention, attention
from entformer.kernels.entmax.api import entmax
from entformer.kernels.registry import Impl

from .test_attention import LAYOUTS, SMALLEST, Tolerance, dense
from .test_entmax import SMALLEST as SMALLEST_ROWS
from .test_entmax import Bounds, compare, fail_unless

INF = math.inf
Answer = TypeVar("Answer")
GARBAGE = [math.nan, INF, -INF, 3e38]
LENGTHS = [1, 1, 2, 3, 5, 7, 8, 9, 13, 15, 16, 17, 23, 31, 33, 49, 65]
SIZES = [1, 2, 3, 5, 8, 8, 16, 16, 24, 32, 33, 64]
# fmt: off
ALPHAS = [
    1.0, 1.0, 1.0 + 1e-9, 1.0001, 1.01, 1.05, 1.1, 1.25, 1.4999, 1.5, 1.5, 1.6,
    1.75, 1.99, 2.0, 2.0, 2.001, 2.5, 3.0, 4.0,
]
# fmt: on


def draw_alpha(draw: random.Random) -> float:
    return draw.choice(ALPHAS) if draw.random() < 0.7 else draw.uniform(1.0, 4.0)


def on_each(isas: list[str], run: Callable[[], Answer]) -> dict[str, Answer]:
    """What `run` gives on each instruction set."""
    answers = {}
    for isa in isas:
        assert native.set_isa(isa), f"this CPU cannot run {isa}"
        answers[isa] = run()
    return answers


# ---- rows ----------------------------------------------------------------------------------------------------------------


def draw_rows(draw: random.Random, seed: torch.Generator, n: int, count: int) -> Tensor:
    """Scores (count, n): every row of a kind of its own."""
    rows = []
    for _ in range(count):
        scale = draw.choice([1e-40, 1e-6, 1e-3, 0.1, 1.0, 1.0, 3.0, 10.0, 100.0, 1e4])
        row = scale * torch.randn(n, generator=seed, dtype=torch.float64)
        kind = draw.choice(["plain", "plain", "ties", "two values", "equal", "shifted", "masked", "dead", "inf", "nan"])
        if kind == "ties":
            row = row[torch.randint(max(n // 8, 1), (n,), generator=seed)] if n else row
        elif kind == "two values":  # some at the top, the others where they may be barely inside the support
            row = torch.where(torch.arange(n) < draw.randint(1, 3), 0.0, -draw.uniform(0.0, 2.0)) + draw.choice(
                [0.0, 0.3, -7.0]
            )
        elif kind == "equal":
            row = torch.full((n,), draw.uniform(-50.0, 50.0), dtype=torch.float64)
        elif kind == "shifted":
            row = row + draw.choice([-1e4, 300.0, 1e4])
        elif kind == "dead":
            row = torch.full((n,), -INF, dtype=torch.float64)
        elif kind in ("masked", "inf", "nan"):
            value = {"masked": -INF, "inf": INF, "nan": math.nan}[kind]
            row = torch.where(torch.rand(n, generator=seed) < draw.choice([0.05, 0.5]), value, row)
        rows.append(row)
    return torch.stack(rows) if rows else torch.empty(0, n, dtype=torch.float64)


def check_rows(number: int, isas: list[str]) -> None:
    """One random call of `entmax`: weights and both gradients."""
    draw, seed = random.Random(number), torch.Generator().manual_seed(number)
    dtype = draw.choice([torch.float32, torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64])
    n = draw.choice([*LENGTHS, 0, 200, 513, 1025, 1100, 2100]) if draw.random() < 0.97 else 20000
    count = draw.choice([0, 1, 1, 2, 3, 5, 9]) if n < 5000 else 1
    x = draw_rows(draw, seed, n, count).to(dtype)
    alpha = torch.tensor([draw_alpha(draw) for _ in range(count)], dtype=torch.float64)[:, None]
    if draw.random() < 0.4:
        alpha = torch.full_like(alpha, draw_alpha(draw))
    grad = torch.randn(x.shape, generator=seed, dtype=torch.float64).to(dtype)
    if draw.random() < 0.3:
        grad = grad + 100.0  # what all share must cancel
    layout = draw.choice(["plain", "transposed", "every second", "expanded"])
    needs_alpha_grad = draw.random() < 0.6
    described = f"rows {number}: {dtype}, {count} x {n}, alpha {alpha.flatten().tolist()}, {layout}"

    def run(impl: Impl, kind: torch.dtype) -> list[Tensor]:
        given = x.to(kind)
        if layout == "transposed":
            given = given.mT.contiguous().mT
        elif layout == "every second":
            given = given.repeat_interleave(2, -1)[..., ::2]
        given, exponent = given.requires_grad_(), alpha.clone().requires_grad_(needs_alpha_grad)
        upstream = grad[..., :1].expand(grad.shape) if layout == "expanded" and n else grad
        weights = entmax(given, exponent, impl=impl)
        asked = [given, exponent] if needs_alpha_grad else [given]
        return [weights.detach(), *torch.autograd.grad(weights, asked, upstream.to(kind))]

    right = run("reference", torch.float64)
    answers = on_each(isas, lambda: run("cpu", dtype))
    if 0 in x.shape:
        assert all(a.shape == b.shape for ours in answers.values() for a, b in zip(ours, right, strict=True)), described
        return
    upstream = grad[..., :1].expand(grad.shape) if layout == "expanded" else grad
    bounds = Bounds(x.double(), alpha, right[0], upstream.double(), dtype)
    regular = x.double().amax(-1, keepdim=True).isfinite()
    # Rows with +inf need no solver: equal weights, rounded to the dtype, and what becomes of that rounding in a power.
    # Sums of n terms in float64 run one after the other.
    eps, tiny, double = torch.finfo(dtype).eps, SMALLEST_ROWS[dtype], torch.finfo(torch.float64).eps
    p, size = right[0].nan_to_num(0.0), upstream.double().abs().amax(-1, keepdim=True)
    slope, a = Bounds._slope(p, alpha - 1.0), Bounds._alpha_slope(p, alpha - 1.0).abs()
    in_order = 2.0 * n * double * slope * size
    # What a rounding of equal scores does to the sum is divided out. At alpha > 2 the base q = p^(alpha - 1) of a weight may
    # be so small that float64 does not hold it, in the kernel and in the reference alike.
    single = torch.finfo(torch.float32).eps
    divided = slope.sum(-1, keepdim=True).clamp(max=64.0) * single if dtype != torch.float64 else 0.0 * size
    blur = torch.where((alpha > 2.0) & (p > 0.0), 16.0 * double / p.clamp(min=1e-300) ** (alpha - 1.0), 0.0)
    blur = divided + blur + blur.amax(-1, keepdim=True)
    special = (
        8.0 * eps,
        blur * slope * size + (8.0 + 4.0 * (2.0 - alpha).abs()) * eps * slope * size,
        64.0 * eps * a.sum(-1, keepdim=True) * size,
    )
    regulars = (
        bounds.weights + blur * p,
        bounds.scores + in_order + 4.0 * blur * slope * size,
        bounds.alpha + (2.0 * n * double + 4.0 * blur.amax(-1, keepdim=True)) * a.sum(-1, keepdim=True) * size,
    )
    names = ("weights", "gradient to scores", "gradient to alpha")
    for isa, ours in answers.items():
        for what, actual, expected, bound, other in zip(names, ours, right, regulars, special, strict=False):
            irregular = torch.as_tensor(other, dtype=torch.float64) + in_order.sum(-1, keepdim=True)
            chosen = torch.where(regular, bound + eps * expected.abs(), irregular)
            compare(f"{isa}, {described}, {what}", actual, expected, chosen + tiny)
        total = ours[0].double().sum(-1, keepdim=True)
        off = torch.where(regular & (x > -INF).any(-1, keepdim=True), (total - 1.0).abs(), 0.0)
        allowed = torch.where(alpha > 2.0, 1e-3, 3e-6) + 2.0 * eps  # alpha > 2: as exact as float64 can hold the root
        if dtype in (torch.float32, torch.float64):
            fail_unless(off <= allowed, f"{isa}, {described}, sum", total, torch.ones_like(total), allowed)


# ---- attention -----------------------------------------------------------------------------------------------------------


class Problem:
    """One random attention: tensors, options, what may be attended to, and what the reference makes of it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.draw, self.seed = random.Random(number), torch.Generator().manual_seed(number)
        draw = self.draw
        dtype = draw.choice([torch.float32, torch.float32, torch.float32, torch.bfloat16, torch.float16])
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
        batch = draw.choice([1, 1, 1, 2]) if draw.random() < 0.98 else 0
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

    def _draw_alpha(self, batch: int) -> dict[str, Any]:
        draw, heads = self.draw, self.case.heads[0]
        if draw.random() < 0.1:
            self.case.alpha = "rela"
            return {"normalizer": "rela"}
        if draw.random() < 0.5:
            return {"alpha": draw_alpha(draw)}
        shape = draw.choice([(heads,), (batch, heads)])
        values = [draw_alpha(draw) for _ in range(math.prod(shape))]
        return {"alpha": torch.tensor(values, dtype=torch.float64).reshape(shape)}

    def allowed(self) -> Tensor:
        """(B, H, Lq, Lk): which keys a query may attend to."""
        queries, keys = self.case.lengths
        may = torch.ones(*self.q.shape[:3], keys, dtype=torch.bool)
        if "attn_mask" in self.how:
            may = may & self.how["attn_mask"]
        if "key_mask" in self.how:
            may = may & self.how["key_mask"][:, None, None, :]
        if "is_causal" in self.how:
            may = may & (torch.arange(keys) <= torch.arange(queries)[:, None] + self.how["causal_offset"])
        return may

    def run(self, impl: Impl, dtype: torch.dtype, q: Tensor, k: Tensor, v: Tensor) -> tuple[dict[str, Tensor], Attention]:
        """Output and gradients by name, and all that `attention` returns."""
        leaves = {name: t.to(dtype).detach().requires_grad_() for name, t in (("q", q), ("k", k), ("v", v))}
        how = dict(self.how)
        if isinstance(how.get("alpha"), Tensor):
            leaves["alpha"] = how["alpha"] = how["alpha"].detach().clone().requires_grad_()
        torch.manual_seed(5)  # dropout draws its seed from torch's generator
        named = [leaves[name] for name in ("q", "k", "v")]
        answer = attention(*named, **how, return_stats=True, return_support=impl == "reference", impl=impl)
        assert isinstance(answer, Attention)
        grads = torch.autograd.grad(answer.output, list(leaves.values()), self.grad.to(dtype), allow_unused=True)
        found = {"out": answer.output.detach()}
        found |= {name: torch.zeros_like(t) if g is None else g for (name, t), g in zip(leaves.items(), grads, strict=True)}
        return found, answer

    def spoiled(self) -> tuple[Tensor, Tensor]:
        """k and v with garbage in keys that no query may attend to."""
        group = self.case.heads[0] // self.case.heads[1]
        dead = ~self.allowed().unflatten(1, (-1, group)).any(2).any(2)  # (B, G, Lk)
        some = dead & (torch.rand(dead.shape, generator=self.seed) < 0.8)
        kinds = [self.draw.choice(GARBAGE) for _ in range(2)]
        return tuple(torch.where(some[..., None], kind, t) for kind, t in zip(kinds, (self.k, self.v), strict=True))  # type: ignore[return-value]


def check_attention(number: int, isas: list[str]) -> None:
    """One random call of `attention`: output, statistics and all gradients, with garbage behind the masks."""
    want = Problem(number)
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
    if number % 3 == 0:
        check_broken_rows(want, isas, right, tolerance)


def check_answer(
    what: str, want: Problem, ours: dict[str, Tensor], found: Attention, right: dict[str, Tensor], tolerance: Tolerance
) -> None:
    """Output and gradients within the tolerance, zeros in rows without keys, weights that sum to one."""
    eps, tiny = torch.finfo(want.case.dtype).eps, SMALLEST[want.case.dtype]
    for name, value in ours.items():
        assert value.shape == right[name].shape, what
        bound = getattr(tolerance, name)
        if name == "alpha":
            bound = bound.sum_to_size(value.shape) + 1e-6 * right[name].abs() + 1e-12
        else:
            bound = bound + eps * right[name].abs() + tiny
        compare(f"{what}, {name}", value, right[name], bound)
    dead = ~want.allowed().any(-1)
    assert found.stats is not None
    assert all((t[dead] == 0).all() for t in (ours["out"], ours["q"], found.stats.support_size)), f"{what}: a row without keys"
    if not want.case.dropout and want.case.alpha != "rela" and want.case.sizes[1]:
        total = ours["out"][..., -1].double()
        off = torch.where(dead, 0.0, (total - 1.0).abs())
        most = torch.as_tensor(want.how["alpha"], dtype=torch.float64).expand(total.shape[:2])[..., None]
        allowed = torch.where(most > 2.0, 1e-3, 1e-5) + 2.0 * eps
        fail_unless(off <= allowed, f"{what}, sum of the weights", total, torch.ones_like(total), allowed)


def check_broken_rows(want: Problem, isas: list[str], clean: dict[str, Tensor], tolerance: Tolerance) -> None:
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
            bound = bound.sum_to_size(value.shape) + 1e-12 if name == "alpha" else bound + tiny
            bound = bound + (eps + 1e-6) * torch.maximum(right[name].nan_to_num(0.0).abs(), clean[name].abs())
            compare(f"{isa}, {want}, {name} with broken rows", value, right[name], bound)


CHECKS = {"rows": check_rows, "attention": check_attention}
