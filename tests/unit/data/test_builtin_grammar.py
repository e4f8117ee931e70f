"""The grammar of the built-in corpus against sentences written by hand, in both languages, one per rule of grammar."""

from dataclasses import replace

import pytest

from entformer.data import builtin_lexicon as words
from entformer.data import builtin_times as times
from entformer.data import builtin_verbs as verbs
from entformer.data.builtin_english import english
from entformer.data.builtin_german import german
from entformer.data.builtin_meaning import Clause, Phrase, Relation, Sentence, Words
from entformer.data.builtin_words import ACCUSATIVE, DATIVE, GENITIVE, Adjective, Noun, Verb

LISTS = [value for value in vars(words).values() if isinstance(value, list)]
ALL = [entry for value in (*vars(words).values(), *LISTS) for entry in (value if isinstance(value, list) else [value])]
NOUNS = {entry.english: entry for entry in [*ALL, *(place for _, _, place in words.PLACES)] if isinstance(entry, Noun)}
ADJECTIVES = {entry.english: entry for entry in ALL if isinstance(entry, Adjective)}
FRAMES = (
    *verbs.DO, *verbs.TO_PERSON, *verbs.ABOUT_PERSON, *verbs.ABOUT_THING, *verbs.GIVE, *verbs.REST, *verbs.POSTURE, *verbs.GO,
    *verbs.JUMP, verbs.PUT, *verbs.TRAVEL,
)  # fmt: skip
VERBS: dict[str, Verb] = {**{frame.verb.base: frame.verb for frame in FRAMES}, **{verb.base: verb for verb in verbs.SAY}}
TIMES = {time.english: time for time in (*times.CLOCK, *times.HABIT, *times.PAST, *times.FUTURE, *times.SOON, *times.NOW)}


def p(text: str, **more: object) -> Phrase:
    """A phrase from words: "the young woman", "a kitchen table", "three dogs"; a plural is seen by its noun."""
    determiner, rest = text.split(" ", 1) if " " in text else ("name", text)
    adjectives = []
    while rest not in NOUNS and rest not in PLURALS:
        adjective, rest = rest.split(" ", 1)
        adjectives.append(ADJECTIVES[adjective])
    plural = rest in PLURALS
    made = Phrase(PLURALS[rest] if plural else NOUNS[rest], determiner, plural, tuple(adjectives))
    return replace(made, **more)  # type: ignore[arg-type]


PLURALS = {entry.english_plural: entry for name, entry in NOUNS.items() if entry.english_plural != name}


def at(english_word: str, german_word: str, text: str, case: int = DATIVE) -> Relation:
    return Relation(english_word, german_word, case, p(text))


def into(english_word: str, german_word: str, text: str) -> Relation:
    return at(english_word, german_word, text, ACCUSATIVE)


def does(
    subject: Phrase | str, verb: Verb | str, thing: Phrase | str | None = None, tense: str = "now", **more: object
) -> Clause:
    clause = Clause(
        p(subject) if isinstance(subject, str) else subject,
        VERBS[verb] if isinstance(verb, str) else verb,
        tense,
        p(thing) if isinstance(thing, str) else thing,
    )
    if isinstance(more.get("when"), str):
        more["when"] = TIMES[str(more["when"])]
    return replace(clause, **more)  # type: ignore[arg-type]


def of(owner: str, noun: str, *adjectives: str) -> Phrase:
    return Phrase(NOUNS[noun], "of", False, tuple(ADJECTIVES[adjective] for adjective in adjectives), p(owner))


def own(owner: str, noun: str) -> Phrase:
    return Phrase(NOUNS[noun], "his", owner=p(owner))


def mass(noun: str, *adjectives: str) -> Phrase:
    return Phrase(NOUNS[noun], "a", adjectives=tuple(ADJECTIVES[adjective] for adjective in adjectives), mass=True)


def told(clause: Clause, form: str = "statement") -> Sentence:
    return Sentence(clause, form)


WHO = Phrase(NOUNS["man"], "who")
SHE_WAS_TIRED = does(Phrase(NOUNS["girl"], "he"), verbs.BE, tense="past", predicate=Words("tired", "müde"))
VERY_OLD = Words("very old", "sehr alt")
REPAIRING = does("the woman", "repair", "a blue car")
SELLING = does("a handbag thief", "sell", "the mirror")

