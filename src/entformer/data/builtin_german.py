"""Built-in corpus: a meaning said in German. In: a `Sentence`. Out: cased text with its punctuation.

Word order: the finite verb is second in statements, first in yes-no questions and last in subordinate clauses; participle,
infinitive or particle close the clause. Between them stand time, dative, definite accusative, "nicht", company, place,
indefinite accusative, then what belongs closely to the verb. Endings follow the three declensions of the adjective.
"""

from entformer.data.builtin_meaning import NUMBERS, Clause, Phrase, Relation, Sentence
from entformer.data.builtin_words import ACCUSATIVE, DATIVE, GENITIVE, NOMINATIVE, Verb

# Endings by gender or "p" (plural), in the order of cases: nominative, accusative, dative, genitive.
Endings = dict[str, tuple[str, ...]]
_DER: Endings = {
    "m": ("er", "en", "em", "es"),
    "f": ("e", "e", "er", "er"),
    "n": ("es", "es", "em", "es"),
    "p": ("e", "e", "en", "er"),
}
_EIN: Endings = {
    "m": ("", "en", "em", "es"),
    "f": ("e", "e", "er", "er"),
    "n": ("", "", "em", "es"),
    "p": ("e", "e", "en", "er"),
}
_WEAK: Endings = {"m": ("e", "en", "en", "en"), "f": ("e", "e", "en", "en"), "n": ("e", "e", "en", "en"), "p": ("en",) * 4}
_MIXED: Endings = {"m": ("er", "en", "en", "en"), "f": ("e", "e", "en", "en"), "n": ("es", "es", "en", "en"), "p": ("en",) * 4}
_STRONG: Endings = {
    "m": ("er", "en", "em", "en"),
    "f": ("e", "e", "er", "er"),
    "n": ("es", "es", "em", "en"),
    "p": ("e", "e", "en", "er"),
}
_ARTICLE = {
    "m": ("der", "den", "dem", "des"),
    "f": ("die", "die", "der", "der"),
    "n": ("das", "das", "dem", "des"),
    "p": ("die", "die", "den", "der"),
}
_RELATIVE = {**_ARTICLE, "p": ("die", "die", "denen", "deren")}
_PRONOUN = {
    "m": ("er", "ihn", "ihm", ""),
    "f": ("sie", "sie", "ihr", ""),
    "n": ("es", "es", "ihm", ""),
    "p": ("sie", "sie", "ihnen", ""),
}
_CONTRACTED = {
    ("in", "dem"): "im", ("an", "dem"): "am", ("zu", "dem"): "zum", ("zu", "der"): "zur", ("von", "dem"): "vom",
    ("bei", "dem"): "beim", ("in", "das"): "ins", ("an", "das"): "ans",
}  # fmt: skip
_MODALS = {
    "can": ("kann", "können"),
    "want": ("will", "wollen"),
    "have to": ("muss", "müssen"),
    "may": ("darf", "dürfen"),
    "will": ("wird", "werden"),
}
_INDEFINITE = ("a", "some", "many", "which", "how many", *NUMBERS)
_ASKED = {"where": "Wo", "when": "Wann", "why": "Warum", "time": "Um wie viel Uhr", "how much": "Wie viel"}
_WHO = ("wer", "wen", "wem")


def german(sentence: Sentence) -> str:
    """The German sentence of a meaning."""
    clause, form = sentence.clause, sentence.form
    second = ""
    if sentence.conjunction:
        second = _join(sentence.conjunction.german, subordinate(sentence.second) if sentence.second else "")
    if sentence.first:
        text = f"{second}, {_main(clause, '', opened=True)}"
    else:
        text = _open(clause, form)
        if second:
            text = f"{text}, {second}"
    mark = "." if form in ("statement", "when first", "there") else "?"
    # A relative clause is closed by a comma, unless the sentence or the main clause ends there.
    text = text.replace(",,", ",").removesuffix(",")
    return text[0].upper() + text[1:] + mark


