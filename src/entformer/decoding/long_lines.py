"""Lines too long for a model that never saw their like. In: ids of a line. Out: its sentences, which models do know.

Where a sentence has no end in sight it is cut before a word, or else where it must be.
"""

from collections.abc import Sequence

from entformer.text.tokenizer import SubwordTokenizer

ENDS = (".", "!", "?", "…", "؟", "।")  # of a sentence, if a new word follows
WIDE_ENDS = ("。", "！", "？")  # noqa: RUF001  # of a Chinese or Japanese sentence, which no space follows
SHORTEST = 8  # ids; a full stop before that is more likely that of "Mr." or "3."
NO_SPACES = ("ja", "zh", "th", "km", "lo", "my")  # languages written without spaces between sentences


def split_long(ids: Sequence[int], longest: int, subwords: SubwordTokenizer) -> list[list[int]]:
    """Parts of at most `longest` ids; joined they are `ids` again. A line that is not longer stays whole."""
    if len(ids) <= longest:
        return [list(ids)]
    pieces, starts = subwords.pieces(ids), subwords.word_starts(ids)
    cuts = [0]
    for at in range(1, len(ids)):
        ends = pieces[at - 1].endswith(WIDE_ENDS) or (starts[at] and pieces[at - 1].endswith(ENDS))
        if ends and at - cuts[-1] >= min(SHORTEST, longest):
            cuts.append(at)
        elif at - cuts[-1] == longest:
            before_a_word = (place for place in range(at, cuts[-1] + longest // 2, -1) if starts[place])
            cuts.append(next(before_a_word, at))
    return [list(ids[begin:end]) for begin, end in zip(cuts, [*cuts[1:], len(ids)], strict=True)]


def join_parts(texts: Sequence[str], language: str) -> str:
    """The translations of the parts as one line."""
    return ("" if language.split("-")[0] in NO_SPACES else " ").join(text for text in texts if text)
