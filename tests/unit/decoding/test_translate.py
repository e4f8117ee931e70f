"""Translation of lines: one out for one in, in order, whatever they hold."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from entformer.checkpoint import LoadedRun
from entformer.decoding.direction import check_source_language
from entformer.decoding.long_lines import join_parts, split_long
from entformer.decoding.translate import Translator
from entformer.errors import ArgumentError, DataError
from entformer.text.tokenizer import SubwordTokenizer

EMOJI = "👩‍👩‍👧‍👦 🏳️‍🌈 ok 🤷🏽"
STRANGE = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1dh\x1ei\rj"
CONTROL_CHARACTERS = "".join(chr(code) for code in range(1, 32) if code != 10) + "\x7f\x00\ufeff\u200b\ud800"


def texts(run: LoadedRun, lines: list[str], **options: object) -> list[str]:
    return [translation.text for translation in Translator(run, **options).translate(lines)]  # type: ignore[arg-type]


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("window", [1, 4, 1024])
def test_lines_come_back_in_order(copying: LoadedRun, beam: int, window: int) -> None:
    lines = [f"a man {'looking at ' * (i * 7 % 11)}hat {i}" for i in range(23)]
    assert texts(copying, lines, beam=beam, window=window) == lines


def test_empty_lines_come_back_empty_and_are_counted(copying: LoadedRun) -> None:
    translator = Translator(copying, beam=2)
    found = list(translator.translate(["", "a man", "   ", "\t", "two dogs", ""]))
    assert [t.text for t in found] == ["", "a man", "", found[3].text, "two dogs", ""]
    assert [t.line for t in found] == [1, 2, 3, 4, 5, 6]
    assert found[0].candidates == ()
    assert translator.report.empty.count >= 3
    assert translator.report.empty.lines[:2] == [1, 3]
    assert texts(copying, ["", "", ""]) == ["", "", ""]
    assert texts(copying, []) == []


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(st.characters(exclude_characters="\n"), max_size=30), max_size=6))
@example(["a man", EMOJI, STRANGE, CONTROL_CHARACTERS, "x" * 3000, "\u202e אבג", "日本語のテキスト。" * 20, "a hat"])
def test_always_one_line_per_line(copying: LoadedRun, lines: list[str]) -> None:
    found = texts(copying, lines, beam=2)
    assert len(found) == len(lines)
    assert all(len(text.encode().decode().splitlines()) <= 1 for text in found)
    if lines[:1] == ["a man"]:  # what stands beside strange lines stays as it is
        assert (found[0], found[-1]) == ("a man", "a hat")


@pytest.mark.parametrize("text", [EMOJI, "<s> a man </s>", "<unk> <pad> ▁ ▁man", "</s>", "[PAD] <0x0A> @@ man", "<s>"])
def test_special_symbols_in_text_are_text(copying: LoadedRun, text: str) -> None:
    assert texts(copying, [text]) == [text]


def test_characters_outside_the_vocabulary_are_named(copying: LoadedRun) -> None:
    translator = Translator(copying, beam=1)
    found = list(translator.translate(["a man", "a \N{DOG FACE} man \N{CAT FACE}\N{DOG FACE}", "a hat"]))
    named = ["\N{DOG FACE}", "\N{CAT FACE}"]
    assert [translator.spelled_characters(one) for one in found] == [[], named, []]
    assert (translator.report.spelled.count, translator.report.spelled.lines) == (1, [2])
    assert list(translator.report.characters) == named
    list(translator.translate(["".join(map(chr, range(0x4E00, 0x4E40)))]))
    assert len(translator.report.characters) == 12


def test_a_line_of_5000_words_is_translated_and_warned_about(copying: LoadedRun) -> None:
    line = " ".join(["a man is looking at the red ball ."] * 556)
    translator = Translator(copying, beam=2)
    with pytest.warns(UserWarning, match=r"line 2 has \d+ subwords.*in parts, split after sentences"):
        found = list(translator.translate(["a man", line, "a hat"]))
    assert [t.text for t in found] == ["a man", line, "a hat"]
    assert len(found[1].parts) > 15
    assert translator.report.long.lines == [2]
    assert max(size[0] * size[1] for size in copying.model.sizes) <= 4096  # type: ignore[attr-defined]


def test_a_long_line_can_be_translated_whole(copying: LoadedRun) -> None:
    line = " ".join(["a man is looking at the red ball ."] * 60)
    with pytest.warns(UserWarning, match="as a whole"):
        found = list(Translator(copying, beam=1, split_longer=None).translate([line]))
    assert (found[0].text, len(found[0].parts)) == (line, 1)


def test_the_real_model_has_no_longest_position(run_folder: Path) -> None:
    with pytest.warns(UserWarning, match="as a whole"):
        [found] = Translator(run_folder, beam=1, split_longer=None, max_length=5).translate(["two dogs play " * 700])
    assert len(found.parts[0][0]) > 2000


def test_batches_hold_lines_of_similar_length_and_stay_small(copying: LoadedRun) -> None:
    lines = ["a " * (1 + i % 40) for i in range(200)]
    assert texts(copying, lines, beam=2, batch_tokens=128) == [line.strip() for line in lines]
    sizes = copying.model.sizes  # type: ignore[attr-defined]
    assert all(rows * longest <= 128 for rows, longest in sizes)
    padded = sum(rows * longest for rows, longest in sizes)
    assert padded < 1.15 * sum(len(copying.subwords.encode(line)) + 1 for line in lines)


def test_input_may_be_endless(copying: LoadedRun) -> None:
    def forever() -> Iterator[str]:
        for number in itertools.count():
            yield f"hat {number}"

    found = Translator(copying, beam=1, window=5).translate(forever())
    assert [t.text for t in itertools.islice(found, 12)] == [f"hat {number}" for number in range(12)]


def test_n_best_is_sorted_and_that_of_a_long_line_joins_the_parts(copying: LoadedRun) -> None:
    with pytest.warns(UserWarning, match="in parts"):
        [found] = Translator(copying, beam=3, n_best=2).translate(["a man is looking at a hat . " * 60])
    assert found.text == ("a man is looking at a hat . " * 60).strip()
    [short] = Translator(copying, beam=3, n_best=2).translate(["two dogs"])
    assert short.text == short.candidates[0].text == "two dogs"
    for both in (found.candidates, short.candidates):
        assert len(both) == 2
        assert both[0].score >= both[1].score


def test_a_prefix_for_all_lines_or_one_for_each(copying: LoadedRun) -> None:
    translator = Translator(copying, beam=2)
    assert [t.text[:6] for t in translator.translate(["two dogs", "a hat"], prefix="orange")] == ["orange", "orange"]
    found = translator.translate(["two dogs", "a hat", "red ball"], prefix=["", "green", ""])
    assert all(t.text.startswith(start) for t, start in zip(found, ["two", "green", "red"], strict=True))
    with pytest.raises(ArgumentError, match="line 2 has none"):
        list(translator.translate(["two dogs", "a hat"], prefix=["red"]))


def test_text_is_prepared_as_in_training(copying: LoadedRun) -> None:
    copying.model.train()
    copying.info.update(lowercase=True, tokenized=True)
    with pytest.warns(UserWarning, match="tokenized"):
        assert texts(copying, ["Two DOGS play."]) == ["two dogs play."]
    assert copying.model.training  # restored


def test_a_run_folder_is_enough(run_folder: Path) -> None:
    found = list(Translator(run_folder, beam=2, max_length=6).translate(["two dogs", "", "a man"]))
    assert len(found) == 3
    assert found[1].text == ""
    records = Translator(run_folder, beam=2, max_length=6).attention(found[0])
    assert records[0].source_pieces[-1] == "</s>"
    assert len(records[0].heads) == 2 * (1 + 2 + 2)
    with pytest.raises(DataError, match="no run directory"):
        Translator(run_folder / "nothing")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_best": 9}, "increase the beam"),
        ({"window": 0}, "window=0"),
        ({"length_penalty": "none", "length_penalty_alpha": 1.0}, "no effect"),
    ],
)
def test_wrong_options_are_told_before_loading(options: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Translator("no such folder", **options)  # type: ignore[arg-type]


# ---- source language -----------------------------------------------------------------------------------------------

ENGLISH = ["A man in an orange hat is looking at something.", "Two dogs are playing with the ball in front of the house."]
GERMAN = ["Ein Mann mit einem Hut ist auf der Straße.", "Die Frau und das Kind sind mit dem Hund im Park."]
JAPANESE = ["男が帽子をかぶって何かを見ている。", "犬が庭でボールで遊んでいます。"]
RUSSIAN = ["Мужчина в оранжевой шляпе смотрит на что-то."]


@pytest.mark.parametrize(
    ("lines", "source", "target", "warning"),
    [
        (ENGLISH, "en", "de", None),
        (GERMAN, "de", "en", None),
        (GERMAN, "en", "de", "the input looks like de, but this model translates en -> de: are source and target swapped?"),
        (JAPANESE, "ja", "en", None),
        (ENGLISH, "ja", "en", "it could be en: are source and target swapped?"),
        (JAPANESE, "en", "de", "Japanese kana"),
        (RUSSIAN, "en", "de", "Cyrillic letters"),
        (RUSSIAN, "xx", "yy", None),
        *[(too_little, "ja", "en", None) for too_little in ([], [""], ["42 + 17 = 59"], ["Hat"], ["😀😀"])],
    ],
)
def test_source_language(lines: list[str], source: str, target: str, warning: str | None) -> None:
    found = check_source_language(lines, source, target)
    assert found is None if warning is None else found is not None and warning in found


def test_the_translator_warns_once(copying: LoadedRun) -> None:
    with pytest.warns(UserWarning, match="looks like de") as caught:
        texts(copying, GERMAN * 3, window=2)
    assert len(caught) == 1


# ---- long lines --------------------------------------------------------------------------------------------------------


SENTENCES = "two dogs play with the ball . a man is looking . " * 30


@pytest.mark.parametrize("text", [SENTENCES, "x" * 500, "日本語" * 100, "man " * 200])
def test_parts_join_to_the_whole_and_end_after_sentences_if_there_are_any(subwords: SubwordTokenizer, text: str) -> None:
    ids = subwords.encode(text)
    parts = split_long(ids, 50, subwords)
    assert [i for part in parts for i in part] == ids
    assert all(1 <= len(part) <= 50 for part in parts)
    assert text != SENTENCES or all(subwords.decode(part).endswith(".") for part in parts)


def test_parts_are_joined_as_the_language_writes() -> None:
    assert join_parts(["a.", "", "b."], "de") == "a. b."
    assert join_parts(["い。", "ろ。"], "ja") == "い。ろ。"
