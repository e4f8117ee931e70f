"""What is a word: pieces, punctuation, hyphens, interrogative words, the question mark."""

from entformer.analysis.words import WordMarker, word_numbers
from entformer.text.tokenizer import BOS, EOS, SubwordTokenizer


def clusters(subwords: SubwordTokenizer, line: str, *, tokenized: bool) -> list[str]:
    """The text of each cluster."""
    ids = subwords.encode(line)
    found: dict[int, str] = {}
    marker = WordMarker(subwords, "en", tokenized=tokenized)
    for piece, number in zip(subwords.pieces(ids), marker.clusters(ids), strict=True):
        found[number] = found.get(number, "") + piece.lstrip("▁")
    return list(found.values())


def test_pieces_of_a_word_are_one_cluster_and_punctuation_is_its_own(subwords: SubwordTokenizer) -> None:
    assert clusters(subwords, "the watermans play.", tokenized=False) == ["the", "watermans", "play", "."]
    assert clusters(subwords, "red-haired", tokenized=False) == ["red-haired"]


def test_a_hyphen_joins_words_of_tokenized_text_only(subwords: SubwordTokenizer) -> None:
    assert clusters(subwords, "the red - haired man", tokenized=True) == ["the", "red-haired", "man"]
    assert clusters(subwords, "red - haired", tokenized=False) == ["red", "-", "haired"]


def test_marks_of_a_batch(subwords: SubwordTokenizer) -> None:
    question = [BOS, *subwords.encode("what does the dog see ?")]
    statement = [*subwords.encode("the man sleeps ."), EOS]
    marks = WordMarker(subwords, "en").marks([question, statement], 30)
    assert marks.words[0, 0] == -1
    assert marks.words[1, len(statement) - 1] == -1
    assert (marks.words[0, len(question) :] == -1).all()
    assert marks.mark.tolist() == [len(question) - 1, -1]
    pieces = subwords.pieces(question)
    asked = "".join(piece for piece, asks in zip(pieces, marks.asking[0], strict=False) if asks)
    assert asked == "▁what"
    assert not marks.asking[1].any()


def test_an_unknown_language_asks_nothing(subwords: SubwordTokenizer) -> None:
    assert not WordMarker(subwords, "xx").marks([subwords.encode("what ?")], 12).asking.any()
    assert WordMarker(subwords, "en-GB").marks([subwords.encode("what ?")], 12).asking.any()


def test_words_are_counted_as_spaces_part_them(subwords: SubwordTokenizer) -> None:
    ids = [BOS, *subwords.encode("the xylophones play ."), EOS]
    numbers = word_numbers(subwords, ids)
    assert numbers[0] == numbers[-1] == -1
    assert sorted(set(numbers)) == [-1, 0, 1, 2, 3]
