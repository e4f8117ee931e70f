"""Benchmark of whole training steps of the translation model: our kernels against the same model with SDPA's softmax.

All models have the same sizes, dropout, label smoothing and optimizer, and train on the same batches of random tokens. The
ratio is time per step relative to the baseline on the same batch; `tokens_per_s` counts target tokens without padding.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from entformer.bench.harness import SEED, Measurement, Report, get_signature, measurements, threads, time_interleaved
from entformer.data.batch import Batch
from entformer.models.config import PRESETS, AttentionConfig, Seq2SeqConfig
from entformer.models.seq2seq import KINDS, Seq2Seq
from entformer.text.tokenizer import BOS, EOS, PAD
from entformer.training.memory import keep_freed_memory

BASELINE = "softmax, SDPA"
ATTENTION = {
    BASELINE: AttentionConfig(normalizer="softmax", backend="sdpa"),
    "softmax": AttentionConfig(normalizer="softmax"),
    "entmax15": AttentionConfig(normalizer="entmax15"),
    "learned": AttentionConfig(normalizer="entmax"),
    "rela": AttentionConfig(normalizer="rela"),
}
LENGTHS = {"short": (15.0, 5.0), "long": (80.0, 20.0)}  # mean and deviation in tokens; short: Multi30k's captions
SMOOTHING = 0.1

LossFn = Callable[[Batch], Tensor]  # summed over target tokens
BuildModel = Callable[[Seq2SeqConfig], tuple[nn.Module, LossFn]]


def benchmark_training(
    *,
    preset: str = "tiny",
    num_threads: int = 1,
    quick: bool = False,
    extra: Mapping[str, BuildModel] | None = None,
    sizes: Mapping[str, Any] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Report:
    """Runs the benchmark: some fifteen minutes on one thread with the preset "tiny", some seconds if `quick`.

    Args:
        extra: further models by name, built from the same configuration.
        sizes: fields that replace those of the preset.
    """
    config = {"vocab_size": 9712, **PRESETS[preset], **(sizes or {})}
    lengths, tokens, rounds = (("short",), 512, 3) if quick else (tuple(LENGTHS), 4096, 33)
    state = torch.get_rng_state()
    keep_freed_memory()  # as `entformer train` does
    found: list[Measurement] = []
    with threads(num_threads):
        for precision in ("float32", "bfloat16"):
            for length in lengths:
                progress(f"{length} sentences, {precision}")
                batches = make_batches(tokens, *LENGTHS[length], config["vocab_size"])
                steps = _steps(config, batches, precision == "bfloat16", extra or {})
                found.extend(_measure(steps, batches, f"{length} sentences, {precision}", rounds))
        torch.set_rng_state(state)
        return Report(benchmark="training", baseline=BASELINE, signature=get_signature(), measurements=tuple(found))


def _measure(steps: dict[str, Callable[[], object]], batches: Sequence[Batch], case: str, rounds: int) -> Iterator[Measurement]:
    seconds = time_interleaved(steps, rounds=rounds, warmup=1)
    tokens = [batches[(index + 1) % len(batches)].num_labels for index in range(rounds)]  # the first was the warm-up's
    speeds = {
        name: {"tokens_per_s": median(count / s for count, s in zip(tokens, own, strict=True))} for name, own in seconds.items()
    }
    yield from measurements(seconds, BASELINE, case, "step", speeds)


def _steps(
    sizes: Mapping[str, Any], batches: Sequence[Batch], low_precision: bool, extra: Mapping[str, BuildModel]
) -> dict[str, Callable[[], object]]:
    steps = {}
    for name in (*ATTENTION, *extra):
        torch.manual_seed(SEED)
        attention = ATTENTION.get(name, ATTENTION[BASELINE])
        config = Seq2SeqConfig(**{**sizes, **dict.fromkeys(KINDS, attention), "label_smoothing": SMOOTHING})
        model, loss_fn = extra.get(name, build_entformer)(config)
        steps[name] = _training_step(model, loss_fn, batches, low_precision)
    return steps


def build_entformer(config: Seq2SeqConfig) -> tuple[nn.Module, LossFn]:
    """Returns our model and its summed loss."""
    model = Seq2Seq(config)
    return model, lambda batch: model.loss(batch).loss


def _training_step(model: nn.Module, loss_fn: LossFn, batches: Sequence[Batch], low_precision: bool) -> Callable[[], object]:
    """Returns a function that runs forward, backward and AdamW on the next batch."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    index = 0

    def step() -> object:
        nonlocal index
        batch = batches[index % len(batches)]
        index += 1
        with torch.autocast("cpu", torch.bfloat16, enabled=low_precision):
            loss = loss_fn(batch)
        (loss / batch.num_labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def make_batches(tokens: int, mean: float, deviation: float, vocab_size: int, count: int = 3) -> list[Batch]:
    """Returns batches of about `tokens` target tokens. Pairs are sorted by length before they are cut, as in training."""
    generator = torch.Generator(device="cpu").manual_seed(SEED)
    pairs = max(count * tokens // max(int(mean), 1), 4 * count)
    common = torch.randn(pairs, generator=generator)

    def lengths() -> Tensor:  # of a sentence and of its translation: they vary together
        noise = torch.randn(pairs, generator=generator)
        return (mean + deviation * (0.9 * common + 0.44 * noise)).round().clamp(3, 4 * mean).long()

    source, target = lengths(), lengths()
    order = (target * 1000 + source).argsort()
    return [_batch(source[cut], target[cut], vocab_size, generator) for cut in order.chunk(count)]


def _batch(source_lengths: Tensor, target_lengths: Tensor, vocab_size: int, generator: torch.Generator) -> Batch:
    def ids(lengths: Tensor) -> Tensor:
        positions = torch.arange(int(lengths.max()))
        tokens = torch.randint(EOS + 1, vocab_size, (lengths.shape[0], positions.shape[0]), generator=generator)
        tokens[positions >= lengths[:, None]] = PAD
        tokens[positions == lengths[:, None] - 1] = EOS
        return tokens

    target = F.pad(ids(target_lengths), (1, 0), value=BOS)
    return Batch(ids(source_lengths), target, source_lengths, target_lengths, tuple(range(len(source_lengths))))
