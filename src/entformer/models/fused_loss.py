"""The output layer fused with its loss: states (N, d), output weight (V, d) and classes (N,) to summed losses.

The scores (N, V) are by far the largest tensor of a translation model. They are computed for some rows at a time, with
their gradient, which is multiplied back, and discarded: memory is O(rows x V), and backward only scales.

    softmax: loss = (1 - s) (-ln p_y) + s mean_v(-ln p_v)           gradient to the scores: p - (1 - s) onehot(y) - s / V
    entmax : the entmax loss smoothed the same way (losses.py)      the same with p = entmax(scores)
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from entformer.kernels.checks import transform_active
from entformer.losses import entmax_loss
from entformer.nn.linear import add_product, multiply

__all__ = ["LossSums", "OutputSums", "output_loss"]

CHUNK = 2 * 2**20
"""Scores computed at a time, 8 MB in float32. malloc gives memory of twice as much back to the system every time."""

ROWS = 128
"""Rows computed at a time are a multiple of this: for fewer, adding to the gradient of the weight takes as long."""


class OutputSums(NamedTuple):
    """Sums over the rows."""

    loss: Tensor  # smoothed, with gradients
    nll: Tensor  # -ln p of the classes; with entmax its loss without smoothing, since p may be 0
    correct: Tensor  # number of classes with the highest score, int64


class LossSums(NamedTuple):
    """Sums over the labels of a batch: a translation's target tokens, EOS counted, padding and BOS not."""

    loss: Tensor  # smoothed, in training with the penalty of adaptive spans; differentiate this
    nll: Tensor  # -ln p of the tokens (with output="entmax" its loss without smoothing), no gradient
    correct: Tensor  # number of tokens with the highest score, int64
    tokens: int


def output_loss(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    label_smoothing: float = 0.0,
    alpha: float = 1.0,
) -> OutputSums:
    """Computes the summed loss of scores hidden @ weight^T. alpha = 1 is cross entropy, above it the entmax loss.

    Under autocast the products take its dtype; losses and their sums are float32 (float64 if the states are).
    """
    if transform_active():
        return _composed(hidden, weight, target, label_smoothing, alpha)
    differentiate = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    product_dtype = hidden.dtype
    if torch.is_autocast_enabled(hidden.device.type):
        product_dtype = torch.get_autocast_dtype(hidden.device.type)
    with torch.autocast(hidden.device.type, enabled=False):
        sums = _OutputLoss.apply(hidden, weight, target, label_smoothing, alpha, product_dtype, differentiate)  # type: ignore[no-untyped-call]
    return OutputSums(*sums)


def _composed(hidden: Tensor, weight: Tensor, target: Tensor, smoothing: float, alpha: float) -> OutputSums:
    """The same from operations that torch.func can transform; holds all scores at once."""
    scores = (hidden @ weight.t()).to(torch.promote_types(hidden.dtype, torch.float32))  # the product has autocast's dtype
    loss = entmax_loss(scores, target, alpha, reduction="sum", label_smoothing=smoothing)
    with torch.no_grad():
        nll = entmax_loss(scores, target, alpha, reduction="sum")
        correct = (scores.gather(1, target[:, None]).squeeze(1) == scores.amax(1)).sum()
    return OutputSums(loss, nll.detach(), correct)


class _OutputLoss(torch.autograd.Function):
    """Forward computes the gradients too; backward only scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        target: Tensor,
        smoothing: float,
        alpha: float,
        product_dtype: torch.dtype,
        differentiate: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        sum_dtype = torch.promote_types(hidden.dtype, torch.float32)
        h, w = hidden.to(product_dtype), weight.to(product_dtype)
        grad_hidden = torch.empty_like(h) if differentiate else None  # (N, d)
        grad_weight = weight.new_zeros(weight.t().shape, dtype=sum_dtype) if differentiate else None  # (d, V)
        rows = max(1, CHUNK // weight.shape[0] // ROWS) * ROWS
        sums = torch.zeros(3, dtype=sum_dtype, device=h.device)  # loss, nll, correct
        for at in range(0, h.shape[0], rows):
            part, classes = h[at : at + rows], target[at : at + rows]
            scores = multiply(part, w.t())  # (rows, V)
            if alpha == 1.0:
                found, gradient = _cross_entropy(scores, classes, smoothing, differentiate)  # (rows, 3), (rows, V)
            else:
                found, gradient = _entmax(scores, classes, smoothing, alpha, differentiate)
            sums += found.sum(0, dtype=torch.float64).to(sum_dtype)
            if grad_hidden is not None and grad_weight is not None:
                grad_hidden[at : at + rows] = multiply(gradient, w)
                add_product(grad_weight, part, gradient)
        if grad_hidden is not None:
            ctx.save_for_backward(grad_hidden.to(hidden.dtype), grad_weight)
        loss, nll, correct = sums[0].clone(), sums[1].clone(), sums[2].long()
        ctx.mark_non_differentiable(nll, correct)
        ctx.weight_dtype = weight.dtype
        return loss, nll, correct

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, *_others: Any) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight = ctx.saved_tensors
        to_hidden = grad_hidden * grad if ctx.needs_input_grad[0] else None
        to_weight = (grad_weight * grad).to(ctx.weight_dtype).t() if ctx.needs_input_grad[1] else None
        return to_hidden, to_weight, None, None, None, None, None


def _cross_entropy(scores: Tensor, target: Tensor, smoothing: float, differentiate: bool) -> tuple[Tensor, Tensor]:
    """Label-smoothed cross entropy of scores (rows, V).

    Returns:
        (rows, 3): the smoothed loss, -ln p of the target, and 1 where the target has the highest score; and the gradient to the
        scores if `differentiate`, else anything.
    """
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    index = target[:, None]
    p, largest, of_target = wide.softmax(1), wide.amax(1), wide.gather(1, index).squeeze(1)
    log_sum = -p.amax(1).log()  # ln sum exp(scores - largest): one exponential per score, and no probability below 1 / V
    nll = (largest - of_target) + log_sum
    loss = nll if smoothing == 0.0 else (1.0 - smoothing) * nll + smoothing * ((largest - wide.mean(1)) + log_sum)
    if differentiate:
        p = p if smoothing == 0.0 else p.sub_(smoothing / p.shape[1])
        p.scatter_add_(1, index, torch.full_like(index, smoothing - 1.0, dtype=p.dtype))
    return torch.stack([loss, nll, (of_target == largest).to(wide.dtype)], 1), p.to(scores.dtype)


def _entmax(scores: Tensor, target: Tensor, smoothing: float, alpha: float, differentiate: bool) -> tuple[Tensor, Tensor]:
    """As `_cross_entropy` with the entmax loss, whose own backward gives the gradient."""
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    best = wide.gather(1, target[:, None]).squeeze(1) == wide.amax(1)
    plain = entmax_loss(wide, target, alpha, reduction="none")
    with torch.set_grad_enabled(differentiate):
        leaf = wide.detach().requires_grad_(differentiate)
        losses = entmax_loss(leaf, target, alpha, reduction="none", label_smoothing=smoothing)
    gradient = torch.autograd.grad(losses, leaf, torch.ones_like(losses))[0].to(scores.dtype) if differentiate else scores
    return torch.stack([losses.detach(), plain, best.to(plain.dtype)], 1), gradient
