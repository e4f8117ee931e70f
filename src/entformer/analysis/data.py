"""Builds the data of a report (ReportData, version 3): plain dicts, from which figures, the page and report.json are made.

`report_data` documents the format.
"""

import datetime
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from entformer import __version__
from entformer.analysis import budget
from entformer.analysis.alignment import (
    MODES,
    AlignmentScores,
    Counts,
    alignment_error_rate,
    collect_alignment,
    precision_recall,
)
from entformer.analysis.alphas import initial_alphas
from entformer.analysis.budget import allocate_budget
from entformer.analysis.collect import collect
from entformer.analysis.gold import Gold
from entformer.analysis.history import learned_alphas_of, metrics_of, settings_of, validation_scores
from entformer.analysis.measures import HEAD_MEASURES, LAYER_MEASURES
from entformer.analysis.roles import ROLES, find_roles, positional_heads, rank_heads
from entformer.analysis.sentence import SentenceView, packed_rows, packed_scores, view_sentence
from entformer.analysis.table import Example, HeadRow, HeadTable
from entformer.analysis.training_text import TrainingText
from entformer.analysis.words import WordMarker
from entformer.checkpoint import LoadedRun, RunFolder
from entformer.data.batching import TokenBatches
from entformer.data.store import TokenStore
from entformer.files import plain

VERSION = 3
ROLE_EXAMPLES = 3
LONGEST_CONTRAST = 40  # tokens; every one of them is labeled in the figure
BATCH_TOKENS = 4096

Progress = Callable[[str, int, int], None]  # what, done, of how many


@dataclass(frozen=True, kw_only=True)
class RunToReport:
    """One run and the text to measure it on."""

    name: str
    folder: RunFolder
    loaded: LoadedRun
    which: str
    store: TokenStore
    numbers: Sequence[int]  # of the sentences of the store in the text they are from: the ids in the report
    data_name: str
    text_key: str  # equal for runs on the same sentences
    tokenized: bool
    training_text: TrainingText | None = None
    gold: Gold | None = None
    gold_store: TokenStore | None = None
    scores: Sequence[dict[str, Any]] = ()  # besides those of the run directory, such as those of a test set


