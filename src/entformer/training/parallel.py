"""Chooses the engine of a run, and makes layers compute their activations again in backward."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from entformer.models.attention_settings import AttentionModel
from entformer.nn.layers import LAYERS
from entformer.training.engine import DDPEngine, Engine, Loss
from entformer.training.precision import Precision
from entformer.training.ranks import Ranks
from entformer.training.task import Batch


def make_engine(
    parallel: str,
    model: AttentionModel,
    loss: Loss,
    ranks: Ranks,
    *,
    sample: Batch,
    precision: Precision,
    build: Callable[[], AttentionModel],
) -> Engine:
    """Returns the engine of a run.

    Args:
        parallel: "auto", "ddp", "fsdp" or "sum", as `training.parallel`.
        model: The model, with the same weights in every process. FSDP shards it in place.
        loss: Of the task.
        ranks: The processes.
        sample: A batch, for DDP to see which parameters the loss depends on.
        precision: Of the matrix products.
        build: Returns an untrained model, into which FSDP gathers weights for validation.
    """
    if ranks.size == 1 or parallel == "sum":
        return Engine(model, loss, ranks)
    if parallel == "fsdp":
        from entformer.training.fsdp import FSDPEngine  # takes a second to import

        return FSDPEngine(model, loss, ranks, precision, build)
    return DDPEngine(model, loss, ranks, sample)


def checkpoint_activations(model: nn.Module) -> None:
    """Makes every layer keep its input only and compute the rest again in backward."""
    for layer in model.modules():
        if isinstance(layer, LAYERS):
            layer.forward = functools.partial(_recomputed, layer.forward)  # type: ignore[method-assign]


def _recomputed(forward: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    found: Tensor = checkpoint(forward, *args, use_reentrant=False, **kwargs)
    return found
