"""Attention on a GPU against scaled_dot_product_attention with its flash backend and, where installed, the adasplash package.

Causal self-attention in bfloat16. A timed call ends when the device has finished. Scores are normal deviates, at two scales,
with their densities in the report: how fast sparse attention is depends on them.
"""

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module

import torch

from entformer.bench.attention import BASELINE, AttentionShape, Inputs, density, implementation
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
    q, k, v, grad = (torch.randn(tuple(shape), generator=generator).to(device, torch.bfloat16) for _ in range(4))
    q = q * scale
    leaves = [t.requires_grad_() for t in (q, k, v)]
    inputs = Inputs(q=q, k=k, v=v, grad=grad, key_mask=None, is_causal=True)
    functions = {name: implementation(name, inputs) for name in (BASELINE, *OURS)}
    if installed_version("adasplash"):
        package = import_module("adasplash")
        functions[ADASPLASH] = (lambda: package.adasplash(q, k, v, alpha=1.5, is_causal=True)), []
    case = f"{shape.batch}x{shape.heads}x{shape.length}x{shape.size} causal bf16, scale {scale:g}"
    about = {
        "gpu": torch.cuda.get_device_name(device),
        "triton": installed_version("triton"),
        **shape._asdict(),
        "scale": scale,
    }
    details = {name: about | ({"density": density(name, inputs)} if name in OURS else {}) for name in functions}
    once = {name: _finished(forward(function), device) for name, (function, _) in functions.items()}
    yield from measurements(time_interleaved(once, rounds=rounds), BASELINE, case, "forward", details)
    both = {
        name: _finished(forward_backward(function, [*leaves, *extra], grad), device)
        for name, (function, extra) in functions.items()
    }
    yield from measurements(time_interleaved(both, rounds=rounds), BASELINE, case, "forward+backward", details)


def _finished(function: Callable[[], object], device: str) -> Callable[[], object]:
    """The function, and the device's end of it."""

    def run() -> object:
        found = function()
        torch.cuda.synchronize(device)
        return found

    return run
