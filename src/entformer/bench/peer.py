"""The one door to the `entmax` package, the peer in benchmarks. Out: its functions by the name of our alpha, if installed."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

Normalizer = Callable[[Tensor, Any], Tensor]
"""(scores, alpha) -> weights over the last dimension."""


def peer_functions() -> dict[str, Normalizer]:
    """The package's function for each kind of alpha; empty when it is not installed.

    It is the fastest one the package has. alpha = 1 is missing: there it returns NaN.
    """
    try:
        import entmax
    except ImportError:
        return {}
    return {
        "1.5": lambda scores, _: entmax.entmax15(scores, dim=-1),
        "2": lambda scores, _: entmax.sparsemax(scores, dim=-1),
        "learned": lambda scores, alpha: entmax.entmax_bisect(scores, alpha, dim=-1),
        "per head": lambda scores, alpha: entmax.entmax_bisect(scores, alpha.view(-1, 1, 1), dim=-1),
    }
