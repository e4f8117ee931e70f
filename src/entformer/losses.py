"""Fenchel-Young losses: the counterparts of cross entropy for sparse normalizers.

    loss(x, y) = Omega*(x) - x_y,      Omega*(x) = max_p <p, x> + H_alpha(p),  reached at p = entmax(x, alpha)

H_alpha(p) = -sum p ln_e(p) / alpha is the Tsallis entropy, e = alpha - 1, ln_e(p) = (p^e - 1)/e. alpha = 1 is cross entropy.
The gradient to the scores is p - onehot(y); the gradient to alpha is dH_alpha(p)/dalpha at fixed p (envelope theorem). Since
x_i = c + ln_e(p_i) on the support, Omega*(x) = (c + e <p, x>) / alpha: the forward pass takes no logarithm per class.
Normmax losses use 1 - ||p||_alpha instead of H_alpha.

Arguments follow `torch.nn.functional.cross_entropy`, and at alpha = 1 so do all values and gradients. A target whose score is
-inf has loss inf. For class probabilities the loss is, as there, the mixture of the losses of the classes, without the constant
-H_alpha(target).
"""

import math
from typing import Any, NamedTuple, TypedDict, Unpack

import torch
from torch import Tensor, nn

from entformer.errors import ArgumentError
from entformer.functional import normmax_rows
from entformer.kernels.checks import any_true, check_real
from entformer.kernels.entmax.api import entmax, per_row, under_autocast
from entformer.kernels.entmax.deformed import deformed_log

__all__ = ["Entmax15Loss", "EntmaxBisectLoss", "EntmaxLoss", "NormmaxBisectLoss", "SparsemaxBisectLoss", "SparsemaxLoss"]
__all__ += ["entmax15_loss", "entmax_bisect_loss", "entmax_loss"]
__all__ += ["normmax_bisect_loss", "sparsemax_bisect_loss", "sparsemax_loss"]

REDUCTIONS = ("mean", "elementwise_mean", "sum", "none")  # elementwise_mean: the old name of mean


# ---- functions -----------------------------------------------------------------------------------------------------------


def entmax_loss(
    x: Tensor,
    target: Tensor,
    alpha: float | Tensor = 1.5,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    dim: int | None = None,
) -> Tensor:
    """Computes the entmax loss, twice differentiable in `x` and `alpha`. alpha = 1 is cross entropy, 2 the sparsemax loss.

    Args:
        x: scores, (C,), (N, C) or (N, C, d1, ...).
        target: class indices of the shape of `x` without C, or class probabilities (floating point) of the shape of `x`.
        alpha: a positive number, or a tensor that broadcasts against `x` with C reduced to 1, e.g. (N, 1).
        weight: weight of each class, (C,).
        ignore_index: targets of this value are ignored; an error with class probabilities.
        reduction: "mean" ("elementwise_mean" is the same) over the weights of the targets not ignored, "sum" or "none".
        label_smoothing: fraction of the target that is spread evenly over all classes.
        dim: the dimension of the classes if not as above; -1 for sequences (N, L, C).
    """
    options = _Options(ignore_index, reduction, weight, label_smoothing, dim)
    return _entmax_loss(x, target, alpha, options)[0]


def sparsemax_loss(X: Tensor, target: Tensor, k: int | None = None, return_support_size: bool = False) -> Any:
    """Computes the sparsemax loss of each sample, (N,). `k` has no effect.

    With `return_support_size=True` returns `(losses, sizes)`, the number of classes with nonzero weight, (N, 1).
    """
    return _loss_and_size(X, target, 2.0, _Options(reduction="none"), return_support_size)


def entmax15_loss(X: Tensor, target: Tensor, k: int | None = None, return_support_size: bool = False) -> Any:
    """Computes the 1.5-entmax loss of each sample, (N,). Arguments as in `sparsemax_loss`."""
    return _loss_and_size(X, target, 1.5, _Options(reduction="none"), return_support_size)


def sparsemax_bisect_loss(X: Tensor, target: Tensor, n_iter: int = 50) -> Tensor:
    """The same as `sparsemax_loss`; `n_iter` has no effect."""
    return entmax_loss(X, target, 2.0, reduction="none")


def entmax_bisect_loss(X: Tensor, target: Tensor, alpha: float | Tensor = 1.5, n_iter: int = 50) -> Tensor:
    """Computes the entmax loss of each sample, (N,), differentiable in `alpha` too; `n_iter` has no effect."""
    return entmax_loss(X, target, alpha, reduction="none")


