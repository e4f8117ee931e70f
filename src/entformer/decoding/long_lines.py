"""Splitting of lines that are longer than any training sentence: after sentences, else before a word."""

from collections.abc import Sequence

from entformer.text.tokenizer import SubwordTokenizer

ENDS = (".", "!", "?", "…", "؟", "।")  # end a sentence if a new word follows
WIDE_ENDS = ("。", "！", "？")  # noqa: RUF001  # end a Chinese or Japanese sentence
SHORTEST = 8  # ids; an earlier period is more likely that of "Mr." or "3."
NO_SPACES = ("ja", "zh", "th", "km", "lo", "my")  # languages written without spaces between sentences


def split_long(ids: Sequence[int], longest: int, subwords: SubwordTokenizer) -> list[list[int]]:
    """Splits ids into parts of at most `longest`; a line that is not longer stays whole."""
    if len(ids) <= longest:
        return [list(ids)]
    pieces, starts = subwords.pieces(ids), subwords.word_starts(ids)
    cuts = [0]
    for at in range(1, len(ids)):
        ends = pieces[at - 1].endswith(WIDE_ENDS) or (starts[at] and pieces[at - 1].endswith(ENDS))
        if ends and at - cuts[-1] >= min(SHORTEST, longest):
            cuts.append(at)
        elif at - cuts[-1] == longest:
            before_a_word = (cut for cut in range(at, cuts[-1] + longest // 2, -1) if starts[cut])
            cuts.append(next(before_a_word, at))
    return [list(ids[begin:end]) for begin, end in zip(cuts, [*cuts[1:], len(ids)], strict=True)]


def join_parts(texts: Sequence[str], language: str) -> str:
    """Joins the translations of the parts into one line."""
    return ("" if language.split("-")[0] in NO_SPACES else " ").join(text for text in texts if text)
