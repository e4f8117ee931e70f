"""The learned alpha. In: nothing, or attention scores (B, H, Lq, Lk). Out: one alpha per head, (H,), or attention weights.

    alpha = low + (high - low) * sigmoid(pre_alpha)          (Correia et al. 2019: low = 1, high = 2)

so an optimiser may move `pre_alpha` anywhere and alpha stays between softmax and sparsemax.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from entformer.errors import ArgumentError
from entformer.kernels.rows.api import entmax

__all__ = ["AlphaChooser", "EntmaxAlpha", "LearnedAlpha"]


class LearnedAlpha(nn.Module):
    """One learned alpha per head (or one for all), kept between `low` and `high`. Calling it gives a tensor (num_heads,).

    Args:
        num_heads: how many values forward gives.
        tied: one alpha for all heads; `pre_alpha` then has shape (1,).
        init: "random" draws `pre_alpha` from a standard normal, as in the paper; a number is the alpha to start from.
        low, high: the bounds of alpha, never quite reached.
        generator: for a reproducible random start.
    """

    def __init__(
        self,
        num_heads: int,
        *,
        tied: bool = False,
        init: str | float = "random",
        low: float = 1.0,
        high: float = 2.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if num_heads < 1:
            raise ArgumentError(f"num_heads={num_heads} must be at least 1.")
        if not -math.inf < low < high < math.inf:
            raise ArgumentError(f"low={low} must be below high={high}, and both finite.")
        if isinstance(init, str) and init != "random":
            raise ArgumentError(f'init={init!r} is not known; give "random" or a number between {low} and {high}.')
        if not isinstance(init, str) and not low < init < high:
            raise ArgumentError(f"init={init} must lie strictly between low={low} and high={high}.")
        self.num_heads = num_heads
        self.tied = tied
        self.init = init
        self.low = low
        self.high = high
        self.pre_alpha = nn.Parameter(torch.empty(1 if tied else num_heads))
        self.reset_parameters(generator)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Start again as `init` says."""
        with torch.no_grad():
            if isinstance(self.init, str):
                self.pre_alpha.normal_(generator=generator)
            else:
                self.pre_alpha.fill_(math.log((self.init - self.low) / (self.high - self.init)))

    def forward(self) -> Tensor:
        pre_alpha: Tensor = self.pre_alpha  # (num_heads,) or (1,)
        if pre_alpha.dtype in (torch.float16, torch.bfloat16):  # alpha near 1 needs more digits than they have
            pre_alpha = pre_alpha.float()
        return (self.low + (self.high - self.low) * torch.sigmoid(pre_alpha)).expand(self.num_heads)

    @property
    def alpha(self) -> Tensor:
        """The alphas now, (num_heads,)."""
        alpha: Tensor = self()
        return alpha

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, tied={self.tied}, init={self.init}, low={self.low}, high={self.high}"


class AlphaChooser(LearnedAlpha):
    """`LearnedAlpha` under the name, with the argument and the state key `pre_alpha`, of the snippet many projects carry.

    The snippet clamps alpha to [1.01, 2] because `entmax_bisect` of the `entmax` package fails at 1. Ours is exact there, so
    nothing is clamped, and the gradient does not stop at 1.01.
    """

    def __init__(self, head_count: int) -> None:
        super().__init__(head_count)


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
