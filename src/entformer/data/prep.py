"""From text files to a prepared folder. In: a `Corpus`. Out: ids, vocabulary, held-out text and a report, all in one folder.

    prep.json                            languages, options, counts, fingerprints, the report
    subwords.model                       the joint vocabulary
    {train,valid,test}.*.bin, .json      the ids (`store.py`)
    {valid,test}.{source,target}.txt     held-out text, one line for every line of the file, as the model's text is

The training text is streamed twice: once to check it, count it and sample it for the vocabulary, once to write its ids.
The folder appears whole or not at all.
"""

import hashlib
import json
import shutil
import time
from array import array
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from entformer.data.batch import SentencePair
from entformer.data.batching import TokenBatches
from entformer.data.corpus import Corpus, Found, ParallelText
from entformer.data.filters import Rules, digest, repeats
from entformer.data.prep_folder import FORMAT, publish, request, stored, work_folder
from entformer.data.prep_report import Overlap, PrepReport, SideReport, TextReport
from entformer.data.store import StoreWriter, TokenStore
from entformer.errors import ArgumentError, DataError
from entformer.text.lines import open_file
from entformer.text.tokenizer import SubwordTokenizer

CHUNK = 4096  # pairs encoded at a time
SHOWN = 50_000  # pairs between two calls of `progress`

Progress = Callable[[str, int, int | None], None]  # what is being done, pairs done, pairs in all if known


def prepare(
    corpus: Corpus,
    out: Path,
    *,
    vocab_size: int = 32000,
    max_length: int = 256,
    max_ratio: float = 4.0,
    dedup: bool = False,
    clean: bool = False,
    lowercase: bool = False,
    keep_identical: bool = False,
    allow_truncate: bool = False,
    subwords: SubwordTokenizer | None = None,
    sample: int = 2_000_000,
    seed: int = 1,
    batch_tokens: int = 8192,
    overwrite: bool = False,
    reuse: bool = False,
    progress: Progress | None = None,
) -> PrepReport:
    """Check, filter and encode a corpus into the folder `out`.

    `subwords` uses a vocabulary that is there already (to go on training a model); `sample` is how many lines a new one is
    learned from. `reuse` gives back what is in `out` if it was made from the same files with the same options; `overwrite`
    makes it again. `batch_tokens` only tells for which batch size the report states the padding.
    """
    began = time.perf_counter()
    rules = Rules(max_length, max_ratio, dedup, clean, lowercase, keep_identical)
    out = Path(out)
    for text in _texts(corpus):
        for path in text.files:
            open_file(path).close()  # a wrong name is told now, not after an hour
    wanted = request(corpus, rules, vocab_size, allow_truncate, subwords, sample, seed)
    if out.exists() and not overwrite:
        before = stored(out) if reuse else None
        if before is not None and before["request"] == wanted:
            report = PrepReport.from_dict(before["report"])
            report.reused = True
            return report
        if not out.is_dir() or any(out.iterdir()):
            what = "holds other data" if reuse else "is there already"
            raise ArgumentError(f"{out} {what}; give another folder, or --overwrite to make it again.")
    ours = (out / "prep.json").is_file()  # also one that is damaged or of another version
    if overwrite and out.exists() and not ours and any(out.iterdir() if out.is_dir() else [out]):
        raise ArgumentError(f"{out} is no prepared folder and is not overwritten; give another folder.")
    with work_folder(out) as work:
        job = _Job(corpus, rules, work, allow_truncate, progress)
        report = job.run(vocab_size, subwords, sample, seed, batch_tokens)
        report.folder = str(out)
        report.seconds = round(time.perf_counter() - began, 2)
        facts = {
            "format": FORMAT,
            "corpus": corpus.name,
            "source_language": corpus.source_language,
            "target_language": corpus.target_language,
            "tokenized": report.tokenized,
            "lowercase": report.lowercase,
            "splits": ["train", *report.held_out],
            "fingerprint": report.fingerprint,
            "request": wanted,
            "report": report.as_dict(),
        }
        (work / "prep.json").write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        publish(work, out)
    return report


