"""Measures find a head that was planted, and not where there is none: pointing, merging, asking, silent heads."""

from collections.abc import Sequence

import numpy as np
import pytest

from entformer.analysis import Collector, HeadTable, LayerRows
from entformer.analysis.collect import collect
from entformer.analysis.roles import positional_heads, positional_text
from entformer.analysis.words import Marks, WordMarker
from entformer.data.batching import TokenBatches
from entformer.data.store import TokenStore
from entformer.decoding.attention_record import record_attention
from entformer.errors import ArgumentError
from entformer.text.tokenizer import SPACE, SubwordTokenizer

from .conftest import SOURCES, make_model

TOKENS = 10
SENTENCES = 4
# "what | blo wing | up | is | won der ful | it | ?": clusters of one, two and three pieces; the first word asks.
WORDS = np.array([[0, 1, 1, 2, 3, 4, 4, 4, 5, 6]] * SENTENCES)
ASKING = WORDS == 0
MARK = np.full(SENTENCES, TOKENS - 1)
MARKS = Marks(WORDS, ASKING, MARK)

SELF = np.eye(TOKENS)
BROAD = np.full((TOKENS, TOKENS), 1 / TOKENS)


def pointing(offset: int, share: float = 0.95) -> np.ndarray:
    """Puts `share` on one offset, where it is inside the sentence, and spreads the rest."""
    target = np.eye(TOKENS, k=offset)
    rest = (1 - share * target.sum(1, keepdims=True)) / TOKENS
    return share * target + rest


def merging() -> np.ndarray:
    """Spreads its weight evenly over the pieces of the query's word."""
    together = (WORDS[0][:, None] == WORDS[0]).astype(float)
    return together / together.sum(1, keepdims=True)


def asking(on_mark: float) -> np.ndarray:
    """Looks at the end of the sentence from the first word, by so much, and at itself from elsewhere."""
    weights = SELF.copy()
    weights[0] = (1 - on_mark) / (TOKENS - 1)
    weights[0, -1] = on_mark
    return weights


def measured(*heads: np.ndarray, statements: Sequence[np.ndarray] | None = None) -> HeadTable:
    """One encoder layer of these heads on every sentence; `statements`: the same heads when the sentences do not ask."""
    collector = Collector()
    weights = np.broadcast_to(np.stack(heads), (SENTENCES, len(heads), TOKENS, TOKENS))
    collector.add(LayerRows.from_dense("encoder", 0, weights), marks=MARKS)
    if statements is not None:
        other = np.broadcast_to(np.stack(statements), weights.shape)
        collector.add_contrast(LayerRows.from_dense("encoder", 0, other), MARKS)
    return collector.table()


def roles(table: HeadTable) -> list[set[str]]:
    return [{role.role for role in row.roles} for row in table]


@pytest.mark.parametrize(("offset", "role"), [(-1, "previous token"), (0, "current token"), (1, "next token")])
def test_a_pointing_head_is_found_at_its_offset_only(offset: int, role: str) -> None:
    table = measured(pointing(offset), BROAD)
    positions = {"previous token", "current token", "next token"}
    assert [found & positions for found in roles(table)] == [{role}, set()]
    assert table.heads[0].positional[str(offset)] == pytest.approx(0.95, abs=0.01)


def test_positional_heads_are_counted_with_the_median_of_their_confidences() -> None:
    found = positional_heads(measured(pointing(-1, 0.9), pointing(-1, 0.98), pointing(-1, 0.94), pointing(1, 0.7), BROAD))
    counted = {one.offset: (one.heads, one.median_confidence) for one in found}
    assert counted[-1] == (("encoder.0.1", "encoder.0.2", "encoder.0.0"), pytest.approx(0.94, abs=0.01))
    assert counted[0] == ((), None)
    assert counted[1] == (("encoder.0.3",), pytest.approx(0.7, abs=0.04))
    assert positional_text(3, 0.935) == "3 heads, median confidence 93.5%"
    assert positional_text(1, 0.95) == "1 head, median confidence 95.0%"
    assert positional_text(0, None) == "0 heads"


