"""Accuracy and attention statistics at a given length.

Exact match needs one teacher-forced pass: greedy decoding gives the target exactly if and only if the most probable token is
correct at every position given the correct tokens before it. Token accuracy is teacher-forced by definition.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from entformer.decoding.attention_record import attention_hooks
from entformer.longcontext.tasks import IGNORE, Sample, Task
from entformer.models.attention_settings import AttentionModel
from entformer.models.lm import CausalLM
from entformer.nn.hooks import AttentionTrace
from entformer.nn.scaling import ASEntmaxScaling, PerHeadScaling, SSMaxScaling

__all__ = ["HeadStatistics", "LengthResult", "evaluate", "head_statistics"]

TOKENS = 16_384  # per batch
LAST = 64  # last queries, whose attention statistics are collected


@dataclass(frozen=True)
class HeadStatistics:
    """Attention statistics per layer and head, averaged over the last queries of up to two sequences."""

    keys: int  # of the last query
    support: list[list[float]]  # keys with nonzero weight
    entropy: list[list[float]]  # divided by ln n: 1 is uniform
    top: list[list[float]]  # the largest weight
    scale: list[list[float]] | None  # factor of the queries, if scaled
    scale_p95: float | None
    beta: list[list[float]] | None  # of ASEntmax and per-head scaling
    gamma: list[list[float]] | None


@dataclass(frozen=True)
class LengthResult:
    """Accuracy of a model at a length."""

    length: int
    sequences: int
    exact_match: float
    token_accuracy: float
    heads: HeadStatistics | None = None


@torch.no_grad()
def evaluate(model: AttentionModel, task: Task, length: int, *, sequences: int, seed: int, heads: bool = True) -> LengthResult:
    """Returns the accuracy over `sequences` random sequences and, with `heads`, attention statistics."""
    was_training = model.training
    model.eval()
    generator, device = torch.Generator().manual_seed(seed), next(model.parameters()).device
    exact = right = total = done = 0
    first: Sample | None = None
    size = max(1, min(sequences, TOKENS // max(length, 1)))
    while done < sequences:
        sample = Sample(*(part.to(device) for part in task.sample(min(size, sequences - done), length, generator)))
        first = first or sample
        labeled = sample.labels != IGNORE
        correct = model(sample.inputs).argmax(-1) == sample.labels
        exact += int((correct | ~labeled).all(1).sum())
        right += int((correct & labeled).sum())
        total += int(labeled.sum())
        done += len(sample.labels)
    statistics = head_statistics(model, first.inputs[:2]) if heads and first is not None else None
    model.train(was_training)
    return LengthResult(length, done, exact / max(done, 1), right / max(total, 1), statistics)


@torch.no_grad()
def head_statistics(model: AttentionModel, inputs: Tensor) -> HeadStatistics:
    """Returns attention statistics of the last queries of `inputs`; earlier ones only fill the cache."""
    if isinstance(model, CausalLM):
        state = model.start(windowed=False)  # a cache of all keys
        if inputs.shape[1] > LAST:
            model.step(inputs[:, :-LAST], state)
        with _record(model) as (seen, scales):
            model.step(inputs[:, -LAST:], state)
    else:
        with _record(model) as (seen, scales):
            model(inputs)
    rows = [_of_rows(trace) for trace in seen]
    factors = [factor for factor, _ in scales]
    return HeadStatistics(
        keys=seen[0].key.shape[2],
        support=[support for support, _, _ in rows],
        entropy=[entropy for _, entropy, _ in rows],
        top=[top for _, _, top in rows],
        scale=[_mean(factor) for factor in factors] or None,
        scale_p95=float(torch.cat([factor.flatten() for factor in factors]).quantile(0.95)) if factors else None,
        beta=[_mean(both[0]) for _, both in scales if both is not None] or None,
        gamma=[_mean(both[1]) for _, both in scales if both is not None] or None,
    )


Scaled = tuple[Tensor, tuple[Tensor, Tensor] | None]  # factor (B, H, L), and beta and gamma


@contextmanager
def _record(model: AttentionModel) -> Iterator[tuple[list[AttentionTrace], list[Scaled]]]:
    """Collects what each attention layer, and each scaling, computes inside the block."""
    seen: list[AttentionTrace] = []
    scales: list[Scaled] = []
    scalings = [attention.scaling for _, _, attention in model.attention_layers() if attention.scaling is not None]
    hooks = [scaling.register_forward_hook(partial(_record_scaling, scales)) for scaling in scalings]
    try:
        with attention_hooks(model, lambda kind, layer, module, trace: seen.append(trace)):
            yield seen, scales
    finally:
        for hook in hooks:
            hook.remove()


def _record_scaling(scales: list[Scaled], module: nn.Module, arguments: tuple[Tensor, Tensor], factor: Tensor) -> None:
    both = None
    if isinstance(module, ASEntmaxScaling):
        both = module.beta_gamma(arguments[0])
    elif isinstance(module, PerHeadScaling):
        both = (module.beta[None, :, None], module.gamma[None, :, None])
    elif isinstance(module, SSMaxScaling):
        both = (module.s[None, :, None], torch.ones_like(module.s)[None, :, None])
    scales.append((factor.float(), both))


def _of_rows(trace: AttentionTrace) -> tuple[list[float], list[float], list[float]]:
    """Returns support size, entropy / ln n and largest weight, each averaged per head."""
    shape = trace.stats.support_size.shape  # (B, H, Lq)
    queries, keys = shape[2], trace.key.shape[2]
    visible = torch.arange(queries) + trace.offset + 1 if trace.causal else torch.full((queries,), keys)
    entropy = trace.stats.entropy.cpu() / visible.clamp(min=2).log()
    crow, weight = trace.support.crow.cpu(), trace.support.weight.cpu()
    row = torch.repeat_interleave(torch.arange(len(crow) - 1), crow.diff())
    top = torch.zeros(len(crow) - 1).scatter_reduce_(0, row, weight.float(), "amax").view(shape)
    return _mean(trace.stats.support_size.float()), _mean(entropy), _mean(top)


def _mean(values: Tensor) -> list[float]:
    """Averages (B, H, L) per head."""
    means: list[float] = [value if math.isfinite(value) else 0.0 for value in values.float().mean((0, 2)).tolist()]
    return means
