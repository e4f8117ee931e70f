"""Figures of single heads: in each run the one with the highest score of a role, on a sentence."""

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.figure import Figure

from entformer.analysis.interrogation import INTERROGATIVES, QUESTION_MARKS
from entformer.analysis.roles import positional_text
from entformer.decoding.heatmap import HeadPicture, draw_heads
from entformer.decoding.records import SparseRows
from entformer.text.numbers import format_alpha, format_number, format_percent

Data = dict[str, Any]

READABLE = 26  # tokens of a sentence in print


def positional_heads(data: Data) -> Figure | None:
    """Fig. 7: the most confident previous-token head of each run, on one sentence, and how many such heads there are."""
    return _best_heads(
        data, lambda head: head.get("positional.-1"), "confidence", _medium_sentence, run_note=_previous_token_heads
    )


def merging_heads(data: Data) -> Figure | None:
    """Fig. 8: the head of each run that merges subwords most, in the encoder, on a sentence with words of several pieces."""
    return _best_heads(data, _encoder_measure("merging_pieces"), "merging", _sentence_with_pieces)


def interrogation_heads(data: Data) -> Figure | None:
    """Fig. 9: the head of each run with most weight on the question mark from interrogative words.

    On a question and, beside it, on the same words with a full stop; on a question alone where the run has no such pair.
    """
    if not any(run.get("contrast") for run in data["runs"]):
        return _best_heads(data, _encoder_measure("interrogation"), "weight on ?", _question, head_note=_as_statement)
    heatmaps = []
    for run in data["runs"]:
        contrast = run.get("contrast")
        scored = [head for head in run["heads"] if head["attn_type"] == "encoder" and head["interrogation"] is not None]
        if not contrast or not scored:
            continue
        head = max(scored, key=lambda head: head["interrogation"])
        key = _key(head)
        question = run["sentences"][contrast["sentence"]]
        if not _whole(question, key):
            continue
        measures = (("weight on ?", "interrogation"), ("the same words, weight on the full stop", "interrogation_contrast"))
        for sentence, (what, measure) in zip((question, {**question, **contrast}), measures, strict=True):
            heatmaps.append(_heatmap(run, sentence, key, f"{what} {format_percent(head.get(measure), 1)}"))
    return draw_heads(heatmaps, columns=2) if heatmaps else None


def varied_sparsity(data: Data) -> Figure | None:
    """Fig. 10: the head of each run whose sparsity differs most between two sentences of similar length, on both."""
    heatmaps = []
    for run in data["runs"]:
        for pair in run["varied"]:
            key = _key(pair)
            both = [run["sentences"][pair[which]] for which in ("sparse", "dense")]
            if not all(_whole(sentence, key) for sentence in both):
                continue
            for sentence, density in zip(both, pair["densities"], strict=True):
                heatmaps.append(_heatmap(run, sentence, key, f"density {format_number(density)}"))
            break
    return draw_heads(heatmaps, columns=2) if heatmaps else None


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
    score_name: str,
    choose: Callable[[Sequence[Data], str], Data | None],
    *,
    run_note: Callable[[Data], str] = lambda _: "",
    head_note: Callable[[Data], str] = lambda _: "",
) -> Figure | None:
    """Draws one heatmap per run: the head with the highest score, on a sentence chosen to show it."""
    heatmaps = []
    for run in data["runs"]:
        scored = [(value, head) for head in run["heads"] if (value := score(head)) is not None]
        if not scored:
            continue
        value, head = max(scored, key=lambda pair: pair[0])
        key = _key(head)
        sentence = choose([sentence for sentence in run["sentences"] if _whole(sentence, key)], head["attn_type"])
        if sentence is not None:
            scores = f"{score_name} {format_percent(value, 1)}{head_note(head)}{run_note(run)}"
            heatmaps.append(_heatmap(run, sentence, key, scores))
    return draw_heads(heatmaps, columns=min(3, len(heatmaps))) if heatmaps else None


def _whole(sentence: Data, key: str) -> bool:
    """Returns whether all weights of the head are stored; in a dense head that was cut, blank would not mean 0."""
    return key in sentence["heads"] and sentence["heads"][key].get("cut") is None


def _encoder_measure(measure: str) -> Callable[[Data], float | None]:
    return lambda head: head[measure] if head["attn_type"] == "encoder" else None


def _tokens(sentence: Data, attn_type: str) -> tuple[list[str], list[str]]:
    """Returns the tokens of the queries and of the keys."""
    reads = sentence["target"][:-1]
    return sentence["source"] if attn_type == "encoder" else reads, reads if attn_type == "decoder" else sentence["source"]


def _medium_sentence(sentences: Sequence[Data], attn_type: str) -> Data | None:
    """Returns the longest readable sentence; else the shortest."""
    sizes = [(len(_tokens(sentence, attn_type)[0]), index) for index, sentence in enumerate(sentences)]
    readable = [size for size in sizes if size[0] <= READABLE]
    return sentences[max(readable)[1] if readable else min(sizes)[1]] if sizes else None


def _sentence_with_pieces(sentences: Sequence[Data], attn_type: str) -> Data | None:
    """Returns the readable sentence with most pieces that continue a word."""

    def continued(sentence: Data) -> int:
        pieces = _tokens(sentence, attn_type)[0]
        return sum(piece[0] not in "▁<" and piece.isalpha() for piece in pieces) if len(pieces) <= READABLE else -1

    best = max(sentences, key=continued, default=None)
    return best if best is not None and continued(best) > 0 else _medium_sentence(sentences, attn_type)


def _question(sentences: Sequence[Data], attn_type: str) -> Data | None:
    """Returns a readable question, with an interrogative word where there is one."""
    asking = [sentence for sentence in sentences if any(piece.lstrip("▁") in QUESTION_MARKS for piece in sentence["source"])]
    words = frozenset[str]().union(*INTERROGATIVES.values())
    with_word = [sentence for sentence in asking if words.intersection(sentence["source_text"].lower().split())]
    return _medium_sentence(with_word or asking, attn_type)


def _heatmap(run: Data, sentence: Data, key: str, note: str) -> HeadPicture:
    """Returns one head on one sentence; the title counts layers and heads from 0 (docs/conventions.md)."""
    attn_type, layer, head = key.split(".")
    alpha = next(own["alpha"] for own in run["heads"] if _key(own) == key)
    name = f"{run['name']}, {attn_type} layer {layer} head {head}{'' if alpha is None else f', α {format_alpha(alpha)}'}"
    queries, keys = _tokens(sentence, attn_type)
    weights = SparseRows.from_lists(sentence["heads"][key], len(keys)).dense()
    return HeadPicture(f"{name}\n{note}", weights, queries, keys, attn_type == "decoder")


def _key(head: Data) -> str:
    return f"{head['attn_type']}.{head['layer']}.{head['head']}"