def test_a_merging_head_is_told_from_one_that_looks_at_itself_and_one_that_looks_everywhere() -> None:
    even, alone, broad = measured(merging(), SELF, BROAD)
    assert even.merging_pieces == pytest.approx((1 / 2 + 2 / 3) / 2)  # the other pieces of words of two and of three
    assert even.merging_with_self == pytest.approx(1.0)
    assert (alone.merging_pieces, alone.merging_with_self) == (0.0, 1.0)
    assert broad.merging_pieces == pytest.approx((0.1 + 0.2) / 2)
    assert broad.merging_with_self == pytest.approx((0.2 + 0.3) / 2)
    assert ["merges subwords" in found for found in roles(measured(merging(), SELF, BROAD))] == [True, False, False]


def test_an_asking_head_is_told_from_one_that_looks_at_the_end_of_any_sentence() -> None:
    heads = asking(0.97), asking(0.97), SELF
    table = measured(*heads, statements=(asking(0.04), asking(0.97), SELF))
    assert [row.interrogation for row in table] == pytest.approx([0.97, 0.97, 0.0])
    assert [row.interrogation_contrast for row in table] == pytest.approx([0.04, 0.97, 0.0])
    assert ["question mark" in found for found in roles(table)] == [True, False, False]
    unknown = measured(*heads)
    assert [row.interrogation_contrast for row in unknown] == [None] * 3
    assert ["question mark" in found for found in roles(unknown)] == [True, True, False]


def test_the_contrast_is_that_of_the_same_words_with_a_full_stop(subwords: SubwordTokenizer, store: TokenStore) -> None:
    model = make_model(subwords.size)
    table = collect(
        model,
        TokenBatches(store, tokens=4096, shuffle=False).epoch(0),
        subwords=subwords,
        languages=("en", "de"),
        tokenized=True,
    )
    marker = WordMarker(subwords, "en", tokenized=True)
    sums, queries = np.zeros((2, 2)), 0
    for line, (source, target) in zip(SOURCES, store, strict=True):
        if not line.endswith("?"):
            continue
        ids = subwords.encode(line.removesuffix("?") + ".")
        assert len(ids) == len(source)
        marks = marker.marks([source.tolist()], len(source))
        asks = np.flatnonzero(marks.asking[0])
        record = record_attention(model, ids, target.tolist())
        for layer, head in np.ndindex(2, 2):
            sums[layer, head] += record.head("encoder", layer, head).dense()[asks, marks.mark[0]].sum()
        queries += len(asks)
    assert queries >= 3
    for layer, head in np.ndindex(2, 2):
        found = table.head("encoder", layer, head).interrogation_contrast
        assert found == pytest.approx(sums[layer, head] / queries, abs=1e-5)
        assert table.head("decoder", layer, head).interrogation_contrast is None


def test_a_statement_ends_in_the_stop_that_fits_the_mark(subwords: SubwordTokenizer) -> None:
    pieces = subwords.pieces(range(subwords.size))
    marker = WordMarker(subwords, "en")
    mark = pieces.index(f"{SPACE}?") if f"{SPACE}?" in pieces else pieces.index("?")
    assert pieces[marker.statement_end(mark)].removeprefix(SPACE) == "."
    assert marker.statement_end(pieces.index(f"{SPACE}the")) == -1


def test_the_null_rate_of_a_layer_counts_rows_without_weight() -> None:
    silent = SELF.copy()
    silent[: TOKENS // 2] = 0.0
    (layer,) = measured(silent, SELF, np.zeros_like(SELF), BROAD).layers
    assert layer.null_rate == pytest.approx((0.5 + 0.0 + 1.0 + 0.0) / 4)
    (whole,) = measured(SELF, BROAD).layers
    assert whole.null_rate == 0.0


def test_a_contrast_without_its_questions_is_refused() -> None:
    rows = LayerRows.from_dense("encoder", 0, np.broadcast_to(SELF, (SENTENCES, 1, TOKENS, TOKENS)))
    with pytest.raises(ArgumentError, match="add the questions themselves first"):
        Collector().add_contrast(rows, MARKS)