def normmax_bisect_loss(X: Tensor, target: Tensor, alpha: float | Tensor = 2, n_iter: int = 50) -> Tensor:
    """Computes the normmax loss of each sample, (N,), differentiable in `alpha` too; `n_iter` has no effect."""
    return _normmax_loss(X, target, alpha, _Options(reduction="none"))


# ---- modules -------------------------------------------------------------------------------------------------------------


class _Options(NamedTuple):
    """The options of `nn.CrossEntropyLoss`, and `dim`."""

    ignore_index: int = -100
    reduction: str = "mean"
    weight: Tensor | None = None
    label_smoothing: float = 0.0
    dim: int | None = None


class _NewOptions(TypedDict, total=False):
    """Keyword-only options that the losses of the `entmax` package do not have."""

    weight: Tensor | None
    label_smoothing: float
    dim: int | None


class _FenchelYoungLoss(nn.Module):
    """Base class of the losses. An alpha given as `nn.Parameter` is learned."""

    weight: Tensor | None
    alpha: float | Tensor

    def __init__(self, alpha: float | Tensor, options: _Options) -> None:
        super().__init__()
        _check_options(options)
        self.ignore_index, self.reduction, weight, self.label_smoothing, self.dim = options
        self.register_buffer("weight", weight)
        if isinstance(alpha, Tensor) and not isinstance(alpha, nn.Parameter):
            self.register_buffer("alpha", alpha, persistent=False)  # follows .to(device), not in the state dict
        else:
            self.alpha = alpha

    def _options(self) -> _Options:
        return _Options(self.ignore_index, self.reduction, self.weight, self.label_smoothing, self.dim)

    def forward(self, X: Tensor, target: Tensor) -> Any:
        return _entmax_loss(X, target, self.alpha, self._options())[0]

    def extra_repr(self) -> str:
        alpha = f"tensor of shape {tuple(self.alpha.shape)}" if isinstance(self.alpha, Tensor) else self.alpha
        smoothing = f", label_smoothing={self.label_smoothing}" if self.label_smoothing else ""
        return f"alpha={alpha}, ignore_index={self.ignore_index}, reduction={self.reduction!r}{smoothing}"


class EntmaxLoss(_FenchelYoungLoss):
    """`entmax_loss` as a module; give an `nn.Parameter` as alpha to learn it."""

    def __init__(
        self, alpha: float | Tensor = 1.5, *, ignore_index: int = -100, reduction: str = "mean", **new: Unpack[_NewOptions]
    ) -> None:
        super().__init__(alpha, _Options(ignore_index, reduction, **new))


class EntmaxBisectLoss(_FenchelYoungLoss):
    """`EntmaxLoss` with the arguments of the `entmax` package first; `n_iter` has no effect."""

    def __init__(
        self,
        alpha: float | Tensor = 1.5,
        n_iter: int = 50,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
        **new: Unpack[_NewOptions],
    ) -> None:
        super().__init__(alpha, _Options(ignore_index, reduction, **new))
        self.n_iter = n_iter


class NormmaxBisectLoss(EntmaxBisectLoss):
    """Normmax loss; arguments as `EntmaxBisectLoss`."""

    def __init__(
        self,
        alpha: float | Tensor = 2,
        n_iter: int = 50,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
        **new: Unpack[_NewOptions],
    ) -> None:
        super().__init__(alpha, n_iter, ignore_index, reduction, **new)

    def forward(self, X: Tensor, target: Tensor) -> Any:
        return _normmax_loss(X, target, self.alpha, self._options())


class SparsemaxBisectLoss(_FenchelYoungLoss):
    """The same as `SparsemaxLoss`; `n_iter` has no effect."""

    def __init__(
        self, n_iter: int = 50, ignore_index: int = -100, reduction: str = "elementwise_mean", **new: Unpack[_NewOptions]
    ) -> None:
        super().__init__(2.0, _Options(ignore_index, reduction, **new))
        self.n_iter = n_iter


class SparsemaxLoss(_FenchelYoungLoss):
    """Sparsemax loss; `k` has no effect; weight, label_smoothing and dim as in `entmax_loss`.

    With `return_support_size=True` it returns `(loss, sizes)`, the number of classes with nonzero weight, (N, 1).
    """

    def __init__(
        self,
        k: int | None = None,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
        return_support_size: bool = False,
        **new: Unpack[_NewOptions],
    ) -> None:
        super().__init__(2.0, _Options(ignore_index, reduction, **new))
        self.k = k
        self.return_support_size = return_support_size

    def forward(self, X: Tensor, target: Tensor) -> Any:
        return _loss_and_size(X, target, self.alpha, self._options(), self.return_support_size)


