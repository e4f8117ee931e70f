"""Which heads the divergence from the dense model comes from, while all heads are sparse.

    share = 1/2 sum <G, d>, mean over queries       d: the head's output minus what softmax gives on the same input,
                                                    G: gradient of KL(dense model || sparse model) at the head's output

Small errors change the divergence quadratically, so the shares add up to it, interactions of heads included. A head whose
error compensates that of others has a negative share.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from entformer.errors import ArgumentError
from entformer.hf.capture import activations_only
from entformer.hf.function import Call, listening
from entformer.hf.heads import sparse_heads


def divergence_shares(model: nn.Module, inputs: Iterable[Mapping[str, Any]]) -> tuple[float, dict[str, Tensor]]:
    """Returns the divergence from the dense model in nats per prediction, and the share of each head, (heads,) per module.

    Args:
        model: A converted model with logits.
        inputs: Keyword arguments of the model.

    Raises:
        ArgumentError: The model has no logits.
    """
    owners = dict(sparse_heads(model))
    modules = {id(model.get_submodule(name)): name for name in owners}
    shares = {name: torch.zeros(heads.num_heads, dtype=torch.float64) for name, heads in owners.items()}
    total, predictions = 0.0, 0

    def listener(module: nn.Module, call: Call, output: Tensor, _: dict[str, Any]) -> None:
        name = modules.get(id(module))
        if name is None or not output.requires_grad:
            return
        with torch.no_grad():
            error = output.detach() - replace(call, alpha=1.0, scale=None).attend()

        def add(gradient: Tensor) -> None:
            shares[name] += 0.5 * (gradient.double() * error).sum((0, 2, 3)).cpu()

        output.register_hook(add)

    training = model.training
    model.eval()
    try:
        for entry in inputs:
            dense = dense_log_probs(model, entry)
            with listening(listener), activations_only(model, gradients=True):
                log_probs = model(**entry).logits.float().log_softmax(-1)
                loss = (dense.exp() * (dense - log_probs)).sum()
                loss.backward()
            total += float(loss.detach())
            predictions += dense.shape[:-1].numel()
    finally:
        model.train(training)
    return total / predictions, {name: values / predictions for name, values in shares.items()}


@torch.no_grad()
def dense_log_probs(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    """Returns the logarithms of the probabilities that the model predicts with softmax in every head.

    Raises:
        ArgumentError: The model has no logits.
    """
    owners = [heads for _, heads in sparse_heads(model)]
    before = [[part.clone() for part in heads()] for heads in owners]
    for heads in owners:
        heads.set(alpha=1.0, scale=1.0)
    try:
        logits = getattr(model(**inputs), "logits", None)
        if not isinstance(logits, Tensor):
            raise ArgumentError(f"{type(model).__name__} has no logits to compare with those of the dense model.")
        return logits.float().log_softmax(-1)
    finally:
        for heads, values in zip(owners, before, strict=True):
            heads.set(*values)