def phrase(what: Phrase, case: int, *, denied: bool = False) -> str:
    """A noun phrase in a case; `denied` puts "kein" in place of "ein" or of no article."""
    if what.determiner == "who":
        return _WHO[case]
    key = "p" if what.plural else what.noun.gender
    if what.determiner == "he":
        return _PRONOUN[key][case]
    article, endings = _article(what, key, case, denied=denied)
    ending = endings[key][case]
    parts = [article] if article else []
    parts += [adjective.stem + ending for adjective in what.adjectives]
    parts.append((what.noun.plural if what.plural else what.noun.singular)[case])
    if what.determiner == "of" and what.owner and what.owner.determiner != "name":
        parts.append(phrase(what.owner, GENITIVE))
    if what.detail:
        parts.append(relation(what.detail))
    text = " ".join(parts)
    if what.relative:
        gap = ACCUSATIVE if what.relative_object else NOMINATIVE
        pronoun = _RELATIVE[key][gap]
        clause = subordinate(what.relative, without_subject=not what.relative_object, without_object=what.relative_object)
        text = f"{text}, {pronoun} {clause},"
    return text


def _article(what: Phrase, key: str, case: int, *, denied: bool) -> tuple[str, Endings]:
    """The article or what stands for it, and the declension the adjectives then follow."""
    determiner = what.determiner
    if determiner == "the" or (determiner == "of" and what.owner and what.owner.determiner != "name"):
        return _ARTICLE[key][case], _WEAK
    if determiner in ("this", "every", "which"):
        return {"this": "dies", "every": "jed", "which": "welch"}[determiner] + _DER[key][case], _WEAK
    if determiner == "a" and denied:
        return "kein" + _EIN[key][case], _MIXED
    if determiner == "a" and not what.plural and not what.mass:
        return "ein" + _EIN[key][case], _MIXED
    if determiner == "his" and what.owner:
        feminine = what.owner.plural or what.owner.noun.gender == "f"
        return ("ihr" if feminine else "sein") + _EIN[key][case], _MIXED
    if determiner in ("some", "many"):
        return {"some": "einig", "many": "viel"}[determiner] + _DER[key][case], _STRONG
    if determiner == "of" and what.owner:
        return phrase(what.owner, GENITIVE), _STRONG
    if determiner == "how many":
        return "wie viel" + _DER[key][case], _STRONG
    return NUMBERS.get(determiner, ""), _STRONG


def relation(what: Relation) -> str:
    """A preposition with its phrase, contracted with the article where German does: "im", "zur"."""
    text = phrase(what.phrase, what.case)
    if what.phrase.determiner in ("the", "of"):
        article, _, rest = text.partition(" ")
        if (what.german, article) in _CONTRACTED:
            return f"{_CONTRACTED[what.german, article]} {rest}"
    return f"{what.german} {text}"


def subordinate(clause: Clause, *, without_subject: bool = False, without_object: bool = False) -> str:
    """A clause with the finite verb last: "die Frau den Mann anruft", "die Frau den Mann angerufen hat"."""
    finite, closing = _verb(clause, clause.subject.plural)
    last = closing + finite if closing and closing == clause.verb.particle else _join(closing, finite)
    subject = "" if without_subject else phrase(clause.subject, NOMINATIVE)
    return _join(subject, *_middle(clause, without="object" if without_object else ""), last)


def _open(clause: Clause, form: str) -> str:
    """A main clause with what opens it: the subject, the time, a question word or the verb itself."""
    if form in ("statement", "who"):
        return _main(clause, phrase(clause.subject, NOMINATIVE), opened=False, subject_first=True)
    if form == "when first" and clause.when:
        return _main(clause, clause.when.german, opened=True, without="when")
    if form in ("there", "is there") and clause.place:
        where = relation(clause.place)
        return _join(*((where, "gibt es") if form == "there" else ("gibt es", where)), phrase(clause.subject, ACCUSATIVE))
    if form == "yes-no":
        return _main(clause, "", opened=True)
    if form == "object" and clause.object:
        return _main(clause, _object(clause, clause.object), opened=True, without="object")
    if form == "what" and clause.object:
        return _main(clause, _asked_object(clause, clause.object), opened=True, without="object")
    if form == "where" and clause.direction:
        return _main(clause, "Wohin", opened=True, without="where")
    return _main(clause, _ASKED[form], opened=True, without=form)


