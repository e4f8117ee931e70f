"""Annealing: gradient descent on alphas and scales alone, toward the predictions of the dense model at a given density.

    minimize    (1 - t) KL(dense model || sparse model) + t loss(text)      over log(alpha - 1) and log(scale) of the heads
                                                                            that are not dense; t: `text_loss`
    subject to  density = target                                            nonzero weights over allowed pairs of all heads

Calibration treats heads one by one; here they adapt to each other. Each step reads one window. The gradient of the density
comes from counting the nonzero weights at a slightly larger alpha, and at a slightly larger scale. The part of the step that
would change the density is removed (the Lagrange multiplier is the one of least squares), and a drift is corrected.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from entformer.errors import ArgumentError
from entformer.hf.attribution import dense_log_probs
from entformer.hf.capture import Progress, activations_only
from entformer.hf.function import Call, listening
from entformer.hf.heads import HIGHEST, SparseHeads, active_heads, sparse_heads
from entformer.hf.measure import density as measure_density
from entformer.hf.names import HEADS
from entformer.hf.texts import Text, model_inputs, reads_windows

CHORD = 0.1  # how far log(alpha - 1) and log(scale) move to count how the density changes
LOWEST_LOG = math.log(0.01)  # of alpha - 1
SMOOTHING = 0.7  # of gradients and densities of single windows


def anneal(
    model: nn.Module,
    texts: Iterable[Text],
    *,
    density: float | None = None,
    steps: int = 24,
    lr: float = 0.04,
    text_loss: float = 0.0,
    tokenizer: Any = None,
    length: int = 512,
    progress: Progress | None = None,
) -> list[float]:
    """Fits alphas and scales of a calibrated model to the dense model's predictions, all heads together.

    The weights of the model do not change. Heads that calibration left dense (alpha = 1) stay so.

    Args:
        model: A converted and calibrated model with logits.
        texts: As for `calibrate`; best some thousand tokens that were not used there.
        density: The density to keep; by default the one on the first window.
        steps: How many windows to read, one per step; they are repeated if there are fewer.
        lr: Learning rate of log(alpha - 1) and log(scale) at the first step; it falls linearly to zero.
        text_loss: How much the model's loss on the text counts, from 0 (only the divergence from the dense model) to 1 (only
            the loss). Above 0, the texts of a model that is not a decoder alone must be keyword arguments with `labels`.
        tokenizer: Of strings; by default the one saved with the model.
        length: Tokens per window: that of the calibration.
        progress: Called with what is done, how far, of how much.

    Returns:
        The divergence from the dense model at each step, in nats per prediction.

    Raises:
        ArgumentError: An argument is invalid, or no head is sparse.
    """
    if steps < 1 or not lr > 0.0:
        raise ArgumentError(f"steps={steps} must be at least 1, and lr={lr} above 0.")
    if density is not None and not 0.0 < density < 1.0:
        raise ArgumentError(f"density={density} must be between 0 and 1.")
    if not 0.0 <= text_loss <= 1.0:
        raise ArgumentError(f"text_loss={text_loss} must be from 0 to 1.")
    owners = [heads for _, heads in sparse_heads(model)]
    if not any(bool((heads()[0] > 1.0).any()) for heads in owners):
        raise ArgumentError("no head is sparse; call entformer.hf.calibrate(model, ...) first.")
    inputs = model_inputs(model, texts, tokenizer=tokenizer, length=length, max_tokens=steps * length)
    if density is None:
        density = measure_density(model, inputs[:1], length=length)
    if text_loss > 0.0:
        inputs = [_with_labels(model, entry) for entry in inputs]
    search = _Search(owners, math.log(density), text_loss)
    training, found = model.training, []
    trained = [heads.learned for heads in owners]
    model.eval()
    try:
        for step in range(steps):
            found.append(search.step(model, inputs[step % len(inputs)], lr * (1.0 - step / steps)))
            if progress is not None:
                progress("annealing", step + 1, steps)
    finally:
        model.train(training)
        for heads, learned in zip(owners, trained, strict=True):
            heads.requires_grad_(learned)
    return found


def _with_labels(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """Returns inputs with the labels of the model's own loss: of a decoder alone the text itself, which the loss shifts."""
    if "labels" in inputs:
        return inputs
    if not reads_windows(getattr(model, "get_base_model", lambda: model)()):
        raise ArgumentError("text_loss needs labels; give texts as keyword arguments of the model, labels among them.")
    return {**inputs, "labels": inputs["input_ids"]}


