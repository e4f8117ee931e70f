"""The data of a report (see `data.py`) on a Hugging Face model."""

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from entformer import __version__
from entformer.analysis import budget
from entformer.analysis.budget import allocate_budget
from entformer.analysis.collect import collect
from entformer.analysis.data import ROLE_EXAMPLES, VERSION
from entformer.analysis.hugging_face import LayerTrace, Tracer, sides
from entformer.analysis.measures import HEAD_MEASURES, LAYER_MEASURES, measure_sentence
from entformer.analysis.roles import ROLES, positional_heads, rank_heads
from entformer.analysis.sentence import LONGEST_WITH_SCORES, SentenceView, packed_rows, packed_scores
from entformer.analysis.table import Example, HeadRow
from entformer.decoding.records import SparseRows
from entformer.files import plain
from entformer.hf.texts import model_inputs

END = "▢"  # after the last token: row i of a decoder belongs to the prediction of token i + 1

Progress = Callable[[str, int, int], None]


def hf_report_data(
    model: Any,
    texts: Iterable[Any],
    *,
    name: str,
    tokenizer: Any = None,
    data_name: str = "text",
    length: int = 512,
    max_tokens: int | None = None,
    examples: int = 6,
    title: str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Returns ReportData of one Hugging Face model on texts, as `entformer.hf.calibrate` takes them."""
    inputs = model_inputs(model, texts, tokenizer=tokenizer, length=length, max_tokens=max_tokens)
    table = collect(
        model,
        inputs,
        examples=examples,
        length=length,
        progress=None if progress is None else lambda done: progress(f"{name}: heads", done, len(inputs)),
    )
    tracer = Tracer(model, inputs[0])
    chosen = list(table.examples) or [Example(0, "sample", (), ())]
    views = [view_text(tracer, inputs[example.id], example, tokenizer) for example in chosen]
    indices = {example.id: index for index, example in enumerate(chosen)}
    report = {
        "name": name,
        "languages": ["", ""],
        "normalizers": table.normalizers,
        "settings": _settings(model),
        "scores": [],
        "data": {
            "sentences": table.sentences,
            "source_tokens": table.source_tokens,
            "target_tokens": table.target_tokens,
            "name": data_name,
        },
        "step": 0,
        "alpha_steps": None,
        "alpha_paths": None,
        "alpha_correlation": None,
        "alpha_marks": {},
        "alpha_gradients": None,
        "alpha_sentence": None,
        "positional_heads": [asdict(own) for own in positional_heads(table)],
        "heads": [_head(row, views) for row in table],
        "layers": [layer.to_dict() for layer in table.layers],
        "roles": [asdict(ranking) for ranking in rank_heads(table)],
        "alignment": None,
        "contrast": None,
        "varied": [
            {**asdict(pair), "sparse": indices[pair.sparse], "dense": indices[pair.dense]}
            for pair in table.varied
            if pair.sparse in indices and pair.dense in indices
        ],
        "sentences": _sentences(views, tokenizer),
    }
    found: dict[str, Any] = plain(
        {
            "version": VERSION,
            "title": title or f"Attention heads of {name}",
            "created": datetime.date.today().isoformat(),
            "entformer": __version__,
            "measures": {
                level: [measure.to_dict() for measure in measures]
                for level, measures in (("heads", HEAD_MEASURES), ("layers", LAYER_MEASURES))
            },
            "runs": [report],
        }
    )
    return found


def view_text(tracer: Tracer, inputs: Mapping[str, Any], example: Example, tokenizer: Any) -> SentenceView:
    """Runs the model on one text and returns everything a page shows of it."""
    ids = sides(inputs)
    heads: dict[str, SparseRows] = {}
    scores: dict[str, NDArray[np.float32]] = {}
    measures: dict[str, dict[str, float]] = {}

    def hook(trace: LayerTrace) -> None:
        rows = trace.rows(ids.get(trace.attn_type))
        names = [f"{trace.attn_type}.{trace.layer}.{head}" for head in range(rows.heads)]
        heads.update(zip(names, rows_of(trace), strict=True))
        if max(rows.queries, rows.keys) <= LONGEST_WITH_SCORES and trace.call.sinks is None:
            scores.update(zip(names, _scores(trace), strict=True))
        measures.update(measure_sentence(rows, None))

    tracer.run(inputs, hook)
    has_target = "decoder_input_ids" in inputs
    first, second = pieces(ids["encoder"] or (), tokenizer), pieces(ids["decoder"] or (), tokenizer)
    causal = any(key.startswith("decoder.") for key in heads)
    source = first if has_target or not causal else ()
    return SentenceView(example, source, (*second, END) if causal else (), heads, scores, measures)


def rows_of(trace: LayerTrace) -> list[SparseRows]:
    """Returns the sparse weights of each head of a text."""
    heads, queries = trace.call.query.shape[1:3]
    if trace.result.support is None:
        return []
    crow, col, weight = (part.cpu().numpy() for part in trace.result.support)
    found = []
    for head in range(heads):
        own = crow[head * queries : (head + 1) * queries + 1].astype(np.int64)
        inside = slice(int(own[0]), int(own[-1]))
        one = own - own[0], col[inside].astype(np.int32), weight[inside].astype(np.float32)
        found.append(SparseRows(*one, trace.call.key.shape[2]))
    return found


def pieces(ids: Sequence[int], tokenizer: Any) -> tuple[str, ...]:
    """Returns tokens as text for display; the ids themselves without a tokenizer."""
    if tokenizer is None:
        return tuple(str(token) for token in ids)
    return tuple(tokenizer.decode([token]).replace("\n", "⏎") or "·" for token in ids)


def _scores(trace: LayerTrace) -> list[NDArray[np.float32]]:
    with torch.no_grad():
        scores, mask = trace.call.scores()
        scores = scores.masked_fill(~mask, -torch.inf)
    return list(scores[0].float().cpu().numpy())


def _settings(model: Any) -> dict[str, Any]:
    """Returns the settings that a page lists."""
    config: Any = getattr(model, "get_base_model", lambda: model)().config
    named = {
        "model": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "layers": getattr(config, "num_hidden_layers", None),
        "heads": getattr(config, "num_attention_heads", None),
    }
    settings = getattr(config, "entformer", None) or {}
    named |= {f"calibration.{key}": value for key, value in settings.get("calibration", {}).items()}
    return {key: value for key, value in named.items() if value is not None}


def _head(row: HeadRow, views: Sequence[SentenceView]) -> dict[str, Any]:
    measures = {role.name: role.measure for role in ROLES}
    roles = []
    for role in row.roles:
        scored = [(view.measures.get(row.key, {}).get(measures[role.role]), index) for index, view in enumerate(views)]
        best = sorted((-score, index) for score, index in scored if score is not None)[:ROLE_EXAMPLES]
        roles.append({**asdict(role), "examples": [index for _, index in best]})
    return {**row.to_dict(), "roles": roles}


def _sentences(views: Sequence[SentenceView], tokenizer: Any) -> list[dict[str, Any]]:
    stored = allocate_budget(views, budget.MOST_WEIGHTS, budget.MOST_SCORES)
    return [
        {
            "id": view.example.id + 1,
            "source_text": "".join(view.source) if tokenizer is not None else " ".join(view.source),
            "target_text": ("" if tokenizer is not None else " ").join(view.target[:-1]),
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
        for view, own in zip(views, stored, strict=True)
    ]
