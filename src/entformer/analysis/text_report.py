"""The data of a report (see `data.py`) on a model that reads texts, and everything a page shows of one text."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from entformer.analysis.budget import MOST_WEIGHTS, keep_affordable
from entformer.analysis.collector import Collector
from entformer.analysis.data import Progress, describe_table, store_sentences
from entformer.analysis.examples import VARIED
from entformer.analysis.measures import measure_sentence
from entformer.analysis.sentence import LONGEST_WITH_SCORES, SentenceView
from entformer.analysis.table import Example
from entformer.analysis.traces import Inputs, LayerTrace, TextTracer, collect_texts, sides
from entformer.decoding.records import SparseRows

END = "▢"  # after the last token: row i of a decoder belongs to the prediction of token i + 1


class Tokens(Protocol):
    """Shows ids of tokens as text."""

    def pieces(self, ids: Sequence[int]) -> Sequence[str]:
        """Returns each id as text for display."""

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of ids."""


def text_report(
    tracer: TextTracer,
    inputs: Sequence[Inputs],
    *,
    name: str,
    tokens: Tokens,
    data_name: str = "text",
    examples: int = 6,
    runs: int = 1,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Returns the entry of one model in ReportData of so many `runs`; its training is not known here."""
    shown = None if progress is None else lambda done: progress(f"{name}: heads", done, len(inputs))
    table = collect_texts(tracer, inputs, Collector(examples=examples), shown)
    # Those that only this model chose come last, so that models on the same texts show the same.
    chosen = sorted(table.examples, key=lambda example: example.why == VARIED) or [Example(0, "sample", (), ())]
    every = (view_text(tracer, inputs[example.id], example, tokens) for example in chosen)
    views = keep_affordable(every, MOST_WEIGHTS // runs)
    ids = [sides(inputs[view.example.id]) for view in views]
    texts = [
        {
            "id": view.example.id + 1,
            "source_text": tokens.decode(own["encoder"] or ()) if view.source else "",
            "target_text": tokens.decode(own["decoder"] or ()) if view.target else "",
        }
        for view, own in zip(views, ids, strict=True)
    ]
    missing = ("alpha_steps", "alpha_paths", "alpha_correlation", "alpha_gradients", "alpha_sentence", "alignment", "contrast")
    return {
        "name": name,
        "languages": ["", ""],
        "settings": {},
        "scores": [],
        "step": 0,
        **dict.fromkeys(missing),
        "alpha_marks": {},
        **describe_table(table, views, data_name),
        "sentences": store_sentences(views, texts, runs),
    }


def view_text(tracer: TextTracer, inputs: Inputs, example: Example, tokens: Tokens) -> SentenceView:
    """Runs the model on one text and returns everything a page shows of it."""
    ids = sides(inputs)
    heads: dict[str, SparseRows] = {}
    scores: dict[str, NDArray[np.float32]] = {}
    measures: dict[str, dict[str, float]] = {}

    def hook(trace: LayerTrace) -> None:
        rows = trace.rows(ids.get(trace.attn_type))
        names = [f"{trace.attn_type}.{trace.layer}.{head}" for head in range(rows.heads)]
        heads.update(zip(names, trace.rows_per_head(), strict=True))
        if max(rows.queries, rows.keys) <= LONGEST_WITH_SCORES and trace.call.sinks is None:
            scores.update(zip(names, _scores(trace), strict=True))
        measures.update(measure_sentence(rows, None))

    tracer.run(inputs, hook)
    has_target = "decoder_input_ids" in inputs
    first, second = (tuple(tokens.pieces(ids[side] or ())) for side in ("encoder", "decoder"))
    causal = any(key.startswith("decoder.") for key in heads)
    source = first if has_target or not causal else ()
    return SentenceView(example, source, (*second, END) if causal else (), heads, scores, measures)


def _scores(trace: LayerTrace) -> list[NDArray[np.float32]]:
    with torch.no_grad():
        scores, mask = trace.call.scores()
        scores = scores.masked_fill(~mask, -torch.inf)
    return list(scores[0].float().cpu().numpy())
