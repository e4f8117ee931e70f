"""Translation of text, line by line.

    lines -> windows -> ids, parts of long lines -> batches of similar length -> beam search -> text in the original order

A window of lines is held in memory at a time, two with several processes. An empty line gives an empty line. Translations
contain no characters at which other programs end a line.
"""

import contextlib
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import torch

from entformer.checkpoint import LoadedRun, load_run
from entformer.decoding.attention_record import record_attention
from entformer.decoding.defaults import DecodingDefaults, decoding_of_run
from entformer.decoding.direction import check_source_language
from entformer.decoding.length_penalty import LengthPenalty, MaxLength
from entformer.decoding.long_lines import join_parts, split_long
from entformer.decoding.pool import SearchPool, search_batch
from entformer.decoding.records import AttentionRecord, Hypothesis
from entformer.decoding.scoring import look_tokenized
from entformer.errors import ArgumentError
from entformer.text.lines import LINE_SEPARATORS, LineCounter

LONG = 256  # subwords; by default training drops longer pairs
SCORES_AT_A_TIME = 4 * 2**20  # logits (rows, V) of one step: 16 MB, about the size of a cache
MOST_CHARACTERS = 12  # named in a summary
LOOKED_AT = 200  # lines used to detect the language


@dataclass(frozen=True)
class TranslationCandidate:
    """A translation of a line."""

    text: str
    score: float  # log_prob after the length penalty
    log_prob: float
    tokens: tuple[int, ...]
    finished: bool  # False: cut at the length limit

    def as_dict(self) -> dict[str, Any]:
        return {"text": self.text, "score": self.score, "log_prob": self.log_prob, "finished": self.finished}


@dataclass(frozen=True)
class Translation:
    """The translations of one line."""

    line: int  # counted from 1
    source: str
    text: str  # the best candidate's, one line; empty for an empty line
    candidates: tuple[TranslationCandidate, ...]  # at most n_best, best first; none for an empty line
    parts: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]  # (source ids, best target ids) of every part; usually one


@dataclass
class TranslationStats:
    """Counts of a translator."""

    lines: int = 0
    tokens: int = 0  # of the best translations
    seconds: float = 0.0
    empty: LineCounter = field(default_factory=LineCounter)
    long: LineCounter = field(default_factory=LineCounter)
    cut: LineCounter = field(default_factory=LineCounter)
    spelled: LineCounter = field(default_factory=LineCounter)  # with characters that the vocabulary does not have
    characters: dict[str, None] = field(default_factory=dict)  # those characters, the first `MOST_CHARACTERS`


@dataclass
class _Part:
    """A part of a line."""

    ids: list[int]
    prefix: list[int]
    found: list[Hypothesis] = field(default_factory=list)


Search = Callable[[list[list[int]], list[list[int]]], Callable[[], list[list[Hypothesis]]]]
"""Begins to translate a batch, given sources and prefixes; returns a function that waits for the result."""


@dataclass
class _Window:
    """Lines that are being translated."""

    texts: list[str]
    work: list[list[_Part]]  # of every line
    batches: list[tuple[list[_Part], Callable[[], list[list[Hypothesis]]]]]


