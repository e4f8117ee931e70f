"""How long translations may be and how length enters their score. In: log-probability and length. Out: a score.

score = log_prob / penalty(n),   n = number of generated tokens, EOS counted, a forced prefix not
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
    """One of the three penalties, and its alpha."""

    kind: str
    alpha: float

    @classmethod
    def of(cls, kind: str, alpha: float | None) -> "LengthPenalty":
        """Check what a user asked for. alpha None: 1, or nothing for "none"."""
        if kind not in PENALTIES:
            raise ArgumentError(f"length_penalty={kind!r} is not known; choose one of {', '.join(PENALTIES)}.")
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
        """No continuation of a hypothesis with this log_prob, up to `longest` tokens, scores higher.

        Why: log-probabilities of further tokens are at most 0, so a continuation has log_prob' <= log_prob <= 0. The penalty
        never falls as the length grows (alpha >= 0), so dividing a number <= 0 by it gives the most at the greatest length:
        log_prob' / penalty(n) <= log_prob / penalty(n) <= log_prob / penalty(longest) for all n <= longest.
        """
        return log_prob / self._penalty(longest)

    def _penalty(self, length: int) -> float:
        base = max(length, 1) if self.kind == "average" else (5.0 + length) / 6.0
        return float(base**self.alpha)


@dataclass(frozen=True)
class MaxLength:
    """At most floor(ratio * S + extra) tokens for a source of S tokens (EOS counted in neither), and at least one."""

    ratio: float = 2.0
    extra: int = 10

    def __post_init__(self) -> None:
        if not 0.0 <= self.ratio < math.inf or self.extra < 0 or (self.ratio == 0.0 and self.extra == 0):
            raise ArgumentError(
                f"a maximal length of {self.ratio:g} * source + {self.extra} is not possible; both numbers must be at least 0 "
                "and one above it."
            )

    def __call__(self, source_length: int) -> int:
        return max(1, math.floor(self.ratio * source_length + self.extra))
