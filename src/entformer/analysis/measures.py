"""The measures of heads and layers, one record each.

Collection, tables, report.json, the figure of all measures and the columns of both pages are built from these records. To add
a measure, append a record here, a hand-computed case to tests/unit/analysis/test_measures.py and a line to docs/analysis.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from entformer.analysis import density, diversity, positional
from entformer.analysis.interrogation import interrogation_weights
from entformer.analysis.merging import merging_scores
from entformer.analysis.rows import Floats, LayerRows
from entformer.analysis.streaming import Accumulator, StreamingMeans, StreamingMedians
from entformer.analysis.words import Marks

Compute = Callable[[LayerRows, Any], Floats]  # Any: `Marks` where a measure needs words
Needs = Literal["nothing", "positions", "tokens", "words", "questions", "statements"]
"""What a measure needs besides weights: queries and keys that are the same tokens (self-attention), and of these only their
positions, their ids (`LayerRows.tokens`), words, questions, or questions that are read as statements."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One number per head or per layer: how to compute it and how to show it."""

    name: str
    """In `HeadTable.column` and report.json."""
    title: str
    """The title of a column."""
    label: str
    """The full name."""
    text: str
    """What it means, for readers of a page."""
    compute: Compute | None = None
    """Values of a batch, heads on axis 1 (a layer's: any axes), NaN where there is none; None: set by `HeadRow.with_values`."""
    over: type[Accumulator] = StreamingMeans
    """How values of many batches become one number."""
    needs: Needs = "nothing"
    causal: bool = True
    """Defined for causal attention."""
    format: Literal["alpha", "percent", "number"] = "percent"
    digits: int = 2
    """Decimals of a number."""
    lower_is_better: bool = False
    brief: bool = False
    """Shown where there is little space, as in a terminal."""

    def applies(self, rows: LayerRows, marks: Marks | None, *, statements: bool = False) -> bool:
        """Returns whether the measure is defined for this layer and text."""
        if (self.needs == "statements") != statements or (rows.causal and not self.causal):
            return False
        if self.needs == "nothing":
            return True
        known = {"positions": True, "tokens": rows.tokens is not None}.get(self.needs, marks is not None)
        return known and rows.attn_type != "cross"

    def to_dict(self) -> dict[str, Any]:
        """Returns what a page needs to show the measure."""
        shown = ("name", "title", "label", "text", "format", "digits", "lower_is_better")
        return {field: getattr(self, field) for field in shown}


def _merging(what: str, *, several: bool) -> Compute:
    """Returns a merging score of every word (of two or more pieces), (words, H)."""

    def compute(rows: LayerRows, marks: Marks) -> Floats:
        found = merging_scores(rows, marks)
        scores: Floats = getattr(found, what)[:, found.sizes > 1] if several else getattr(found, what)
        return scores.T

    return compute


def _interrogation(rows: LayerRows, marks: Marks) -> Floats:
    return interrogation_weights(rows, marks.asking, marks.mark).T


def _positional(offset: int, title: str, token: str) -> Measure:
    return Measure(
        name=f"positional.{offset}",
        title=title,
        label=f"On the {token} token",
        text=f"Weight on the {token} token: mean over queries that see more than one key, median over sentences.",
        compute=lambda rows, _: positional.positional_confidence(rows, offset),
        over=StreamingMedians,
        needs="positions",
    )


