"""Finds the words, interrogative words and question marks in the tokens of a batch.

Words come from `SubwordTokenizer.word_starts`, with two exceptions, so that clusters match the paper: a piece of punctuation
is a cluster of its own ("dog." is two), and in tokenized text a hyphen joins its neighbors ("one - two").
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from entformer.analysis.interrogation import INTERROGATIVES, QUESTION_MARKS, STATEMENT_ENDS
from entformer.analysis.rows import Bools, Ints
from entformer.text.tokenizer import NUM_SPECIAL_TOKENS, SPACE, SubwordTokenizer

HYPHENS = frozenset({"-", "@-@", "\u2010", "\u2011"})
INSIDE_WORDS = frozenset("-'\u2019\u2010\u2011")  # punctuation that does not end a word


@dataclass(frozen=True, eq=False)
class Marks:
    """One side of a batch."""

    words: Ints  # (B, L) the cluster of each token, counted through its sentence, -1 for BOS, EOS and padding
    asking: Bools  # (B, L) a piece of an interrogative word
    mark: Ints  # (B,) the last question mark, -1 if there is none

    @property
    def questions(self) -> Bools:
        """Sentences with an interrogative word and a question mark, (B,); the mark alone if no such word is in the batch."""
        worded = np.any(self.asking, axis=1)
        asks: Bools = (self.mark >= 0) & (worded | ~worded.any())
        return asks

    def select(self, sentences: Ints) -> "Marks":
        """Returns the marks of some sentences of the batch."""
        return Marks(self.words[sentences], self.asking[sentences], self.mark[sentences])


class WordMarker:
    """Marks the tokens of one language."""

    def __init__(self, subwords: SubwordTokenizer, language: str, *, tokenized: bool = False) -> None:
        self._asking = INTERROGATIVES.get(language.lower().replace("_", "-").split("-")[0], frozenset())
        self._tokenized = tokenized
        self._pieces = subwords.pieces(range(subwords.size))
        bare = [piece.removeprefix(SPACE) for piece in self._pieces]
        self._bare = bare
        self._alone = [bool(text) and all(_separates_words(character) for character in text) for text in bare]
        self._begins = [i < NUM_SPECIAL_TOKENS or piece.startswith(SPACE) for i, piece in enumerate(self._pieces)]
        ids = {piece: i for i, piece in enumerate(self._pieces)}
        self._statement_ends = {
            ids[piece]: ids[stop]
            for mark, end in STATEMENT_ENDS.items()
            for piece, stops in ((mark, (end, SPACE + end)), (SPACE + mark, (SPACE + end, end)))
            if piece in ids and (stop := next((stop for stop in stops if stop in ids), None)) is not None
        }

    def marks(self, sentences: Sequence[Sequence[int]], length: int) -> Marks:
        """Marks the sentences of a batch, with BOS or EOS as the model reads them, padded to `length` tokens."""
        words = np.full((len(sentences), length), -1, dtype=np.int64)
        asking = np.zeros((len(sentences), length), dtype=np.bool_)
        mark = np.full(len(sentences), -1, dtype=np.int64)
        for b, ids in enumerate(sentences):
            clusters = self.clusters(ids)
            words[b, : len(ids)] = clusters
            mark[b] = max((i for i, token in enumerate(ids) if self._bare[token] in QUESTION_MARKS), default=-1)
            if self._asking:
                texts: dict[int, str] = {}
                for token, cluster in zip(ids, clusters, strict=True):
                    texts[cluster] = texts.get(cluster, "") + self._bare[token]
                asks = {cluster for cluster, text in texts.items() if cluster >= 0 and text.lower() in self._asking}
                asking[b, : len(ids)] = [cluster in asks for cluster in clusters]
        return Marks(words, asking, mark)

    def statement_end(self, token: int) -> int:
        """Returns the full stop that replaces the question mark `token`; -1 if the vocabulary has none."""
        return self._statement_ends.get(token, -1)

    def clusters(self, ids: Sequence[int]) -> list[int]:
        """Returns the cluster of each token of one sentence, counted from 0; -1 for special tokens."""
        starts: list[int] = []  # where clusters begin
        texts: list[str] = []
        before = -1  # the token before, -1 at the start
        for index, token in enumerate(ids):
            if token >= NUM_SPECIAL_TOKENS:
                # A lone "▁" has no text yet: what follows belongs to it.
                fresh = before < NUM_SPECIAL_TOKENS or self._begins[token]
                if fresh or (self._bare[before] and (self._alone[token] or self._alone[before])):
                    starts.append(index)
                    texts.append("")
                texts[-1] += self._bare[token]
            before = token
        joined = self._joined(texts) if self._tokenized else range(len(texts))
        found = [-1] * len(ids)
        for number, begin, end in zip(joined, starts, [*starts[1:], len(ids)], strict=True):
            for index in range(begin, end):
                if ids[index] >= NUM_SPECIAL_TOKENS:
                    found[index] = number
        return found

    @staticmethod
    def _joined(texts: Sequence[str]) -> list[int]:
        """Returns the numbers of the clusters when a hyphen joins its neighbors."""
        numbers: list[int] = []
        for index, text in enumerate(texts):
            together = index > 0 and (text in HYPHENS or texts[index - 1] in HYPHENS)
            numbers.append(0 if index == 0 else numbers[-1] + (not together))
        return numbers


def _separates_words(character: str) -> bool:
    return unicodedata.category(character)[0] == "P" and character not in INSIDE_WORDS


def word_numbers(subwords: SubwordTokenizer, ids: Sequence[int]) -> list[int]:
    """Returns the space-separated word of each token, as gold alignments count them; -1 for PAD, BOS and EOS."""
    found: list[int] = []
    number = -1
    for token, begins in zip(ids, subwords.word_starts(ids), strict=True):
        control = token < NUM_SPECIAL_TOKENS
        number += begins and not control
        found.append(-1 if control else number)
    return found
