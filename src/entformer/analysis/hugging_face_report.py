"""The data of a report (see `data.py`) on a Hugging Face model."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from entformer.analysis.collect import collect
from entformer.analysis.data import Progress, describe_table, make_report, store_sentences
from entformer.analysis.hugging_face import LayerTrace, make_tracer, sides
from entformer.analysis.measures import measure_sentence
from entformer.analysis.sentence import LONGEST_WITH_SCORES, SentenceView
from entformer.analysis.table import Example
from entformer.decoding.records import SparseRows
from entformer.hf.texts import model_inputs

END = "▢"  # after the last token: row i of a decoder belongs to the prediction of token i + 1


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
    tracer = make_tracer(model, inputs[0])
    chosen = list(table.examples) or [Example(0, "sample", (), ())]
    views = [view_text(tracer, inputs[example.id], example, tokenizer) for example in chosen]
    between = " " if tokenizer is None else ""
    texts = [
        {
            "id": view.example.id + 1,
            "source_text": between.join(view.source),
            "target_text": between.join(view.target[:-1]),
        }
        for view in views
    ]
    missing = ("alpha_steps", "alpha_paths", "alpha_correlation", "alpha_gradients", "alpha_sentence", "alignment", "contrast")
    run = {
        "name": name,
        "languages": ["", ""],
        "settings": _settings(model),
        "scores": [],
        "step": 0,
        **dict.fromkeys(missing),
        "alpha_marks": {},
        **describe_table(table, views, data_name),
        "sentences": store_sentences(views, texts),
    }
    return make_report([run], title)


def view_text(tracer: Any, inputs: Mapping[str, Any], example: Example, tokenizer: Any) -> SentenceView:
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
    first, second = pieces(ids["encoder"] or (), tokenizer), pieces(ids["decoder"] or (), tokenizer)
    causal = any(key.startswith("decoder.") for key in heads)
    source = first if has_target or not causal else ()
    return SentenceView(example, source, (*second, END) if causal else (), heads, scores, measures)


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
