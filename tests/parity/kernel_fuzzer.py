"""Random problems for the C++ kernels, against the float64 reference: weights, outputs and every gradient.

In: a seed. Out: nothing, or an AssertionError that names the seed and the problem. Shapes (odd and zero sizes), strides,
dtypes, alphas in [1, 4], ties, extreme scores, masks that hide NaN and infinity, causal offsets, ALiBi, shared key heads,
dropout, biases, windows, soft-caps, sinks, packed sequences and sigmoid are drawn independently. Tolerances are those of
test_entmax.py and attention_tolerance.py. By hand, for as many cases as you like:

    python benchmarks/fuzz_kernels.py --cases 20000 --isa avx2,portable --seed 1
"""

import random

import torch
from torch import Tensor

from entformer.kernels.entmax.api import entmax
from entformer.kernels.registry import Impl

from .attention_fuzzer import check_attention
from .fuzzing import INF, LENGTHS, alpha_slope, compare, draw_alpha, fail_unless, on_each
from .test_entmax import SMALLEST as SMALLEST_ROWS
from .test_entmax import Bounds


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
            value = {"masked": -INF, "inf": INF, "nan": float("nan")}[kind]
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
    # Sums of n terms in float64 run one after the other. The reference's gradient to alpha, differentiated through its
    # solver, is off by up to 40 roundings of its terms, the closed form by one (case 920442: 2e-13, 4e-15; 0 is right).
    eps, tiny, double = torch.finfo(dtype).eps, SMALLEST_ROWS[dtype], torch.finfo(torch.float64).eps
    p, size = right[0].nan_to_num(0.0), upstream.double().abs().amax(-1, keepdim=True)
    slope, a = Bounds._slope(p, alpha - 1.0), alpha_slope(p, alpha - 1.0).abs()
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
        bounds.alpha + ((2.0 * n + 64.0) * double + 4.0 * blur.amax(-1, keepdim=True)) * a.sum(-1, keepdim=True) * size,
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


CHECKS = {"rows": check_rows, "attention": check_attention}
