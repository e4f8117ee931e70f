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
from entformer.kernels.registry import Impl, dense_dtype, exporting_to_onnx, load_implementations, resolve, work_dtype

IMPLEMENTATIONS = load_implementations("entmax")
PER_HEAD = "; for one alpha per head give alpha_dim= the dimension of the heads"
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
    scores = dim_last(x, dim, mask)
    _check_alpha(alpha, x.device)
    row_alpha = per_row("alpha", alpha, x, dim, alpha_dim, PER_HEAD)  # shape of x with `dim` removed
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


def dim_last(x: Tensor, dim: int, mask: Tensor | None = None) -> Tensor:
    """The scores with `dim` last, -inf where masked."""
    _check_dim("dim", dim, x)
    if mask is None:
        return x.movedim(dim, -1)
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise ArgumentError("mask must be a boolean tensor, True = may have weight; add a float mask to the scores instead.")
    if mask.device != x.device:
        raise ArgumentError(f"mask is on {mask.device} but the scores are on {x.device}; move one of them.")
    try:
        allowed = mask.expand_as(x)
    except RuntimeError:
        raise ArgumentError(
            f"mask of shape {tuple(mask.shape)} does not broadcast to scores of shape {tuple(x.shape)}."
        ) from None
    return torch.where(allowed, x, -math.inf).movedim(dim, -1)


def _check_dim(name: str, dim: int, x: Tensor) -> None:
    if not hasattr(dim, "__index__"):
        raise ArgumentError(f"{name} must be an integer, not {type(dim).__name__}.")
    if not -x.dim() <= dim < x.dim():
        raise ArgumentError(f"{name}={dim} is out of range for scores of shape {tuple(x.shape)}.")


def _check_alpha(alpha: float | Tensor, device: torch.device) -> None:
    if isinstance(alpha, Tensor):
        checks.check_alpha_tensor(alpha, device)
    elif not -math.inf < checks.check_real("alpha", alpha, one_of_many=True) < math.inf:
        raise ArgumentError(
            f"alpha={alpha} is not a finite number; alpha = 1 is softmax, 1.5 and 2 are the usual sparse choices."
        )


def per_row(name: str, value: float | Tensor, x: Tensor, dim: int, alpha_dim: int | None = None, advice: str = "") -> Tensor:
    """A parameter of the normalizer for each row of `x`: its shape without `dim`, in the dtype of the reference."""
    work = work_dtype(x.device)
    dim %= x.dim()
    shape = [1 if d == dim else size for d, size in enumerate(x.shape)]
    if not isinstance(value, Tensor):
        number = checks.check_real(name, value, one_of_many=True)
        return torch.full((), number, dtype=work, device=x.device).expand(shape).squeeze(dim)
    if value.dtype == torch.bool or value.is_complex():
        raise ArgumentError(f"{name} must be a floating-point or integer tensor or a number, not {value.dtype}.")
    if alpha_dim is not None:
        _check_dim("alpha_dim", alpha_dim, x)
        along = alpha_dim % x.dim()
        if value.dim() != 1 or value.shape[0] != x.shape[along] or along == dim:
            raise ArgumentError(
                f"with alpha_dim={alpha_dim}, alpha must have shape ({x.shape[along]},) along a dimension of the scores "
                f"other than dim={dim}; it has shape {tuple(value.shape)}."
            )
        value = value.reshape([-1 if d == along else 1 for d in range(x.dim())])
    try:
        return value.to(device=x.device, dtype=work).expand(shape).squeeze(dim)
    except RuntimeError:
        raise ArgumentError(
            f"{name} of shape {tuple(value.shape)} does not broadcast to {tuple(shape)}, the shape of the scores with "
            f"dim={dim} reduced to 1{advice}."
        ) from None
