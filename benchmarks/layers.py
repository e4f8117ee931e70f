"""Time of layers that are written again for the CPU, relative to torch's own composition: forward and backward.

    python benchmarks/layers.py [--keep-memory]

RMSNorm, dropout, linear maps, the gate of the feed-forward layer, and its two products in place of one. One thread, its CPU
time, interleaved, median (quartiles) of the ratios; below 1 is faster than torch. --keep-memory makes malloc keep what is
freed, as `entformer train` does.
"""

import argparse
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from entformer.bench.harness import forward_backward, get_signature, measurements, threads, time_interleaved
from entformer.nn.dropout import Dropout
from entformer.nn.gelu import gated_gelu
from entformer.nn.layers import GatedFeedForward
from entformer.nn.linear import Linear
from entformer.nn.rms_norm import RMSNorm
from entformer.training.memory import keep_freed_memory

SHAPES = ((4096, 192), (64, 192))  # tokens, width
ROUNDS = 61


def compare(name: str, ours: Callable[[], Tensor], theirs: Callable[[], Tensor], inputs: Sequence[Tensor]) -> None:
    grad = torch.randn_like(ours())
    functions = {"torch": forward_backward(theirs, list(inputs), grad), "ours": forward_backward(ours, list(inputs), grad)}
    for m in measurements(time_interleaved(functions, rounds=ROUNDS), "torch", name, "forward+backward", {}):
        print(
            f"{name}: {m.ratio:.2f} ({m.ratio_low:.2f} to {m.ratio_high:.2f}), {m.ms:.2f} ms instead of {m.baseline_ms:.2f} ms"
        )


def one_product(layer: GatedFeedForward, x: Tensor) -> Tensor:
    found: Tensor = layer.contract(gated_gelu(*layer.expand(x).chunk(2, -1)))
    return found


def compare_linear(tokens: int, inputs: int, outputs: int) -> None:
    x, layer = torch.randn(tokens, inputs, requires_grad=True), Linear(inputs, outputs)
    name = f"linear, {tokens} x {inputs} to {outputs}"
    compare(name, lambda: layer(x), lambda: F.linear(x, layer.weight, layer.bias), [x, *layer.parameters()])


def compare_layers(tokens: int, width: int) -> None:
    x = torch.randn(tokens, width, requires_grad=True)
    gate, up = (torch.randn(tokens, 512, requires_grad=True) for _ in range(2))
    norm, torchs = RMSNorm(width), nn.RMSNorm(width)
    dropout, feed_forward = Dropout(0.1), GatedFeedForward(width, 512)
    size = f"{tokens} x {width}"
    compare(f"RMSNorm, {size}", lambda: norm(x), lambda: torchs(x), [x])
    compare(f"dropout, {size}", lambda: dropout(x), lambda: F.dropout(x, 0.1), [x])
    gelu = f"gelu(x) * y, {tokens} x 512"
    compare(gelu, lambda: gated_gelu(gate, up), lambda: F.gelu(gate, approximate="tanh") * up, [gate, up])
    for inputs, outputs in ((width, width), (width, 512), (512, width)):
        compare_linear(tokens, inputs, outputs)
    weights = [x, *feed_forward.parameters()]
    compare(f"two products, {size}", lambda: feed_forward(x), lambda: one_product(feed_forward, x), weights)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep-memory", action="store_true")
    if parser.parse_args().keep_memory:
        keep_freed_memory()
    with threads(1):
        for tokens, width in SHAPES:
            compare_layers(tokens, width)
        print(get_signature())


if __name__ == "__main__":
    main()