class _Job:
    """One run of `prepare`, after its arguments are known to be good."""

    def __init__(self, corpus: Corpus, rules: Rules, work: Path, allow_truncate: bool, progress: Progress | None) -> None:
        self.corpus, self.rules, self.work, self.allow_truncate = corpus, rules, work, allow_truncate
        self.progress: Progress = progress or (lambda what, done, total: None)
        self.texts = [TextReport(text.name) for text in corpus.train]
        self.held_out: dict[str, TextReport] = {}
        self.overlap: dict[str, Overlap] = {}
        # digest -> how many held-out lines have it, of sources and of whole pairs
        self._held_sources: dict[str, dict[int, int]] = {}
        self._held_pairs: dict[str, dict[int, int]] = {}
        self._digests = array("Q")  # of every training pair that passes the first round
        self._repeated: NDArray[np.bool_] = np.zeros(0, dtype=bool)
        self._bytes = 0
        self._capitals = False
        self._longest = 0

    def run(self, vocab_size: int, given: SubwordTokenizer | None, sample: int, seed: int, batch_tokens: int) -> PrepReport:
        held = {split: text for split, text in (("valid", self.corpus.valid), ("test", self.corpus.test)) if text is not None}
        for split, text in held.items():
            self._write_text(split, text)
        if given is None:
            subwords = SubwordTokenizer.train(self._checked_lines(), vocab_size=vocab_size, sample=sample, seed=seed)
        else:
            subwords = given
            for _ in self._checked_lines():
                pass
        subwords.save(self.work / "subwords.model")
        fingerprints = [subwords.fingerprint, self._write_train(subwords)]
        fingerprints += [self._write_held_out(split, subwords) for split in held]
        store = TokenStore.open(self.work, "train")
        batches = TokenBatches(store, tokens=batch_tokens)
        notes = [subwords.note] if given is None and subwords.note else []
        found_lowercase = not self._capitals
        if found_lowercase and not self.rules.lowercase:
            notes.append("the text has no capital letter: text to translate will be lower-cased too.")
        return PrepReport(
            folder=str(self.work),
            source_language=self.corpus.source_language,
            target_language=self.corpus.target_language,
            train=self.texts,
            held_out=self.held_out,
            overlap=self.overlap,
            sides={"source": SideReport.of(store.source_lengths), "target": SideReport.of(store.target_lengths)},
            vocabulary=subwords.size,
            vocabulary_asked=vocab_size if given is None else subwords.size,
            subwords_fingerprint=subwords.fingerprint,
            fingerprint=hashlib.sha256(" ".join(fingerprints).encode()).hexdigest()[:16],
            tokenized=self._tokenized(),
            lowercase=self.rules.lowercase or found_lowercase,
            longest_seen=self._longest,
            batch_tokens=batch_tokens,
            batches=batches.batches_in(0),
            padding_share=round(batches.padding_share(0), 4),
            notes=notes,
        )

    # ---- first round: check, count, compare ------------------------------------------------------------------------

    def _write_text(self, split: str, text: ParallelText) -> None:
        """Held-out text: every line is kept, and remembered to be looked for in the training text."""
        report = self.held_out[split] = TextReport(text.name)
        self.overlap[split] = Overlap()
        sources, pairs = self._held_sources.setdefault(split, {}), self._held_pairs.setdefault(split, {})
        paths = [self.work / f"{split}.{side}.txt" for side in ("source", "target")]
        with (
            paths[0].open("w", encoding="utf-8", newline="\n") as source,
            paths[1].open("w", encoding="utf-8", newline="\n") as target,
        ):
            for pair in text.pairs(nul="keep" if self.rules.clean else "refuse", found=report.found):
                pair = self.rules.clean_pair(pair)
                source.write(pair.source + "\n")
                target.write(pair.target + "\n")
                for known, key in ((sources, digest(pair.source)), (pairs, digest(pair.source, pair.target))):
                    known[key] = known.get(key, 0) + 1
                report.pairs += 1
        report.kept = report.pairs
        if report.pairs == 0:
            raise DataError(f"{text.name}: the {split} text is empty.")

    def _train_pairs(self, report: TextReport, text: ParallelText, found: Found) -> Iterator[SentencePair]:
        """Pairs of a training text that pass the first round, their reasons counted if not."""
        for pair in text.pairs(nul="keep", allow_truncate=self.allow_truncate, drop_malformed=self.rules.clean, found=found):
            report.pairs += 1
            pair = self.rules.clean_pair(pair)
            reason = self.rules.refuse_text(pair)
            if reason is not None:
                report.drop(reason, pair.line)
            else:
                yield pair

    def _checked_lines(self) -> Iterator[str]:
        """Both sides of every good training pair, for the vocabulary; on the way everything is counted and compared."""
        done = 0
        self.progress("reading", done, None)
        met: dict[str, set[int]] = {split: set() for split in self._held_sources}
        for report, text in zip(self.texts, self.corpus.train, strict=True):
            for pair in self._train_pairs(report, text, report.found):
                both = digest(pair.source, pair.target)
                self._digests.append(both)
                self._compare(pair, both, met)
                self._bytes += len(pair.source) + len(pair.target)
                self._capitals = self._capitals or pair.source != pair.source.lower() or pair.target != pair.target.lower()
                yield pair.source
                yield pair.target
                done += 1
                if done % SHOWN == 0:
                    self.progress("reading", done, None)
            report.pairs += report.found.malformed_rows.count
            if report.found.malformed_rows.count:
                report.dropped["malformed row"] = report.found.malformed_rows
            if report.pairs == 0:
                raise DataError(f"{text.name}: the training text is empty.")
        self._evaluate_first_round()
        self.progress("learning the vocabulary", done, None)

    def _compare(self, pair: SentencePair, both: int, met: dict[str, set[int]]) -> None:
        """Count the held-out lines that this training pair gives away, each once."""
        source = digest(pair.source)
        for split, seen in met.items():
            overlap = self.overlap[split]
            if source in self._held_sources[split] and source not in seen:
                seen.add(source)
                overlap.sources += self._held_sources[split][source]
            if both in self._held_pairs[split]:
                overlap.train_lines.add(pair.line)
                if both not in seen:
                    seen.add(both)
                    overlap.pairs += self._held_pairs[split][both]

    def _evaluate_first_round(self) -> None:
        """Stop here if there is no sense in going on."""
        pairs = sum(report.pairs for report in self.texts)
        identical = sum(report.dropped["identical"].count for report in self.texts if "identical" in report.dropped)
        if identical > pairs / 2:
            raise DataError(
                f"{self.texts[0].name}: source and target are the same in {identical} of {pairs} lines; was one text given "
                "twice? --keep-identical keeps such pairs."
            )
        if not self._digests:
            raise DataError(f"{self.texts[0].name}: {_nothing_left(self.texts)}")
        self._repeated = repeats(np.frombuffer(self._digests, dtype=np.uint64))
        need = 2 * self._bytes  # ids take less than the text, at most two bytes for each of its characters
        free = shutil.disk_usage(self.work).free
        if free < need:
            raise DataError(
                f"the disk has {free >> 20} MB free and the ids may need {need >> 20} MB; make room or give another folder."
            )

    # ---- second round: write -----------------------------------------------------------------------------------------

    def _write_train(self, subwords: SubwordTokenizer) -> str:
        total, place = len(self._digests), 0
        with StoreWriter(self.work, "train", vocab_size=subwords.size) as writer:
            for report, text in zip(self.texts, self.corpus.train, strict=True):
                again = self._train_pairs(TextReport(text.name), text, Found())  # its reasons are counted already
                while chunk := list(islice(again, CHUNK)):
                    if place + len(chunk) > total:
                        raise DataError(f"{text.name}: the text changed while it was being read; run this again.")
                    self._write_chunk(writer, report, subwords, chunk, place)
                    place += len(chunk)
                    self.progress("writing", place, total)
        if place != total:
            raise DataError(f"{self.texts[0].name}: the text changed while it was being read; run this again.")
        if writer.examples == 0:
            raise DataError(f"{self.texts[0].name}: {_nothing_left(self.texts)}")
        return writer.fingerprint

    def _write_chunk(
        self, writer: StoreWriter, report: TextReport, subwords: SubwordTokenizer, chunk: list[SentencePair], place: int
    ) -> None:
        sources = subwords.encode_lines([pair.source for pair in chunk])
        targets = subwords.encode_lines([pair.target for pair in chunk])
        good: list[tuple[list[int], list[int]]] = []
        lines: list[int] = []
        for i, pair in enumerate(chunk):
            self._longest = max(self._longest, len(sources[i]), len(targets[i]))
            repeated = bool(self._repeated[place + i])
            if repeated:
                report.duplicates.add(pair.line)
            reason = self.rules.refuse_ids(len(sources[i]), len(targets[i]))
            if self.rules.dedup and reason is None:
                reason = "duplicate" if repeated else self._given_away(place + i)
            if reason is not None:
                report.drop(reason, pair.line)
            else:
                good.append((sources[i], targets[i]))
                lines.append(pair.line)
        writer.add(good, lines)
        report.kept += len(good)

    def _given_away(self, place: int) -> str | None:
        key = self._digests[place]
        return "held out" if any(key in known for known in self._held_pairs.values()) else None

    def _write_held_out(self, split: str, subwords: SubwordTokenizer) -> str:
        with StoreWriter(self.work, split, vocab_size=subwords.size) as writer:
            both = [(self.work / f"{split}.{side}.txt").open(encoding="utf-8", newline="\n") for side in ("source", "target")]
            with both[0], both[1]:
                pairs = zip(both[0], both[1], strict=True)
                while chunk := list(islice(pairs, CHUNK)):
                    sources = subwords.encode_lines([source.removesuffix("\n") for source, _ in chunk])
                    targets = subwords.encode_lines([target.removesuffix("\n") for _, target in chunk])
                    first = writer.examples + 1
                    writer.add(list(zip(sources, targets, strict=True)), range(first, first + len(chunk)))
        return writer.fingerprint

    def _tokenized(self) -> bool:
        """Is punctuation parted from the words by spaces? As told, or seen in the first thousand pairs."""
        if self.corpus.tokenized is not None:
            return self.corpus.tokenized
        pairs = islice(self.corpus.train[0].pairs(nul="keep", allow_truncate=True, drop_malformed=True), 1000)
        ends = [
            line.rstrip()[-2:]
            for pair in pairs
            for line in (pair.source, pair.target)
            if line.rstrip().endswith((".", "?", "!"))
        ]
        return len(ends) > 0 and sum(end.startswith(" ") for end in ends) > 0.8 * len(ends)


def _texts(corpus: Corpus) -> list[ParallelText]:
    return [*corpus.train, *(text for text in (corpus.valid, corpus.test) if text is not None)]


def _nothing_left(texts: list[TextReport]) -> str:
    counts: dict[str, int] = {}
    for text in texts:
        for reason, counter in text.dropped.items():
            counts[reason] = counts.get(reason, 0) + counter.count
    why = ", ".join(f"{count} {reason}" for reason, count in counts.items())
    return f"not one of {sum(text.pairs for text in texts)} training pairs is left after the filters ({why})."
