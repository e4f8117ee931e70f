"""The function `entmax`.

Arguments are checked here and brought to the form the kernels take: rows in the last dimension, alpha in float64 with one
value per row, a mask turned into -inf scores.
"""

import math

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from entformer.errors import ArgumentError
from entformer.kernels import checks
from entformer.kernels.entmax import closed_form, ops, reference
from entformer.kernels.registry import Impl, dense_dtype, exporting_to_onnx, load_implementations, resolve

IMPLEMENTATIONS = load_implementations("entmax")
_HALF = (torch.float16, torch.bfloat16)


def entmax(
    x: Tensor,
    alpha: float | Tensor = 1.5,
    dim: int = -1,
    mask: Tensor | None = None,
    *,
    alpha_dim: int | None = None,
    impl: Impl = "auto",
) -> Tensor:
    """alpha-entmax: like softmax, but scores far enough below the best get a weight of exactly zero.

    Solves max_p <x, p> + H_alpha(p) over the probability simplex, H_alpha the Tsallis entropy. alpha = 1 is softmax,
    1.5 is 1.5-entmax, 2 is sparsemax, larger is sparser; alpha < 1 is dense with heavy tails. Differentiable, to second
    order, in `x` and in `alpha`.

    Args:
        x: scores, float16/bfloat16/float32/float64; the arithmetic is at least float32 and the result has the same dtype.
        alpha: a number, or a tensor that broadcasts against `x` with `dim` reduced to 1 (a value per row if you like).
        dim: the dimension that sums to one.
        mask: boolean, broadcasts against `x`, True = may have weight. -inf scores count as masked too.
        alpha_dim: for a 1-D `alpha`, the dimension of `x` it runs along: with scores (B, H, L, L) and one alpha per head,
            `entmax(scores, alphas, alpha_dim=1)`.
        impl: "auto", "reference", "cpu" or "triton".

    A row that is masked throughout gives zeros and zero gradients. NaN stays in its row. Entries of +inf share the row's mass.
    """
    if has_torch_function((x, alpha, mask)):  # torch.fx proxies, tensor subclasses
        return handle_torch_function(entmax, (x, alpha, mask), x, alpha, dim, mask, alpha_dim=alpha_dim, impl=impl)
    checks.check_strided_float("x", x, "of scores")
    if x.dim() == 0:
        return entmax(x.reshape(1), alpha, 0, mask, alpha_dim=alpha_dim, impl=impl).reshape(())
    x = under_autocast(x)
    dim = _checked_dim(dim, x, "dim")
    row_alpha = _alpha_per_row(alpha, x, dim, alpha_dim)  # shape of x with `dim` removed
    scores = x if mask is None else torch.where(_checked_mask(mask, x), x, -math.inf)
    scores = scores.movedim(dim, -1)
    chosen = resolve(impl, x.device.type)
    if exporting_to_onnx():
        weights = closed_form.entmax(scores, row_alpha if isinstance(alpha, Tensor) else float(alpha))
    elif chosen == "reference" or IMPLEMENTATIONS[chosen].unsupported(scores):
        # Without kernels a CPU still has float64 at half the speed of float32.
        exact = impl == "reference" or x.device.type == "cpu"
        weights = reference.entmax(scores, row_alpha, dense_dtype(x.dtype, x.device.type, exact=exact))
    else:
        weights = ops.entmax_with_gradient(scores, row_alpha)
    return dim_back(weights, dim)


def dim_back(weights: Tensor, dim: int) -> Tensor:
    """The last dimension moved back to `dim`, contiguous: callers may use `.view`, as on the result of softmax."""
    return weights if dim in (-1, weights.dim() - 1) else weights.movedim(-1, dim).contiguous()


def under_autocast(x: Tensor) -> Tensor:
    """float32 for half-precision scores under autocast, on every device, as torch has it for softmax on CUDA; else `x`."""
    half = x.dtype in _HALF and x.device.type in ("cpu", "cuda")
    return x.float() if half and torch.is_autocast_enabled(x.device.type) else x


def _checked_dim(dim: int, x: Tensor, name: str) -> int:
    if not -x.dim() <= dim < x.dim():
        raise ArgumentError(f"{name}={dim} is out of range for scores of shape {tuple(x.shape)}.")
    return dim % x.dim()


def _checked_mask(mask: Tensor, x: Tensor) -> Tensor:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise ArgumentError("mask must be a boolean tensor, True = may have weight; add a float mask to the scores instead.")
    if mask.device != x.device:
        raise ArgumentError(f"mask is on {mask.device} but the scores are on {x.device}; move one of them.")
    try:
        return mask.expand_as(x)
    except RuntimeError:
        raise ArgumentError(
            f"mask of shape {tuple(mask.shape)} does not broadcast to scores of shape {tuple(x.shape)}."
        ) from None


def _alpha_per_row(alpha: float | Tensor, x: Tensor, dim: int, alpha_dim: int | None) -> Tensor:
    work = reference.work_dtype(x.device)
    rows = x.shape[:dim] + x.shape[dim + 1 :]
    if not isinstance(alpha, Tensor):
        alpha = checks.check_real("alpha", alpha, one_of_many=True)
        if not -math.inf < alpha < math.inf:
            raise ArgumentError(
                f"alpha={alpha} is not a finite number; alpha = 1 is softmax, 1.5 and 2 are the usual sparse choices."
            )
        return torch.full((), alpha, dtype=work, device=x.device).expand(rows)
    checks.check_alpha_tensor(alpha, x.device)
    alpha = alpha.to(device=x.device, dtype=work)
    expected = (*x.shape[:dim], 1, *x.shape[dim + 1 :])
    if alpha_dim is not None:
        along = _checked_dim(alpha_dim, x, "alpha_dim")
        if alpha.dim() != 1 or alpha.shape[0] != x.shape[along] or along == dim:
            raise ArgumentError(
                f"with alpha_dim={alpha_dim}, alpha must have shape ({x.shape[along]},) along a dimension of the scores "
                f"other than dim={dim}; it has shape {tuple(alpha.shape)}."
            )
        alpha = alpha.reshape([-1 if d == along else 1 for d in range(x.dim())])
    try:
        return alpha.expand(expected).squeeze(dim)
    except RuntimeError:
        raise ArgumentError(
            f"alpha of shape {tuple(alpha.shape)} does not broadcast to {tuple(expected)}, the shape of the scores with "
            f"dim={dim} reduced to 1; for one alpha per head give alpha_dim= the dimension of the heads."
        ) from None
