"""Built-in corpus: draws who, what, where and whither at random. In: a seed. Out: phrases that make sense together.

Only `random()` of Python's generator is used, whose values are promised to stay the same from one Python to the next.
"""

import random
from collections.abc import Sequence
from typing import TypeVar

from entformer.data import builtin_lexicon as words
from entformer.data import builtin_verbs as verbs
from entformer.data.builtin_meaning import NUMBERS, Phrase, Relation
from entformer.data.builtin_verbs import Frame
from entformer.data.builtin_words import ACCUSATIVE, DATIVE, GENITIVE, Adjective, Noun

T = TypeVar("T")

COUNTS = tuple(NUMBERS)[:5]
PLACES: tuple[tuple[str, str, Noun], ...] = tuple(words.PLACES)
PLACE_NAMED = {place.english: place for _, _, place in PLACES}
_ENCLOSED = tuple(place for _, german, place in PLACES if german == "in" and place.english not in ("city", "village", "school"))
OPEN = tuple(PLACE_NAMED[name] for name in ("park", "forest", "city", "village", "garden"))
CROSSED = tuple(PLACE_NAMED[name] for name in ("bridge", "street", "square"))
OUTDOORS = tuple(
    entry
    for entry in PLACES
    if entry[2].english
    in ("park", "garden", "forest", "street", "river", "lake", "beach", "bridge", "farm", "square", "harbour")
)
_GOALS = tuple(place for _, _, place in PLACES if place.english not in ("city", "village", "street"))
_GOAL_NAMES = frozenset(place.english for place in _GOALS)
_NATURE = ("forest", "river", "lake", "beach")
HOMELY = ("dog", "cat", "bird", "rabbit", "monkey")  # animals that may sit on a chair
_SHOPPED = tuple(entry for entry in PLACES if entry[2].english in ("market", "city", "village"))
_CLIMBED = (words.WALL, words.ROOF, words.BENCH, words.CHAIR, words.TABLE)
_WITH = ("with", "mit")


