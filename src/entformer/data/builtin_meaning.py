"""What a sentence of the built-in corpus means, before it is said in any language.

A meaning is a small tree of frozen records. `builtin_english` and `builtin_german` each turn it into one sentence by rule, so
that one meaning has one sentence in each language.
"""

from __future__ import annotations

from dataclasses import dataclass

from entformer.data.builtin_words import Adjective, Noun, Verb

NUMBERS = {
    "two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs", "seven": "sieben", "eight": "acht",
    "nine": "neun", "ten": "zehn", "eleven": "elf", "twelve": "zwölf",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Phrase:
    """Who or what. `determiner`: "a" (nothing in the plural and before mass nouns), "the", "this", "every", "some", "many",
    "which", "how many", a number word, "his" (the owner is `owner`), "of" (the owner's name or noun in the genitive), "name",
    or "he" (a pronoun in place of the noun)."""

    noun: Noun
    determiner: str = "the"
    plural: bool = False
    adjectives: tuple[Adjective, ...] = ()
    owner: Phrase | None = None
    mass: bool = False
    detail: Relation | None = None  # "in a red coat"
    relative: Clause | None = None  # "who is reading a letter"; the phrase itself is the clause's subject, or its object
    relative_object: bool = False  # True: "that the man is reading", the phrase is the object


@dataclass(frozen=True, slots=True)
class Relation:
    """A preposition with its phrase: a place, a direction, company."""

    english: str
    german: str
    case: int
    phrase: Phrase


@dataclass(frozen=True, slots=True)
class Words:
    """Words that are the same in every sentence, in both languages: "at half past eight" and "um halb neun"."""

    english: str
    german: str


@dataclass(frozen=True, slots=True)
class Clause:
    """Somebody does something. `tense`: "now" (is reading), "habit" (reads), "past" (read), or a modal: "can", "want",
    "have to", "may", "will"; or "passive" (is being read; who does it is the company)."""

    subject: Phrase
    verb: Verb
    tense: str = "now"
    object: Phrase | None = None
    recipient: Phrase | None = None
    company: Relation | None = None
    place: Relation | None = None
    direction: Relation | None = None
    when: Words | None = None
    predicate: Words | None = None  # after "be" and "cost": "tired" and "müde"
    than: Phrase | None = None  # after a comparative
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence. `form`: "statement", "when first" (the time opens the sentence), "yes-no", or the thing that is asked
    for: "who", "what", "where", "when", "time", "why", "how much". "which" and "how many" are determiners: form "object" asks
    for the object with it, form "who" for the subject. "there" and "is there" say or ask what is in a place."""

    clause: Clause
    form: str = "statement"
    conjunction: Words | None = None  # "because" and "weil"; alone, a whole clause: "because it is raining"
    second: Clause | None = None  # the clause after the conjunction; its verb is last in German
    first: bool = False  # True: the subordinate clause opens the sentence