def _main(clause: Clause, opening: str, *, opened: bool, subject_first: bool = False, without: str = "") -> str:
    """The opening, the finite verb, the subject unless it was the opening, the middle, what closes the clause."""
    finite, closing = _verb(clause, clause.subject.plural)
    subject = phrase(clause.subject, NOMINATIVE) if opened and not subject_first else ""
    return _join(opening, finite, subject, *_middle(clause, without=without), closing)


def _verb(clause: Clause, plural: bool) -> tuple[str, str]:
    """The finite verb and what closes the clause: a particle, a participle or an infinitive."""
    verb = clause.verb
    if clause.tense in _MODALS:
        return _MODALS[clause.tense][plural], _infinitive(verb)
    if clause.tense == "passive":
        return ("werden" if plural else "wird"), verb.participle
    if verb.infinitive == "sein":
        return (("war", "waren") if clause.tense == "past" else ("ist", "sind"))[plural], ""
    if clause.tense == "past":
        auxiliaries = {"haben": ("hat", "haben"), "sein": ("ist", "sind")}
        return auxiliaries[verb.auxiliary][plural], verb.participle
    return (verb.plural if plural else verb.singular), verb.particle


def _infinitive(verb: Verb) -> str:
    return verb.infinitive.replace("|", "")


def _object(clause: Clause, what: Phrase, *, denied: bool = False) -> str:
    verb = clause.verb
    if verb.german_preposition:
        return relation(Relation("", verb.german_preposition, verb.case, what))
    return phrase(what, verb.case, denied=denied)


def _asked_object(clause: Clause, what: Phrase) -> str:
    """What the question is about: "was", "wen", "wem", "worauf", "auf wen"."""
    verb = clause.verb
    person = what.noun.person
    if verb.german_preposition:
        preposition = verb.german_preposition
        link = "r" if preposition[0] in "aeiouäöü" else ""
        return f"{preposition} {_WHO[verb.case]}" if person else f"wo{link}{preposition}"
    return _WHO[verb.case] if person else "was"


def _middle(clause: Clause, *, without: str = "") -> list[str]:
    """What stands between the finite verb and the end of the clause, in the neutral order of German."""
    parts = []
    denied = clause.negated
    thing = clause.object if without not in ("object", "what") else None
    direct = thing is not None and not clause.verb.german_preposition
    if clause.when and without not in ("when", "time"):
        parts.append(clause.when.german)
    if clause.recipient:
        parts.append(phrase(clause.recipient, DATIVE))
    early = direct and thing is not None and (thing.determiner not in _INDEFINITE or clause.verb.case == DATIVE)
    if early and thing:
        parts.append(phrase(thing, clause.verb.case))
    late = direct and not early
    if denied and not late and not (thing and clause.verb.german_preposition):
        parts.append("nicht")
    if clause.company:
        parts.append(relation(clause.company))
    if clause.place and without != "where":
        parts.append(relation(clause.place))
    if late and thing:
        parts.append(phrase(thing, clause.verb.case, denied=denied))
    if thing and clause.verb.german_preposition:
        if denied:
            parts.append("nicht")
        parts.append(_object(clause, thing))
    if clause.direction and without != "where":
        parts.append(relation(clause.direction))
    if clause.predicate and without != "how much":
        parts.append(clause.predicate.german)
    if clause.than:
        parts.append(f"als {phrase(clause.than, NOMINATIVE)}")
    return parts


def _join(*parts: str) -> str:
    return " ".join(part for part in parts if part)