HEAD_MEASURES: tuple[Measure, ...] = (
    Measure(
        name="alpha",
        title="α",
        label="α",
        text="1 is softmax, where every key has a nonzero weight; above 1 low scores get exactly 0; 2 is sparsemax.",
        format="alpha",
        brief=True,
    ),
    Measure(
        name="alpha_initial",
        title="α before",
        label="α before training",
        text="α before the first step. It is random and moves slowly: where final and initial α correlate strongly, α shows "
        "where a head started rather than what it learned.",
        format="alpha",
        brief=True,
    ),
    Measure(
        name="density",
        title="Density",
        label="Density",
        text="Keys with nonzero weight over the keys the query may attend to, averaged over queries.",
        compute=lambda rows, _: density.density(rows),
        brief=True,
    ),
    Measure(
        name="support",
        title="Keys",
        label="Keys with nonzero weight",
        text="The mean number of keys with nonzero weight.",
        compute=lambda rows, _: density.support(rows),
        format="number",
        digits=1,
        brief=True,
    ),
    Measure(
        name="effective_keys",
        title="Effective",
        label="Effective number of keys",
        text="exp(entropy), averaged over queries: how many equally weighted keys would have the same entropy.",
        compute=lambda rows, _: np.exp(density.entropy(rows)),
        format="number",
        digits=1,
        brief=True,
    ),
    Measure(
        name="entropy",
        title="Entropy",
        label="Entropy, nats",
        text="The mean entropy of a query's weights, in nats.",
        compute=lambda rows, _: density.entropy(rows),
        format="number",
        brief=True,
    ),
    Measure(
        name="normalized_entropy",
        title="Entropy/max",
        label="Normalized entropy",
        text="Entropy over its maximum, ln n for n visible keys: 1 for equal weights on all keys.",
        compute=lambda rows, _: density.normalized_entropy(rows),
    ),
    Measure(
        name="null_rate",
        title="Null",
        label="Null rate",
        text="Queries whose weights are all 0, as ReLA allows, over all queries.",
        compute=lambda rows, _: density.null_rate(rows),
        brief=True,
    ),
    _positional(-1, "-1", "previous"),
    _positional(0, "0", "current"),
    _positional(1, "+1", "next"),
    Measure(
        name="first_key",
        title="First",
        label="On the first token",
        text="Weight on the first key: mean over the queries of a sentence, median over sentences.",
        compute=lambda rows, _: positional.first_key_weight(rows),
        over=StreamingMedians,
    ),
    Measure(
        name="last_key",
        title="Last",
        label="On the last token",
        text="Weight on the last key, the end of the sentence: mean over the queries of a sentence, median over sentences.",
        compute=lambda rows, _: positional.last_key_weight(rows),
        over=StreamingMedians,
        causal=False,
    ),
    Measure(
        name="induction",
        title="Induction",
        label="Induction",
        text="Weight on the keys that followed earlier occurrences of the query's token: mean over queries whose token "
        "occurred before, median over texts. High for heads that continue repeated text.",
        compute=lambda rows, _: positional.repeated_token_weight(rows, 1),
        over=StreamingMedians,
        needs="tokens",
    ),
    Measure(
        name="duplicate",
        title="Duplicate",
        label="On the same token",
        text="Weight on other occurrences of the query's token: mean over queries whose token occurred before, median over "
        "texts.",
        compute=lambda rows, _: positional.repeated_token_weight(rows, 0),
        over=StreamingMedians,
        needs="tokens",
    ),
    Measure(
        name="merging",
        title="Merging",
        label="Subword merging",
        text="The largest weight that a piece of a word gives to its other pieces; for a word of one piece, to itself.",
        compute=_merging("rest", several=False),
        needs="words",
        brief=True,
    ),
    Measure(
        name="merging_pieces",
        title="Merging 2+",
        label="Merging, words of 2+ pieces",
        text="Subword merging over words of two or more pieces only.",
        compute=_merging("rest", several=True),
        needs="words",
    ),
    Measure(
        name="merging_with_self",
        title="with self",
        label="Merging, with self",
        text="The largest weight that a piece gives to all pieces of its word, itself included; words of two or more pieces.",
        compute=_merging("with_self", several=True),
        needs="words",
    ),
    Measure(
        name="interrogation",
        title="Question",
        label="Interrogation",
        text="The mean weight on the question mark where the query is an interrogative word.",
        compute=_interrogation,
        needs="questions",
        causal=False,
        brief=True,
    ),
    Measure(
        name="interrogation_contrast",
        title="Statement",
        label="As a statement",
        text="The same words with a full stop in place of the question mark: the mean weight on the full stop.",
        compute=_interrogation,
        needs="statements",
        causal=False,
    ),
    Measure(
        name="aer",
        title="AER",
        label="Alignment error rate",
        text="Links of the largest weights against gold links, from the row that predicts the target token; lower is better.",
        lower_is_better=True,
        brief=True,
    ),
    Measure(
        name="aer_shifted",
        title="AER +1",
        label="Alignment error rate, shifted",
        text="The same from the next row, which reads the target token; lower is better.",
        lower_is_better=True,
    ),
    Measure(
        name="density_spread",
        title="Spread",
        label="Spread of the density",
        text="The density in the densest less that in the sparsest of sentences of similar length.",
    ),
)

_BY_NAME = {measure.name: replace(measure, brief=False) for measure in HEAD_MEASURES}

LAYER_MEASURES: tuple[Measure, ...] = (
    replace(_BY_NAME["density"], text="The mean density of all heads of the layer."),
    Measure(
        name="union_density",
        title="Union",
        label="Union density",
        text="Keys to which at least one head of the layer gives a nonzero weight, over the keys the query may attend to.",
        compute=lambda rows, _: density.union_density(rows),
    ),
    replace(_BY_NAME["null_rate"], title="Null rate", text="Queries whose weights are all 0, over all queries and heads."),
    Measure(
        name="js_diversity_keys",
        title="JS, base: keys",
        label="Jensen-Shannon divergence, base: keys",
        text="The entropy of the mean of the heads minus the mean of their entropies, averaged over queries that see more "
        "than one key; logarithms to the base of the number of keys, as in the paper.",
        compute=lambda rows, _: diversity.jensen_shannon(rows).by_keys,
        format="number",
        digits=3,
    ),
    Measure(
        name="js_diversity_heads",
        title="JS, base: heads",
        label="Jensen-Shannon divergence, base: heads",
        text="The same with logarithms to the base of the number of heads. Both are from 0 to 1, and not comparable.",
        compute=lambda rows, _: diversity.jensen_shannon(rows).by_heads,
        format="number",
        digits=3,
    ),
)


def measure_sentence(rows: LayerRows, marks: Marks | None) -> dict[str, dict[str, float]]:
    """Computes the measures of one sentence by head, such as "encoder.0.1", and name; what is not defined is missing."""
    found: dict[str, dict[str, float]] = {f"{rows.attn_type}.{rows.layer}.{head}": {} for head in range(rows.heads)}
    for measure in HEAD_MEASURES:
        if measure.compute is not None and measure.applies(rows, marks):
            means = StreamingMeans(rows.heads)
            means.add(measure.compute(rows, marks))
            for values, value in zip(found.values(), means.values(), strict=True):
                if value is not None:
                    values[measure.name] = value
    return found


def brief(measures: Sequence[Measure]) -> list[Measure]:
    """Returns the measures that are shown where there is little space; all if none is marked."""
    return [measure for measure in measures if measure.brief] or list(measures)