class Translator:
    """A trained model that translates lines.

    Args:
        run: A run directory, or a loaded run.
        which: Weights to load, as in `load_run`; ignored for a loaded run.
        beam, length_penalty, length_penalty_alpha: As in `beam_search`. Default: those of the recipe of the run, or 5,
            "average" and 1 for a loaded run.
        n_best, max_length, min_length: As in `beam_search`.
        window: Lines held in memory; batches are formed of lines of similar length among them.
        batch_tokens: Maximum padded source tokens of a batch; a longer line is a batch of its own.
        split_longer: Lines with more subwords are translated in parts, split after sentences. None: never.
        device: Device of the model.
        processes: Processes that translate, each with a copy of the model, started by every call of `translate`; batches and
            translations are those of one. On "cuda" each has a GPU of its own. `run` must then be a directory.
        threads: Threads of each of them. Default: an equal share of the cores.
    """

    def __init__(
        self,
        run: Path | str | LoadedRun,
        *,
        which: str | Path = "best",
        beam: int | None = None,
        length_penalty: str | None = None,
        length_penalty_alpha: float | None = None,
        n_best: int = 1,
        max_length: MaxLength | int | None = None,
        min_length: int = 1,
        window: int = 1024,
        batch_tokens: int = 4096,
        split_longer: int | None = LONG,
        device: torch.device | str = "cpu",
        processes: int = 1,
        threads: int | None = None,
    ) -> None:
        usual = DecodingDefaults() if isinstance(run, LoadedRun) else decoding_of_run(Path(run))
        self.decoding = usual.changed(beam, length_penalty, length_penalty_alpha)
        beam = self.decoding.beam
        self._penalty = LengthPenalty.of(self.decoding.length_penalty, self.decoding.length_penalty_alpha)
        if not 1 <= n_best <= beam:
            raise ArgumentError(f"n_best={n_best} must be between 1 and the beam, {beam}; increase the beam for more.")
        numbers = {"window": window, "batch_tokens": batch_tokens, "split_longer": split_longer, "processes": processes}
        for name, value in numbers.items():
            if value is not None and value < 1:
                raise ArgumentError(f"{name}={value} must be at least 1.")
        self._pool: SearchPool | None = None
        if processes > 1:
            if isinstance(run, LoadedRun):
                raise ArgumentError("several processes load the model from its run directory; pass that, not a loaded run.")
            self._pool = SearchPool(run, which, processes, device=device, threads=threads)
        self.run = run if isinstance(run, LoadedRun) else load_run(run, which, device=device)
        self.report = TranslationStats()
        self._search: dict[str, Any] = {
            "beam": beam,
            "length_penalty": self.decoding.length_penalty,
            "length_penalty_alpha": self.decoding.length_penalty_alpha,
            "n_best": n_best,
            "max_length": max_length,
            "min_length": min_length,
        }
        self._window = window
        self._batch_tokens = batch_tokens
        self._max_sentences = max(1, SCORES_AT_A_TIME // (beam * self.run.subwords.size))
        self._split_longer = split_longer
        self._looked = False

    def translate(self, lines: Iterable[str], *, prefix: str | Iterable[str] | None = None) -> Iterator[Translation]:
        """Yields one translation per line, in order.

        Args:
            lines: Text to translate.
            prefix: Text that every translation must start with, or one per line.
        """
        prefixes = repeat(prefix or "") if prefix is None or isinstance(prefix, str) else chain(prefix, repeat(None))
        pairs = zip(lines, prefixes, strict=False)
        begun, number = 0, 0
        pending: deque[_Window] = deque()
        with self._searching() as search:
            while (window := list(islice(pairs, self._window))) or pending:
                began = time.perf_counter()
                if window:
                    pending.append(self._begin(begun, window, search))
                    begun += len(window)
                done = None
                if not window or len(pending) > (self._pool is not None):  # others work on a window while one is written
                    done = pending.popleft()
                    for batch, result in done.batches:
                        for part, hypotheses in zip(batch, result(), strict=True):
                            part.found = hypotheses
                self.report.seconds += time.perf_counter() - began
                for line, parts in zip(done.texts, done.work, strict=True) if done is not None else ():
                    number += 1
                    yield self._finish(number, line, parts)

    @contextlib.contextmanager
    def _searching(self) -> Iterator[Search]:
        """Yields the beam search: in this process, when its result is asked for, or in others, from now on."""
        if self._pool is None:
            yield lambda sources, prefixes: lambda: search_batch(self.run.model, sources, prefixes, self._search)
            return
        with self._pool.start(self._search) as submit:
            yield submit

    def _begin(self, number: int, window: Sequence[tuple[str, str | None]], search: Search) -> _Window:
        texts = [line for line, _ in window]
        if not self._looked:
            self._look_at(texts[:LOOKED_AT])
        work = [self._prepare(number + at, line, start) for at, (line, start) in enumerate(window, start=1)]
        batches = self._batches([part for parts in work for part in parts])
        begun = [(batch, search([part.ids for part in batch], [part.prefix for part in batch])) for batch in batches]
        return _Window(texts, work, begun)

    def attention(self, translation: Translation) -> list[AttentionRecord]:
        """Returns the attention weights of the best translation: one record per part of the line, usually one."""
        return [record_attention(self.run.model, *part, subwords=self.run.subwords) for part in translation.parts]

    def spelled_characters(self, translation: Translation) -> list[str]:
        """Returns the characters of the source line that are not in the vocabulary; the model reads their bytes."""
        return self.run.subwords.spelled_characters([i for ids, _ in translation.parts for i in ids])

    # ---- text to ids ----------------------------------------------------------------------------------------------

    def _look_at(self, lines: Sequence[str]) -> None:
        """Warns once if the text does not match the training data."""
        if not any(line.strip() for line in lines):
            return
        self._looked = True
        language_warning = check_source_language(lines, self.run.source_language, self.run.target_language)
        if language_warning:
            warnings.warn(language_warning, stacklevel=3)
        ends = [line.rstrip() for line in lines if line.rstrip().endswith((".", "?", "!"))]
        if self.run.info.get("tokenized") and ends and not look_tokenized(lines):
            warnings.warn(
                "the model was trained on tokenized text, but the input does not look tokenized; tokenize it the same way.",
                stacklevel=3,
            )

    def _prepare(self, number: int, line: str, prefix: str | None) -> list[_Part]:
        if prefix is None:
            raise ArgumentError(f"prefix must have one entry per line: line {number} has none; use an empty one for no prefix.")
        ids = self._encode(line)
        if not ids:
            self.report.empty.add(number)
            return []
        if spelled := self.run.subwords.spelled_characters(ids):
            self.report.spelled.add(number)
            for character in spelled[: MOST_CHARACTERS - len(self.report.characters)]:
                self.report.characters[character] = None
        limit = self._split_longer
        if len(ids) > LONG:
            self.report.long.add(number)
            if self.report.long.count == 1:
                how = (
                    "translated as a whole"
                    if limit is None or len(ids) <= limit
                    else "translated in parts, split after sentences"
                )
                warnings.warn(
                    f"line {number} has {len(ids)} subwords, more than in training; it is {how}. "
                    "Put one sentence on a line for the best result.",
                    stacklevel=4,
                )
        parts = [ids] if limit is None else split_long(ids, limit, self.run.subwords)
        start = self._encode(prefix)
        return [_Part(part, start if at == 0 else []) for at, part in enumerate(parts)]

    def _encode(self, text: str) -> list[int]:
        text = text.replace("\0", " ")  # a NUL ends a string in sentencepiece
        return self.run.subwords.encode(text.lower() if self.run.info.get("lowercase") else text)

    # ---- search ------------------------------------------------------------------------------------------------------

    def _batches(self, parts: Sequence[_Part]) -> Iterator[list[_Part]]:
        """Yields batches of parts of similar length; the longest first, so that a lack of memory shows at once."""
        batch: list[_Part] = []
        for part in sorted(parts, key=lambda part: -len(part.ids)):
            full = (
                len(batch) >= self._max_sentences or (len(batch) + 1) * (len((batch or [part])[0].ids) + 1) > self._batch_tokens
            )
            if batch and full:
                yield batch
                batch = []
            batch.append(part)
        if batch:
            yield batch

    # ---- ids to text ----------------------------------------------------------------------------------------------

    def _finish(self, number: int, line: str, parts: Sequence[_Part]) -> Translation:
        candidates = self._candidates(parts)
        best = candidates[0] if candidates else None
        self.report.lines += 1
        if best is not None:
            self.report.tokens += len(best.tokens)
            if not best.finished:
                self.report.cut.add(number)
        pairs = tuple((tuple(part.ids), part.found[0].tokens) for part in parts)
        return Translation(number, line, "" if best is None else best.text, candidates, pairs)

    def _candidates(self, parts: Sequence[_Part]) -> tuple[TranslationCandidate, ...]:
        """Returns the candidates of a line; those of several parts are joined rank by rank."""
        if not parts:
            return ()
        ranks = range(max(len(part.found) for part in parts))
        joined = [self._join([part.found[min(rank, len(part.found) - 1)] for part in parts], parts) for rank in ranks]
        return tuple(joined if len(parts) == 1 else sorted(joined, key=lambda candidate: -candidate.score))

    def _join(self, hypotheses: Sequence[Hypothesis], parts: Sequence[_Part]) -> TranslationCandidate:
        texts = [one_line(self.run.subwords.decode(hypothesis.tokens)) for hypothesis in hypotheses]
        tokens = tuple(token for hypothesis in hypotheses for token in hypothesis.tokens)
        log_prob = sum(hypothesis.log_prob for hypothesis in hypotheses)
        length = len(tokens) - len(parts[0].prefix) + sum(hypothesis.finished for hypothesis in hypotheses)
        return TranslationCandidate(
            text=join_parts(texts, self.run.target_language),
            score=self._penalty.score(log_prob, length),
            log_prob=log_prob,
            tokens=tokens,
            finished=all(hypothesis.finished for hypothesis in hypotheses),
        )


def one_line(text: str) -> str:
    """Returns the text with every line separator replaced by a space."""
    return LINE_SEPARATORS.sub(" ", text.replace("\n", " "))