def report_data(
    runs: Sequence[RunToReport], *, examples: int = 12, title: str | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Returns ReportData of several runs. Runs over the same text show the sentences chosen for the first, besides their own.

    {"version", "title", "created", "entformer", "measures": {"heads", "layers": [`Measure.to_dict`]}, "runs": [{
        "name", "languages", "normalizers", "settings": {"a.b": value}, "data",
        "scores": [{"name": "validation BLEU", "value", "digits" (1 if missing), "signature", "about",
            "comparison": with another run, or missing}],
        "training_text": how much it was trained on, or null,
        "alpha_steps", "alpha_paths": {attention type: layers x heads x steps},
        "alpha_correlation": {"all" or attention type: of final with initial alphas} or null,
        "alpha_marks": {"encoder.0.1": "at 1", "at 2" or "sigmoid tail"}, "alpha_sentence": what was learned, or null,
        "alpha_gradients": {"steps", attention type: layers x heads x [mean, standard deviation over steps]} of the last quarter
            of training, or null,
        "positional_heads": [`PositionalHeads` per offset],
        "heads": [`HeadRow.to_dict`], "layers": [`LayerRow.to_dict`], "roles": [the best heads of each role],
        "alignment": {"best_head", "best_layer", "best_layer_raw", "averaged", "averaged_raw", "layers"} or null,
        "contrast": {"sentence": index in "sentences", "source": pieces, "heads": encoder's} or null: a question as a statement,
        "varied": [`VariedPair`, with indices in "sentences"],
        "sentences": [{"id", "source_text", "target_text", "unknown": [words that are not in the training data], "source",
            "target" (pieces), "why", "omitted": [heads not stored],
            "heads": {"encoder.0.0": {"crow", "col", "weight", "cut": smaller weights are dropped, or null,
                "scores": `packed_scores` or null}}}]}]}
    """
    shared: dict[str, list[int]] = {}
    reports = []
    for run in runs:
        report, shown = _report_run(run, examples, shared.get(run.text_key, []), len(runs), progress)
        shared.setdefault(run.text_key, shown)
        reports.append(report)
    return make_report(reports, title)


def make_report(runs: Sequence[dict[str, Any]], title: str | None) -> dict[str, Any]:
    """Returns ReportData with these runs."""
    found: dict[str, Any] = plain(
        {
            "version": VERSION,
            "title": title or f"Attention heads of {', '.join(run['name'] for run in runs)}",
            "created": datetime.date.today().isoformat(),
            "entformer": __version__,
            "measures": {
                level: [measure.to_dict() for measure in measures]
                for level, measures in (("heads", HEAD_MEASURES), ("layers", LAYER_MEASURES))
            },
            "runs": runs,
        }
    )
    return found


def describe_table(table: HeadTable, views: Sequence[SentenceView], data_name: str) -> dict[str, Any]:
    """Returns the parts of a run's report that follow from its measures and the sentences shown."""
    indices = {view.example.id: index for index, view in enumerate(views)}
    return {
        "normalizers": table.normalizers,
        "data": {
            "sentences": table.sentences,
            "source_tokens": table.source_tokens,
            "target_tokens": table.target_tokens,
            "name": data_name,
        },
        "positional_heads": [asdict(own) for own in positional_heads(table)],
        "heads": [_head(row, views) for row in table],
        "layers": [layer.to_dict() for layer in table.layers],
        "roles": [asdict(ranking) for ranking in rank_heads(table)],
        "varied": [
            {**asdict(pair), "sparse": indices[pair.sparse], "dense": indices[pair.dense]}
            for pair in table.varied
            if pair.sparse in indices and pair.dense in indices
        ],
    }


def _report_run(
    run: RunToReport, examples: int, shared: Sequence[int], runs: int, progress: Progress | None
) -> tuple[dict[str, Any], list[int]]:
    """Returns the report of one run, and the indices in its store of the sentences that other runs should show too."""
    loaded, total = run.loaded, len(run.store)
    languages = loaded.source_language, loaded.target_language
    table = collect(
        loaded.model,
        TokenBatches(run.store, tokens=BATCH_TOKENS, shuffle=False).epoch(0),
        subwords=loaded.subwords,
        languages=languages,
        tokenized=run.tokenized,
        examples=examples,
        progress=None if progress is None else lambda done: progress(f"{run.name}: heads", done, total),
    )
    scores = None
    if run.gold is not None and run.gold_store is not None:
        lines = len(run.gold_store)
        scores = collect_alignment(
            loaded.model,
            TokenBatches(run.gold_store, tokens=BATCH_TOKENS, shuffle=False).epoch(0),
            loaded.subwords,
            run.gold,
            progress=None if progress is None else lambda done: progress(f"{run.name}: alignment", done, lines),
        )
        table = _with_alignment(table, scores)
    metrics = metrics_of(run.folder.metrics)
    initial = initial_alphas(metrics)
    table = replace(table, heads=tuple(row.with_values(alpha_initial=initial.get(row.id)) for row in table))
    alphas = {row.id: row.alpha for row in table if row.alpha is not None}
    markers = (
        WordMarker(loaded.subwords, languages[0], tokenized=run.tokenized),
        WordMarker(loaded.subwords, languages[1], tokenized=run.tokenized),
    )
    chosen = _shown(table, run.store, shared, examples)
    views = [view_sentence(loaded.model, example, loaded.subwords, markers) for example in chosen]
    texts: list[dict[str, Any]] = [
        {
            "id": int(run.numbers[example.id]),
            "source_text": loaded.subwords.decode(example.source),
            "target_text": loaded.subwords.decode(example.target),
        }
        for example in chosen
    ]
    if run.training_text is not None:
        texts = [{**text, "unknown": run.training_text.unknown(text["source_text"])} for text in texts]
    report = {
        "name": run.name,
        "languages": list(languages),
        "settings": settings_of(run.folder),
        "scores": [*run.scores, *validation_scores(run.folder, metrics, loaded.step, run.which)],
        "step": loaded.step,
        "training_text": None if run.training_text is None else run.training_text.describe(),
        **learned_alphas_of(
            run.folder,
            loaded.model.config,
            alphas,
            loaded.step,
            densities={row.id: row.density for row in table if row.density is not None},
            data_name=run.data_name,
        ),
        **describe_table(table, views, run.data_name),
        "alignment": None if scores is None else _alignment_report(scores),
        "contrast": _contrast(loaded, chosen, markers[0]),
        "sentences": store_sentences(views, texts, runs),
    }
    return report, [example.id for example in table.examples]


def _shown(table: HeadTable, store: TokenStore, shared: Sequence[int], count: int) -> list[Example]:
    """Returns the sentences to show: those of the first run over the same text, then this run's most varied ones."""
    if not shared:
        return list(table.examples)
    own = {example.id: example.why for example in table.examples}
    numbers = list(dict.fromkeys([*shared, *(number for pair in table.varied[:1] for number in (pair.sparse, pair.dense))]))
    found = []
    for number in numbers[: count + 2]:
        source, target = (tuple(side.tolist()) for side in store[number])
        found.append(Example(number, own.get(number, "sample"), source, target))
    return found


def _contrast(loaded: LoadedRun, chosen: Sequence[Example], marker: WordMarker) -> dict[str, Any] | None:
    """Returns the longest short question read as a statement: its pieces and the weights of the encoder's heads.

    For the lower row of Fig. 9: the same words with a full stop in place of the question mark. None without such a question.
    """
    found: list[tuple[int, int, tuple[int, ...]]] = []  # length, index, the statement
    for index, example in enumerate(chosen):
        marks = marker.marks([example.source], len(example.source))
        mark = int(marks.mark[0])
        end = marker.statement_end(example.source[mark]) if mark >= 0 and marks.asking.any() else -1
        if end >= 0 and len(example.source) < LONGEST_CONTRAST:
            found.append((len(example.source), index, (*example.source[:mark], end, *example.source[mark + 1 :])))
    if not found:
        return None
    _, index, statement = max(found)
    view = view_sentence(loaded.model, replace(chosen[index], source=statement), loaded.subwords)
    heads = {key: packed_rows(rows) for key, rows in view.heads.items() if key.startswith("encoder.")}
    return {"sentence": index, "source": list(view.source), "heads": heads}


def _head(row: HeadRow, views: Sequence[SentenceView]) -> dict[str, Any]:
    measures = {role.name: role.measure for role in ROLES}
    examples = [_best_sentences(row.key, measures[role.role], views) for role in row.roles]
    roles = [{**asdict(role), "examples": own} for role, own in zip(row.roles, examples, strict=True)]
    return {**row.to_dict(), "roles": roles}


def _best_sentences(key: str, measure: str, views: Sequence[SentenceView]) -> list[int]:
    """Returns the indices of the sentences in which a measure of the head is highest."""
    scored = [
        (score, index) for index, view in enumerate(views) if (score := view.measures.get(key, {}).get(measure)) is not None
    ]
    return [index for _, index in sorted(scored, key=lambda pair: (-pair[0], pair[1]))[:ROLE_EXAMPLES]]


def store_sentences(views: Sequence[SentenceView], texts: Sequence[dict[str, Any]], runs: int = 1) -> list[dict[str, Any]]:
    """Returns all sentences with their texts, within the budget of `budget.py` for a report of so many runs."""
    held = allocate_budget(views, budget.MOST_WEIGHTS // runs, budget.MOST_SCORES // runs)
    return [
        {
            **text,
            "source": list(view.source),
            "target": list(view.target),
            "why": view.example.why,
            "heads": {
                key: {
                    **packed_rows(rows),
                    "cut": cut,
                    "scores": packed_scores(view.scores[key]) if own.scores and key in view.scores else None,
                }
                for key, (rows, cut) in own.heads.items()
            },
            "omitted": own.omitted,
        }
        for view, text, own in zip(views, texts, held, strict=True)
    ]


# ---- alignment -------------------------------------------------------------------------------------------------------------


def _with_alignment(table: HeadTable, scores: AlignmentScores) -> HeadTable:
    heads = []
    for row in table:
        pair = scores.heads.get((row.layer, row.head)) if row.attn_type == "cross" else None
        if pair is not None:
            row = find_roles(row.with_values(aer=alignment_error_rate(pair[0]), aer_shifted=alignment_error_rate(pair[1])))
        heads.append(row)
    return replace(table, heads=tuple(heads))


def _alignment_report(scores: AlignmentScores) -> dict[str, Any]:
    """Returns the best head, the best layer (its heads averaged), all heads averaged, every layer; `_raw`: of raw weights."""
    heads = [({"layer": layer, "head": head}, pair) for (layer, head), pair in scores.heads.items()]
    layers = [({"layer": layer}, pair) for layer, pair in scores.layers.items()]
    layers_raw = [({"layer": layer}, pair) for layer, pair in scores.layers_raw.items()]
    rates = {key: [alignment_error_rate(counts) for counts in pair] for key, pair in scores.heads.items()}
    return {
        "sentences": scores.sentences,
        "best_head": _best(heads),
        "best_layer": _best(layers),
        "best_layer_raw": _best(layers_raw),
        "averaged": _best([({}, scores.averaged)]),
        "averaged_raw": _best([({}, scores.averaged_raw)]),
        "layers": [
            {
                "layer": layer,
                "aer": alignment_error_rate(pair[0]),
                "aer_shifted": alignment_error_rate(pair[1]),
                "aer_raw": alignment_error_rate(scores.layers_raw[layer][0]),
                "aer_shifted_raw": alignment_error_rate(scores.layers_raw[layer][1]),
                "best_head_aer": min(own[0] for key, own in rates.items() if key[0] == layer),
                "best_head_aer_shifted": min(own[1] for key, own in rates.items() if key[0] == layer),
            }
            for layer, pair in scores.layers.items()
        ],
    }


def _best(found: Sequence[tuple[dict[str, int], tuple[Counts, Counts]]]) -> dict[str, Any]:
    """Returns the lowest error rate and the rows it comes from."""
    every = [(alignment_error_rate(pair[mode]), where, mode, pair[mode]) for where, pair in found for mode in (0, 1)]
    rate, where, mode, counts = every[int(np.argmin([entry[0] for entry in every]))]
    precision, recall = precision_recall(counts)
    return {**where, "aer": rate, "rows": MODES[mode], "precision": precision, "recall": recall}
