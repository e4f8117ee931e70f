"""The learned alpha: one value per attention head, between `low` and `high` (1 and 2: from softmax to sparsemax).

    sigmoid      alpha = low + (high - low) * sigmoid(pre_alpha)      Correia et al. (2019); `pre_alpha` is unbounded
    projected    alpha is the parameter, clamped to [low, high] after every optimizer step

Under the sigmoid the gradient to `pre_alpha` vanishes toward both ends, so an alpha that has come close to 1 hardly returns.
The projected form reaches both bounds and leaves them again; it relies on a gradient that is exact at alpha = 1.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from entformer.errors import ArgumentError
from entformer.kernels.entmax.api import entmax
from entformer.nn.execution_mode import traced_as_leaf

__all__ = ["PARAMETRIZATIONS", "AlphaChooser", "EntmaxAlpha", "LearnedAlpha", "learned_alphas", "project_alphas"]

PARAMETRIZATIONS = ("sigmoid", "projected")


def check_init(prefix: str, init: Any, low: float, high: float, parametrization: str) -> None:
    """Raises ArgumentError unless `init` is "random" or an alpha that is reached; both names begin with `prefix`."""
    name = f"{prefix}init"
    if parametrization not in PARAMETRIZATIONS:
        known = ", ".join(PARAMETRIZATIONS)
        raise ArgumentError(f"{prefix}parametrization={parametrization!r} is not known; choose one of {known}.")
    if isinstance(init, str):
        if init != "random":
            raise ArgumentError(f'{name}={init!r} is not known; give "random" or a number between {low} and {high}.')
        return
    try:
        value = float(init)
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(f'{name} must be "random" or a number, not {type(init).__name__}.') from None
    if parametrization == "sigmoid" and not low < value < high:
        raise ArgumentError(f"{name}={init} must lie strictly between {low} and {high}.")
    if not low <= value <= high:
        raise ArgumentError(f"{name}={init} must lie between {low} and {high}.")


class LearnedAlpha(nn.Module):
    """One learned alpha per head, or one for all. Calling it returns a tensor (num_heads,).

    Args:
        num_heads: number of values that forward returns.
        tied: one alpha for all heads; the parameter then has shape (1,).
        init: "random" draws low + (high - low) * sigmoid(z) with standard normal z, as in the paper; a number sets it.
        low, high: bounds of alpha. The sigmoid never quite reaches them.
        parametrization: "projected" or "sigmoid". With "projected", call `project_alphas` after every optimizer step; the
            trainer of this package does, and `optimizer.register_step_post_hook` can do it in any other. Without it, values
            outside the bounds are clamped in forward, with unchanged gradient, and may take long to come back.
        generator: for a reproducible random initialization.

    A state dict of the sigmoid form loads into the projected one; the alphas stay the same.
    """

    def __init__(
        self,
        num_heads: int,
        *,
        tied: bool = False,
        init: str | float = "random",
        low: float = 1.0,
        high: float = 2.0,
        parametrization: str = "projected",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if num_heads < 1:
            raise ArgumentError(f"num_heads={num_heads} must be at least 1.")
        if not -math.inf < low < high < math.inf:
            raise ArgumentError(f"low={low} must be below high={high}, and both finite.")
        check_init("", init, low, high, parametrization)
        self.num_heads = num_heads
        self.tied = tied
        self.init = init
        self.low = low
        self.high = high
        self.parametrization = parametrization
        parameter = nn.Parameter(torch.empty(1 if tied else num_heads))
        # The names differ, so that a checkpoint of one form is not mistaken for the other.
        self.register_parameter("pre_alpha" if parametrization == "sigmoid" else "value", parameter)
        self.reset_parameters(generator)

    @property
    def parameter(self) -> nn.Parameter:
        """The trained tensor, (num_heads,) or (1,)."""
        # Not `get_parameter`, which refuses the plain tensors that torch.func puts in place of parameters.
        found: nn.Parameter = getattr(self, "pre_alpha" if self.parametrization == "sigmoid" else "value")
        return found

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Initializes the alphas again as `init` says."""
        with torch.no_grad():
            if isinstance(self.init, str):
                self.parameter.normal_(generator=generator)
                if self.parametrization == "projected":
                    self.parameter.sigmoid_().mul_(self.high - self.low).add_(self.low)
            elif self.parametrization == "projected":
                self.parameter.fill_(self.init)
            else:
                self.parameter.fill_(math.log((self.init - self.low) / (self.high - self.init)))

    def forward(self) -> Tensor:
        stored: Tensor = self.parameter
        stored = stored.to(torch.promote_types(stored.dtype, torch.float32))  # alpha near 1 needs more digits than half has
        if self.parametrization == "sigmoid":
            return (self.low + (self.high - self.low) * torch.sigmoid(stored)).expand(self.num_heads)
        inside = stored.detach().clamp(self.low, self.high)
        return (stored + (inside - stored.detach())).expand(self.num_heads)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        stored = state_dict.get(prefix + "pre_alpha")
        if self.parametrization == "projected" and stored is not None and prefix + "value" not in state_dict:
            del state_dict[prefix + "pre_alpha"]  # `load_state_dict` works on a copy
            state_dict[prefix + "value"] = self.low + (self.high - self.low) * torch.sigmoid(stored)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    @property
    def alpha(self) -> Tensor:
        """The current alphas, (num_heads,)."""
        alpha: Tensor = self()
        return alpha

    def extra_repr(self) -> str:
        return (
            f"num_heads={self.num_heads}, tied={self.tied}, init={self.init}, low={self.low}, high={self.high}, "
            f"parametrization={self.parametrization}"
        )


