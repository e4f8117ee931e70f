"""One sentence of a report: pieces, sparse weights of every head, scores, measures.

Scores are s_ij = q_i k_j / sqrt(D) plus positional terms, before the normalizer; from them a page computes the weights of
another alpha. They are L x L, so only short sentences have them.
"""

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from entformer.analysis.collect import layer_rows, run_with_trace
from entformer.analysis.measures import measure_sentence
from entformer.analysis.rows import Floats
from entformer.analysis.table import Example
from entformer.analysis.words import WordMarker
from entformer.data.batch import Batch
from entformer.decoding.attention_record import rows_per_head
from entformer.decoding.records import SparseRows
from entformer.models.seq2seq import Seq2Seq
from entformer.nn.dense import masked_scores
from entformer.nn.hooks import AttentionTrace
from entformer.nn.masks import ScoreTerms
from entformer.nn.multihead_attention import MultiheadAttention
from entformer.text.tokenizer import BOS, EOS, SubwordTokenizer

LONGEST_WITH_SCORES = 40  # tokens on either side
MASKED = -32768
LEVELS = 65534  # of scores as 16-bit numbers, -32767 to 32767


@dataclass(frozen=True, eq=False)
class SentenceView:
    """One sentence and its attention."""

    example: Example
    source: tuple[str, ...]  # pieces, EOS at the end
    target: tuple[str, ...]  # BOS at the start, EOS at the end
    heads: dict[str, SparseRows]  # "encoder.0.0" -> weights
    scores: dict[str, NDArray[np.float32]]  # (queries, keys), -inf = masked; empty for long sentences
    measures: dict[str, dict[str, float]]  # head -> measures of this sentence

    @property
    def entries(self) -> int:
        """The number of nonzero weights of all heads."""
        return sum(len(rows.col) for rows in self.heads.values())


def view_sentence(
    model: Seq2Seq, example: Example, subwords: SubwordTokenizer, markers: tuple[WordMarker, WordMarker] | None = None
) -> SentenceView:
    """Runs the model teacher-forced on one sentence and returns everything."""
    source, target = [*example.source, EOS], [BOS, *example.target, EOS]
    sizes = len(source), len(target) - 1
    batch = Batch(
        torch.tensor([source]), torch.tensor([target]), torch.tensor([sizes[0]]), torch.tensor([sizes[1]]), (example.id,)
    )
    marks = {}
    if markers is not None:
        marks["encoder"] = markers[0].marks([source], sizes[0])
        marks["decoder"] = markers[1].marks([target[:-1]], sizes[1])
    heads: dict[str, SparseRows] = {}
    scores: dict[str, NDArray[np.float32]] = {}
    measures: dict[str, dict[str, float]] = {}

    def hook(attn_type: str, layer: int, module: MultiheadAttention, trace: AttentionTrace) -> None:
        own_rows = rows_per_head(trace.support, trace.query.shape[2], trace.key.shape[2])
        heads.update((f"{attn_type}.{layer}.{head}", own) for head, own in enumerate(own_rows))
        if max(sizes) <= LONGEST_WITH_SCORES:
            terms = ScoreTerms(trace.masks, module.slopes, trace.causal, trace.offset)
            for head, own in enumerate(masked_scores(trace.query, trace.key, terms)[0][0].float().cpu().numpy()):
                scores[f"{attn_type}.{layer}.{head}"] = own
        rows = layer_rows(attn_type, layer, trace, *(np.array([size]) for size in sizes))
        measures.update(measure_sentence(rows, marks.get(attn_type)))

    run_with_trace(model, batch.to(model.source_embedding.device), hook)
    pieces = tuple(subwords.pieces(source)), tuple(subwords.pieces(target))
    return SentenceView(example, *pieces, heads, scores, measures)


def packed_scores(scores: NDArray[np.float32]) -> dict[str, Any]:
    """Packs scores (Lq, Lk) as 16-bit levels in base64: score = offset + scale * level, -32768: masked."""
    seen = np.isfinite(scores)
    low, high = (float(scores[seen].min()), float(scores[seen].max())) if seen.any() else (0.0, 0.0)
    scale, offset = (high - low) / LEVELS, (high + low) / 2
    levels = np.full(scores.shape, MASKED, dtype="<i2")
    exact: Floats = scores[seen].astype(np.float64) - offset
    levels[seen] = np.clip(np.rint(exact / scale), -LEVELS // 2, LEVELS // 2) if scale > 0 else 0
    rows, columns = scores.shape
    data = base64.b64encode(levels.tobytes()).decode("ascii")
    return {"rows": rows, "columns": columns, "scale": scale, "offset": offset, "data": data}


def packed_rows(rows: SparseRows) -> dict[str, Any]:
    """Packs weights with four significant digits."""
    return {
        "crow": rows.crow.tolist(),
        "col": rows.col.tolist(),
        "weight": [float(f"{weight:.4g}") for weight in rows.weight.tolist()],
    }
