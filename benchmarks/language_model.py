"""Speed of the decoder-only model with learned alphas against a GPT of the same size with SDPA.

    python benchmarks/language_model.py [--run RUN] [--threads 1] [--quick]

The GPT is written as in nanoGPT: LayerNorm before each sublayer, GELU, learned positions, one tied embedding, cross entropy of
all scores; its decoder has a preallocated cache. Ours has NAPE positions, RMSNorm and a gated feed-forward layer; hidden sizes
are such that both have the same number of parameters. Both train with the same optimizer on the same tokens.

`--only swap` measures the GPT with `ef.attention` and learned alphas in place of SDPA, and nothing else changed: the model that
nanoGPT has for a CPU (4 layers, 4 heads of 32, 65 characters, 12 rows). Initial weights give nearly equal scores, hence few
zeros.

--run takes sizes, weights and text from a trained language model; without it weights are initial and tokens random. Times are
CPU seconds of the thread if there is one, else of the clock. Decoding: time per token of the whole model at a context, and what
of it grew since an empty context, which is the attention.
"""

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import entformer as ef
from entformer.bench.harness import SEED, get_signature, measurements, threads, time_interleaved
from entformer.models.lm import CausalLM
from entformer.models.lm_config import LMAttentionConfig, LMConfig
from entformer.training.memory import keep_freed_memory

OURS, BASELINE = "learned alpha", "GPT, SDPA"
SIZES: dict[str, Any] = {"vocab_size": 4000, "layers": 6, "heads": 8, "width": 192, "hidden": 512}  # of the recipes lm-books-*
ROUND = 16  # tokens decoded per round


class Block(nn.Module):
    """Attention and MLP of a GPT."""

    def __init__(self, width: int, heads: int, hidden: int, learned_alpha: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.alpha = nn.Parameter(1.0 + torch.rand(heads)) if learned_alpha else None
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv, self.project = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.expand, self.contract = nn.Linear(width, hidden, bias=False), nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, cache: tuple[Tensor, Tensor] | None = None, past: int = 0) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        end = past + x.shape[1]
        if cache is not None:
            for buffer, new in zip(cache, (k, v), strict=True):
                buffer[:, :, past:end] = new
            k, v = cache[0][:, :, :end], cache[1][:, :, :end]
        is_causal = past == 0 and x.shape[1] > 1
        if self.alpha is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        else:
            y = cast(Tensor, ef.attention(q, k, v, is_causal=is_causal, alpha=self.alpha))
        x = x + self.project(y.transpose(1, 2).flatten(2))
        out: Tensor = x + self.contract(F.gelu(self.expand(self.norm2(x))))
        return out


class GPT(nn.Module):
    """A decoder-only model as in nanoGPT."""

    def __init__(self, config: LMConfig, longest: int, learned_alpha: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.positions = nn.Embedding(longest, config.width)
        hidden = 3 * config.hidden // 2  # two matrices, not three
        self.blocks = nn.ModuleList(Block(config.width, config.heads, hidden, learned_alpha) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, bias=False)
        self.output = nn.Linear(config.width, config.vocab_size, bias=False)
        if config.tied_output:
            self.output.weight = self.embedding.weight
        self.heads, self.size = config.heads, config.width // config.heads
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, 0.0, 0.02)

    def forward(self, ids: Tensor, caches: list[tuple[Tensor, Tensor]] | None = None, past: int = 0) -> Tensor:
        x = self.embedding(ids) + self.positions(torch.arange(past, past + ids.shape[1]))
        for number, block in enumerate(self.blocks):
            x = block(x, None if caches is None else caches[number], past)
        out: Tensor = self.norm(x)
        return out

    def loss(self, ids: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.output(self(ids)).flatten(0, 1), labels.flatten())

    def empty_caches(self, length: int) -> list[tuple[Tensor, Tensor]]:
        return [tuple(torch.zeros(1, self.heads, length, self.size) for _ in range(2)) for _ in self.blocks]  # type: ignore[misc]


def training_step(model: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], object]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure_training(ours: CausalLM, text: Tensor, length: int, rows: int, rounds: int) -> None:
    ids = text[: rows * length].view(rows, length)
    labels = text[1 : rows * length + 1].view(rows, length)
    gpt = GPT(ours.config, length)
    steps = {
        BASELINE: training_step(gpt, lambda: gpt.loss(ids, labels)),
        OURS: training_step(ours, lambda: ours.loss(ids, labels).loss / labels.numel()),
    }
    print_training(f"training, {rows} x {length}", {BASELINE: gpt, OURS: ours}, steps, labels.numel(), rounds)


