"""Temporarily replaces the alphas of some heads of a model.

No parameter changes: attention layers read `MultiheadAttention.alpha_override` before their own alpha, and the context manager
restores its previous value. Only one thread may use the model meanwhile.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import torch

from entformer.errors import ArgumentError
from entformer.models.attention_settings import AttentionModel
from entformer.nn.multihead_attention import MultiheadAttention

__all__ = ["overridden_alphas", "takes_alpha"]

HeadName: TypeAlias = tuple[str, int, int]  # kind, layer, head


def takes_alpha(attention: MultiheadAttention) -> bool:
    """Whether the heads of this layer are alpha-entmax, with a fixed or learned alpha; softmax is (alpha = 1), ReLA is not."""
    return attention.alphas is not None and attention.normalizer_fn is None


@contextlib.contextmanager
def overridden_alphas(model: AttentionModel, alphas: Mapping[HeadName, float]) -> Iterator[None]:
    """Sets the alphas of some heads: `with overridden_alphas(model, {("cross", 1, 2): 1.0}): ...` makes that head softmax.

    Any head whose weights are alpha-entmax takes any finite alpha >= 1. Contexts may be nested; an inner one adds to the outer
    one.
    """
    layers = {(kind, layer): attention for kind, layer, attention in model.attention_layers()}
    chosen: dict[MultiheadAttention, torch.Tensor] = {}
    for (kind, layer, head), alpha in alphas.items():
        attention = layers.get((kind, layer))
        if attention is None or not 0 <= head < attention.num_heads:
            raise ArgumentError(f"there is no head {kind}.{layer}.{head}; {_known(model)}.")
        own = attention.alphas
        if own is None or not takes_alpha(attention):
            raise ArgumentError(
                f"head {kind}.{layer}.{head} has no alpha to change: its weights are {attention.normalizer}, not alpha-entmax."
            )
        if not 1.0 <= alpha < math.inf:
            raise ArgumentError(f"alpha {alpha:g} of head {kind}.{layer}.{head} must be a finite number of at least 1.")
        if attention not in chosen:
            chosen[attention] = own.detach().clone()  # (H,)
        chosen[attention][head] = alpha
    before = {attention: attention.alpha_override for attention in chosen}
    try:
        for attention, override in chosen.items():
            attention.alpha_override = override
        yield
    finally:
        for attention, override_before in before.items():
            attention.alpha_override = override_before


def _known(model: AttentionModel) -> str:
    """Describes the existing names."""
    counts: dict[str, int] = {}
    heads = 0
    for kind, _, attention in model.attention_layers():
        counts[kind] = counts.get(kind, 0) + 1
        heads = attention.num_heads
    names = ", ".join(f"{kind}.0 to {kind}.{count - 1}" for kind, count in counts.items())
    return f"layers are {names}, each with heads 0 to {heads - 1}"
