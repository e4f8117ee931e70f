"""Roles of heads: candidates with scores, found from their measures.

The score of a role is a measure of the head, from 0 to 1. From a threshold on the role is listed as a candidate. A score shows
where the weight goes, not that the model needs the head for it: look at the examples.
"""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from entformer.analysis.positional import OFFSETS
from entformer.analysis.table import HeadRow, Role
from entformer.text.numbers import format_percent

CANDIDATE = 0.4  # far above chance for a position or a word, and low enough to show a tendency


@dataclass(frozen=True)
class RoleDefinition:
    """A role and the measure that scores it."""

    name: str
    measure: str  # also scores single sentences
    least: float = CANDIDATE
    score: Callable[[HeadRow], float | None] | None = None  # instead of the measure itself

    def score_head(self, head: HeadRow) -> float | None:
        return head.values.get(self.measure) if self.score is None else self.score(head)


@dataclass(frozen=True)
class RoleRanking:
    """The heads with the highest scores of a role."""

    role: str
    least: float
    heads: tuple[tuple[str, float], ...]  # ("encoder.0.3", score), best first


def _question(head: HeadRow) -> float | None:
    """Returns the weight on the question mark less that on a full stop in its place, where that is known."""
    if head.interrogation is None or head.interrogation_contrast is None:
        return head.interrogation
    return max(head.interrogation - head.interrogation_contrast, 0.0)


def _alignment(head: HeadRow) -> float | None:
    """Returns 1 - AER, of row i or row i + 1, whichever aligns better."""
    errors = [error for error in (head.aer, head.aer_shifted) if error is not None]
    return 1.0 - min(errors) if errors else None


ROLES = (
    RoleDefinition("previous token", "positional.-1"),
    RoleDefinition("current token", "positional.0"),
    RoleDefinition("next token", "positional.1"),
    RoleDefinition("induction", "induction"),
    RoleDefinition("duplicate token", "duplicate"),
    RoleDefinition("merges subwords", "merging_pieces"),
    RoleDefinition("question mark", "interrogation", score=_question),
    RoleDefinition("first token", "first_key"),
    RoleDefinition("end of sentence", "last_key"),
    RoleDefinition("broad context", "normalized_entropy", 0.85),
    RoleDefinition("rarely active", "null_rate"),
    RoleDefinition("word alignment", "aer", score=_alignment),
)
"""The roles of which every head may be a candidate; more may be added."""


def find_roles(head: HeadRow, roles: tuple[RoleDefinition, ...] = ROLES) -> HeadRow:
    """Returns the head with its roles, the highest score first."""
    scored = [(role.score_head(head), role) for role in roles]
    found = [Role(role.name, score) for score, role in scored if score is not None and score >= role.least]
    return replace(head, roles=tuple(sorted(found, key=lambda role: -role.score)))


def rank_heads(heads: Iterable[HeadRow], top: int = 3, roles: tuple[RoleDefinition, ...] = ROLES) -> list[RoleRanking]:
    """Returns the `top` heads of every role, candidates or not; roles without any score are skipped."""
    known = list(heads)
    rankings = []
    for role in roles:
        scored = [(score, head) for head in known if (score := role.score_head(head)) is not None]
        scored.sort(key=lambda pair: -pair[0])
        if scored:
            rankings.append(RoleRanking(role.name, role.least, tuple((head.key, score) for score, head in scored[:top])))
    return rankings


@dataclass(frozen=True)
class PositionalHeads:
    """The heads that attend to one offset: "k heads for position -1, with median confidence c" (Correia et al. 2019, 5.2)."""

    offset: int
    heads: tuple[str, ...]  # candidates, the highest confidence first
    median_confidence: float | None  # of these heads; None if there is none


def positional_heads(heads: Iterable[HeadRow], least: float = CANDIDATE) -> list[PositionalHeads]:
    """Returns for every offset the heads whose confidence is at least `least`, and the median of their confidences."""
    known = [head for head in heads if head.positional]
    found = []
    for offset in OFFSETS:
        scored = [(head.positional.get(str(offset), 0.0), head.key) for head in known]
        scored = sorted((pair for pair in scored if pair[0] >= least), key=lambda pair: -pair[0])
        median = statistics.median(score for score, _ in scored) if scored else None
        found.append(PositionalHeads(offset, tuple(key for _, key in scored), median))
    return found


def positional_text(heads: int, median_confidence: float | None) -> str:
    """Formats a count as the paper does: "4 heads, median confidence 95.9%"."""
    counted = "1 head" if heads == 1 else f"{heads} heads"
    return counted if not heads else f"{counted}, median confidence {format_percent(median_confidence, 1)}"
