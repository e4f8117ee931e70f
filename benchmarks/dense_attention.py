"""Attention with few zeros, relative to SDPA: forward and backward, alphas near 1, scores of several scales.

    python benchmarks/dense_attention.py [--isa avx2] [--shapes "2,8,1024,32;4,8,512,64"] [--scales 0.1,1] [--rounds 3]
        [--causal] [--threads 2] [--dtype bfloat16]

Interleaved, median of the ratios, below 1 is faster; CPU time of the thread if there is one, else wall time. With --isa avx2
give SDPA the same instructions: ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2.
"""

import argparse
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import entformer as ef
from entformer.bench.harness import (
    forward_backward,
    get_signature,
    instruction_set,
    threads,
    time_interleaved,
)
from entformer.training.memory import keep_freed_memory

BASELINE = "SDPA"
NAMES = (BASELINE, "1", "1.01", "1.1", "learned 1", "learned 1.1", "learned 1.3", "learned 1.49", "spread", "1.5")


def implementation(name: str, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Callable[[], Any], list[Tensor]]:
    if name == BASELINE:
        return lambda: scaled_dot_product_attention(q, k, v, is_causal=causal), []
    if name[0].isdigit():
        return lambda: ef.attention(q, k, v, is_causal=causal, alpha=float(name)), []
    heads = q.shape[1]
    alpha = torch.linspace(1.1, 1.9, heads) if name == "spread" else torch.full((heads,), float(name.split()[1]))
    alpha.requires_grad_()
    return lambda: ef.attention(q, k, v, is_causal=causal, alpha=alpha), [alpha]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", default=None)
    parser.add_argument(
        "--shapes", default="2,8,1024,32;4,8,512,64;1,8,2048,64;1,2,8192,64", help="batch, heads, length, head size"
    )
    parser.add_argument("--scales", default="0.1,1", help="standard deviations of the scores")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    given = parser.parse_args()
    keep_freed_memory()
    with instruction_set(given.isa), threads(given.threads):
        print("shape, scale:", ", ".join(NAMES[1:]))
        for shape in given.shapes.split(";"):
            for scale in map(float, given.scales.split(",")):
                torch.manual_seed(0)
                q, k, v, grad = (torch.randn(*map(int, shape.split(","))) for _ in range(4))
                q *= scale
                q, k, v, grad = (t.to(getattr(torch, given.dtype)) for t in (q, k, v, grad))
                inputs = [t.requires_grad_() for t in (q, k, v)]
                functions = {}
                for name in NAMES:
                    function, more = implementation(name, q, k, v, given.causal)
                    functions[name] = forward_backward(function, [*inputs, *more], grad)
                seconds = time_interleaved(functions, rounds=given.rounds, warmup=1)
                ratios = (median(a / b for a, b in zip(seconds[n], seconds[BASELINE], strict=True)) for n in NAMES[1:])
                print(f"{shape}, {scale:g}:", ", ".join(f"{ratio:.2f}" for ratio in ratios), flush=True)
        print(get_signature())


if __name__ == "__main__":
    main()
