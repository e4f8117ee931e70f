"""The vocabulary gives every text back, takes all that users write as text, and never breaks on what it is given."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entformer.errors import ArgumentError, DataError
from entformer.text.tokenizer import BOS, EOS, NUM_SPECIAL_TOKENS, PAD, SMALLEST, UNK, SubwordTokenizer

LINES = [
    f"{who} {does} {what} ."
    for who in ("a man", "two women", "the old dog", "ein kleines mädchen", "die straßenbahn")
    for does in ("sees", "is painting", "fährt durch", "übermalt")
    for what in ("a red house", "the street in 1999", "das große haus", "apfelkuchen")
]


@pytest.fixture(scope="module")
def subwords() -> SubwordTokenizer:
    return SubwordTokenizer.train(LINES, vocab_size=400)


ROUND_TRIPS = [
    "a man sees the street .",
    "",
    "x",
    "naïve façade, größer — “quoted” … ½",
    "emoji 😀 👩‍👩‍👧 🇩🇪",
    "日本語の文 と русский",
    "tab\there \x07 bell \x1b[0m escape \x7f",
    "exotic \u2028 separators \x85 \x0b \x0c \x1c and a lone \r return",
    "a NUL \x00 too",
    "decomposed u\u0308 and composed ü",
    "ﬁ ligature Ⅷ \uff12 fullwidth",
    "\u00a0 no-break \u3000 ideographic",
    "<s> </s> <unk> <pad>",
    "▁",
    "▁man ▁▁ a▁b <0x41>",
    "⁇ x",
]


@pytest.mark.parametrize("text", ROUND_TRIPS)
def test_every_text_comes_back_and_symbols_in_it_are_text(subwords: SubwordTokenizer, text: str) -> None:
    ids = subwords.encode(text)
    assert not {PAD, UNK, BOS, EOS} & set(ids)
    assert subwords.decode(ids) == text


@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=30))
@settings(max_examples=300, deadline=None)
def test_any_unicode_text_comes_back_but_for_runs_of_spaces(subwords: SubwordTokenizer, text: str) -> None:
    expected = " ".join(word for word in text.split(" ") if word)
    ids = subwords.encode(text)
    assert subwords.decode(ids) == expected
    assert all(NUM_SPECIAL_TOKENS <= i < subwords.size for i in ids)
    assert subwords.encode_lines([text]) == [ids]


def test_training_text_with_special_symbols_gives_a_sound_vocabulary() -> None:
    made = SubwordTokenizer.train([*LINES, "<s> </s> ▁ <unk> <pad>"] * 20, vocab_size=400)
    assert made.pieces([PAD, UNK, BOS, EOS]) == ["<pad>", "<unk>", "<s>", "</s>"]
    text = "a ▁ <s> man </s>"
    assert min(made.encode(text)) >= NUM_SPECIAL_TOKENS
    assert made.decode(made.encode(text)) == text


def test_decode_returns_one_clean_line(subwords: SubwordTokenizer) -> None:
    assert subwords.decode(subwords.encode("  a  man   sees ")) == "a man sees"
    assert subwords.decode(subwords.encode("a\nman")) == "a man"
    assert "\n" not in subwords.decode(range(subwords.size))
    assert subwords.decode([BOS, *subwords.encode("a man"), EOS, PAD, PAD]) == "a man"
    assert subwords.decode(subwords.encode("😀")[:3]).startswith("\ufffd")
    assert subwords.decode(subwords.encode("a \ud800 b")) == "a \ufffd b"


def test_ids_outside_the_vocabulary_are_named(subwords: SubwordTokenizer) -> None:
    with pytest.raises(ArgumentError, match=rf"ids must be between 0 and {subwords.size - 1}, got {subwords.size}"):
        subwords.decode([subwords.size])


def test_pieces_and_word_starts(subwords: SubwordTokenizer) -> None:
    ids = subwords.encode("a man 😀")
    shown = subwords.pieces(ids)
    assert "".join(shown[: shown.index("<0xF0>")]) == "▁a▁man▁"
    starts = subwords.word_starts([*ids, EOS])
    assert starts[0]
    assert starts[-1]
    assert sum(starts) == 4  # a, man, the emoji, EOS
    assert [piece.startswith("▁") for piece in shown] == starts[:-1]


# ---- training, saving, loading -------------------------------------------------------------------------------------------


def test_training_is_reproducible_and_the_sample_depends_on_the_seed() -> None:
    first, second = (SubwordTokenizer.train(LINES, vocab_size=400) for _ in range(2))
    assert first.fingerprint == second.fingerprint
    assert len(first.fingerprint) == 16
    sampled = [SubwordTokenizer.train(LINES, vocab_size=330, sample=20, seed=seed).fingerprint for seed in (1, 1, 2)]
    assert sampled[0] == sampled[1] != sampled[2]


def test_a_text_too_small_for_the_vocabulary_gives_a_smaller_one_and_says_so() -> None:
    made = SubwordTokenizer.train(["a man", "a woman"], vocab_size=32000)
    assert made.size < 400
    assert made.note == f"the text supports {made.size} subwords, fewer than the 32000 requested."


def test_too_little_text_and_too_small_a_vocabulary_are_errors() -> None:
    with pytest.raises(DataError, match="every line of the text is empty"):
        SubwordTokenizer.train(["", "  ", "\0"])
    with pytest.raises(ArgumentError, match=f"vocab_size must be at least {SMALLEST} .*, got 100"):
        SubwordTokenizer.train(LINES, vocab_size=100)


def test_saved_and_loaded_it_is_the_same(subwords: SubwordTokenizer, tmp_path: Path) -> None:
    path = tmp_path / "subwords.model"
    subwords.save(path)
    loaded = SubwordTokenizer.load(path)
    assert (loaded.fingerprint, loaded.size) == (subwords.fingerprint, subwords.size)
    assert loaded.encode("a man") == SubwordTokenizer(subwords.model).encode("a man") == subwords.encode("a man")
    assert [entry.name for entry in tmp_path.iterdir()] == ["subwords.model"]


def test_what_is_no_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.model: the vocabulary cannot be read \(No such file or directory\)"):
        SubwordTokenizer.load(tmp_path / "nowhere.model")
    path = tmp_path / "bad.model"
    path.write_bytes(b"this is text, not a model")
    with pytest.raises(DataError, match=r"bad\.model: this is not a sentencepiece model"):
        SubwordTokenizer.load(path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"bad\.model: this is not a sentencepiece model|has the ids"):
        SubwordTokenizer.load(path)


def test_a_model_trained_elsewhere_with_other_ids_is_refused() -> None:
    import io

    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=model, model_type="bpe", vocab_size=100, minloglevel=2
    )
    with pytest.raises(DataError, match=r"has the ids \(-1, 0, 1, 2\) for padding, unknown, start and end"):
        SubwordTokenizer(model.getvalue())


def test_a_vocabulary_smaller_than_the_characters_of_the_text_names_the_smallest() -> None:
    text = ["příliš žluťoučký kůň úpěl ďábelské ódy", "Nechť již hříšné saxofony ďáblů rozezvučí síň"] * 20
    characters = len(set("".join(text)))  # the space is one of them
    smallest = NUM_SPECIAL_TOKENS + 256 + characters
    assert smallest > SMALLEST
    for size in (SMALLEST, smallest - 1):
        with pytest.raises(ArgumentError) as caught:
            SubwordTokenizer.train(text, vocab_size=size)
        assert str(caught.value) == (
            f"vocab_size must be at least {smallest} for this text (4 special ids, 256 bytes, {characters} characters), "
            f"got {size}."
        )
    assert SubwordTokenizer.train(text, vocab_size=smallest).size == smallest
    # More characters than a quarter of the vocabulary: the rarest are left to bytes, those of the alphabet are not.
    many = [*text * 50, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!?"]
    with pytest.raises(ArgumentError, match=r"vocab_size must be at least 2\d\d for this text .*, got 276"):
        SubwordTokenizer.train(many, vocab_size=SMALLEST)


def test_more_characters_than_the_vocabulary_holds_are_encoded_as_bytes() -> None:
    text = "".join(chr(0x4E00 + i) for i in range(500)) + " a a a a b b b c c"
    made = SubwordTokenizer.train([text] * 3, vocab_size=SMALLEST + 20)
    assert made.size <= SMALLEST + 20
    assert made.decode(made.encode(text)) == text
    assert "of the characters are encoded as bytes" in (made.note or "")
