"""Detection of text that is clearly not in the source language, for a warning.

Checks the script of the letters and, if both languages share a script, their most frequent short words.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable

ENOUGH_LETTERS = 20
ENOUGH_WORDS = 8

SCRIPTS = {
    "CYRILLIC": ("be", "bg", "kk", "ky", "mk", "mn", "ru", "sr", "tg", "uk"),
    "GREEK": ("el",),
    "HEBREW": ("he", "yi"),
    "ARABIC": ("ar", "fa", "ps", "ug", "ur"),
    "DEVANAGARI": ("hi", "mr", "ne"),
    "BENGALI": ("bn", "as"),
    "TAMIL": ("ta",),
    "TELUGU": ("te",),
    "THAI": ("th",),
    "GEORGIAN": ("ka",),
    "ARMENIAN": ("hy",),
    "HANGUL": ("ko",),
    "CJK": ("zh", "yue"),
    "KANA": ("ja",),
}
SCRIPT_OF = {language: script for script, languages in SCRIPTS.items() for language in languages}
FITTING = {"KANA": {"KANA", "CJK"}, "HANGUL": {"HANGUL", "CJK"}, "CJK": {"CJK"}}  # scripts a language mixes
MIXED = ("sr", "mn", "kk")  # written in two scripts
NAMES = {"CJK": "Chinese characters", "KANA": "Japanese kana"}

COMMON_WORDS = {
    "en": "the and of is to in with on are that was for his her at an from it this",
    "de": "der die das und ist ein eine einen einem mit auf von den dem nicht im zu sind zwei vor",
    "fr": "le la les et est un une des du dans avec sur pour qui que sont deux pas au aux",
    "es": "el los las y es un una del con por para que se está en su son dos no lo",
    "it": "il lo gli e è un una di che con per sono del della nel si sta due non dei",
    "pt": "o os as e é um uma de que com para não do da no na em dois está são",
    "nl": "de het een en is van op met in te zijn voor niet dat aan twee door naar die bij",
    "ro": "și în de la cu un o pe este sunt care din pentru nu al ale se să lui doi",
}
WORDS_OF = {language: frozenset(words.split()) for language, words in COMMON_WORDS.items()}


def check_source_language(
    lines: Iterable[str],
    source_language: str,
    target_language: str,
    *,
    subject: str = "the input",
    direction: str | None = None,
) -> str | None:
    """Returns a warning if the lines do not look like the source language, else None.

    Args:
        lines: The text.
        source_language, target_language: Codes such as "en".
        subject: Name of the lines in the warning.
        direction: Expected languages in the warning; by default those of a model.
    """
    source, target = (code.lower().replace("_", "-").split("-")[0] for code in (source_language, target_language))
    text = " ".join(lines)
    arrow = direction or f"this model translates {source_language} -> {target_language}"
    if (script := _main_script(text)) is not None and source not in MIXED and (source in SCRIPT_OF or source in WORDS_OF):
        expected = SCRIPT_OF.get(source, "LATIN")
        if script not in FITTING.get(expected, {expected}):
            swapped = script in FITTING.get(SCRIPT_OF.get(target, "LATIN"), {SCRIPT_OF.get(target, "LATIN")})
            advice = f"; it could be {target_language}: are source and target swapped?" if swapped else "."
            return f"{subject} is mostly in {NAMES.get(script, script.capitalize() + ' letters')}, but {arrow}{advice}"
    if source in WORDS_OF and target in WORDS_OF and source != target:
        words = Counter(re.findall(r"\w+", text.lower()))
        mine, other = WORDS_OF[source] - WORDS_OF[target], WORDS_OF[target] - WORDS_OF[source]
        hits, others = sum(words[word] for word in mine), sum(words[word] for word in other)
        if others >= ENOUGH_WORDS and others > 3 * hits:
            return f"{subject} looks like {target_language}, but {arrow}: are source and target swapped?"
    return None


def _main_script(text: str) -> str | None:
    """Returns the script of more than half of the letters; None if there is none, or too few letters."""
    scripts: Counter[str] = Counter()
    for character, count in Counter(text).items():
        if character.isalpha():
            first = unicodedata.name(character, "UNKNOWN").split(" ")[0].split("-")[0]
            scripts["KANA" if first in ("HIRAGANA", "KATAKANA") else first] += count
    total = sum(scripts.values())
    if scripts["KANA"] > 0.1 * total:  # Japanese mixes kana with many Chinese characters; Chinese has no kana
        scripts["KANA"] += scripts.pop("CJK", 0)
    script, count = scripts.most_common(1)[0] if total else ("", 0)
    return script if total >= ENOUGH_LETTERS and count > total / 2 else None
