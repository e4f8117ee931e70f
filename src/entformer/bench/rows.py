"""Benchmark of `entmax` on rows of scores against torch.softmax and the `entmax` package.

Scores are (1, 8 heads, rows, n), normally distributed times a scale; the larger the scale, the sparser the weights. "forward"
runs without autograd, "forward+backward" computes the gradient to the scores and, where alpha is learned, to alpha. Learned
alphas are no special value of any solver: 1.37, or 1.1 to 1.9 over the heads.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from entformer.bench.harness import (
    SEED,
    Measurement,
    Normalize,
    Report,
    entmax_package,
    forward,
    forward_backward,
    get_signature,
    measurements,
    threads,
    time_interleaved,
)
from entformer.kernels.entmax.api import entmax
from entformer.kernels.registry import resolve
from entformer.training.memory import keep_freed_memory

HEADS = 8
BASELINE = "torch.softmax"
LENGTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
ALPHAS = ("1", "1.5", "2", "learned", "per head")
PACKAGE = "entmax package "


def benchmark_rows(
    *, quick: bool = False, num_threads: int | None = None, progress: Callable[[str], None] = lambda _: None
) -> Report:
    """Runs the benchmark: a few minutes, or a few seconds if `quick`. From then on the process keeps freed memory."""
    lengths, scales, elements, rounds = ((64, 512), (1.0,), 2**17, 3) if quick else (LENGTHS, (1.0, 2.0), 2**22, 31)
    if resolve("auto", "cpu") != "cpu":  # the reference implementation is some hundred times slower
        elements, rounds = min(elements, 2**15), min(rounds, 3)
    keep_freed_memory()
    found: list[Measurement] = []
    with threads(num_threads):
        for scale in scales:
            for n in lengths:
                progress(f"n = {n}, scores x {scale:g}")
                found.extend(_measure(n, scale, elements, rounds))
        return Report(benchmark="rows", baseline=BASELINE, signature=get_signature(), measurements=tuple(found))


def _measure(n: int, scale: float, elements: int, rounds: int) -> Iterator[Measurement]:
    generator = torch.Generator(device="cpu").manual_seed(SEED + n)
    shape = (1, HEADS, max(1, elements // (n * HEADS)), n)
    scores = (torch.randn(shape, generator=generator) * scale).requires_grad_()
    grad = torch.randn(shape, generator=generator)
    functions: dict[str, tuple[Normalize, Any]] = {BASELINE: (lambda x, _: torch.softmax(x, -1), None)}
    functions |= {name: _ours(name) for name in ALPHAS}
    functions |= {PACKAGE + name: (function, functions[name][1]) for name, function in entmax_package().items()}
    limits = {name: min(3, rounds) for name in functions if name.startswith(PACKAGE)}
    details = {name: {"n": n, "scale": scale, "rows": HEADS * shape[2]} for name in functions}
    case = f"n = {n}" + (f", scores x {scale:g}" if scale != 1.0 else "")
    for direction in ("forward", "forward+backward"):
        work = {name: _work(function, alpha, scores, grad, direction) for name, (function, alpha) in functions.items()}
        seconds = time_interleaved(work, rounds=rounds, max_rounds=limits)
        yield from measurements(seconds, BASELINE, case, direction, details)


def _ours(name: str) -> tuple[Normalize, Any]:
    if name == "learned":
        return lambda scores, alpha: entmax(scores, alpha), torch.tensor(1.37, requires_grad=True)
    if name == "per head":
        return lambda scores, alpha: entmax(scores, alpha, alpha_dim=1), torch.linspace(1.1, 1.9, HEADS).requires_grad_()
    return lambda scores, alpha: entmax(scores, alpha), float(name)


def _work(function: Normalize, alpha: Any, scores: Tensor, grad: Tensor, direction: str) -> Callable[[], object]:
    if direction == "forward":
        return forward(lambda: function(scores, alpha))
    return forward_backward(lambda: function(scores, alpha), [scores, alpha] if isinstance(alpha, Tensor) else [scores], grad)
