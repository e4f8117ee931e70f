"""A run of a tiny model with three checkpoints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from entformer.checkpoint import RunFolder, model_info
from entformer.files import write_json
from entformer.models.config import Seq2SeqConfig
from entformer.models.seq2seq import Seq2Seq
from entformer.text.tokenizer import SubwordTokenizer
from entformer.training.optim import make_optimizer
from entformer.training.ranks import Ranks
from entformer.training.recipe import TrainingConfig
from entformer.training.state import Progress, random_tensors, save_progress, state_json

SIZES = {"encoder_layers": 1, "decoder_layers": 1, "heads": 2, "width": 8, "hidden": 16}


@pytest.fixture(scope="session")
def subwords() -> SubwordTokenizer:
    return SubwordTokenizer.train(["a b c d e f", "b a d c f e"] * 5, vocab_size=280)


@pytest.fixture(scope="session")
def make_model(subwords: SubwordTokenizer) -> Callable[..., Seq2Seq]:
    def make(seed: int = 1, **config: Any) -> Seq2Seq:
        torch.manual_seed(seed)
        return Seq2Seq(Seq2SeqConfig.from_dict({**SIZES, "vocab_size": subwords.size, **config}))

    return make


@pytest.fixture
def run(tmp_path: Path, subwords: SubwordTokenizer, make_model: Callable[..., Seq2Seq]) -> RunFolder:
    """Checkpoints of steps 4, 8 and 12, whose weights have the step as their seed; step 4 is the best one."""
    folder = RunFolder(tmp_path / "run")
    folder.create()
    subwords.save(folder.subwords)
    languages: dict[str, Any] = {"source_language": "xx", "target_language": "yy", "tokenized": False, "lowercase": True}
    write_json(folder.model, model_info(make_model().config, subwords, data_fingerprint="0123", **languages))
    ranks = Ranks("cpu")
    for step in (4, 8, 12):
        model, progress = make_model(step), Progress(step=step, best=[(12, 9.0), (4, 5.0)])
        save_progress(
            folder,
            state_json(progress, ranks, per_step=1, scheduled=step != 8, data_fingerprint="0123"),
            model=model,
            optimizer=make_optimizer(model, TrainingConfig()),
            random_states=random_tensors(ranks),
        )
    folder.set_pointer("last", folder.checkpoint("12"))
    folder.set_pointer("best", folder.checkpoint("4"), metric="bleu", value=5.0)
    return folder