def learned_alphas(module: nn.Module) -> Iterator[LearnedAlpha]:
    """Returns every `LearnedAlpha` inside `module`, shared ones once."""
    return (owner for owner in module.modules() if isinstance(owner, LearnedAlpha))


@torch.no_grad()
def project_alphas(module: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Clamps every projected alpha in `module` to its bounds. Call it after each optimizer step.

    Args:
        module: a model that contains `LearnedAlpha` modules; those with another parametrization are left alone.
        optimizer: if given, momentum that pushes an alpha at a bound outward is set to zero. Otherwise the alpha would stay at
            the bound until old momentum has decayed, although its gradient points inward.
    """
    if optimizer is not None and not hasattr(optimizer, "state"):
        raise ArgumentError(f"optimizer must be an optimizer of torch.optim, not {type(optimizer).__name__}.")
    for owner in learned_alphas(module):
        if owner.parametrization != "projected":
            continue
        value = owner.parameter
        value.clamp_(owner.low, owner.high)
        state = {} if optimizer is None else optimizer.state.get(value, {})
        for name in ("exp_avg", "momentum_buffer"):
            momentum = state.get(name)
            if isinstance(momentum, Tensor):  # a step moves against it
                outward = ((value <= owner.low) & (momentum > 0)) | ((value >= owner.high) & (momentum < 0))
                momentum.masked_fill_(outward, 0.0)


class AlphaChooser(LearnedAlpha):
    """`LearnedAlpha` under the name, with the argument and the state key `pre_alpha`, of the snippet many projects carry.

    The snippet clamps alpha to [1.01, 2] because `entmax_bisect` of the `entmax` package fails at 1. Ours is exact there, so
    nothing is clamped, and the gradient does not stop at 1.01.
    """

    def __init__(self, head_count: int) -> None:
        super().__init__(head_count, parametrization="sigmoid")


class EntmaxAlpha(nn.Module):
    """Entmax over attention scores (B, H, Lq, Lk) with one learned alpha per head, under the name many projects carry.

    State key `alpha_chooser.pre_alpha`. State dicts of the widespread variant that stores the alphas themselves, as
    `alpha_chooser` (and again as `alpha`), load too if the alphas lie strictly between 1 and 2. `dim` is the dimension that
    sums to one; the snippet takes a `dim` and does not use it.
    """

    def __init__(self, head_count: int, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim
        self.alpha_chooser = AlphaChooser(head_count)

    @traced_as_leaf
    def forward(self, att_scores: Tensor, mask: Tensor | None = None) -> Tensor:
        return entmax(att_scores, self.alpha_chooser(), self.dim, mask, alpha_dim=1)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        stored = state_dict.pop(prefix + "alpha_chooser", None)
        if stored is not None:
            state_dict.pop(prefix + "alpha", None)
            if not bool(((stored > 1.0) & (stored < 2.0)).all()):
                raise ArgumentError(f"the stored alphas {stored.tolist()} must lie strictly between 1 and 2 to be loaded.")
            state_dict[prefix + "alpha_chooser.pre_alpha"] = torch.logit(stored.double() - 1.0).to(stored.dtype)
        super()._load_from_state_dict(state_dict, prefix, *rest)
