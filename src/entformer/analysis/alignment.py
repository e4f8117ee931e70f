"""Word alignment from cross attention, and its error rate.

A target piece is linked to the source piece of the largest weight; words are linked if any of their pieces are. Two rows
align piece t of the target: row t, which predicts it ("normal"), and row t + 1, which reads it ("shifted", Chen et al. 2020).
The end of the source is never linked, and a row of zeros (ReLA) links nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from entformer.analysis.collect import layer_rows, run_with_trace
from entformer.analysis.gold import Gold, Links
from entformer.analysis.rows import Floats, Ints, LayerRows
from entformer.analysis.words import word_numbers
from entformer.data.batch import Batch
from entformer.errors import ArgumentError
from entformer.models.seq2seq import Seq2Seq
from entformer.nn.hooks import AttentionTrace
from entformer.nn.multihead_attention import MultiheadAttention
from entformer.text.tokenizer import SubwordTokenizer

Key = tuple[str, int, int]  # what, layer, head
MODES = ("normal", "shifted")  # row t, row t + 1


class Counts(NamedTuple):
    """Sums over sentences."""

    links: float  # |A|
    sure: float  # |A and S|
    possible: float  # |A and P|
    gold: float  # |S|


@dataclass(frozen=True)
class AlignmentScores:
    """Error rates from cross attention; index 0 normal, 1 shifted."""

    heads: dict[tuple[int, int], tuple[Counts, Counts]]  # (layer, head)
    layers: dict[int, tuple[Counts, Counts]]  # the mean of the normalized weights of a layer's heads
    layers_raw: dict[int, tuple[Counts, Counts]]  # the mean of their raw weights
    averaged: tuple[Counts, Counts]  # the mean of the normalized weights of all heads
    averaged_raw: tuple[Counts, Counts]
    sentences: int


def alignment_error_rate(counts: Counts) -> float:
    """Computes the alignment error rate of Och and Ney (2003); A: links found, S: sure and P: possible gold links:

    AER = 1 - (|A and S| + |A and P|) / (|A| + |S|)
    """
    found = counts.links + counts.gold
    return 1.0 - (counts.sure + counts.possible) / found if found else 1.0


def precision_recall(counts: Counts) -> tuple[float, float]:
    """Computes precision = |A and P| / |A|,   recall = |A and S| / |S|;   0 where there is nothing to divide by."""
    return counts.possible / counts.links if counts.links else 0.0, counts.sure / counts.gold if counts.gold else 0.0


def link_counts(found: Sequence[Links], gold: Gold) -> Counts:
    """Counts links of any aligner for `alignment_error_rate`, line by line."""
    if len(found) != len(gold):
        raise ArgumentError(f"found has links of {len(found)} lines; expected {len(gold)}, as in the gold standard.")
    lines = list(zip(found, gold.sure, gold.possible, strict=True))
    return Counts(
        sum(len(links) for links, _, _ in lines),
        sum(len(links & sure) for links, sure, _ in lines),
        sum(len(links & possible) for links, _, possible in lines),
        sum(len(sure) for _, sure, _ in lines),
    )


def strongest_keys(row: Ints, col: Ints, value: Floats, rows: int) -> Ints:
    """Returns argmax_j value_ij of each of `rows` sparse rows, the first of equals; -1 where there is no entry. (rows,)

    Entries must be ordered by row and key.
    """
    best = np.full(rows, -1, dtype=np.int64)
    if len(row) == 0:
        return best
    begins = np.flatnonzero(np.append(True, row[1:] != row[:-1]))
    most = np.maximum.reduceat(value, begins)
    hits = np.flatnonzero(value == np.repeat(most, np.diff(np.append(begins, len(row)))))
    first = np.append(True, row[hits][1:] != row[hits][:-1])
    best[row[hits][first]] = col[hits][first]
    return best


class _Sentences:
    """The words and gold links of a batch; a link has the number is ((b * S) + source word) * T + target word."""

    def __init__(self, batch: Batch, subwords: SubwordTokenizer, gold: Gold) -> None:
        self.source_words = _words(batch.source.tolist(), subwords)  # (B, S)
        self.target_words = _words(batch.target.tolist(), subwords)[:, 1:]  # (B, T): of the piece that row t predicts
        self.width = int(self.target_words.max(initial=0)) + 1
        self.height = int(self.source_words.max(initial=0)) + 1
        sides = (
            [(b, i, j) for b, number in enumerate(batch.examples) for i, j in links[number]]
            for links in (gold.sure, gold.possible)
        )
        self.sure, self.possible = (
            self.numbers(*np.array(links, dtype=np.int64).reshape(-1, 3).T) if links else np.zeros(0, np.int64)
            for links in sides
        )

    def numbers(self, sentence: Ints, source: Ints, target: Ints) -> Ints:
        return (sentence * self.height + source) * self.width + target

    def count(self, best: Ints, shift: int) -> Counts:
        """Counts the links of argmax keys (B, T); row t + shift aligns piece t."""
        shifted = best[:, shift:]
        words = self.target_words[:, : shifted.shape[1]]
        b, t = np.nonzero((shifted >= 0) & (words >= 0))
        source = self.source_words[b, shifted[b, t]]
        found = np.unique(self.numbers(b, source, words[b, t])[source >= 0])
        return Counts(len(found), np.isin(found, self.sure).sum(), np.isin(found, self.possible).sum(), len(self.sure))


def _words(sentences: list[list[int]], subwords: SubwordTokenizer) -> Ints:
    return np.array([word_numbers(subwords, ids) for ids in sentences], dtype=np.int64)


def collect_alignment(
    model: Seq2Seq,
    batches: Iterable[Batch],
    subwords: SubwordTokenizer,
    gold: Gold,
    *,
    progress: Callable[[int], None] | None = None,
) -> AlignmentScores:
    """Aligns the text teacher-forced; `batch.examples` are the lines of `gold`.

    Heads are averaged in two ways: by normalized weights, so that all heads count equally, and by raw weights, where heads with
    large weights dominate. The two differ only where rows need not sum to one (ReLA).
    """
    sums: dict[Key, Floats] = {}
    done = 0
    for batch in batches:
        if max(batch.examples, default=0) >= len(gold):
            raise ArgumentError(f"the gold standard has {len(gold)} lines; the batch contains sentence {max(batch.examples)}.")
        for key, counts in _align_batch(model, batch, subwords, gold).items():
            sums[key] = sums.get(key, 0.0) + counts
        done += len(batch.examples)
        if progress is not None:
            progress(done)
    if not sums:
        raise ArgumentError("nothing was aligned: there was no batch.")
    both = {key: (Counts(*pair[0].tolist()), Counts(*pair[1].tolist())) for key, pair in sums.items()}
    return AlignmentScores(
        heads={(layer, head): pair for (what, layer, head), pair in both.items() if what == "head"},
        layers={layer: pair for (what, layer, _), pair in both.items() if what == "layer"},
        layers_raw={layer: pair for (what, layer, _), pair in both.items() if what == "raw layer"},
        averaged=both["all", 0, 0],
        averaged_raw=both["raw all", 0, 0],
        sentences=done,
    )


def _align_batch(model: Seq2Seq, batch: Batch, subwords: SubwordTokenizer, gold: Gold) -> dict[Key, Floats]:
    """Returns `Counts` of every head, layer and mean, normal and shifted: (2, 4) each."""
    sentences = _Sentences(batch, subwords, gold)
    found: dict[Key, Floats] = {}
    cells: dict[str, list[tuple[Ints, Floats]]] = {"": [], "raw ": []}  # of the mean of each layer
    size, queries, keys = batch.target.shape[0], batch.target.shape[1] - 1, batch.source.shape[1]
    lengths = batch.source_lengths.cpu().numpy(), batch.target_lengths.cpu().numpy()

    def count(key: Key, best: Ints) -> None:
        found[key] = np.array([sentences.count(best.reshape(size, queries), shift) for shift in (0, 1)], dtype=np.float64)

    def hook(attn_type: str, layer: int, module: MultiheadAttention, trace: AttentionTrace) -> None:
        rows = layer_rows(attn_type, layer, trace, *lengths)
        best = strongest_keys(*_without_end(rows), size * rows.heads * queries).reshape(size, rows.heads, queries)
        for head in range(rows.heads):
            count(("head", layer, head), best[:, head])
        for mean, mixture in (("", rows.mixture), ("raw ", rows.mixed(rows.weight))):
            words_only = mixture.col < (rows.key_lengths - 1)[mixture.row // queries]
            row, col, value = mixture.row[words_only], mixture.col[words_only], mixture.value[words_only]
            count((f"{mean}layer", layer, 0), strongest_keys(row, col, value, size * queries))
            cells[mean].append((row * keys + col, value))

    run_with_trace(model, batch.to(model.source_embedding.device), hook, attn_types=("cross",))
    for mean, layers in cells.items():
        cell, inverse = np.unique(np.concatenate([own for own, _ in layers]), return_inverse=True)
        value: Floats = np.bincount(inverse, np.concatenate([values for _, values in layers]), len(cell)).astype(np.float64)
        count((f"{mean}all", 0, 0), strongest_keys(cell // keys, cell % keys, value, size * queries))
    return found


def _without_end(rows: LayerRows) -> tuple[Ints, Ints, Floats]:
    """Returns the entries whose key is a word of the source, not EOS."""
    last = np.repeat(rows.key_lengths - 1, rows.heads)[rows.head_of_sentence]
    inside = rows.col < last
    return rows.row[inside], rows.col[inside], rows.weight[inside]
