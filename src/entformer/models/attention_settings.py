"""What all models share: attention layers built from their configuration, alphas, parameter groups."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from entformer.models.config import AttentionConfig
from entformer.nn.alpha import LearnedAlpha, learned_alphas
from entformer.nn.multihead_attention import MultiheadAttention
from entformer.nn.normalizer_functions import AdaptiveSpan
from entformer.nn.scaling import make_scaling

__all__ = ["AttentionModel", "attention_penalty", "build_attention"]


def build_attention(
    config: AttentionConfig, width: int, heads: int, *, shared_alpha: LearnedAlpha | None = None, **options: Any
) -> MultiheadAttention:
    """Builds a batch-first attention layer.

    Args:
        config: of its normalizer, alpha, scaling and output norm.
        width, heads: of the model.
        shared_alpha: an alpha that the layer shares with others and the model registers; None: it has its own.
        **options: further arguments of `MultiheadAttention`, such as `dropout`, `bias` and `positions`.
    """
    name = config.scaling_name
    return MultiheadAttention(
        width,
        heads,
        batch_first=True,
        normalizer=config.normalizer,
        normalizer_options=config.options,
        alpha=config.alpha if shared_alpha is None else shared_alpha,
        alpha_tied="layer" if config.alpha_tied == "layer" else "head",
        alpha_init=config.alpha_init,
        alpha_parametrization=config.alpha_parametrization,
        output_norm=config.output_norm,
        output_norm_per_head=config.output_norm_per_head,
        scaling=None if name is None else make_scaling(name, width, heads, **config.scaling_options),
        backend=config.backend,
        **options,
    )


def attention_penalty(layers: Iterable[MultiheadAttention]) -> Tensor | None:
    """Returns what the layers add to the mean loss of a token, the penalty of adaptive spans, or None."""
    penalties = [layer.normalizer_fn.penalty() for layer in layers if isinstance(layer.normalizer_fn, AdaptiveSpan)]
    return sum(penalties[1:], penalties[0]) if penalties else None


class AttentionModel(nn.Module):
    """Base of the models."""

    def attention_layers(self) -> Iterator[tuple[str, int, MultiheadAttention]]:
        """Yields (attention type, layer, module) of every attention."""
        raise NotImplementedError

    def run_attention(self, batch: Any) -> None:
        """Runs every attention layer on a batch."""
        raise NotImplementedError

    def _init_weights(self) -> None:
        """Initializes what the modules inside do not initialize themselves."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Initializes all parameters again."""
        for child in self.modules():
            if child is not self and callable(reset := getattr(child, "reset_parameters", None)):
                reset()
        self._init_weights()

    def alphas(self) -> dict[str, Tensor]:
        """Returns the alpha of every head: attention type -> (layers, heads). Types without alpha (ReLA) are missing."""
        found: dict[str, list[Tensor]] = {}
        for kind, _, attention in self.attention_layers():
            if (alphas := attention.alphas) is not None:
                found.setdefault(kind, []).append(alphas.detach())
        return {kind: torch.stack(alphas) for kind, alphas in found.items()}

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Returns the groups of the optimizer.

        "decay": matrices; "no_decay": vectors, embeddings and length scaling; "alpha": the parameters of learned alphas.
        """
        alphas = {id(owner.parameter) for owner in learned_alphas(self)}
        groups: dict[str, list[nn.Parameter]] = {"decay": [], "no_decay": [], "alpha": []}
        for name, parameter in self.named_parameters():
            matrix = parameter.dim() >= 2 and "scaling" not in name and "embedding" not in name
            groups["alpha" if id(parameter) in alphas else "decay" if matrix else "no_decay"].append(parameter)
        return groups
