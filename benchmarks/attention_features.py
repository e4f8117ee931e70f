"""Attention's features and padding: time relative to PyTorch, and how peak memory grows with the length.

    python benchmarks/attention_features.py [--isa avx2] [--shape 1,8,2048,64] [--rounds 5] [--threads 1]

Forward and backward, learned alpha of 1.5, interleaved, median of the ratios, below 1 is faster. The peer is
scaled_dot_product_attention where it has the feature (a float mask, a boolean band, one call per packed sequence, a mask of
keys of which 40% are padding), else what one writes in PyTorch: scores, tanh or one more column, softmax, product. Memory: the
peak above the inputs at twice the length over that at the length, each in a new process (Linux): 2 is linear, 4 quadratic, as
is the gradient of a bias of pairs.
"""

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from attention_memory import PROC, status
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

import entformer as ef
from entformer.bench.harness import (
    forward_backward,
    get_signature,
    instruction_set,
    threads,
    time_interleaved,
)
from entformer.training.memory import keep_freed_memory

WINDOW, SEQUENCES, CAP = 128, 8, 20.0


class Inputs:
    def __init__(self, shape: tuple[int, ...]) -> None:
        torch.manual_seed(0)
        _, heads, length, _ = shape
        self.q, self.k, self.v = (torch.randn(shape, requires_grad=True) for _ in range(3))
        self.grad = torch.randn(shape)
        self.alpha = torch.full((heads,), 1.5, requires_grad=True)
        self.of_pair = torch.randn(1, heads, length, length, requires_grad=True)  # as T5 adds it
        self.of_key = torch.randn(1, heads, 1, length, requires_grad=True)
        self.sinks = torch.zeros(heads, requires_grad=True)
        self.band = (torch.arange(length)[:, None] - torch.arange(length)).abs() <= WINDOW
        self.real = (torch.arange(length) < 0.6 * length).expand(shape[0], length)  # keys that are no padding
        self.bounds = torch.linspace(0, length, SEQUENCES + 1).to(torch.int32)

    def scores(self) -> Tensor:
        size: int = self.q.shape[-1]
        return self.q @ self.k.mT / math.sqrt(size)

    def packed(self) -> Tensor:
        edges = self.bounds.tolist()
        parts = [slice(first, end) for first, end in pairwise(edges)]
        return torch.cat([sdpa(self.q[:, :, at], self.k[:, :, at], self.v[:, :, at]) for at in parts], 2)


def features(x: Inputs) -> dict[str, tuple[Callable[[], Tensor], Callable[[], Tensor], list[Tensor]]]:
    """By name: ours, the peer, and what has a gradient beside query, key and value in both."""

    def ours(**how: Any) -> Callable[[], Any]:
        return lambda: ef.attention(x.q, x.k, x.v, alpha=x.alpha, **how)

    def capped() -> Tensor:
        return torch.softmax(CAP * torch.tanh(x.scores() / CAP), -1) @ x.v

    def with_sinks() -> Tensor:
        batch, heads, length, _ = x.q.shape
        scores = torch.cat([x.scores(), x.sinks[:, None, None].expand(batch, heads, length, 1)], -1)
        return torch.softmax(scores, -1)[..., :-1] @ x.v

    return {
        "bias of pairs": (ours(attn_mask=x.of_pair), lambda: sdpa(x.q, x.k, x.v, attn_mask=x.of_pair), [x.of_pair]),
        "bias of keys": (ours(attn_mask=x.of_key), lambda: sdpa(x.q, x.k, x.v, attn_mask=x.of_key), [x.of_key]),
        "window": (ours(window=(WINDOW, WINDOW)), lambda: sdpa(x.q, x.k, x.v, attn_mask=x.band), []),
        "softcap": (ours(softcap=CAP), capped, []),
        "sinks": (ours(sinks=x.sinks), with_sinks, [x.sinks]),
        "padding": (ours(key_mask=x.real), lambda: sdpa(x.q, x.k, x.v, attn_mask=x.real[:, None, None]), []),
        "packed": (ours(cu_seqlens_q=x.bounds, cu_seqlens_k=x.bounds), x.packed, []),
    }


def peak_memory(name: str, shape: tuple[int, ...], isa: str | None) -> float:
    """The peak of our forward and backward pass above the inputs in MiB, in a new process."""
    child = [sys.executable, __file__, "--child", json.dumps([name, shape, isa])]
    return float(subprocess.run(child, capture_output=True, text=True, check=True).stdout)


def measure_in_this_process(name: str, shape: list[int], isa: str | None) -> float:
    def work(length: int) -> Callable[[], object]:
        x = Inputs((*shape[:2], length, shape[3]))
        ours, _, more = features(x)[name]
        return forward_backward(ours, [x.q, x.k, x.v, x.alpha, *more], x.grad)

    with instruction_set(isa), threads(1):
        run = work(shape[2])
        work(16)()
        (PROC / "clear_refs").write_text("5")  # resets the peak to the resident memory
        before = status("VmRSS")
        results = run()  # kept until the peak is read
        peak = status("VmHWM")
        del results
    return (peak - before) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", default=None)
    parser.add_argument("--shape", default="1,8,2048,64", help="batch, heads, length, head size")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(measure_in_this_process(*json.loads(given.child)))
        return
    keep_freed_memory()
    batch, heads, length, size = map(int, given.shape.split(","))
    x = Inputs((batch, heads, length, size))
    with instruction_set(given.isa), threads(given.threads):
        for name, (ours, peer, more) in features(x).items():
            inputs = [x.q, x.k, x.v]
            functions = {
                "ours": forward_backward(ours, [*inputs, x.alpha, *more], x.grad),
                "peer": forward_backward(peer, [*inputs, *more], x.grad),
            }
            seconds = time_interleaved(functions, rounds=given.rounds, warmup=1)
            ratio = median(a / b for a, b in zip(seconds["ours"], seconds["peer"], strict=True))
            short, long = (peak_memory(name, (batch, heads, n, size), given.isa) for n in (length, 2 * length))
            print(f"{name}: time {ratio:.2f}, memory {short:.0f} MiB, x{long / short:.2f} at twice the length", flush=True)
        print(get_signature())


if __name__ == "__main__":
    main()
