"""Figures of single heads: in each run the one that answers best to a role, on a sentence. In: ReportData. Out: a Figure."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from entformer.analysis.interrogation import INTERROGATIVES, QUESTION_MARKS
from entformer.analysis.roles import positional_text
from entformer.decoding.heatmap import HeadPicture, draw_heads
from entformer.text.numbers import format_alpha, format_number, format_percent

Data = dict[str, Any]

READABLE = 26  # tokens of a sentence that can be read in print


def positional_heads(data: Data) -> Figure | None:
    """Fig. 7: the most confident previous-token head of each run, on one sentence, and how many such heads there are."""
    return _best_heads(
        data, lambda head: head["positional"].get("-1"), "confidence", _medium_sentence, told_of_run=_previous_token_heads
    )


def merging_heads(data: Data) -> Figure | None:
    """Fig. 8: the head of each run that merges subwords most, in the encoder, on a sentence with words of several pieces."""
    return _best_heads(data, _of_encoder("merging_pieces"), "merging", _sentence_with_pieces)


def interrogation_heads(data: Data) -> Figure | None:
    """Fig. 9: the head of each run that looks at the question mark most when it reads an interrogative word.

    On a question and, beside it, on the same words with a full stop; on a question alone where the run has no such pair.
    """
    if not any(run.get("contrast") for run in data["runs"]):
        return _best_heads(data, _of_encoder("interrogation"), "weight on ?", _question, told_of_head=_as_statement)
    pictures = []
    for run in data["runs"]:
        contrast = run.get("contrast")
        scored = [head for head in run["heads"] if head["kind"] == "encoder" and head["interrogation"] is not None]
        if not contrast or not scored:
            continue
        head = max(scored, key=lambda head: head["interrogation"])
        key = f"{head['kind']}.{head['layer']}.{head['head']}"
        question = run["sentences"][contrast["sentence"]]
        if not _whole(question, key):
            continue
        name = f"{run['name']}, {_name(key)}{_alpha(run, key)}"
        measures = (("weight on ?", "interrogation"), ("the same words, weight on the full stop", "interrogation_contrast"))
        for sentence, (told, measure) in zip((question, {**question, **contrast}), measures, strict=True):
            pictures.append(_picture(sentence, key, f"{name}\n{told} {format_percent(head.get(measure), 1)}"))
    return draw_heads(pictures, columns=2) if pictures else None


def varied_sparsity(data: Data) -> Figure | None:
    """Fig. 10: the head of each run whose sparsity differs most between two sentences of similar length, on both."""
    pictures = []
    for run in data["runs"]:
        for pair in run["varied"]:
            key = f"{pair['kind']}.{pair['layer']}.{pair['head']}"
            both = [run["sentences"][pair[which]] for which in ("sparse", "dense")]
            if not all(_whole(sentence, key) for sentence in both):
                continue
            for sentence, density in zip(both, pair["densities"], strict=True):
                told = f"{run['name']}, {_name(key)}{_alpha(run, key)}\ndensity {format_number(density)}"
                pictures.append(_picture(sentence, key, told))
            break
    return draw_heads(pictures, columns=2) if pictures else None


def _previous_token_heads(run: Data) -> str:
    found = next((one for one in run.get("positional_heads", ()) if one["offset"] == -1), None)
    if found is None or not found["heads"]:
        return ""
    return f"; in all {positional_text(len(found['heads']), found['median_confidence'])}"


def _as_statement(head: Data) -> str:
    contrast = head.get("interrogation_contrast")
    return "" if contrast is None else f"; as a statement {format_percent(contrast, 1)}"


def _best_heads(
    data: Data,
    score: Callable[[Data], float | None],
    told: str,
    choose: Callable[[Sequence[Data], str], Data | None],
    *,
    told_of_run: Callable[[Data], str] = lambda _: "",
    told_of_head: Callable[[Data], str] = lambda _: "",
) -> Figure | None:
    """One picture per run: the head with the highest score, on a sentence chosen to show it."""
    pictures = []
    for run in data["runs"]:
        scored = [(value, head) for head in run["heads"] if (value := score(head)) is not None]
        if not scored:
            continue
        value, head = max(scored, key=lambda pair: pair[0])
        key = f"{head['kind']}.{head['layer']}.{head['head']}"
        sentence = choose([sentence for sentence in run["sentences"] if _whole(sentence, key)], head["kind"])
        if sentence is not None:
            scores = f"{told} {format_percent(value, 1)}{told_of_head(head)}{told_of_run(run)}"
            pictures.append(_picture(sentence, key, f"{run['name']}, {_name(key)}{_alpha(run, key)}\n{scores}"))
    return draw_heads(pictures, columns=min(3, len(pictures))) if pictures else None


def _whole(sentence: Data, key: str) -> bool:
    """Whether the sentence holds all weights of the head; a dense one may have been cut, and blank would not mean 0."""
    return key in sentence["heads"] and sentence["heads"][key].get("cut") is None


def _of_encoder(measure: str) -> Callable[[Data], float | None]:
    return lambda head: head[measure] if head["kind"] == "encoder" else None


def _tokens(sentence: Data, kind: str) -> tuple[list[str], list[str]]:
    """Of the queries and of the keys."""
    reads = sentence["target"][:-1]
    return sentence["source"] if kind == "encoder" else reads, reads if kind == "decoder" else sentence["source"]


def _medium_sentence(sentences: Sequence[Data], kind: str) -> Data | None:
    """The longest one that can be read; else the shortest."""
    sizes = [(len(_tokens(sentence, kind)[0]), place) for place, sentence in enumerate(sentences)]
    readable = [size for size in sizes if size[0] <= READABLE]
    return sentences[max(readable)[1] if readable else min(sizes)[1]] if sizes else None


def _sentence_with_pieces(sentences: Sequence[Data], kind: str) -> Data | None:
    """The readable one with most pieces that continue a word."""

    def continued(sentence: Data) -> int:
        pieces = _tokens(sentence, kind)[0]
        return sum(piece[0] not in "▁<" and piece.isalpha() for piece in pieces) if len(pieces) <= READABLE else -1

    best = max(sentences, key=continued, default=None)
    return best if best is not None and continued(best) > 0 else _medium_sentence(sentences, kind)


def _question(sentences: Sequence[Data], kind: str) -> Data | None:
    """A readable one with a question mark, and with an interrogative word where there is one."""
    asking = [sentence for sentence in sentences if any(piece.lstrip("▁") in QUESTION_MARKS for piece in sentence["source"])]
    words = frozenset[str]().union(*INTERROGATIVES.values())
    with_word = [sentence for sentence in asking if words.intersection(sentence["source_text"].lower().split())]
    return _medium_sentence(with_word or asking, kind)


def _picture(sentence: Data, key: str, title: str) -> HeadPicture:
    kind = key.split(".")[0]
    stored = sentence["heads"][key]
    queries, keys = _tokens(sentence, kind)
    return HeadPicture(
        title,
        np.array(stored["crow"], dtype=np.int64),
        np.array(stored["col"], dtype=np.int32),
        np.array(stored["weight"], dtype=np.float32),
        queries,
        keys,
        len(keys),
        kind == "decoder",
    )


def _name(key: str) -> str:
    """Counted from 0, as everywhere: docs/conventions.md."""
    kind, layer, head = key.split(".")
    return f"{kind} layer {layer} head {head}"


def _alpha(run: Data, key: str) -> str:
    alpha = next(head["alpha"] for head in run["heads"] if f"{head['kind']}.{head['layer']}.{head['head']}" == key)
    return "" if alpha is None else f", α {format_alpha(alpha)}"
