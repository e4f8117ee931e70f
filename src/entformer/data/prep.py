"""Preprocessing: from text files to a directory with token ids, vocabulary, held-out text and a report.

    prep.json                            languages, options, counts, fingerprints, the report
    subwords.model                       the joint vocabulary
    {train,valid,test}.*.bin, .json      token ids (`store.py`)
    {valid,test}.{source,target}.txt     cleaned held-out text, line by line
    checksums.json                       size and SHA-256 of each file above, except prep.json

The training text is streamed twice: to check, count and sample it for the vocabulary, then to write its ids.
"""

import hashlib
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from entformer.data.batch import SentencePair
from entformer.data.batching import TokenBatches
from entformer.data.corpus import Found, ParallelCorpus, ParallelText
from entformer.data.filters import PreprocessConfig, digest, find_repeats
from entformer.data.prep_folder import FORMAT, make_request, write_checksums
from entformer.data.prep_report import Overlap, PrepReport, SideReport, TextReport
from entformer.data.store import SIDES, StoreWriter, TokenStore
from entformer.errors import ArgumentError, DataError
from entformer.files import staged_directory, write_json
from entformer.text.lines import open_file
from entformer.text.tokenizer import SubwordTokenizer

CHUNK = 4096  # pairs encoded at a time
PROGRESS_EVERY = 50_000  # pairs

Progress = Callable[[str, int, int | None], None]  # step, pairs done, pairs in total if known


