"""Scores equal those of sacreBLEU and carry its signature; unreliable text is reported."""

import pytest
import sacrebleu

from entformer.decoding.scoring import corpus_scores, moses_tokenized, paired_bootstrap, scoring_warnings
from entformer.errors import ArgumentError, DataError

REFERENCES = ["The cat sits on the mat.", "A dog runs.", "Two men are talking, aren't they?"] * 20
TRANSLATIONS = ["The cat sits on a mat.", "A dog runs.", "Two Men talk, aren't they?"] * 20


def _words(lines: list[str]) -> list[list[str]]:
    return [sacrebleu.BLEU().tokenizer(line).split() for line in lines]


def test_numbers_and_signatures_are_those_of_sacrebleu() -> None:
    found = corpus_scores(TRANSLATIONS, REFERENCES)
    metric = sacrebleu.BLEU()
    assert found.bleu == metric.corpus_score(TRANSLATIONS, [REFERENCES]).score
    assert found["bleu"].signature == str(metric.get_signature())
    assert "tok:13a" in found["bleu"].signature
    assert "case:mixed" in found["bleu"].signature
    assert found.chrf == sacrebleu.CHRF().corpus_score(TRANSLATIONS, [REFERENCES]).score
    assert found.main.name == "bleu"


@pytest.mark.parametrize(
    ("tokenized", "lowercase", "name", "signature"),
    [
        (True, True, "tokenized_bleu", ("tok:none", "case:lc")),
        (True, False, "tokenized_bleu", ("tok:none", "case:mixed")),
        (False, True, "lowercase_bleu", ("tok:13a", "case:lc")),
        (False, False, "bleu", ("tok:13a", "case:mixed")),
    ],
)
def test_the_main_score_fits_the_data(tokenized: bool, lowercase: bool, name: str, signature: tuple[str, ...]) -> None:
    found = corpus_scores(TRANSLATIONS, REFERENCES, tokenized=tokenized, lowercase=lowercase)
    assert found.main.name == name
    assert all(part in found.main.signature for part in signature)


def test_empty_references_are_lines_like_others() -> None:
    found = corpus_scores([*TRANSLATIONS, "something", ""], [*REFERENCES, "", ""])
    assert found.lines == 62
    assert 0 < found.bleu < 100
    assert found["bleu"].detail.endswith(f"for {sum(map(len, _words(REFERENCES)))} of the references)")  # all of them
    assert corpus_scores(["", ""], ["", ""]).bleu == 0


def test_several_references_count_together() -> None:
    found = corpus_scores(TRANSLATIONS, [REFERENCES, TRANSLATIONS])
    assert found.bleu == pytest.approx(100)
    assert "nrefs:2" in found["bleu"].signature


@pytest.mark.parametrize(("hypotheses", "references"), [(["a"], ["a", "b"]), (["a", "b"], ["a"]), ([], ["a"])])
def test_a_different_number_of_lines_is_an_error(hypotheses: list[str], references: list[str]) -> None:
    message = f"there are {len(hypotheses)} translations and {len(references)} references"
    with pytest.raises(DataError, match=message):
        corpus_scores(hypotheses, references)
    with pytest.raises(DataError, match="no translations to score"):
        corpus_scores([], [])


def test_suspect_text_is_named() -> None:
    good = ["The cat sits on the mat.", "A dog runs."]
    assert scoring_warnings(good, good) == []
    [pieces] = scoring_warnings(["▁The ▁cat", "A dog runs."], good)
    assert "translations contain '▁' in 1 of 2 lines" in pieces
    [bpe] = scoring_warnings(["The ca@@ t sits.", "A dog runs."], good)
    assert "'@@'" in bpe
    lower = scoring_warnings([line.lower() for line in good], good)
    assert any("the translations are all in lower case" in warning for warning in lower)
    assert scoring_warnings([line.lower() for line in good], good, lowercase=True) == []
    tokens = scoring_warnings(["The cat sits on the mat .", "A dog runs ."], good)
    assert any("look tokenized" in warning for warning in tokens)
    assert scoring_warnings(["the cat sits .", "a dog runs ."], ["the cat sits .", "a dog runs ."], tokenized=True) == []
    assert scoring_warnings(["", "A dog runs."], good) == ["1 of 2 translations are empty."]
    assert scoring_warnings(["猫がいる。"], ["猫がいる。"]) == []  # a script without cases is not "all lower case"


def test_paired_bootstrap_tells_a_difference_from_chance() -> None:
    worse = [line.replace("the", "").replace("runs", "walks") for line in TRANSLATIONS]
    for comparison in paired_bootstrap(worse, TRANSLATIONS, REFERENCES, tokenized=True, resamples=200):
        assert comparison.difference > 0
        assert comparison.p_value < 0.05
        assert "bs:200|seed:12345" in comparison.signature
        assert comparison.system == pytest.approx(
            corpus_scores(TRANSLATIONS, REFERENCES, tokenized=True)[comparison.name].value
        )
    for comparison in paired_bootstrap(TRANSLATIONS, TRANSLATIONS, REFERENCES, resamples=50):
        assert comparison.difference == 0
        assert comparison.p_value == 1


def test_comparison_checks_both_sides() -> None:
    with pytest.raises(DataError, match="2 translations and 60"):
        paired_bootstrap(TRANSLATIONS, ["a", "b"], REFERENCES)
    with pytest.raises(ArgumentError, match="resamples=0"):
        paired_bootstrap(TRANSLATIONS, TRANSLATIONS, REFERENCES, resamples=0)


def test_case_counts_unless_the_text_is_lower_case() -> None:
    cased, lower = ["The Temple of the Moon"], ["the temple of the moon"]
    assert corpus_scores(lower, cased, tokenized=True).main.value < 50
    found = corpus_scores(lower, cased, tokenized=True, lowercase=True).main
    assert found.value == pytest.approx(100)
    assert str(found) == "tokenized lower-case BLEU = 100.00"
    assert str(corpus_scores(cased, cased, tokenized=True).main) == "tokenized BLEU = 100.00"
    assert str(corpus_scores(lower, cased, lowercase=True).main) == "lower-case BLEU = 100.00"
    assert any("are all in lower case" in warning for warning in scoring_warnings(lower, cased, tokenized=True))


def test_moses_bleu_tokenizes_both_sides_and_says_so() -> None:
    hypotheses, references = ["It's Mr. Smith's dog, isn't it?"] * 2, ["It's Mr. Smith's cat, isn't it?"] * 2
    tokens = moses_tokenized(hypotheses, "en")
    assert tokens[0] == "It 's Mr. Smith 's dog , isn 't it ?"
    found = corpus_scores(hypotheses, references, moses="en")
    expected = sacrebleu.BLEU(tokenize="none").corpus_score(tokens, [moses_tokenized(references, "en")]).score
    assert (found.main.name, found.main.value) == ("moses_bleu", expected)
    assert "tok:moses.en-sacremoses." in found.main.signature
    assert "tok:13a" in found["bleu"].signature
    [*_, comparison] = paired_bootstrap(hypotheses, references, references, moses="en", resamples=20)
    assert (comparison.name, comparison.baseline) == ("moses_bleu", expected)
    assert "tok:moses.en-sacremoses." in comparison.signature
    with pytest.raises(ArgumentError, match="moses cannot be used with tokenized text; omit --moses"):
        corpus_scores(hypotheses, references, tokenized=True, moses="en")
    with pytest.raises(ArgumentError, match="moses does not support ja"):
        corpus_scores(hypotheses, references, moses="ja")
