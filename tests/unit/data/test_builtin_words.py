"""The words of the built-in corpus: declension in all cases, times of day, and one translation for each English word."""

import pytest

from entformer.data import builtin_lexicon as words
from entformer.data import builtin_times as times
from entformer.data.builtin_german import phrase
from entformer.data.builtin_meaning import Phrase
from entformer.data.builtin_words import CASES, Adjective, Noun, compound, noun

ALL = [entry for value in vars(words).values() for entry in (value if isinstance(value, list) else [value])]
NOUNS = [entry for entry in ALL if isinstance(entry, Noun)]
ADJECTIVES = {entry.english: entry for entry in ALL if isinstance(entry, Adjective)}


def spoken(text: str) -> Phrase:
    """A phrase from words: "the young monkey"; a plural is seen by its noun."""
    determiner, _, rest = text.partition(" ")
    first, _, last = rest.partition(" ")
    adjectives = (ADJECTIVES[first],) if first in ADJECTIVES else ()
    name = last if adjectives else rest
    found = next(entry for entry in NOUNS if name in (entry.english, entry.english_plural))
    return Phrase(found, determiner, name == found.english_plural, adjectives)


DECLENSION = {
    "the old man": "der alte Mann, den alten Mann, dem alten Mann, des alten Mannes",
    "a old man": "ein alter Mann, einen alten Mann, einem alten Mann, eines alten Mannes",
    "the old woman": "die alte Frau, die alte Frau, der alten Frau, der alten Frau",
    "a old woman": "eine alte Frau, eine alte Frau, einer alten Frau, einer alten Frau",
    "this small child": "dieses kleine Kind, dieses kleine Kind, diesem kleinen Kind, dieses kleinen Kindes",
    "a small child": "ein kleines Kind, ein kleines Kind, einem kleinen Kind, eines kleinen Kindes",
    "the small children": "die kleinen Kinder, die kleinen Kinder, den kleinen Kindern, der kleinen Kinder",
    "a small children": "kleine Kinder, kleine Kinder, kleinen Kindern, kleiner Kinder",
    "many old cars": "viele alte Autos, viele alte Autos, vielen alten Autos, vieler alter Autos",
    "the young monkey": "der junge Affe, den jungen Affen, dem jungen Affen, des jungen Affen",
    "a expensive school bus": "ein teurer Schulbus, einen teuren Schulbus, einem teuren Schulbus, eines teuren Schulbusses",
    "every fire truck driver": "jeder Feuerwehrwagenfahrer, jeden Feuerwehrwagenfahrer, jedem Feuerwehrwagenfahrer, "
    "jedes Feuerwehrwagenfahrers",
    "the T-shirt seller": "der T-Shirt-Verkäufer, den T-Shirt-Verkäufer, dem T-Shirt-Verkäufer, des T-Shirt-Verkäufers",
    "the photographers": "die Fotografen, die Fotografen, den Fotografen, der Fotografen",
    "the friendly doctors": "die freundlichen Ärztinnen, die freundlichen Ärztinnen, den freundlichen Ärztinnen, "
    "der freundlichen Ärztinnen",
}


@pytest.mark.parametrize(("text", "forms"), DECLENSION.items())
def test_declension_in_all_four_cases(text: str, forms: str) -> None:
    assert ", ".join(phrase(spoken(text), case) for case in range(len(CASES))) == forms


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ("at one o'clock", "um ein Uhr"),
        ("at half past twelve", "um halb eins"),
        ("at a quarter to seven", "um Viertel vor sieben"),
        ("at a quarter past one", "um Viertel nach eins"),
        ("at 18:05", "um 18:05 Uhr"),
        ("on Saturdays", "samstags"),
        ("every Friday", "jeden Freitag"),
        ("three hours ago", "vor drei Stunden"),
        ("tomorrow morning", "morgen früh"),
    ],
)
def test_times_of_day_and_week(when: str, expected: str) -> None:
    known = [time.german for time in (*times.CLOCK, *times.HABIT, *times.PAST, *times.FUTURE) if time.english == when]
    assert known == [expected]


def test_one_english_word_has_one_german_translation() -> None:
    for kind in (Noun, Adjective):
        found: dict[str, object] = {}
        for entry in ALL:
            if isinstance(entry, kind):
                german_word = entry.singular[0] if isinstance(entry, Noun) else entry.stem
                predicate_only = isinstance(entry, Adjective) and entry in words.MOODS
                assert predicate_only or found.setdefault(entry.english, german_word) == german_word


def test_a_compound_takes_gender_and_endings_of_its_head() -> None:
    head = noun("thief / thieves | Dieb m ~e", "he")
    made = compound("handbag", "Handtaschen", head)
    assert (made.english, made.english_plural) == ("handbag thief", "handbag thieves")
    assert made.singular == ("Handtaschendieb", "Handtaschendieb", "Handtaschendieb", "Handtaschendiebes")
    assert made.plural == ("Handtaschendiebe", "Handtaschendiebe", "Handtaschendieben", "Handtaschendiebe")
    assert compound("e-bike", "E-Bike-", head).singular[0] == "E-Bike-Dieb"
