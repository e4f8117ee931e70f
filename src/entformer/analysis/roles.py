"""What a head may be doing: candidates with scores, found from its measures. In: a `HeadRow`. Out: the same with its roles.

A role is a question asked of every head; its score is the measure that answers it, from 0 to 1. Above the threshold the role
is listed as a candidate. Nobody says that the head *is* that: look at the examples.
"""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from entformer.analysis.positional import OFFSETS
from entformer.analysis.table import HeadRow, Role
from entformer.text.numbers import format_percent


@dataclass(frozen=True)
class RoleQuestion:
    """A role and how it is asked for."""

    name: str
    score: Callable[[HeadRow], float | None]
    least: float  # a candidate from here on


@dataclass(frozen=True)
class RoleRanking:
    """The heads that answer to a role best."""

    role: str
    least: float
    heads: tuple[tuple[str, float], ...]  # ("encoder.0.3", score), best first


CANDIDATE = 0.4  # far above rng for a place or a word, and low enough to show what is only a tendency

QUESTIONS = (
    RoleQuestion("previous token", lambda head: head.positional.get("-1"), CANDIDATE),
    RoleQuestion("current token", lambda head: head.positional.get("0"), CANDIDATE),
    RoleQuestion("next token", lambda head: head.positional.get("1"), CANDIDATE),
    RoleQuestion("merges subwords", lambda head: head.merging_pieces, CANDIDATE),
    RoleQuestion("question mark", lambda head: _question(head), CANDIDATE),
    RoleQuestion("first token", lambda head: head.first_key, CANDIDATE),
    RoleQuestion("end of sentence", lambda head: head.last_key, CANDIDATE),
    RoleQuestion("broad context", lambda head: head.normalized_entropy, 0.85),
    RoleQuestion("rarely active", lambda head: head.null_rate, CANDIDATE),
    RoleQuestion("word alignment", lambda head: _alignment(head), CANDIDATE),
)
"""Asked of every head; more may be added."""


def find_roles(head: HeadRow, questions: tuple[RoleQuestion, ...] = QUESTIONS) -> HeadRow:
    """The head with its candidates, the highest score first."""
    scored = [(question.score(head), question) for question in questions]
    found = [Role(question.name, score) for score, question in scored if score is not None and score >= question.least]
    return replace(head, roles=tuple(sorted(found, key=lambda role: -role.score)))


def rank_heads(heads: Iterable[HeadRow], top: int = 3, questions: tuple[RoleQuestion, ...] = QUESTIONS) -> list[RoleRanking]:
    """For every role the `top` heads that answer best, whether candidates or not; roles without any score are left out."""
    known = list(heads)
    rankings = []
    for question in questions:
        scored = [(score, head) for head in known if (score := question.score(head)) is not None]
        scored.sort(key=lambda pair: -pair[0])
        if scored:
            rankings.append(
                RoleRanking(question.name, question.least, tuple((head.key, score) for score, head in scored[:top]))
            )
    return rankings


@dataclass(frozen=True)
class PositionalHeads:
    """The heads that look at one offset: "k heads for position -1, with median confidence c" (Correia et al. 2019, 5.2)."""

    offset: int
    heads: tuple[str, ...]  # candidates, the surest first
    median_confidence: float | None  # of these heads; None if there is none


def positional_heads(heads: Iterable[HeadRow], least: float = CANDIDATE) -> list[PositionalHeads]:
    """For every offset the self-attention heads whose confidence is at least `least`, and the median of their confidences."""
    known = [head for head in heads if head.positional]
    found = []
    for offset in OFFSETS:
        scored = [(head.positional.get(str(offset), 0.0), head.key) for head in known]
        scored = sorted((pair for pair in scored if pair[0] >= least), key=lambda pair: -pair[0])
        median = statistics.median(score for score, _ in scored) if scored else None
        found.append(PositionalHeads(offset, tuple(key for _, key in scored), median))
    return found


def positional_text(heads: int, median_confidence: float | None) -> str:
    """As the paper puts it: "4 heads, median confidence 95.9%"."""
    counted = "1 head" if heads == 1 else f"{heads} heads"
    return counted if not heads else f"{counted}, median confidence {format_percent(median_confidence, 1)}"


def _question(head: HeadRow) -> float | None:
    """Weight on the question mark beyond what the head gives a full stop in its place, where that is known."""
    if head.interrogation is None or head.interrogation_contrast is None:
        return head.interrogation
    return max(head.interrogation - head.interrogation_contrast, 0.0)


def _alignment(head: HeadRow) -> float | None:
    """1 - AER, of row i or row i + 1, whichever aligns better."""
    errors = [error for error in (head.aer, head.aer_shifted) if error is not None]
    return 1.0 - min(errors) if errors else None
