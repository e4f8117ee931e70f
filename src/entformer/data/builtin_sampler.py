"""Built-in corpus: draws whole meanings at random. In: a seed. Out: an endless run of `Sentence`s."""

from collections.abc import Callable
from dataclasses import replace

from entformer.data import builtin_lexicon as words
from entformer.data import builtin_times as times
from entformer.data import builtin_verbs as verbs
from entformer.data.builtin_meaning import Clause, Phrase, Relation, Sentence, Words
from entformer.data.builtin_phrases import COUNTS, CROSSED, HOMELY, OPEN, OUTDOORS, PLACE_NAMED, PLACES, PhraseSampler
from entformer.data.builtin_verbs import Frame
from entformer.data.builtin_words import ACCUSATIVE, DATIVE, Adjective, Verb

_TABLES = (*(noun for noun in words.FURNITURE if noun.english.endswith(("table", "chair"))), words.SOFA, words.BED)
_HOLDERS = tuple(noun for noun in words.THINGS if noun.english in ("box", "bag", "basket", "suitcase"))
_REASONS = (
    Words("because it is raining", "weil es regnet"),
    Words("because it is snowing", "weil es schneit"),
    Words("because it is cold", "weil es kalt ist"),
    Words("although it is raining", "obwohl es regnet"),
    Words("although it is very hot", "obwohl es sehr heiß ist"),
)
_BECAUSE = Words("because", "weil")
_ALTHOUGH = Words("although", "obwohl")
_WHILE = Words("while", "während")
_THAT = Words("that", "dass")