class _Search:
    """The variables, (2, all heads): log(alpha - 1) and log(scale)."""

    def __init__(self, owners: list[SparseHeads], target: float, text_loss: float) -> None:
        self.owners, self.target, self.text_loss = owners, target, text_loss
        values = [[part.detach().double().cpu() for part in heads()] for heads in owners]
        alpha, scale = (torch.cat(parts) for parts in zip(*values, strict=True))
        self.free = alpha > 1.0
        self.at = torch.stack(((alpha - 1.0).clamp_min(1e-6).log(), scale.log()))
        self.gradient, self.square = torch.zeros_like(self.at), torch.zeros_like(self.at)
        self.excess = 0.0  # log density above the target, smoothed
        self.steps = 0

    def step(self, model: nn.Module, inputs: dict[str, Any], lr: float) -> float:
        dense = dense_log_probs(model, inputs)
        counter = _Counter()
        with listening(counter), activations_only(model, gradients=True):
            for heads in self.owners:
                heads.requires_grad_(True)
            outputs = model(**inputs)
            log_probs = outputs.logits.float().log_softmax(-1)
            divergence = (dense.exp() * (dense - log_probs)).sum(-1).mean()
            loss = divergence
            if self.text_loss > 0.0:
                loss = (1.0 - self.text_loss) * divergence + self.text_loss * outputs.loss
            parameters = [p for heads in self.owners for p in (heads.alpha_minus_1.parameter, heads.log_scale)]
            grads = torch.autograd.grad(loss, parameters)
        by_alpha, by_scale = (torch.cat([g.double().cpu() for g in grads[at::2]]) for at in (0, 1))
        self._descend(torch.stack((by_alpha * self.at[0].exp(), by_scale)), *counter.density(self.owners), lr)
        return float(divergence.detach())

    def _descend(self, gradient: Tensor, log_density: float, slope: Tensor, lr: float) -> None:
        """Adam along the surface of constant density, then back to it."""
        self.steps += 1
        decay = min(SMOOTHING, 1.0 - 1.0 / self.steps)  # a plain mean at first
        self.excess = decay * self.excess + (1.0 - decay) * (log_density - self.target)
        slope = slope * self.free
        norm = float((slope * slope).sum()) or 1.0
        gradient = gradient * self.free
        self.gradient = decay * self.gradient + (1.0 - decay) * gradient
        self.square = decay * self.square + (1.0 - decay) * gradient.square()
        along = self.gradient - slope * ((self.gradient * slope).sum() / norm)
        move = -lr * along / (self.square.sqrt() + 1e-3 * self.square.mean().sqrt() + 1e-30)
        move -= slope * ((move * slope).sum() / norm)
        move -= slope * (self.excess / norm)
        self.at += move.clamp(-5.0 * lr, 5.0 * lr)
        self.at[0].clamp_(LOWEST_LOG, math.log(HIGHEST - 1.0))
        self.excess += float((move * slope).sum())
        begin = 0
        for heads in self.owners:
            own = slice(begin, begin := begin + heads.num_heads)
            alpha = torch.where(self.free[own], 1.0 + self.at[0, own].exp(), 1.0)
            heads.set(alpha=alpha, scale=self.at[1, own].exp())


class _Counter:
    """Counts nonzero weights of every head, and how many there are at a larger alpha and at a larger scale."""

    def __init__(self) -> None:
        self._counts: dict[int, Tensor] = {}  # (4, H): nonzero, at a larger alpha, at a larger scale, allowed

    @torch.no_grad()
    def __call__(self, module: nn.Module, call: Call, output: Tensor, keywords: dict[str, Any]) -> None:
        owned = module._modules.get(HEADS)
        heads = None if owned is None else active_heads(owned)
        if heads is None:
            return
        alpha, scale = heads()
        batch, count, queries, _ = call.query.shape
        larger = (1.0 + (alpha - 1.0) * math.exp(CHORD)).clamp_max(HIGHEST)
        sizes = [call.support_size(*pair) for pair in ((alpha, scale), (larger, scale), (alpha, scale * math.exp(CHORD)))]
        sizes.append(call.visible.expand(batch, count, queries))
        found = torch.stack([size.sum((0, 2)).double().cpu() for size in sizes])
        self._counts[id(heads)] = self._counts.get(id(heads), torch.zeros_like(found)) + found

    def density(self, owners: list[SparseHeads]) -> tuple[float, Tensor]:
        """Returns the logarithm of the density, and its gradient (2, all heads)."""
        counts = torch.cat([self._counts[id(heads)] for heads in owners], 1)
        nonzero, *others, allowed = counts
        slope = torch.stack([(other - nonzero) / CHORD for other in others]) / nonzero.sum()
        return math.log(float(nonzero.sum() / allowed.sum())), slope