class Entmax15Loss(SparsemaxLoss):
    """1.5-entmax loss; arguments as `SparsemaxLoss`, with the default `k` of the `entmax` package."""

    def __init__(
        self,
        k: int | None = 100,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
        return_support_size: bool = False,
        **new: Unpack[_NewOptions],
    ) -> None:
        super().__init__(k, ignore_index, reduction, return_support_size, **new)
        self.alpha = 1.5


# ---- the conjugate -------------------------------------------------------------------------------------------------------


def _entmax_loss(x: Tensor, target: Tensor, alpha: float | Tensor, options: _Options) -> tuple[Tensor, Tensor]:
    """Returns the loss and the weights (..., C)."""
    if not isinstance(alpha, Tensor) and not 0.0 < check_real("alpha", alpha, one_of_many=True) < math.inf:
        raise ArgumentError(f"the entmax loss needs a positive, finite alpha, not {alpha}; 1 is cross entropy, 2 sparsemax.")
    scores = _class_last(x, options.dim)
    row_alpha = per_row("alpha", alpha, x, _class_dim(x, options.dim)).unsqueeze(-1)  # (..., 1)
    p = entmax(scores, row_alpha)
    row_max, best = scores.max(-1, keepdim=True)
    # The gradient to a learned alpha goes through p; forward mode has no rule for Functions. Both differentiate the formula.
    formula = isinstance(alpha, Tensor) or torch.autograd.forward_ad._current_level >= 0
    conjugate = (_conjugate if formula else _Conjugate.apply)(scores, row_alpha, p, row_max, best)
    return _reduced(x, scores, _finite(row_max), conjugate, target, options), p


def _loss_and_size(x: Tensor, target: Tensor, alpha: float | Tensor, options: _Options, return_support_size: bool) -> Any:
    loss, weights = _entmax_loss(x, target, alpha, options)
    return (loss, (weights != 0).sum(-1, keepdim=True)) if return_support_size else loss


def _normmax_loss(x: Tensor, target: Tensor, alpha: float | Tensor, options: _Options) -> Tensor:
    if not isinstance(alpha, Tensor) and not check_real("alpha", alpha, one_of_many=True) >= 1.0:
        raise ArgumentError(f"the normmax loss needs alpha >= 1, not {alpha}.")
    scores = _class_last(x, options.dim)
    _, conjugate = normmax_rows(scores, per_row("alpha", alpha, x, _class_dim(x, options.dim)).unsqueeze(-1))
    return _reduced(x, scores, _finite(scores.amax(-1, keepdim=True)), conjugate, target, options)


def _class_dim(x: Tensor, dim: int | None) -> int:
    return (0 if x.dim() == 1 else 1) if dim is None else dim


def _class_last(x: Tensor, dim: int | None) -> Tensor:
    """Returns the scores as (..., C) in at least float32."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() == 0:
        raise ArgumentError("the loss takes a floating-point tensor of scores with a dimension of classes.")
    dim = _class_dim(x, dim)
    if not -x.dim() <= dim < x.dim() or x.shape[dim] == 0:
        raise ArgumentError(f"scores of shape {tuple(x.shape)} have no classes in dim={dim}.")
    return (x.float() if x.dtype in (torch.float16, torch.bfloat16) else x).movedim(dim, -1)


def _finite(row_max: Tensor) -> Tensor:
    """Returns the row maximum as a constant to subtract, which does not change the loss."""
    return torch.where(row_max.isinf(), 0.0, row_max).detach()


def _conjugate(x: Tensor, alpha: Tensor, p: Tensor, row_max: Tensor, best: Tensor) -> Tensor:
    """Omega* of u = x - max x: (c + e <p, u>)/alpha, (..., 1), with c from the best score: u_best - c = ln_e(p_best)."""
    e = alpha - 1.0
    shift = _finite(row_max)
    p_best = p.gather(-1, best).to(alpha.dtype)
    nonempty = p_best != 0.0  # False in a row of -inf, whose conjugate is set to 0
    log_best = torch.where(nonempty, p_best, 1.0).log()
    c = torch.where(nonempty, (row_max - shift).to(alpha.dtype), 0.0) - deformed_log(log_best, e)
    u = (x - shift).clamp_min_(-1e30)  # the weight is zero there, and 0 * -inf would be NaN
    return (c + e * (p * u).sum(-1, keepdim=True).to(alpha.dtype)) / alpha


class _Conjugate(torch.autograd.Function):
    """`_conjugate` with its gradient to the scores in closed form: p.

    p comes in attached to the scores but gets no gradient: to first order there is none (envelope theorem), so no backward
    pass of entmax runs. When backward is itself differentiated, p carries the graph and second derivatives are right.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, alpha: Tensor, p: Tensor, row_max: Tensor, best: Tensor) -> Tensor:
        return _conjugate(x, alpha, p, row_max, best)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        (p,) = ctx.saved_tensors
        return grad.to(p.dtype) * p, None, None, None, None


