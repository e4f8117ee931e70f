"""Length penalty and length limit of translations.

score = log_prob / penalty(n),   n = number of generated tokens, EOS included, a forced prefix excluded
"average":  penalty(n) = n^alpha                 alpha = 1: the mean log-probability of a token
"gnmt":     penalty(n) = ((5 + n) / 6)^alpha     Wu et al. 2016, Eq. 14
"none":     penalty(n) = 1                       prefers short translations
"""

import math
from dataclasses import dataclass

from entformer.errors import ArgumentError

PENALTIES = ("average", "gnmt", "none")


@dataclass(frozen=True)
class LengthPenalty:
    """A length penalty and its exponent."""

    kind: str
    alpha: float

    @classmethod
    def of(cls, kind: str, alpha: float | None) -> "LengthPenalty":
        """Validates the arguments; alpha defaults to 1."""
        if kind not in PENALTIES:
            raise ArgumentError(f"length_penalty must be one of {', '.join(PENALTIES)}, got {kind!r}.")
        if kind == "none":
            if alpha is not None:
                raise ArgumentError(
                    f'length_penalty_alpha={alpha:g} has no effect with length_penalty="none"; choose "average" or "gnmt", or '
                    "leave it out."
                )
            return cls(kind, 0.0)
        alpha = 1.0 if alpha is None else alpha
        if not 0.0 <= alpha < math.inf:
            raise ArgumentError(f"length_penalty_alpha={alpha} must be a finite number of at least 0.")
        return cls(kind, alpha)

    def score(self, log_prob: float, length: int) -> float:
        return log_prob / self._penalty(length)

    def bound(self, log_prob: float, longest: int) -> float:
        """Returns an upper bound on the score of every continuation of up to `longest` tokens.

        Log-probabilities of further tokens are at most 0, so log_prob' <= log_prob <= 0. The penalty does not decrease with
        the length (alpha >= 0), hence log_prob' / penalty(n) <= log_prob / penalty(n) <= log_prob / penalty(longest).
        """
        return log_prob / self._penalty(longest)

    def _penalty(self, length: int) -> float:
        base = max(length, 1) if self.kind == "average" else (5.0 + length) / 6.0
        return float(base**self.alpha)


@dataclass(frozen=True)
class MaxLength:
    """Limit of max(1, floor(ratio * S + extra)) tokens for a source of S tokens, EOS not counted."""

    ratio: float = 2.0
    extra: int = 10

    def __post_init__(self) -> None:
        if not 0.0 <= self.ratio < math.inf or self.extra < 0 or (self.ratio == 0.0 and self.extra == 0):
            raise ArgumentError(
                f"the maximum length must have ratio >= 0 and extra >= 0, not both 0; got {self.ratio:g} and {self.extra}."
            )

    def __call__(self, source_length: int) -> int:
        return max(1, math.floor(self.ratio * source_length + self.extra))