def prepare(
    corpus: ParallelCorpus,
    out: Path,
    config: PreprocessConfig | None = None,
    *,
    subwords: SubwordTokenizer | None = None,
    batch_tokens: int = 8192,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> PrepReport:
    """Checks, filters and encodes a corpus into the directory `out`.

    Args:
        corpus: The text of each split.
        out: The directory to create; it appears complete or not at all.
        config: Options of preprocessing.
        subwords: An existing vocabulary to use, instead of learning one.
        batch_tokens: Batch size for which the report states the padding.
        overwrite: Replace `out` if it is a prepared directory.
        progress: Called with the current step, the pairs done and the pairs in total.

    Raises:
        ArgumentError: `out` exists.
        DataError: A text is invalid, or no training pair is left.
        RunFailed: `out` cannot be written.
    """
    began = time.perf_counter()
    config = config or PreprocessConfig()
    out = Path(out)
    for text in (*corpus.train, corpus.valid, corpus.test):
        for path in text.files if text is not None else ():
            open_file(path).close()  # a missing file is an error now, not after an hour
    request = make_request(corpus, config, subwords)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        if not overwrite:
            raise ArgumentError(f"{out} exists; choose another directory, or pass --overwrite to replace it.")
        if not (out / "prep.json").is_file():  # a damaged one may be replaced
            raise ArgumentError(f"{out} is not a prepared directory and is not overwritten; choose another directory.")
    with staged_directory(out) as staged:
        report = _Job(corpus, config, staged, progress).run(subwords, batch_tokens)
        report.folder = str(out)
        report.seconds = round(time.perf_counter() - began, 2)
        write_checksums(staged)
        facts = {
            "format": FORMAT,
            "corpus": corpus.name,
            "source_language": corpus.source_language,
            "target_language": corpus.target_language,
            "tokenized": report.tokenized,
            "lowercase": report.lowercase,
            "splits": ["train", *report.held_out],
            "fingerprint": report.fingerprint,
            "request": request,
            "report": report.as_dict(),
        }
        write_json(staged / "prep.json", facts)
    return report


class _Job:
    """State of one call of `prepare`."""

    def __init__(self, corpus: ParallelCorpus, config: PreprocessConfig, directory: Path, progress: Progress | None) -> None:
        self.corpus, self.config, self.directory = corpus, config, directory
        self.progress: Progress = progress or (lambda step, done, total: None)
        self.texts = [TextReport(text.name) for text in corpus.train]
        self.held_out: dict[str, TextReport] = {}
        self.overlap: dict[str, Overlap] = {}
        # split -> digest -> number of held-out lines not yet found in the training text, of sources and of whole pairs
        self._held_sources: dict[str, Counter[int]] = {}
        self._held_pairs: dict[str, Counter[int]] = {}
        self._digests = array("Q")  # of every training pair that is not dropped for its text
        self._repeated: NDArray[np.bool_] = np.zeros(0, dtype=bool)
        self._has_capitals = False
        self._longest = 0

    def run(self, given: SubwordTokenizer | None, batch_tokens: int) -> PrepReport:
        config = self.config
        for split, text in (("valid", self.corpus.valid), ("test", self.corpus.test)):
            if text is not None:
                self._write_text(split, text)
        if given is None:
            subwords = SubwordTokenizer.train(
                self._checked_lines(), vocab_size=config.vocab_size, sample=config.sample, seed=config.seed
            )
        else:
            subwords = given
            for _ in self._checked_lines():
                pass
        subwords.save(self.directory / "subwords.model")
        fingerprints = [subwords.fingerprint, self._write_train(subwords)]
        fingerprints += [self._write_held_out(split, subwords) for split in self.held_out]
        store = TokenStore.open(self.directory, "train")
        batches = TokenBatches(store, tokens=batch_tokens)
        notes = [subwords.note] if given is None and subwords.note else []
        if not self._has_capitals and not config.lowercase:
            notes.append("the text has no capital letter: text to translate will be lowercased too.")
        return PrepReport(
            folder=str(self.directory),
            source_language=self.corpus.source_language,
            target_language=self.corpus.target_language,
            train=self.texts,
            held_out=self.held_out,
            overlap=self.overlap,
            sides={
                "source": SideReport.from_lengths(store.source_lengths),
                "target": SideReport.from_lengths(store.target_lengths),
            },
            vocabulary=subwords.size,
            vocabulary_asked=config.vocab_size if given is None else subwords.size,
            subwords_fingerprint=subwords.fingerprint,
            fingerprint=hashlib.sha256(" ".join(fingerprints).encode()).hexdigest()[:16],
            tokenized=self._is_tokenized(),
            lowercase=config.lowercase or not self._has_capitals,
            longest_seen=self._longest,
            batch_tokens=batch_tokens,
            batches=batches.batches_in(0),
            padding_share=round(batches.padding_share(0), 4),
            notes=notes,
        )

    # ---- first pass: check, count, compare -------------------------------------------------------------------------

    def _write_text(self, split: str, text: ParallelText) -> None:
        """Writes held-out text, every line of it, and remembers it to find it in the training text."""
        report = self.held_out[split] = TextReport(text.name)
        self.overlap[split] = Overlap()
        sources = self._held_sources[split] = Counter[int]()
        pairs = self._held_pairs[split] = Counter[int]()
        with ExitStack() as stack:
            source, target = (
                stack.enter_context((self.directory / f"{split}.{side}.txt").open("w", encoding="utf-8", newline="\n"))
                for side in SIDES
            )
            for pair in text.pairs(nul="keep" if self.config.clean else "refuse", found=report.found):
                pair = self.config.clean_pair(pair)
                source.write(pair.source + "\n")
                target.write(pair.target + "\n")
                sources[digest(pair.source)] += 1
                pairs[digest(pair.source, pair.target)] += 1
                report.pairs += 1
        report.kept = report.pairs
        if report.pairs == 0:
            raise DataError(f"{text.name}: the {split} text is empty.")

    def _train_pairs(self, report: TextReport, text: ParallelText, found: Found) -> Iterator[SentencePair]:
        """Yields the pairs of a training text that are not dropped for their text; counts the others."""
        config = self.config
        for pair in text.pairs(nul="keep", allow_truncate=config.allow_truncate, drop_malformed=config.clean, found=found):
            report.pairs += 1
            pair = config.clean_pair(pair)
            reason = config.reject_text(pair)
            if reason is not None:
                report.drop(reason, pair.line)
            else:
                yield pair

    def _checked_lines(self) -> Iterator[str]:
        """Yields both sides of the training pairs for the vocabulary, and counts and compares them."""
        self.progress("reading", 0, None)
        for report, text in zip(self.texts, self.corpus.train, strict=True):
            for pair in self._train_pairs(report, text, report.found):
                both = digest(pair.source, pair.target)
                self._digests.append(both)
                self._count_overlap(pair, both)
                self._has_capitals = self._has_capitals or (pair.source + pair.target) != (pair.source + pair.target).lower()
                yield pair.source
                yield pair.target
                if len(self._digests) % PROGRESS_EVERY == 0:
                    self.progress("reading", len(self._digests), None)
            report.pairs += report.found.malformed_rows.count
            if report.found.malformed_rows.count:
                report.dropped["malformed row"] = report.found.malformed_rows
            if report.pairs == 0:
                raise DataError(f"{text.name}: the training text is empty.")
        self._check_first_pass()
        self.progress("learning the vocabulary", len(self._digests), None)

    def _count_overlap(self, pair: SentencePair, both: int) -> None:
        """Counts the held-out lines that occur in this training pair, each once."""
        source = digest(pair.source)
        for split, overlap in self.overlap.items():
            sources, pairs = self._held_sources[split], self._held_pairs[split]
            if source in sources:
                overlap.sources += sources[source]
                sources[source] = 0
            if both in pairs:
                overlap.train_lines.add(pair.line)
                overlap.pairs += pairs[both]
                pairs[both] = 0

    def _check_first_pass(self) -> None:
        """Raises if the training text is unusable."""
        pairs = sum(report.pairs for report in self.texts)
        identical = sum(report.dropped["identical"].count for report in self.texts if "identical" in report.dropped)
        if identical > pairs / 2:
            raise DataError(
                f"{self.texts[0].name}: source and target are equal in {identical} of {pairs} lines; was one text given "
                "twice? Pass --keep-identical to keep such pairs."
            )
        if not self._digests:
            raise self._nothing_left()
        self._repeated = find_repeats(np.frombuffer(self._digests, dtype=np.uint64))

    def _nothing_left(self) -> DataError:
        counts: Counter[str] = Counter()
        for text in self.texts:
            counts.update({reason: counter.count for reason, counter in text.dropped.items()})
        reasons = ", ".join(f"{count} {reason}" for reason, count in counts.items())
        pairs = sum(text.pairs for text in self.texts)
        return DataError(f"{self.texts[0].name}: all {pairs} training pairs were dropped by the filters ({reasons}).")

    # ---- second pass: write ----------------------------------------------------------------------------------------

    def _write_train(self, subwords: SubwordTokenizer) -> str:
        total, first = len(self._digests), 0
        with StoreWriter(self.directory, "train", vocab_size=subwords.size) as writer:
            for report, text in zip(self.texts, self.corpus.train, strict=True):
                pairs = self._train_pairs(TextReport(text.name), text, Found())  # dropped pairs are counted already
                while chunk := list(islice(pairs, CHUNK)):
                    if first + len(chunk) <= total:
                        self._write_chunk(writer, report, subwords, chunk, first)
                    first += len(chunk)
                    self.progress("writing", first, total)
        if first != total:
            raise DataError(f"{self.texts[0].name}: the text changed while it was read; run the same command again.")
        if writer.examples == 0:
            raise self._nothing_left()
        return writer.fingerprint

    def _write_chunk(
        self, writer: StoreWriter, report: TextReport, subwords: SubwordTokenizer, chunk: list[SentencePair], first: int
    ) -> None:
        kept: list[tuple[list[int], list[int]]] = []
        lines: list[int] = []
        for index, (pair, source, target) in enumerate(_encode(subwords, chunk), start=first):
            self._longest = max(self._longest, len(source), len(target))
            reason = self.config.reject_lengths(len(source), len(target))
            if self._repeated[index]:
                report.duplicates.add(pair.line)
            if self.config.dedup and reason is None:
                if self._repeated[index]:
                    reason = "duplicate"
                elif any(self._digests[index] in pairs for pairs in self._held_pairs.values()):
                    reason = "held out"
            if reason is not None:
                report.drop(reason, pair.line)
            else:
                kept.append((source, target))
                lines.append(pair.line)
        writer.add(kept, lines)
        report.kept += len(kept)

    def _write_held_out(self, split: str, subwords: SubwordTokenizer) -> str:
        paths = [self.directory / f"{split}.{side}.txt" for side in SIDES]
        with StoreWriter(self.directory, split, vocab_size=subwords.size) as writer:
            pairs = ParallelText(paths[0], paths[1]).pairs(nul="keep")
            while chunk := list(islice(pairs, CHUNK)):
                encoded = [(source, target) for _, source, target in _encode(subwords, chunk)]
                writer.add(encoded, [pair.line for pair in chunk])
        return writer.fingerprint

    def _is_tokenized(self) -> bool:
        """Returns whether spaces separate punctuation from words: as given, or as found in the first thousand pairs."""
        if self.corpus.tokenized is not None:
            return self.corpus.tokenized
        pairs = islice(self.corpus.train[0].pairs(nul="keep", allow_truncate=True, drop_malformed=True), 1000)
        lines = (line.rstrip() for pair in pairs for line in (pair.source, pair.target))
        ends = [line[-2:] for line in lines if line.endswith((".", "?", "!"))]
        return len(ends) > 0 and sum(end.startswith(" ") for end in ends) > 0.8 * len(ends)


def _encode(subwords: SubwordTokenizer, chunk: Iterable[SentencePair]) -> Iterator[tuple[SentencePair, list[int], list[int]]]:
    pairs = list(chunk)
    sources = subwords.encode_lines([pair.source for pair in pairs])
    targets = subwords.encode_lines([pair.target for pair in pairs])
    return zip(pairs, sources, targets, strict=True)
