"""Which sentencepiece models are plain byte-pair encoding."""

import io
from typing import Any

import pytest
import sentencepiece

from entformer.errors import DataError
from entformer.text.sentencepiece_model import uses_plain_bpe
from entformer.text.tokenizer import SubwordTokenizer

LINES = ["a man in an orange hat is looking at something", "two dogs play with the red ball"] * 10


def train(**options: Any) -> bytes:
    model = io.BytesIO()
    settings = {"vocab_size": 320, "byte_fallback": True, "hard_vocab_limit": False, "minloglevel": 2, **options}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(LINES), model_writer=model, **settings)
    return model.getvalue()


def test_our_own_models_are_plain() -> None:
    assert uses_plain_bpe(SubwordTokenizer.train(LINES, vocab_size=320).model)


@pytest.mark.parametrize(
    "options",
    [
        {"model_type": "unigram", "normalization_rule_name": "identity"},
        {"model_type": "bpe", "normalization_rule_name": "nmt_nfkc"},
        {"model_type": "bpe", "normalization_rule_name": "identity", "add_dummy_prefix": False},
        {"model_type": "bpe", "normalization_rule_name": "identity", "remove_extra_whitespaces": False},
        {"model_type": "bpe", "normalization_rule_name": "identity", "user_defined_symbols": ["<sep>"]},
        {"model_type": "bpe", "normalization_rule_name": "identity", "treat_whitespace_as_suffix": True},
    ],
)
def test_other_models_are_not(options: dict[str, Any]) -> None:
    assert not uses_plain_bpe(train(**options))


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(DataError, match="sentencepiece"):
        uses_plain_bpe(b"\xff" * 5)