# ---- from conjugate to loss ----------------------------------------------------------------------------------------------


def _reduced(x: Tensor, scores: Tensor, row_max: Tensor, conjugate: Tensor, target: Tensor, options: _Options) -> Tensor:
    """Returns the loss from scores (..., C) and the conjugate of scores - row_max, weighted and reduced as by cross_entropy."""
    _check_options(options)
    classes = scores.shape[-1]
    weight = options.weight
    if weight is not None:
        if weight.shape != (classes,):
            raise ArgumentError(f"weight has shape {tuple(weight.shape)}, but there are {classes} classes.")
        weight = weight.to(conjugate.dtype)
    compute = _losses_of_probabilities if target.is_floating_point() else _losses_of_indices
    losses, counts = compute(scores, row_max, conjugate.squeeze(-1), target, weight, options)
    if options.reduction == "sum":
        losses = losses.sum()
    elif options.reduction != "none":
        losses = losses.sum() / counts.sum()
    return losses.to(under_autocast(x).dtype)


def _losses_of_indices(
    x: Tensor, row_max: Tensor, conjugate: Tensor, target: Tensor, weight: Tensor | None, options: _Options
) -> tuple[Tensor, Tensor]:
    """Returns the losses and their weights in the mean."""
    if target.shape != x.shape[:-1]:
        raise ArgumentError(
            f"class indices must have the shape of the scores without the classes, {tuple(x.shape[:-1])}, "
            f"but the target has {tuple(target.shape)}; sequences of shape (N, L, C) need dim=-1."
        )
    ignored = target == options.ignore_index
    wrong = ((target < 0) | (target >= x.shape[-1])) & ~ignored
    if any_true(wrong):
        raise ArgumentError(f"target {int(target[wrong][0])} is not a class: the scores have classes 0 to {x.shape[-1] - 1}.")
    index = torch.where(ignored, 0, target).long()
    losses = conjugate - (x.gather(-1, index.unsqueeze(-1)) - row_max).squeeze(-1)
    counts = torch.ones_like(conjugate) if weight is None else weight[index]
    losses = losses if weight is None else losses * counts
    if options.label_smoothing > 0.0:
        u, smoothing = x - row_max, options.label_smoothing / x.shape[-1]
        spread = x.shape[-1] * conjugate - u.sum(-1) if weight is None else weight.sum() * conjugate - (u * weight).sum(-1)
        losses = (1.0 - options.label_smoothing) * losses + smoothing * spread
    return torch.where(ignored, 0.0, losses), torch.where(ignored, 0.0, counts)


def _losses_of_probabilities(
    x: Tensor, row_max: Tensor, conjugate: Tensor, target: Tensor, weight: Tensor | None, options: _Options
) -> tuple[Tensor, Tensor]:
    if options.ignore_index >= 0:
        given = f"ignore_index={options.ignore_index}"
        raise ArgumentError(f"{given} names a class index, but the target has class probabilities; remove ignore_index.")
    dim = _class_dim(x, options.dim)
    if target.shape != x.movedim(-1, dim).shape:
        shapes = f"{tuple(x.movedim(-1, dim).shape)}, not {tuple(target.shape)}"
        raise ArgumentError(f"class probabilities must have the shape of the scores, {shapes}.")
    q = target.movedim(dim, -1).to(conjugate.dtype)  # (..., C)
    if options.label_smoothing > 0.0:
        q = q * (1.0 - options.label_smoothing) + options.label_smoothing / x.shape[-1]
    q = q if weight is None else q * weight
    u = torch.where((q == 0.0) & (x == -math.inf), 0.0, x - row_max)  # an excluded class may have probability zero
    return q.sum(-1) * conjugate - (q * u).sum(-1), torch.ones_like(conjugate)


def _check_options(options: _Options) -> None:
    if options.reduction not in REDUCTIONS:
        raise ArgumentError(f"reduction={options.reduction!r} is not known; choose one of {', '.join(REDUCTIONS)}.")
    if not 0.0 <= options.label_smoothing <= 1.0:
        raise ArgumentError(f"label_smoothing={options.label_smoothing} must lie between 0 and 1.")
