"""What a model was trained on: how much, and which words; for pages that mark words the model has never seen."""

from dataclasses import dataclass

from entformer.data.prepared import Prepared
from entformer.decoding.long_lines import NO_SPACES

BUILTIN = "builtin"  # the corpus of the demo
MOST_PAIRS = 200_000  # reading more takes too long, and the words of so much text tell little
EDGES = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~¡«»¿‘’‚“”„…–—،؛؟。，！？、；：「」（）"  # noqa: RUF001  # punctuation around a word


@dataclass(frozen=True)
class TrainingText:
    """The training data of a run."""

    pairs: int
    words: frozenset[str]
    """Of the source side, in lower case, without punctuation around them."""
    toy: bool
    """Whether it is the built-in corpus of the demo."""

    def unknown(self, text: str) -> list[str]:
        """Returns the words of a text that are not in the training data, each once."""
        return [word for word in dict.fromkeys(_words(text)) if word.lower() not in self.words]

    def describe(self) -> str:
        """Returns a sentence about the size of the training data."""
        size = f"{self.pairs:,} sentence pairs with {len(self.words):,} different source words"
        if not self.toy:
            return f"Trained on {size}; words outside of them are marked."
        return (
            f"A toy: trained for minutes on {size}, made from a small grammar. It translates sentences like the examples; "
            "words it has never seen are marked, and what it makes of them is a guess."
        )


def read_training_text(prepared: Prepared, source_language: str) -> TrainingText | None:
    """Reads the training data; None for more than `MOST_PAIRS` pairs, or a language without spaces between words."""
    if len(prepared.store("train")) > MOST_PAIRS or source_language.split("-")[0] in NO_SPACES:
        return None
    sources, targets = prepared.text("train")
    sources = sources if prepared.source_language == source_language else targets
    words = frozenset(word.lower() for line in sources for word in _words(line))
    return TrainingText(len(sources), words, prepared.corpus.split("/")[0] == BUILTIN)


def _words(text: str) -> list[str]:
    return [word for part in text.split() if (word := part.strip(EDGES))]
