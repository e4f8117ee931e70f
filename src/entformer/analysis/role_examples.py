"""In which sentences a head plays a role. In: the rows of one sentence. Out: the score of each role for every head, (H,)."""

import numpy as np

from entformer.analysis.density import entropy, null_rows
from entformer.analysis.interrogation import interrogation_weights
from entformer.analysis.merging import merging_scores
from entformer.analysis.positional import first_key_share, last_key_share, positional_confidence
from entformer.analysis.rows import Floats, LayerRows
from entformer.analysis.words import Marks


def sentence_roles(rows: LayerRows, marks: Marks | None) -> dict[str, Floats]:
    """The measures behind the roles of `roles.py`, of one sentence; NaN where it has nothing to measure."""
    found: dict[str, Floats] = {"first token": first_key_share(rows)[0]}
    if rows.kind != "cross":
        found["previous token"] = positional_confidence(rows, -1)[0]
        found["current token"] = positional_confidence(rows, 0)[0]
    if not rows.causal:
        found["end of sentence"] = last_key_share(rows)[0]
    if not rows.causal and rows.kind != "cross":
        found["next token"] = positional_confidence(rows, 1)[0]
    if marks is not None and rows.kind != "cross":
        merging = merging_scores(rows, marks.words)
        found["merges subwords"] = _mean(merging.rest[:, merging.sizes > 1])
        if not rows.causal:
            found["question mark"] = _mean(interrogation_weights(rows, marks.asking, marks.mark))
    even = entropy(rows)[0] / np.log(np.maximum(rows.visible, 2))  # (H, Lq)
    known = ~np.isnan(even)
    found["broad context"] = np.where(known, even, 0.0).sum(1) / np.maximum(known.sum(1), 1)
    found["rarely active"] = null_rows(rows)[0].mean(1)
    return found


def _mean(scores: Floats) -> Floats:
    """Over the second axis; NaN where that is empty."""
    return scores.mean(1) if scores.shape[1] else np.full(len(scores), np.nan)