def measure_swap(length: int, rows: int, rounds: int) -> None:
    """nanoGPT's model for a CPU with SDPA, and with learned alphas in its place."""
    config = LMConfig(vocab_size=65, layers=4, heads=4, width=128, hidden=1024 // 3, tied_output=True)
    text = torch.randint(config.vocab_size, (rows * length + 1,))
    ids, labels = text[:-1].view(rows, length), text[1:].view(rows, length)
    models = {BASELINE: GPT(config, length), OURS: GPT(config, length, learned_alpha=True)}
    steps = {name: training_step(model, partial(model.loss, ids, labels)) for name, model in models.items()}
    print_training(f"GPT with learned alphas, {rows} x {length}", models, steps, labels.numel(), rounds)


def print_training(
    title: str, models: Mapping[str, nn.Module], steps: Mapping[str, Callable[[], object]], tokens: int, rounds: int
) -> None:
    """Measures the training steps of two models; prints the speed of ours over that of the baseline."""
    seconds = time_interleaved(steps, rounds=rounds, warmup=2)
    for m in measurements(seconds, OURS, title, "step", {}):  # time of the gpt / ours: our speed / the gpt's
        print(f"{title}: {m.ratio:.2f} ({m.ratio_low:.2f} to {m.ratio_high:.2f}) of the tokens/s of the GPT")
    for name, own in seconds.items():
        parameters = sum(p.numel() for p in models[name].parameters())
        print(f"    {name}: {tokens / median(own):,.0f} tokens/s, {parameters:,} parameters")


def measure_decoding(ours: CausalLM, text: Tensor, contexts: list[int], rounds: int) -> None:
    longest = max(contexts) + ROUND
    gpt = GPT(ours.config, longest).eval()
    ours.eval()
    tokens = text[-ROUND:].view(ROUND, 1, 1)
    steps: dict[str, Callable[[], object]] = {}

    def add(context: int) -> None:
        state, caches = ours.start(), gpt.empty_caches(context + ROUND)
        for at in range(0, context, 2048):
            ours.step(text[None, at : min(at + 2048, context)], state)
        mark = state.mark()

        def decode_ours() -> None:
            for token in tokens:
                ours.step(token, state)
            state.restore(mark)

        def decode_gpt() -> None:  # SDPA reads all keys whatever they are: these are zeros
            with torch.no_grad():
                for number, token in enumerate(tokens):
                    gpt.output(gpt(token, caches, context + number)[:, -1])

        steps[f"{OURS} {context}"], steps[f"{BASELINE} {context}"] = decode_ours, decode_gpt

    for context in [1, *contexts]:
        add(context)
    seconds = time_interleaved(steps, rounds=rounds, warmup=1)
    ms = {name: 1e3 * median(own) / ROUND for name, own in seconds.items()}

    def ratio(context: int, base: int | None) -> float:
        def of(name: str) -> Any:
            return np.array(seconds[f"{name} {context}"]) - (0.0 if base is None else np.array(seconds[f"{name} {base}"]))

        return float(np.median(of(OURS) / of(BASELINE)))

    for context in contexts:
        print(
            f"decoding at {context}: {ms[f'{OURS} {context}']:.2f} ms a token, GPT {ms[f'{BASELINE} {context}']:.2f} ms; ratio "
            f"{ratio(context, None):.2f}, of the attention {ratio(context, 1):.2f}"
        )
    print(f"    with one token of context: {ms[f'{OURS} 1']:.2f} ms, GPT {ms[f'{BASELINE} 1']:.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="trained language model; default: initial weights")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="small contexts, few rounds")
    parser.add_argument("--only", choices=("training", "decoding", "swap"))
    options = parser.parse_args()
    keep_freed_memory()
    torch.manual_seed(SEED)
    contexts = [64, 128] if options.quick else [256, 2048, 16384]
    rounds = 3 if options.quick else 21
    if options.run is not None:
        from entformer.checkpoint.language_model import load_language_model
        from entformer.cli.text_score import text_to_score

        loaded = load_language_model(options.run)
        model = loaded.model
        text = torch.from_numpy(
            text_to_score(options.run, loaded, data=None, split=None, file=None)[1][: 2**16].astype(np.int64)
        )
    else:
        attention = LMAttentionConfig(normalizer="entmax", alpha="learned")
        model = CausalLM(LMConfig(**SIZES, tied_output=True, init_std=0.02, attention=attention))
        text = torch.randint(SIZES["vocab_size"], (2**16,))
    with threads(options.threads):
        if options.only in (None, "swap"):
            for length in (64, 256):
                measure_swap(length, 12, rounds)
        if options.only in (None, "training"):
            weights = {name: t.clone() for name, t in model.state_dict().items()}
            for length, rows in ((64, 2), (128, 1)) if options.quick else ((256, 16), (1024, 4)):
                measure_training(model.train(), text, length, rows, rounds)
                model.load_state_dict(weights)
        if options.only in (None, "decoding"):
            measure_decoding(model, text, contexts, rounds)
        print(get_signature())


if __name__ == "__main__":
    main()
