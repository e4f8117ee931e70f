"""What a head may be doing: candidates with scores, found from its measures. In: a `HeadRow`. Out: the same with its roles.

A role is a question asked of every head; its score is the measure that answers it, from 0 to 1. Above the threshold the role
is listed as a candidate. Nobody says that the head *is* that: look at the examples.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from entformer.analysis.table import HeadRow, Role


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


CANDIDATE = 0.4  # far above chance for a place or a word, and low enough to show what is only a tendency

QUESTIONS = (
    RoleQuestion("previous token", lambda head: head.positional.get("-1"), CANDIDATE),
    RoleQuestion("current token", lambda head: head.positional.get("0"), CANDIDATE),
    RoleQuestion("next token", lambda head: head.positional.get("1"), CANDIDATE),
    RoleQuestion("merges subwords", lambda head: head.merging_pieces, CANDIDATE),
    RoleQuestion("question mark", lambda head: head.interrogation, CANDIDATE),
    RoleQuestion("first token", lambda head: head.first_key, CANDIDATE),
    RoleQuestion("end of sentence", lambda head: head.last_key, CANDIDATE),
    RoleQuestion("broad context", lambda head: head.evenness, 0.85),
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


def _alignment(head: HeadRow) -> float | None:
    """1 - AER, of row i or row i + 1, whichever aligns better."""
    errors = [error for error in (head.aer, head.aer_shifted) if error is not None]
    return 1.0 - min(errors) if errors else None