GOLD = [
    # captions: agreement in the nominative, dative after "in", the place before an indefinite object
    (
        told(
            does(
                p("a young woman", detail=at("in", "in", "a red coat")), "read", "a newspaper", place=at("on", "auf", "a bench")
            )
        ),
        "A young woman in a red coat is reading a newspaper on a bench.",
        "Eine junge Frau in einem roten Mantel liest auf einer Bank eine Zeitung.",
    ),
    (
        told(does("two old men", "play", mass("chess"), place=at("in", "in", "the park"))),
        "Two old men are playing chess in the park.",
        "Zwei alte Männer spielen im Park Schach.",
    ),
    (
        told(does(p("a boy", detail=at("in", "mit", "a green hat")), "stroke", "the small elephant")),
        "A boy in a green hat is stroking the small elephant.",
        "Ein Junge mit einem grünen Hut streichelt den kleinen Elefanten.",
    ),
    (
        told(does("some girls", "sit", place=at("under", "unter", "the big tree"))),
        "Some girls are sitting under the big tree.",
        "Einige Mädchen sitzen unter dem großen Baum.",
    ),
    (
        told(does("many tourists", "stand", place=at("in front of", "vor", "a old church"))),
        "Many tourists are standing in front of an old church.",
        "Viele Touristen stehen vor einer alten Kirche.",
    ),
    # accusative and dative after the same prepositions
    (
        told(does("the child", "run", direction=into("into", "in", "the house"))),
        "The child is running into the house.",
        "Das Kind läuft ins Haus.",
    ),
    (
        told(does("the child", "play", place=at("in", "in", "the garden"))),
        "The child is playing in the garden.",
        "Das Kind spielt im Garten.",
    ),
    (
        told(does("the cook", "put", "the key", direction=into("on", "auf", "the kitchen table"))),
        "The cook is putting the key on the kitchen table.",
        "Der Koch legt den Schlüssel auf den Küchentisch.",
    ),
    (
        told(does("the doctor", "walk", direction=at("to", "zu", "the church"))),
        "The doctor is walking to the church.",
        "Die Ärztin geht zur Kirche.",
    ),
    # genitive
    (
        told(does("the dog", "sleep", place=at("near", "in der Nähe", "a quiet river", GENITIVE))),
        "The dog is sleeping near a quiet river.",
        "Der Hund schläft in der Nähe eines ruhigen Flusses.",
    ),
    (
        told(does("the man", "buy", of("the teacher", "car", "old"))),
        "The man is buying the teacher's old car.",
        "Der Mann kauft das alte Auto des Lehrers.",
    ),
    (told(does("Jan", "buy", of("Anna", "car", "old"))), "Jan is buying Anna's old car.", "Jan kauft Annas altes Auto."),
    # possessives follow the owner's gender, and the thing's gender and case
    (
        told(does("the woman", "look for", own("the woman", "hat"))),
        "The woman is looking for her hat.",
        "Die Frau sucht ihren Hut.",
    ),
    (
        told(does("the girl", "look for", own("the girl", "bag"))),
        "The girl is looking for her bag.",
        "Das Mädchen sucht seine Tasche.",
    ),
    (
        told(
            does(
                "the children",
                "play",
                company=Relation("with", "mit", DATIVE, own("the children", "dog")),
                place=at("on", "an", "the beach"),
            )
        ),
        "The children are playing with their dog on the beach.",
        "Die Kinder spielen mit ihrem Hund am Strand.",
    ),
    # mass nouns: strong endings without an article
    (
        told(does("the nurse", "drink", mass("water", "cold"))),
        "The nurse is drinking cold water.",
        "Der Krankenpfleger trinkt kaltes Wasser.",
    ),
    # tenses: the perfect with haben and sein, modals, the future; the time before the object
    (
        told(does("the man", "buy", "a new bicycle", "past", when="yesterday")),
        "The man bought a new bicycle yesterday.",
        "Der Mann hat gestern ein neues Fahrrad gekauft.",
    ),
    (
        told(does("the students", "drive", None, "past", direction=at("to", "zu", "the lake"), when="last week")),
        "The students drove to the lake last week.",
        "Die Studenten sind letzte Woche zum See gefahren.",
    ),
    (
        told(does("Maria", "read", "the newspaper", "habit", when="every morning")),
        "Maria reads the newspaper every morning.",
        "Maria liest jeden Morgen die Zeitung.",
    ),
    (
        told(does("the farmer", "sell", "a white horse", "want", when="tomorrow")),
        "The farmer wants to sell a white horse tomorrow.",
        "Der Bauer will morgen ein weißes Pferd verkaufen.",
    ),
    (
        told(does("this boy", "call", "the policeman", "may")),
        "This boy is allowed to call the policeman.",
        "Dieser Junge darf den Polizisten anrufen.",
    ),
    (
        told(does("this women", "help", "the old neighbour", "will", when="on Monday")),
        "These women will help the old neighbour on Monday.",
        "Diese Frauen werden am Montag dem alten Nachbarn helfen.",
    ),
    (
        told(does("every pilot", "read", "this long report", "have to")),
        "Every pilot has to read this long report.",
        "Jede Pilotin muss diesen langen Bericht lesen.",
    ),
    # separable verbs
    (
        told(does("the mechanic", "turn on", "the washing machine")),
        "The mechanic is turning on the washing machine.",
        "Die Mechanikerin schaltet die Waschmaschine ein.",
    ),
    (
        told(does("the train", "arrive", None, "past", place=at("at", "an", "the station"), when="at half past eight")),
        "The train arrived at the station at half past eight.",
        "Der Zug ist um halb neun am Bahnhof angekommen.",
    ),
    (told(does("the bus", "leave", None, "habit", when="at 7:35")), "The bus leaves at 7:35.", "Der Bus fährt um 7:35 Uhr ab."),
    # the time first: the verb is still second
    (
        told(does("the painter", "invite", "the friendly musician", "past", when="two days ago"), "when first"),
        "Two days ago, the painter invited the friendly musician.",
        "Vor zwei Tagen hat die Malerin den freundlichen Musiker eingeladen.",
    ),
    # two objects
    (
        told(does("the woman", "give", "a apple", recipient=p("the small children"))),
        "The woman is giving the small children an apple.",
        "Die Frau gibt den kleinen Kindern einen Apfel.",
    ),
    # denial
    (
        told(does("the woman", "read", "a newspaper", negated=True)),
        "The woman is not reading a newspaper.",
        "Die Frau liest keine Zeitung.",
    ),
    (
        told(does("the man", "buy", "the coat", "past", negated=True)),
        "The man did not buy the coat.",
        "Der Mann hat den Mantel nicht gekauft.",
    ),
    (
        told(does("Peter", "wait", "the tram", "can", negated=True)),
        "Peter cannot wait for the tram.",
        "Peter kann nicht auf die Straßenbahn warten.",
    ),
    # questions
    (
        told(does("the woman", "read", "a newspaper", place=at("in", "in", "the library")), "yes-no"),
        "Is the woman reading a newspaper in the library?",
        "Liest die Frau in der Bibliothek eine Zeitung?",
    ),
    (
        told(does("the fire truck driver", "open", "the cellar door", "past"), "yes-no"),
        "Did the fire truck driver open the cellar door?",
        "Hat der Feuerwehrwagenfahrer die Kellertür aufgemacht?",
    ),
    (
        told(does(WHO, "feed", "the ducks", place=at("by", "an", "the lake")), "who"),
        "Who is feeding the ducks by the lake?",
        "Wer füttert die Enten am See?",
    ),
    (
        told(does("the man", "buy", "the coat", place=at("at", "auf", "the market")), "what"),
        "What is the man buying at the market?",
        "Was kauft der Mann auf dem Markt?",
    ),
    (told(does("the girl", "thank", "the cook", "past"), "what"), "Who did the girl thank?", "Wem hat das Mädchen gedankt?"),
    (told(does("the boy", "greet", "the child"), "what"), "Who is the boy greeting?", "Wen begrüßt der Junge?"),
    (told(does("Eva", "wait", "the train"), "what"), "What is Eva waiting for?", "Worauf wartet Eva?"),
    (
        told(does("the rabbit", "sleep", place=at("in", "in", "the garden")), "where"),
        "Where is the rabbit sleeping?",
        "Wo schläft das Kaninchen?",
    ),
    (
        told(does("the waiters", "run", direction=at("to", "zu", "the bridge")), "where"),
        "Where are the waiters running?",
        "Wohin laufen die Kellner?",
    ),
    (
        told(does("the school bus", "leave", None, "habit"), "time"),
        "What time does the school bus leave?",
        "Um wie viel Uhr fährt der Schulbus ab?",
    ),
    (
        told(does("the woman", "buy", "which yellow dress"), "object"),
        "Which yellow dress is the woman buying?",
        "Welches gelbe Kleid kauft die Frau?",
    ),
    (
        told(does(Phrase(NOUNS["child"], "how many", True), "sing", place=at("at", "in", "the school")), "who"),
        "How many children are singing at the school?",
        "Wie viele Kinder singen in der Schule?",
    ),
    # subordinate clauses: the verb is last
    (
        Sentence(
            does("the teacher", "say", None, "habit"), "statement", Words("that", "dass"), does("the boy", "close", "the door")
        ),
        "The teacher says that the boy is closing the door.",
        "Der Lehrer sagt, dass der Junge die Tür zumacht.",
    ),
    (
        Sentence(
            does("the girl", "sleep", None, "past", place=at("on", "auf", "the sofa")),
            "statement",
            Words("because", "weil"),
            SHE_WAS_TIRED,
        ),
        "The girl slept on the sofa because she was tired.",
        "Das Mädchen hat auf dem Sofa geschlafen, weil es müde war.",
    ),
    (
        Sentence(
            does("the man", "buy", "the coat"),
            "statement",
            Words("while", "während"),
            does("the dogs", "sleep", place=at("in", "auf", "the street")),
            first=True,
        ),
        "While the dogs are sleeping in the street, the man is buying the coat.",
        "Während die Hunde auf der Straße schlafen, kauft der Mann den Mantel.",
    ),
    # relative clauses
    (
        told(does(p("the woman", relative=REPAIRING), "laugh", place=at("in", "in", "the garden"))),
        "The woman who is repairing a blue car is laughing in the garden.",
        "Die Frau, die ein blaues Auto repariert, lacht im Garten.",
    ),
    (
        told(does(p("the mirror", relative=SELLING, relative_object=True), verbs.BE, None, "habit", predicate=VERY_OLD)),
        "The mirror that a handbag thief is selling is very old.",
        "Der Spiegel, den ein Handtaschendieb verkauft, ist sehr alt.",
    ),
    (
        told(does("Lena", "buy", p("the baskets", relative=does("Jan", "sell", "the baskets"), relative_object=True))),
        "Lena is buying the baskets that Jan is selling.",
        "Lena kauft die Körbe, die Jan verkauft.",
    ),
    # passive, comparison, price, existence
    (
        told(does("the red boat", "repair", None, "passive", company=at("by", "von", "the engineers"))),
        "The red boat is being repaired by the engineers.",
        "Das rote Boot wird von den Ingenieurinnen repariert.",
    ),
    (
        told(
            does(
                "the white shoes",
                verbs.BE,
                None,
                "habit",
                predicate=Words("more expensive", "teurer"),
                than=p("the dark-blue coat"),
            )
        ),
        "The white shoes are more expensive than the dark-blue coat.",
        "Die weißen Schuhe sind teurer als der dunkelblaue Mantel.",
    ),
    (
        told(does("this expensive lamp", verbs.COST, None, "habit", predicate=Words("45 euros", "45 Euro"))),
        "This expensive lamp costs 45 euros.",
        "Diese teure Lampe kostet 45 Euro.",
    ),
    (
        told(does("this lamps", verbs.COST, None, "habit", place=at("in", "in", "the flower shop")), "how much"),
        "How much do these lamps cost in the flower shop?",
        "Wie viel kosten diese Lampen im Blumenladen?",
    ),
    (
        told(does("three big bears", verbs.BE, None, "habit", place=at("in", "in", "the forest")), "there"),
        "There are three big bears in the forest.",
        "Im Wald gibt es drei große Bären.",
    ),
    (
        told(does("a monkey", verbs.BE, None, "habit", place=at("in", "in", "the kitchen")), "is there"),
        "Is there a monkey in the kitchen?",
        "Gibt es in der Küche einen Affen?",
    ),
]


@pytest.mark.parametrize(("meaning", "source", "target"), GOLD, ids=[source for _, source, _ in GOLD])
def test_a_meaning_is_said_as_written_by_hand(meaning: Sentence, source: str, target: str) -> None:
    assert english(meaning) == source
    assert german(meaning) == target
