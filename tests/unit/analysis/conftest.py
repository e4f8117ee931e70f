"""Tiny models over a real vocabulary, and run directories with them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from entformer.checkpoint import LoadedRun, RunFolder
from entformer.data.store import TokenStore
from entformer.models.config import AttentionConfig, Seq2SeqConfig
from entformer.models.seq2seq import KINDS, Seq2Seq
from entformer.text.tokenizer import SubwordTokenizer

SaveRun = Callable[[LoadedRun, Path], RunFolder]

SOURCES = (
    "the red-haired man sleeps .",
    "what does the dog see ?",
    "why does she sleep in the small house near the water ?",
    "two dogs play .",
    "a man in an orange hat is looking at something small .",
    "who sleeps ?",
)
TARGETS = (
    "der rothaarige Mann schläft .",
    "was sieht der Hund ?",
    "warum schläft sie in dem kleinen Haus am Wasser ?",
    "zwei Hunde spielen .",
    "ein Mann mit orangem Hut sieht etwas Kleines an .",
    "wer schläft ?",
)


@pytest.fixture(scope="session")
def subwords() -> SubwordTokenizer:
    return SubwordTokenizer.train([*SOURCES, *TARGETS] * 4, vocab_size=340)


@pytest.fixture(scope="session")
def store(subwords: SubwordTokenizer) -> TokenStore:
    return TokenStore.from_examples(zip(subwords.encode_lines(SOURCES), subwords.encode_lines(TARGETS), strict=True))


def make_model(vocabulary: int, normalizer: str = "entmax", **options: object) -> Seq2Seq:
    """Weights of some size, so that heads differ and sparse ones are sparse."""
    torch.manual_seed(1)
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "heads": 2, "width": 16, "hidden": 32}
    kinds = {kind: AttentionConfig(normalizer=normalizer) for kind in KINDS}
    model = Seq2Seq(Seq2SeqConfig.from_dict({"vocab_size": vocabulary, **sizes, **kinds, **options})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.mul_(2.0)
    return model


@pytest.fixture
def model(subwords: SubwordTokenizer) -> Seq2Seq:
    return make_model(subwords.size)


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory, subwords: SubwordTokenizer, save_run: SaveRun) -> Path:
    """A run with learned alphas, untrained, with a short history, and its text beside it."""
    folder = make_run(tmp_path_factory.mktemp("runs") / "learned", subwords, "entmax", save_run)
    rows = [[[1.1, 1.2], [1.3, 1.4]], [[1.5, 1.6], [1.7, 1.8]]]
    folder.metrics.write_text(
        "".join(
            f'{{"kind": "alphas", "step": {10 * i}, "encoder": {row}, "decoder": {row}, "cross": {row}}}\n'
            for i, row in enumerate(rows)
        )
        + '{"kind": "valid", "step": 10, "bleu": 12.5, "signature": "nrefs:1|tok:13a", "chrf": 30.0, "perplexity": 9.0}\n'
        + '{"kind": "train", "st'
    )
    return folder.path


@pytest.fixture(scope="session")
def rela_folder(tmp_path_factory: pytest.TempPathFactory, subwords: SubwordTokenizer, save_run: SaveRun) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "rela", subwords, "rela", save_run).path


def make_run(path: Path, subwords: SubwordTokenizer, normalizer: str, save_run: SaveRun) -> RunFolder:
    info = {"tokenized": True, "lowercase": False}
    languages = {"source_language": "en", "target_language": "de"}
    run = LoadedRun(model=make_model(subwords.size, normalizer), subwords=subwords, **languages, info=info, step=10)
    folder = save_run(run, path)
    (path / "test.en").write_text("\n".join(SOURCES) + "\n", encoding="utf-8")
    (path / "test.de").write_text("\n".join(TARGETS) + "\n", encoding="utf-8")
    return folder
