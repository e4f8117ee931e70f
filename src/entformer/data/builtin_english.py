"""Built-in corpus: a meaning said in English. In: a `Sentence`. Out: cased text with its punctuation."""

from entformer.data.builtin_meaning import Clause, Phrase, Relation, Sentence

_POSSESSIVE = {"he": "his", "she": "her", "it": "its", "they": "their"}
_ASKED = {"what": "What", "where": "Where", "when": "When", "why": "Why", "time": "What time", "how much": "How much"}


def english(sentence: Sentence) -> str:
    """The English sentence of a meaning."""
    clause, form = sentence.clause, sentence.form
    if form in ("statement", "when first", "who"):
        text = statement(clause, without_when=form == "when first")
        if form == "when first" and clause.when:
            text = f"{clause.when.english}, {text}"
    elif form in ("there", "is there"):
        text = _there(clause, form)
    else:
        text = _question(clause, form)
    if sentence.conjunction:
        second = _join(sentence.conjunction.english, statement(sentence.second) if sentence.second else "")
        text = f"{second}, {text}" if sentence.first else f"{text} {second}"
    mark = "." if form in ("statement", "when first", "there") else "?"
    return text[0].upper() + text[1:] + mark


def phrase(what: Phrase, *, accusative: bool = False) -> str:
    """A noun phrase: "the tall man in a red coat who is reading a letter"."""
    word = what.noun.english_plural if what.plural else what.noun.english
    if what.determiner == "he":
        pronoun = pronoun_of(what)
        return {"he": "him", "she": "her", "they": "them"}.get(pronoun, pronoun) if accusative else pronoun
    parts = [adjective.english for adjective in what.adjectives] + [word]
    determiner = _determiner(what, parts[0])
    if determiner:
        parts.insert(0, determiner)
    if what.detail:
        parts.append(relation(what.detail))
    if what.relative:
        parts.append("who" if what.noun.person else "that")
        if what.relative_object:
            parts.append(statement(what.relative, without_object=True))
        else:
            parts.append(_predicate(what.relative, plural=what.plural))
    return " ".join(parts)


def pronoun_of(what: Phrase) -> str:
    return "they" if what.plural else what.noun.pronoun


def relation(what: Relation) -> str:
    return f"{what.english} {phrase(what.phrase, accusative=True)}"


def statement(clause: Clause, *, without_when: bool = False, without_object: bool = False) -> str:
    """Subject, verb, the rest, in this order."""
    subject = "who" if clause.subject.determiner == "who" else phrase(clause.subject)
    plural = clause.subject.plural
    return f"{subject} {_predicate(clause, plural=plural, without_when=without_when, without_object=without_object)}"


def _determiner(what: Phrase, following: str) -> str:
    if what.determiner == "a":
        if what.plural or what.mass:
            return ""
        return "an" if following[0] in "aeiou" else "a"
    if what.determiner == "this":
        return "these" if what.plural else "this"
    if what.determiner == "his" and what.owner:
        return _POSSESSIVE[pronoun_of(what.owner)]
    if what.determiner == "of" and what.owner:
        owner = phrase(what.owner)
        return owner + ("'" if what.owner.plural and owner.endswith("s") else "'s")
    return "" if what.determiner == "name" else what.determiner


def _verb(clause: Clause, plural: bool) -> tuple[str, str]:
    """The auxiliary ("" if the verb needs none) and the rest of the verb, when nothing is asked or denied."""
    verb = clause.verb
    be = "are" if plural else "is"
    match clause.tense:
        case "past" if verb.base == "be":
            return ("were" if plural else "was"), ""
        case _ if verb.base == "be":
            return be, ""
        case "now":
            return be, verb.progressive
        case "habit":
            return "", verb.base if plural else verb.third
        case "past":
            return "", verb.past
        case "want":
            return "", f"{'want' if plural else 'wants'} to {verb.base}"
        case "have to":
            return "", f"{'have' if plural else 'has'} to {verb.base}"
        case "passive":
            return be, f"being {verb.past}"
        case "may":
            return be, f"allowed to {verb.base}"
        case modal:
            return modal, verb.base


def _with_do(clause: Clause, plural: bool) -> tuple[str, str]:
    """The same for questions and denials: "do" comes in where there is no auxiliary."""
    auxiliary, rest = _verb(clause, plural)
    if auxiliary:
        return auxiliary, rest
    if clause.tense == "past":
        return "did", clause.verb.base
    modal = {"want": "want to ", "have to": "have to "}.get(clause.tense, "")
    return ("do" if plural else "does"), modal + clause.verb.base


def _predicate(clause: Clause, *, plural: bool, without_when: bool = False, without_object: bool = False) -> str:
    auxiliary, rest = _with_do(clause, plural) if clause.negated else _verb(clause, plural)
    if clause.negated:
        auxiliary = "cannot" if auxiliary == "can" else f"{auxiliary} not"
    return _join(auxiliary, rest, *_complements(clause, without_when=without_when, without_object=without_object))


def _complements(
    clause: Clause,
    *,
    without_when: bool = False,
    without_object: bool = False,
    without_place: bool = False,
    without_predicate: bool = False,
) -> list[str]:
    parts = []
    if clause.predicate and not without_predicate:
        parts.append(clause.predicate.english)
    if clause.than:
        parts.append(f"than {phrase(clause.than, accusative=True)}")
    if clause.recipient:
        parts.append(phrase(clause.recipient, accusative=True))
    if clause.verb.preposition and clause.object:
        parts.append(clause.verb.preposition)
    if clause.object and not without_object:
        parts.append(phrase(clause.object, accusative=True))
    if clause.company:
        parts.append(relation(clause.company))
    if not without_place:
        parts += [relation(where) for where in (clause.place, clause.direction) if where]
    if clause.when and not without_when:
        parts.append(clause.when.english)
    return parts


def _question(clause: Clause, form: str) -> str:
    """Auxiliary before the subject; what is asked for stands first and is missing from its place."""
    auxiliary, rest = _with_do(clause, clause.subject.plural)
    asked = _ASKED.get(form, "")
    if form == "object" and clause.object:
        asked = phrase(clause.object)
    elif form == "what" and clause.object and clause.object.noun.person:
        asked = "Who"
    complements = _complements(
        clause,
        without_when=form in ("when", "time"),
        without_object=form in ("what", "object"),
        without_place=form == "where",
        without_predicate=form == "how much",
    )
    return _join(asked, auxiliary, phrase(clause.subject), rest, *complements)


def _there(clause: Clause, form: str) -> str:
    """What is in a place: "there are two chairs in the kitchen"."""
    be = "are" if clause.subject.plural else "is"
    opening = f"there {be}" if form == "there" else f"{be} there"
    return _join(opening, phrase(clause.subject), relation(clause.place) if clause.place else "")


def _join(*parts: str) -> str:
    return " ".join(part for part in parts if part)
