"""What a word of the built-in corpus is: nouns, adjectives and verbs with the forms both languages need.

In: one row of a lexicon table. Out: a frozen record whose German case forms are worked out once, by the regular rules of
declension (weak masculines take -n or -en, the dative plural takes -n, the genitive takes -s or -es, feminines take nothing).
"""

import re
from dataclasses import dataclass

CASES = ("nominative", "accusative", "dative", "genitive")
NOMINATIVE, ACCUSATIVE, DATIVE, GENITIVE = range(4)


@dataclass(frozen=True, slots=True)
class Noun:
    english: str
    english_plural: str
    gender: str  # "m", "f" or "n", of the German noun
    singular: tuple[str, str, str, str]  # German, one form per case of CASES
    plural: tuple[str, str, str, str]
    pronoun: str  # the English pronoun that takes its place: "he", "she" or "it"

    @property
    def person(self) -> bool:
        return self.pronoun != "it" or self.english in ("child", "baby")


@dataclass(frozen=True, slots=True)
class Adjective:
    english: str
    stem: str  # German, an ending follows: "teur" in "teure"
    predicate: str  # German, after "ist": "teuer"


@dataclass(frozen=True, slots=True)
class Verb:
    base: str  # English: "read"
    third: str  # "reads"
    progressive: str  # "reading"
    past: str  # "read"
    infinitive: str  # German: "lesen"; separable verbs are written "an|rufen"
    singular: str  # "liest", without the particle
    participle: str  # "gelesen"
    auxiliary: str = "haben"  # of the perfect: "haben" or "sein"
    preposition: str = ""  # English preposition before the object: "for" of "wait for"
    german_preposition: str = ""  # "auf" of "warten auf"
    case: int = ACCUSATIVE  # of the German object
    stative: bool = False  # has no progressive in English: "needs", never "is needing"

    @property
    def particle(self) -> str:
        return self.infinitive.partition("|")[0] if "|" in self.infinitive else ""

    @property
    def plural(self) -> str:
        """The finite plural, without the particle: "rufen" of "an|rufen"."""
        return self.infinitive.rpartition("|")[2]


def noun(row: str, pronoun: str = "it") -> Noun:
    """One noun of a row "English [English plural] | German gender German-plural [genitive]".

    "~" before a plural or a genitive stands for the German word itself. A genitive equal to the plural, on a masculine,
    marks the weak declension. A dash stands for "has no plural".
    """
    left, right = (part.strip() for part in row.split("|"))
    english, _, english_plural = (part.strip() for part in left.partition("/"))
    fields = [field.replace("~", right.split()[0]) for field in right.split()]
    german, gender, plural = fields[:3]
    genitive = fields[3] if len(fields) > 3 else _genitive(german, gender)
    weak = gender == "m" and genitive == plural and genitive.endswith("n")
    oblique = genitive if weak else german
    dative_plural = plural if plural.endswith(("n", "s")) else plural + "n"
    return Noun(
        english=english,
        english_plural=english_plural or _english_plural(english),
        gender=gender,
        singular=(german, oblique, oblique, genitive),
        plural=(plural, plural, dative_plural, plural),
        pronoun=pronoun,
    )


def compound(english: str, german: str, head: Noun) -> Noun:
    """A compound noun: gender, plural and endings are those of its head. "T-Shirt-" keeps its hyphen and the capital."""

    def join(form: str) -> str:
        return german + (form if german.endswith("-") else form[0].lower() + form[1:])

    return Noun(
        english=f"{english} {head.english}",
        english_plural=f"{english} {head.english_plural}",
        gender=head.gender,
        singular=(join(head.singular[0]), join(head.singular[1]), join(head.singular[2]), join(head.singular[3])),
        plural=(join(head.plural[0]), join(head.plural[1]), join(head.plural[2]), join(head.plural[3])),
        pronoun=head.pronoun,
    )


def adjective(row: str) -> Adjective:
    """One adjective of a row "English | German [stem]", the stem given only where it differs."""
    english, _, german = row.partition("|")
    fields = german.split()
    return Adjective(english.strip(), fields[-1], fields[0])


def verb(row: str) -> Verb:
    """One verb of a row "base third progressive past | infinitive er-form participle [options]".

    English forms of several words are joined by "_" ("turn_on"). Options: "sein", "dative", "stative", "for:auf",
    "of:von:dative" (a preposition in both languages, the accusative unless a case is named).
    """
    left, right = row.split("|", 1)
    base, third, progressive, past = (form.replace("_", " ") for form in left.split())
    infinitive, singular, participle, *options = right.split()
    auxiliary, preposition, german_preposition, case, stative = "haben", "", "", ACCUSATIVE, False
    for option in options:
        if option == "sein":
            auxiliary = "sein"
        elif option == "stative":
            stative = True
        elif option == "dative":
            case = DATIVE
        else:
            preposition, german_preposition, *named = option.split(":")
            case = DATIVE if named == ["dative"] else ACCUSATIVE
    return Verb(
        base,
        third,
        progressive,
        past,
        infinitive,
        singular,
        participle,
        auxiliary,
        preposition,
        german_preposition,
        case,
        stative,
    )


def _genitive(german: str, gender: str) -> str:
    if gender == "f":
        return german
    one_syllable = len(re.findall("[aeiouäöüy]+", german.lower())) == 1
    return german + ("es" if one_syllable or german.endswith(("s", "ß", "z", "x")) else "s")


def _english_plural(english: str) -> str:
    if english.endswith(("s", "sh", "ch", "x")):
        return english + "es"
    if english.endswith("y") and english[-2] not in "aeiou":
        return english[:-1] + "ies"
    return english + "s"
