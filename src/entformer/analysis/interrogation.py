"""Heads that attend from interrogative words to the question mark.

`INTERROGATIVES` may be extended: `INTERROGATIVES["sv"] = frozenset({"vem", "vad", ...})`.
"""

import numpy as np

from entformer.analysis.rows import Bools, Floats, Ints, LayerRows

STATEMENT_ENDS = {"?": ".", "\uff1f": "\u3002", "\u061f": ".", "\u037e": "."}
"""The full stop that corresponds to each question mark: Latin, full-width, Arabic, Greek."""
QUESTION_MARKS = frozenset(STATEMENT_ENDS)

INTERROGATIVES: dict[str, frozenset[str]] = {
    language: frozenset(words.split())
    for language, words in {
        "en": "who whom whose what which when where why how",
        "de": "wer wen wem wessen was welche welcher welches welchen welchem wann wo wohin woher warum wieso weshalb wie",
        "fr": "qui que quoi quel quelle quels quelles lequel laquelle quand où pourquoi comment combien",
        "es": "quién quiénes qué cuál cuáles cuándo dónde adónde cómo cuánto cuánta cuántos cuántas",
        "it": "chi che cosa quale quali quando dove perché come quanto quanta quanti quante",
        "pt": "quem que qual quais quando onde como quanto quanta quantos quantas",
        "nl": "wie wat welk welke wanneer waar waarom waarheen hoe hoeveel",
        "ro": "cine ce care când unde cum cât câtă câți câte",
        "ru": "кто что какой какая какое какие чей когда где куда откуда почему зачем как сколько",
        "ja": "誰 何 どれ どの いつ どこ なぜ どう いくつ いくら",
    }.items()
}
"""Interrogative words by language, lower-case."""


def interrogation_weights(rows: LayerRows, asking: Bools, mark: Ints) -> Floats:
    """Returns the weights on the question mark where the query is an interrogative word (Correia et al. 2019, 5.2, Fig. 9):

        w_i = p_{i, m}         m: the last question mark of the sentence, i: pieces of interrogative words

    A head's score is the mean of w over the data. Its contrast is the mean of w when the model reads the same words as a
    statement, with a full stop at m: small for a head that detects questions, equal for one that attends to the end of any
    sentence.

    Args:
        rows: The encoder's weights.
        asking: Whether the query is (a piece of) such a word, (B, L).
        mark: The index of the mark, -1 if there is none, (B,).

    Returns:
        Weights, (H, asking queries of sentences with a mark).
    """
    queries = asking & (mark >= 0)[:, None] & rows.real  # (B, L)
    marks = np.repeat(mark, rows.heads)[rows.head_of_sentence]
    on_mark = rows.per_row(rows.normalized, (rows.col == marks) & queries.ravel()[rows.sentence_query])  # (B, H, L)
    picked: Floats = on_mark.transpose(1, 0, 2)[:, queries]
    return picked
