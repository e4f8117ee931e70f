"""alpha-entmax of rows by Triton kernels: weights, and gradients of scores and alpha from the weights.

A program handles a few rows. Up to 4096 scores a row stays in registers; longer ones are read again by every pass. alpha may be
any number, one per row, below 1 too.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from entformer.kernels.entmax.triton.launches import launch
from entformer.kernels.entmax.triton.maths import INF, LN2, LOG2E

MOST_STEPS = tl.constexpr(64)
IN_REGISTERS = 4096
TILE = 4096  # elements per program
MOST_ROWS = 8  # a program holds a dozen numbers per row: more of them would be spilled
OPTIONS = {"num_warps": 4}


@triton.jit
def _power(x, e, inverse):
    """exp_e(x) and its derivative for x <= 0 and any e; `inverse` is 1/e, some large number at e = 0."""
    y = e * tl.maximum(x, -1.0e30)
    t = 1.0 + y
    inside = (t > 0.0) & (x > -INF)
    z = tl.where(tl.abs(y) < 0.25, y, 0.0)
    # Q(y) = (y - log1p(y))/y^2 for |y| <= 1/4: Chebyshev interpolation, error 2e-10
    q = z * -0.10550989210605621 + 0.11426501721143723
    q = q * z - 0.11016862094402313
    q = q * z + 0.12419631332159042
    q = q * z - 0.1428833305835724
    q = q * z + 0.16668488085269928
    q = q * z - 0.19999970495700836
    q = q * z + 0.24999985098838806
    q = q * z - 0.3333333432674408
    q = q * z + 0.5
    near = tl.maximum(x, -1.0e30) * (1.0 - z * q) * LOG2E
    far = tl.log2(tl.where(inside, t, 1.0)) * inverse
    p = tl.where(inside, tl.exp2(tl.where(tl.abs(y) < 0.25, near, far)), 0.0)
    return p, p / tl.where(inside, t, 1.0)


@triton.jit
def _deformed_log(log_value, e):
    """(v^e - 1)/e for v = exp(log_value)."""
    z = e * log_value
    near = log_value * (1.0 + z * (0.5 + z * (0.16666667 + z * 0.041666668)))
    return tl.where(tl.abs(z) < 0.05, near, (tl.exp2(z * LOG2E) - 1.0) / tl.where(e == 0.0, 1.0, e))


@triton.jit
def _scores(ptr, there, columns, n, shared):
    """A block of scores in float32, -inf beyond the row; in a row with +inf only these count, as zeros."""
    x = tl.load(ptr + columns[None, :], mask=there[:, None] & (columns < n)[None, :], other=-INF).to(tl.float32)
    return tl.where(shared[:, None], tl.where(x == INF, 0.0, -INF), x)


@triton.jit
def weights(scores, alpha, out, rows, n, R: tl.constexpr, BN: tl.constexpr, WHOLE: tl.constexpr):
    """Writes entmax of R rows; WHOLE: n <= BN."""
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    there = row < rows
    e = (tl.load(alpha + row, mask=there, other=1.0) - 1.0).to(tl.float32)
    inverse = 1.0 / tl.where(tl.abs(e) < 1.0e-30, 1.0e-30, e)
    base = scores + (row * n)[:, None]
    shared = row < 0
    columns = tl.arange(0, BN)
    top = tl.full([R], -INF, tl.float32)
    broken = tl.where(e == e, 0, 1)
    for start in range(0, n, BN):
        x = _scores(base, there, start + columns, n, shared)
        top = tl.maximum(top, tl.max(x, 1))
        broken = tl.maximum(broken, tl.max(tl.where(x == x, 0, 1), 1))
    shared = top == INF
    top = tl.where(tl.abs(top) < INF, top, 0.0)
    kept = _scores(base, there, columns, n, shared)
    count = tl.zeros([R], tl.float32)
    ties = tl.zeros([R], tl.float32)
    for start in range(0, n, BN):
        x = kept if WHOLE else _scores(base, there, start + columns, n, shared)
        count += tl.sum(tl.where(x > -INF, 1.0, 0.0), 1)
        ties += tl.sum(tl.where(x == top[:, None], 1.0, 0.0), 1)

    below = tl.zeros([R], tl.float32)
    above = -_deformed_log(-tl.log2(tl.maximum(count, 1.0)) * LN2, e)
    lam, best = below, below
    best_gap = tl.full([R], INF, tl.float32)
    last_gap = best_gap
    stale = tl.zeros([R], tl.int32)
    steps = 0
    unsettled = tl.max(tl.where((count > 0.0) & (broken == 0), 1, 0), 0)
    while (unsettled > 0) & (steps < MOST_STEPS):
        total = tl.zeros([R], tl.float32)
        slope = tl.zeros([R], tl.float32)
        for start in range(0, n, BN):
            x = kept if WHOLE else _scores(base, there, start + columns, n, shared)
            p, w = _power(x - top[:, None] - lam[:, None], e[:, None], inverse[:, None])
            total += tl.sum(p, 1)
            slope += tl.sum(w, 1)
        gap = total - 1.0
        better = tl.abs(gap) < best_gap
        best = tl.where(better, lam, best)
        best_gap = tl.where(better, tl.abs(gap), best_gap)
        stale = tl.where(better, 0, stale + 1)
        below = tl.where(gap > 0.0, lam, below)
        above = tl.where(gap > 0.0, above, lam)
        log_total = tl.log2(tl.maximum(total, 1e-37)) * LN2
        new = lam - total * _deformed_log(-log_total, e) / tl.where(slope > 0.0, slope, 1.0)
        halve = (new < below) | (new > above) | (slope == 0.0) | ((e > 1.0) & (tl.abs(gap) > 0.5 * last_gap))
        lam = tl.where(halve, 0.5 * (below + above), new)
        last_gap = tl.abs(gap)
        done = (tl.abs(gap) < 2.0e-7) | (stale >= tl.where(e <= 1.0, 2, 24)) | (above - below < 1e-7 * tl.abs(lam))
        unsettled = tl.max(tl.where((count > 0.0) & (broken == 0) & (done == 0), 1, 0), 0)
        steps += 1

    total = tl.zeros([R], tl.float32)
    for start in range(0, n, BN):
        x = kept if WHOLE else _scores(base, there, start + columns, n, shared)
        p, _ = _power(x - top[:, None] - best[:, None], e[:, None], inverse[:, None])
        total += tl.sum(p, 1)
    for start in range(0, n, BN):
        x = kept if WHOLE else _scores(base, there, start + columns, n, shared)
        p, _ = _power(x - top[:, None] - best[:, None], e[:, None], inverse[:, None])
        # Of many equal scores at alpha > 2, 1 - e c is beyond float32, and nothing may be left: then the best share.
        alike = tl.where(x == top[:, None], 1.0, 0.0) / tl.maximum(ties, 1.0)[:, None]
        p = tl.where((total > 0.0)[:, None], p / tl.where(total > 0.0, total, 1.0)[:, None], alike)
        p = tl.where((broken > 0)[:, None], float("nan"), p)
        inside = there[:, None] & (start + columns < n)[None, :]
        tl.store(out + (row * n)[:, None] + start + columns[None, :], p.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _parts(grad, output, row, there, columns, n, e):
    """Weights, gradients of weights on the support, ln p and w = p^(1-e)."""
    inside = there[:, None] & (columns < n)[None, :]
    at = (row * n)[:, None] + columns[None, :]
    p = tl.load(output + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    held = p != 0.0
    log_p = tl.log2(tl.where(held, p, 1.0)) * LN2
    w = tl.where(held, tl.exp2(log_p * (1.0 - e)[:, None] * LOG2E), 0.0)
    return p, tl.where(held, g, 0.0), log_p, w


@triton.jit
def gradients(grad, output, alpha, grad_scores, grad_alpha, rows, n, R: tl.constexpr, BN: tl.constexpr):
    """Writes dS = w (g - delta) and, where grad_alpha is not None, sum a (g - delta), a = -p (ln p)^2 psi(-e ln p)."""
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    there = row < rows
    e = (tl.load(alpha + row, mask=there, other=1.0) - 1.0).to(tl.float32)
    columns = tl.arange(0, BN)
    total = tl.zeros([R], tl.float32)
    product = tl.zeros([R], tl.float32)
    for start in range(0, n, BN):
        p, g, log_p, w = _parts(grad, output, row, there, start + columns, n, e)
        total += tl.sum(w, 1)
        product += tl.sum(w * g, 1)
    delta = product / tl.where(total == 0.0, 1.0, total)
    of_alpha = tl.zeros([R], tl.float32)
    for start in range(0, n, BN):
        p, g, log_p, w = _parts(grad, output, row, there, start + columns, n, e)
        found = tl.where(p != 0.0, w * (g - delta[:, None]), 0.0)
        inside = there[:, None] & (start + columns < n)[None, :]
        at = (row * n)[:, None] + start + columns[None, :]
        tl.store(grad_scores + at, found.to(grad_scores.dtype.element_ty), mask=inside)
        if grad_alpha is not None:
            t = -e[:, None] * log_p
            z = tl.where(tl.abs(t) < 0.5, t, 0.0)
            series = z * 2.48015873e-05 + 1.98412698e-04  # 1/8!, 1/7!, ...: psi(t) = 1/2! + t/3! + ...
            series = series * z + 1.38888889e-03
            series = series * z + 8.33333333e-03
            series = series * z + 4.16666667e-02
            series = series * z + 0.166666667
            series = series * z + 0.5
            far = tl.where(tl.abs(t) < 0.5, 1.0, t)
            psi = tl.where(tl.abs(t) < 0.5, series, (tl.exp2(far * LOG2E) - 1.0 - far) / (far * far))
            of_alpha += tl.sum(-p * log_p * log_p * psi * tl.where(p != 0.0, g - delta[:, None], 0.0), 1)
    if grad_alpha is not None:
        tl.store(grad_alpha + row, of_alpha.to(tl.float64), mask=there)


def _tiles(n: int) -> tuple[int, int]:
    """Rows and columns of a program."""
    columns = min(IN_REGISTERS, triton.next_power_of_2(max(n, 1)))
    return max(1, min(MOST_ROWS, TILE // columns)), columns


def entmax(scores: Tensor, alpha: Tensor) -> Tensor:
    """Weights (..., n) of scores (..., n); alpha (...) float64."""
    n = scores.shape[-1]
    source = scores.contiguous()
    out = torch.empty_like(source)
    count = source.numel() // max(n, 1)
    if source.numel() == 0:
        return out
    rows, columns = _tiles(n)
    with torch.cuda.device_of(source):
        inputs = (source, alpha.reshape(-1), out, count, n)
        launch(weights, triton.cdiv(count, rows), *inputs, options=OPTIONS, R=rows, BN=columns, WHOLE=n <= columns)
    return out


def entmax_backward(grad_output: Tensor, output: Tensor, alpha: Tensor, needs_alpha_grad: bool) -> tuple[Tensor, Tensor]:
    """Gradients of scores (..., n), and of alpha (...) or (0,)."""
    n = output.shape[-1]
    grad, output = grad_output.to(output.dtype).contiguous(), output.contiguous()
    grad_scores = torch.empty_like(output)
    shape = output.shape[:-1] if needs_alpha_grad else (0,)
    if output.numel() == 0:
        return grad_scores, torch.zeros(shape, dtype=torch.float64, device=output.device)
    grad_alpha = torch.empty(shape, dtype=torch.float64, device=output.device)
    count = output.numel() // n
    rows, columns = _tiles(n)
    with torch.cuda.device_of(output):
        inputs = (grad, output, alpha.reshape(-1), grad_scores, grad_alpha if needs_alpha_grad else None, count, n)
        launch(gradients, triton.cdiv(count, rows), *inputs, options=OPTIONS, R=rows, BN=columns)
    return grad_scores, grad_alpha