class Sampler(PhraseSampler):
    """Draws one sentence after the other; the same seed gives the same run."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._kinds: tuple[tuple[float, Callable[[], Sentence]], ...] = self._cumulated(
            (0.24, self._caption),
            (0.13, self._statement),
            (0.08, self._time_first),
            (0.05, self._denial),
            (0.055, self._yes_no),
            (0.11, self._wh),
            (0.06, self._because),
            (0.04, self._while),
            (0.05, self._reported),
            (0.05, self._relative),
            (0.03, self._passive),
            (0.03, self._copula),
            (0.02, self._price),
            (0.02, self._there),
        )

    def sentence(self) -> Sentence:
        draw = self._random() * self._kinds[-1][0]
        for limit, make in self._kinds:
            if draw < limit:
                return make()
        return self._kinds[-1][1]()

    @staticmethod
    def _cumulated(*weighted: tuple[float, Callable[[], Sentence]]) -> tuple[tuple[float, Callable[[], Sentence]], ...]:
        total, limits = 0.0, []
        for weight, make in weighted:
            total += weight
            limits.append((total, make))
        return tuple(limits)

    # ---- clauses -------------------------------------------------------------------------------------------------------

    def _event(self, subject: Phrase, tense: str, *, where: float = 0.4, denied: bool = False) -> Clause:
        """Something that a person or an animal does. `where`: how often a place is told."""
        if not subject.noun.person and subject.determiner != "who":
            return self._animal_event(subject, tense)
        owner = None if subject.determiner in ("who", "which", "how many", "some", "many") else subject
        place = self._place() if self._chance(where) else None
        draw = self._random()
        if draw < 0.65:
            frame = self._frame(draw)
            while frame.verb.stative and tense != "now":
                frame = self._frame(draw)
            thing = self._thing(frame, owner, denied=denied)
            if frame.verb.stative:
                tense = "habit"
            return Clause(subject, frame.verb, tense, object=thing, place=place if frame.placed else None, negated=denied)
        if draw < 0.70:
            frame = self._one(verbs.GIVE)
            thing = self._thing(frame, owner, denied=denied)
            return Clause(subject, frame.verb, tense, object=thing, recipient=self._recipient(), negated=denied)
        if draw < 0.78:
            verb = self._one(verbs.REST).verb
            company = self._company(subject) if owner and not denied and self._chance(0.5) else None
            place = self._market() if verb.base == "shop" else self._place()
            return Clause(subject, verb, tense, company=company, place=place, negated=denied)
        if draw < 0.86:
            return Clause(subject, self._one(verbs.POSTURE).verb, tense, place=self._seat(), negated=denied)
        if draw < 0.90:
            return self._putting(subject, tense, denied=denied)
        verb = self._one(verbs.GO if self._chance(0.75) else verbs.JUMP).verb
        return Clause(subject, verb, tense, direction=self._way(verb.base), negated=denied)

    def _frame(self, draw: float) -> Frame:
        """A verb with an object: accusative, dative or after a preposition."""
        if draw < 0.5:
            return self._one(verbs.DO)
        if draw < 0.57:
            return self._one(verbs.TO_PERSON)
        return self._one(verbs.ABOUT_PERSON if self._chance(0.4) else verbs.ABOUT_THING)

    def _putting(self, subject: Phrase, tense: str, *, denied: bool) -> Clause:
        frame = verbs.PUT
        thing = Phrase(self._one(frame.objects), self._one(("a", "the", "the")), False, self._some(frame.adjectives, 0.3))
        if self._chance(0.4):
            goal = Relation("into", "in", ACCUSATIVE, Phrase(self._one(_HOLDERS), self._one(("a", "the", "the"))))
        else:
            goal = Relation("on", "auf", ACCUSATIVE, Phrase(self._one(_TABLES), self._one(("a", "the", "the"))))
        return Clause(subject, frame.verb, tense, object=thing, direction=goal, negated=denied)

    def _recipient(self) -> Phrase:
        if self._chance(0.25):
            return Phrase(self._one(words.NAMES), "name")
        noun, adjectives = self._person()
        return Phrase(noun, self._one(("the", "the", "a")), self._chance(0.15), self._some(adjectives, 0.25))

    def _animal_event(self, subject: Phrase, tense: str) -> Clause:
        draw = self._random()
        if draw < 0.35:
            place = self._seat() if subject.noun.english in HOMELY else self._outdoors()
            return Clause(subject, self._one(verbs.POSTURE).verb, tense, place=place)
        if draw < 0.65:
            return Clause(subject, self._one(verbs.ANIMAL_REST).verb, tense, place=self._outdoors())
        if subject.noun.english in HOMELY and self._chance(0.4):
            return Clause(subject, verbs.JUMP[1].verb, tense, direction=self._way("jump"))
        way = self._one((("through", "durch", OPEN), ("across", "über", CROSSED)))
        return Clause(subject, verbs.GO[1].verb, tense, direction=Relation(*way[:2], ACCUSATIVE, self._spot(self._one(way[2]))))

    def _mood(self, subject: Phrase, mood: Adjective, tense: str = "habit") -> Clause:
        return Clause(subject, verbs.BE, tense, predicate=Words(mood.english, mood.predicate))

    def _timed(self, subject: Phrase, *, denied: bool = False, where: float = 0.3) -> Clause:
        """A clause with a tense and, unless something is denied, a time that fits it."""
        draw = self._random()
        if draw < 0.42:
            tense, when = "past", self._one(times.PAST if self._chance(0.65) else times.CLOCK)
        elif draw < 0.62:
            tense, when = "habit", self._one(times.HABIT)
        elif draw < 0.80 or not subject.noun.person:
            tense, when = "will", self._one(self._one((times.FUTURE, times.FUTURE, times.SOON, times.CLOCK)))
        else:
            tense, when = self._one(("can", "want", "have to", "may")), self._one(times.FUTURE)
        clause = self._event(subject, tense, where=where, denied=denied)
        if denied and tense != "habit":
            return clause
        return replace(clause, when=when)

    # ---- sentences -----------------------------------------------------------------------------------------------------

    def _caption(self) -> Sentence:
        animal = self._chance(0.12)
        subject = self._animal("a") if animal else self._seen()
        clause = self._event(subject, "now", where=0.0 if subject.detail and self._chance(0.5) else 0.6)
        return Sentence(clause)

    def _statement(self) -> Sentence:
        if self._chance(0.08):
            subject = Phrase(self._one(words.TRANSPORT[:5]))
            verb = self._one(verbs.TRAVEL).verb
            tense = self._one(("habit", "past", "will"))
            return Sentence(Clause(subject, verb, tense, place=self._stop(verb), when=self._one(times.CLOCK)))
        if self._chance(0.06):
            noun, adjectives = self._person()
            every = Phrase(noun, "every", False, self._some(adjectives, 0.4))
            return Sentence(self._event(every, self._one(("can", "want", "have to", "may"))))
        subject = self._known() if self._chance(0.85) else self._animal("the")
        return Sentence(self._timed(subject))

    def _stop(self, verb: Verb) -> Relation | None:
        if verb.base == "leave" or self._chance(0.4):
            return None
        noun = PLACE_NAMED[self._one(("station", "airport", "harbour", "bus stop"))]
        return Relation("at", "an", DATIVE, Phrase(noun, "the", False, self._some(words.OF_PLACES, 0.3)))

    def _time_first(self) -> Sentence:
        subject = self._known() if self._chance(0.9) else self._animal("the")
        return Sentence(self._timed(subject), "when first")

    def _denial(self) -> Sentence:
        subject = self._known()
        clause = self._event(subject, "now", denied=True) if self._chance(0.5) else self._timed(subject, denied=True)
        return Sentence(clause, "when first" if clause.when else "statement")

    def _yes_no(self) -> Sentence:
        subject = self._known() if self._chance(0.85) else self._animal("the")
        clause = self._event(subject, "now") if self._chance(0.5) else self._timed(subject, where=0.2)
        return Sentence(clause, "yes-no")

    def _wh(self) -> Sentence:
        draw = self._random()
        if draw < 0.18:
            who = Phrase(words.MEN[0], "who")
            return Sentence(self._event(who, "now") if self._chance(0.5) else self._timed(who), "who")
        if draw < 0.32:
            noun, adjectives = self._person()
            plural = self._chance(0.5)
            subject = Phrase(noun, "how many" if plural else "which", plural, self._some(adjectives, 0.3))
            return Sentence(self._event(subject, "now", where=0.6), "who")
        subject = self._known()
        if draw < 0.62:
            clause = self._event(subject, self._one(("now", "now", "past")), where=0.5)
            while not clause.object or clause.object.mass or clause.direction:
                clause = self._event(subject, self._one(("now", "now", "past")), where=0.5)
            if self._chance(0.5):
                return Sentence(
                    replace(clause, object=replace(clause.object, owner=None, determiner="a", plural=False)), "what"
                )
            plural = self._chance(0.5)
            thing = replace(clause.object, owner=None, determiner="how many" if plural else "which", plural=plural)
            return Sentence(replace(clause, object=thing), "object")
        if draw < 0.76:
            clause = self._event(subject, self._one(("now", "past")), where=0.8)
            while not (clause.place or (clause.direction and clause.direction.english == "to")) or clause.verb.base == "come":
                clause = self._event(subject, self._one(("now", "past")), where=0.8)
            return Sentence(clause, "where")
        if draw < 0.86:
            if self._chance(0.3):
                train = Phrase(self._one(words.TRANSPORT[:5]))
                verb = self._one(verbs.TRAVEL).verb
                return Sentence(Clause(train, verb, self._one(("habit", "past")), place=self._stop(verb)), "time")
            return Sentence(self._event(subject, self._one(("past", "will"))), "when")
        return Sentence(self._event(subject, self._one(("now", "past", "want")), denied=False), "why")

    def _because(self) -> Sentence:
        subject = self._named()
        if self._chance(0.35):
            clause = self._event(subject, self._one(("now", "want", "can", "have to")), where=0.2)
            return Sentence(clause, "statement", self._one(_REASONS), first=self._chance(0.4))
        pronoun = Phrase(subject.noun, "he", subject.plural)
        if self._chance(0.3):
            clause = self._event(subject, "now", where=0.2)
            second = self._event(pronoun, self._one(("want", "have to")), where=0.1)
            return Sentence(clause, "statement", _BECAUSE, second)
        past = self._chance(0.35)
        mood, frames = self._one(verbs.MOODS)
        conjunction = _BECAUSE
        if self._chance(0.3):
            conjunction, mood = _ALTHOUGH, self._one([other for other in words.MOODS if other is not mood])
        frame = self._one(frames)
        thing = self._thing(frame, subject) if frame.objects else None
        place = None if thing else self._seat() if frame in verbs.POSTURE else self._place()
        clause = Clause(subject, frame.verb, "past" if past else self._one(("now", "want")), object=thing, place=place)
        return Sentence(clause, "statement", conjunction, self._mood(pronoun, mood, "past" if past else "habit"))

    def _while(self) -> Sentence:
        clause = self._event(self._known(), "now", where=0.2)
        other = self._animal("the") if self._chance(0.4) else self._named()
        return Sentence(clause, "statement", _WHILE, self._event(other, "now", where=0.2), first=self._chance(0.3))

    def _reported(self) -> Sentence:
        verb = self._one(verbs.SAY)
        tense = "will" if verb.base == "hope" else self._one(("now", "past", "want", "can", "have to"))
        clause = Clause(self._known(), verb, "habit")
        return Sentence(
            clause, "statement", _THAT, self._event(self._named(), "now" if verb.base == "see" else tense, where=0.3)
        )

    def _relative(self) -> Sentence:
        noun, adjectives = self._person()
        subject = Phrase(noun, self._one(("the", "the", "a")), False, self._some(adjectives, 0.3))
        if self._chance(0.35):
            frame = self._one(verbs.DO[2:5])
            thing = Phrase(self._one(frame.objects), "the", False, self._some(frame.adjectives, 0.4))
            thing = replace(thing, relative=Clause(subject, frame.verb, "now", object=thing), relative_object=True)
            mood = self._one(words.OF_THINGS[:8])
            if self._chance(0.5):
                return Sentence(
                    Clause(thing, verbs.BE, "habit", predicate=Words("very " + mood.english, "sehr " + mood.predicate))
                )
            return Sentence(Clause(self._known(), self._one(verbs.DO[2:5]).verb, "now", object=thing))
        subject = replace(subject, relative=self._event(subject, "now", where=0.2))
        return Sentence(self._event(subject, self._one(("now", "past", "want")), where=0.1))

    def _passive(self) -> Sentence:
        frame = self._one(verbs.PASSIVE)
        thing = self._thing(frame, None)
        agent = self._named() if self._chance(0.7) else self._seen()
        place = self._place() if frame.placed and self._chance(0.4) else None
        form = "yes-no" if self._chance(0.15) else "statement"
        clause = Clause(
            thing, frame.verb, "passive", company=Relation("by", "von", DATIVE, replace(agent, detail=None)), place=place
        )
        return Sentence(clause, form)

    def _copula(self) -> Sentence:
        if self._chance(0.35):
            clause = self._mood(self._known(), self._one(words.MOODS))
            return Sentence(replace(clause, when=times.NOW[0]), "yes-no" if self._chance(0.3) else "statement")
        goods = self._one((words.CLOTHES, words.VEHICLES, words.FURNITURE, words.SHOES))
        noun, other = self._one(goods), self._one(goods)
        first = Phrase(noun, self._one(("the", "this")), self._chance(0.3), (self._one(words.COLOURS),))
        second = Phrase(other, "the", self._chance(0.3), (self._one(words.COLOURS),))
        comparative = Words(*self._one(words.COMPARED))
        clause = Clause(first, verbs.BE, "habit", predicate=comparative, than=second)
        return Sentence(clause, "yes-no" if self._chance(0.25) else "statement")

    def _price(self) -> Sentence:
        goods = self._one((words.CLOTHES, words.WEAR, words.FURNITURE, words.SHOES, words.CAKES, words.THINGS))
        plural = self._chance(0.3)
        noun = self._one(goods)
        adjectives = () if goods is words.CAKES else self._some(words.COLOURS, 0.6)
        subject = Phrase(noun, self._one(("the", "this", COUNTS[0] if plural else "the")), plural, adjectives)
        price = str(2 + int(self._random() * 98))
        clause = Clause(subject, verbs.COST, "habit", predicate=Words(f"{price} euros", f"{price} Euro"))
        if self._chance(0.3):
            place = Relation("in", "in", DATIVE, self._spot(self._one(words.SHOPS)))
            return Sentence(replace(clause, place=place), "how much")
        return Sentence(clause)

    def _there(self) -> Sentence:
        animals = self._chance(0.35)
        english, german, place = self._one(OUTDOORS if animals else PLACES[3:11])
        plural = self._chance(0.6)
        goods = words.ANIMALS if animals else self._one((words.FURNITURE, words.THINGS))
        adjectives = words.OF_ANIMALS if animals else words.COLOURS
        thing = Phrase(self._one(goods), self._one((*COUNTS, "many")) if plural else "a", plural, self._some(adjectives, 0.4))
        clause = Clause(thing, verbs.BE, "habit", place=Relation(english, german, DATIVE, self._spot(place)))
        return Sentence(clause, "is there" if self._chance(0.3) else "there")