class PhraseSampler:
    """Draws phrases; the same seed gives the same run."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    # ---- chance --------------------------------------------------------------------------------------------------------

    def _one(self, choices: Sequence[T]) -> T:
        return choices[int(self._random() * len(choices))]

    def _chance(self, share: float) -> bool:
        return self._random() < share

    def _some(self, adjectives: Sequence[Adjective], share: float) -> tuple[Adjective, ...]:
        return (self._one(adjectives),) if adjectives and self._chance(share) else ()

    # ---- phrases -------------------------------------------------------------------------------------------------------

    def _person(self) -> tuple[Noun, Sequence[Adjective]]:
        noun = self._one(words.TRADES) if self._chance(0.2) else self._one(verbs.PERSONS)
        young = noun.english in ("girl", "boy", "child")
        return noun, words.OF_CHILDREN if young else words.OF_PEOPLE

    def _seen(self) -> Phrase:
        """Somebody new to the reader, as in a caption: "two young women in red coats"."""
        noun, adjectives = self._person()
        plural = self._chance(0.25)
        determiner = self._one((*COUNTS[:3], "some", "many", "a")) if plural else "a"
        detail = self._clothing(plural, noun.pronoun == "she") if self._chance(0.35) else None
        return Phrase(noun, determiner, plural, self._some(adjectives, 0.45), detail=detail)

    def _clothing(self, plural: bool, female: bool) -> Relation:
        if self._chance(0.2):
            animal = Phrase(self._one(words.ANIMALS[:3]), "a", False, self._some(words.OF_ANIMALS, 0.7))
            return Relation(*_WITH, DATIVE, animal)
        worn = self._one(words.WEAR if self._chance(0.5) else words.CLOTHES)
        while worn.english in ("dress", "skirt") and not female:
            worn = self._one(words.WEAR)
        german = "mit" if worn.english.endswith(words.HEADWEAR) else "in"  # German: with a hat, not in it
        return Relation("in", german, DATIVE, Phrase(worn, "a", plural, self._some(words.COLOURS, 0.8)))

    def _known(self) -> Phrase:
        """Somebody the reader knows: "the tall man", "Anna", "she", "the teacher's sister"."""
        draw = self._random()
        if draw < 0.15:
            return Phrase(self._one(words.NAMES), "name")
        if draw < 0.25:
            noun = self._one((words.MEN[0], words.WOMEN[0]))
            return Phrase(noun, "he", self._chance(0.3))
        if draw < 0.35:
            return Phrase(self._one(words.KIN), "of", owner=self._owner())
        noun, adjectives = self._person()
        plural = self._chance(0.2)
        determiner = "this" if self._chance(0.12) else "the"
        return Phrase(noun, determiner, plural, self._some(adjectives, 0.3))

    def _named(self) -> Phrase:
        """Somebody known, but not by a pronoun, which would point to the wrong person after another subject."""
        subject = self._known()
        while subject.determiner == "he":
            subject = self._known()
        return subject

    def _owner(self) -> Phrase:
        if self._chance(0.6):
            return Phrase(self._one(words.NAMES), "name")
        return Phrase(self._person()[0])

    def _animal(self, determiner: str) -> Phrase:
        plural = self._chance(0.2)
        if plural and determiner == "a":
            determiner = self._one((*COUNTS[:3], "some"))
        return Phrase(self._one(words.ANIMALS), determiner, plural, self._some(words.OF_ANIMALS, 0.6))

    def _thing(self, frame: Frame, owner: Phrase | None, *, denied: bool = False) -> Phrase:
        """The object of a verb. `owner`: who "his" may point to."""
        noun = self._one(frame.objects)
        if frame.kind == "mass":
            return Phrase(noun, "a", adjectives=self._some(frame.adjectives, 0.4), mass=True)
        adjectives = self._some(frame.adjectives, 0.4)
        if adjectives and adjectives[0] in words.OF_THINGS and self._chance(0.12):
            adjectives = (*adjectives, self._one(words.COLOURS[:8]))
        draw = self._random()
        if draw < 0.42:
            return Phrase(noun, "a", False, adjectives)
        if draw < 0.66:
            return Phrase(noun, "the", False, adjectives)
        if draw < 0.74 and owner and frame.kind != "persons":
            return Phrase(noun, "his", False, adjectives, owner=owner)
        if draw < 0.80 and frame.kind != "persons":
            return Phrase(noun, "of", False, adjectives, owner=self._owner())
        if draw < 0.85:
            return Phrase(noun, "this", False, adjectives)
        if denied or draw < 0.90:
            return Phrase(noun, "the" if denied else "a", True, adjectives)
        return Phrase(noun, self._one((*COUNTS, "some", "many")), True, adjectives)

    def _spot(self, noun: Noun) -> Phrase:
        draw = self._random()
        determiner = "the" if draw < 0.7 else "a" if draw < 0.94 else "this"
        if not self._chance(0.22):
            return Phrase(noun, determiner)
        nature = noun.english in _NATURE
        adjectives = words.OF_PLACES[:4] if nature else words.OF_PLACES if noun.english in _GOAL_NAMES else words.OF_THINGS[:4]
        return Phrase(noun, determiner, adjectives=(self._one(adjectives),))

    def _place(self) -> Relation:
        draw = self._random()
        if draw < 0.68:
            english, german, noun = self._one(PLACES)
            return Relation(english, german, DATIVE, self._spot(noun))
        if draw < 0.78:
            return Relation("in", "in", DATIVE, self._spot(self._one(words.SHOPS)))
        if draw < 0.86:
            return Relation("near", "in der Nähe", GENITIVE, self._spot(self._one(words.LANDMARKS)))
        english, german = self._one((("in front of", "vor"), ("behind", "hinter"), ("next to", "neben")))
        return Relation(english, german, DATIVE, self._spot(self._one(words.LANDMARKS)))

    def _market(self) -> Relation:
        if self._chance(0.5):
            return Relation("in", "in", DATIVE, self._spot(self._one(words.SHOPS)))
        english, german, noun = self._one(_SHOPPED)
        return Relation(english, german, DATIVE, self._spot(noun))

    def _outdoors(self) -> Relation:
        if self._chance(0.2):
            return Relation("under", "unter", DATIVE, self._spot(words.TREE))
        english, german, noun = self._one(OUTDOORS)
        return Relation(english, german, DATIVE, self._spot(noun))

    def _seat(self) -> Relation:
        draw = self._random()
        if draw < 0.6:
            return Relation("on", "auf", DATIVE, self._spot(self._one(words.SEATS)))
        if draw < 0.8:
            return Relation("under", "unter", DATIVE, self._spot(self._one((words.TREE, words.TABLE, PLACE_NAMED["bridge"]))))
        return self._place()

    def _way(self, verb: str) -> Relation:
        if verb in ("jump", "climb"):
            english, german, nouns = self._one(
                (
                    ("onto", "auf", _CLIMBED),
                    ("over", "über", (words.WALL, words.BENCH)),
                    ("into", "in", (words.VEHICLES[0], words.VEHICLES[3])),
                )
            )
            return Relation(english, german, ACCUSATIVE, self._spot(self._one(nouns)))
        draw = self._random()
        if draw < 0.5 or verb == "come":
            noun = self._one(_GOALS) if self._chance(0.75) else self._one(words.SHOPS)
            return Relation("to", "zu", DATIVE, self._spot(noun))
        if draw < 0.68 and verb != "drive":
            return Relation("into", "in", ACCUSATIVE, self._spot(self._one(_ENCLOSED)))
        if draw < 0.84:
            return Relation("through", "durch", ACCUSATIVE, self._spot(self._one(OPEN)))
        return Relation("across", "über", ACCUSATIVE, self._spot(self._one(CROSSED)))

    def _company(self, subject: Phrase) -> Relation:
        draw = self._random()
        if draw < 0.35:
            with_whom = Phrase(self._one(words.KIN), "his", owner=subject)
        elif draw < 0.5:
            with_whom = Phrase(self._one(words.NAMES), "name")
        elif draw < 0.75:
            with_whom = Phrase(self._one(words.ANIMALS[:3]), "his", False, self._some(words.OF_ANIMALS, 0.4), owner=subject)
        else:
            noun, adjectives = self._person()
            with_whom = Phrase(noun, self._one(("a", "the")), False, self._some(adjectives, 0.4))
        return Relation(*_WITH, DATIVE, with_whom)
