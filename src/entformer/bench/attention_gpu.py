"""Attention on a GPU against scaled_dot_product_attention with its flash backend and, where installed, the adasplash package.

Causal self-attention in bfloat16. A timed call ends when the device has finished. Scores are normal deviates, at two scales,
with their densities in the report: how fast sparse attention is depends on them.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from entformer.bench.attention import BASELINE, AttentionShape
from entformer.bench.harness import (
    SEED,
    Measurement,
    Report,
    forward,
    forward_backward,
    get_signature,
    installed_version,
    measurements,
    time_interleaved,
)
from entformer.errors import ImplUnavailable
from entformer.kernels.attention.api import Attention, attention

SHAPES = tuple(AttentionShape(b, 16, n, d) for d in (64, 128) for b, n in ((8, 1024), (4, 4096), (1, 16384)))
QUICK_SHAPES = (AttentionShape(4, 8, 1024, 64),)
ADASPLASH = "adasplash 1.5"
OURS = ("1.5", "2", "learned", "softmax")


def benchmark_attention_gpu(
    shapes: Sequence[AttentionShape] | None = None,
    *,
    device: str = "cuda",
    quick: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Report:
    """Runs the benchmark on `device`; the report's signature names the GPU and the versions.

    Raises:
        ImplUnavailable: where torch has no such device.
    """
    if not torch.cuda.is_available():
        raise ImplUnavailable(f"--device {device}: torch {torch.__version__} sees no GPU on this machine.")
    found: list[Measurement] = []
    cases = [(shape, scale) for shape in shapes or (QUICK_SHAPES if quick else SHAPES) for scale in (1.0, 4.0)]
    for number, (shape, scale) in enumerate(cases):
        progress(f"{number + 1} of {len(cases)}: {shape}, scale {scale:g}")
        found.extend(measure(shape, scale, device, rounds=5 if quick else 21))
    return Report(benchmark="attention-gpu", baseline=BASELINE, signature=get_signature(), measurements=tuple(found))


def measure(shape: AttentionShape, scale: float, device: str, rounds: int) -> Iterator[Measurement]:
    """Yields the measurements of one shape."""
    generator = torch.Generator(device="cpu").manual_seed(SEED)
    size = (shape.batch, shape.heads, shape.length, shape.size)
    q, k, v, grad = (torch.randn(size, generator=generator).to(device, torch.bfloat16) for _ in range(4))
    q = q * scale
    leaves = [t.requires_grad_() for t in (q, k, v)]
    alpha = torch.full((shape.heads,), 1.49, device=device, requires_grad=True)
    functions = implementations(leaves, alpha)
    case = f"{shape.batch}x{shape.heads}x{shape.length}x{shape.size} causal bf16, scale {scale:g}"
    about = {"gpu": torch.cuda.get_device_name(device), "triton": installed_version("triton")} | vars_of(shape, scale)
    details = {name: about | {"density": density(name, leaves, alpha)} for name in functions if name in OURS}
    details |= {name: about for name in functions if name not in details}
    once = {name: _finished(forward(function), device) for name, function in functions.items()}
    yield from measurements(time_interleaved(once, rounds=rounds), BASELINE, case, "forward", details)
    both = {}
    for name, function in functions.items():
        inputs = [*leaves, alpha] if name == "learned" else leaves
        both[name] = _finished(forward_backward(function, inputs, grad), device)
    yield from measurements(time_interleaved(both, rounds=rounds), BASELINE, case, "forward+backward", details)


def vars_of(shape: AttentionShape, scale: float) -> dict[str, Any]:
    """The sizes of a case."""
    return {"batch": shape.batch, "heads": shape.heads, "length": shape.length, "size": shape.size, "scale": scale}


def implementations(leaves: list[Tensor], alpha: Tensor) -> dict[str, Callable[[], Tensor]]:
    """The functions to time, by name."""
    q, k, v = leaves
    found: dict[str, Callable[[], Tensor]] = {BASELINE: lambda: scaled_dot_product_attention(q, k, v, is_causal=True)}
    for name in OURS:
        found[name] = lambda name=name: _ours(name, leaves, alpha).output  # type: ignore[misc]
    if installed_version("adasplash"):
        package = import_module("adasplash")
        found[ADASPLASH] = lambda: package.adasplash(q, k, v, alpha=1.5, is_causal=True)
    return found


def density(name: str, leaves: list[Tensor], alpha: Tensor) -> float:
    """The fraction of allowed weights that are not zero, counted by the kernels."""
    with torch.no_grad():
        stats = _ours(name, leaves, alpha, return_stats=True).stats
    batch, heads, length, _ = leaves[0].shape
    return math.nan if stats is None else float(stats.support_size.sum()) / (batch * heads * length * (length + 1) / 2)


def _ours(name: str, leaves: list[Tensor], alpha: Tensor, *, return_stats: bool = False) -> Attention:
    number: float | Tensor = alpha if name == "learned" else 1.0 if name == "softmax" else float(name)
    q, k, v = leaves
    out = attention(q, k, v, is_causal=True, alpha=number, return_stats=return_stats)
    return out if isinstance(out, Attention) else Attention(out, None, None)


def _finished(function: Callable[[], object], device: str) -> Callable[[], object]:
    """The function, and the device's end of it."""

    def run() -> object:
        found = function()
        torch.cuda.synchronize(device)
        return found

    return run
