"""The task of language modeling: rows of text, the loss of the next token, perplexity and bits per byte."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from entformer.checkpoint.folder import RunFolder
from entformer.checkpoint.language_model import lm_info, read_lm_info
from entformer.data.text import PreparedText, TextBatch, TextBatches, prepare_text, windows
from entformer.errors import ArgumentError, DataError
from entformer.files import write_json
from entformer.models.attention_settings import AttentionModel
from entformer.models.fused_loss import LossSums
from entformer.models.lm import CausalLM
from entformer.text.tokenizer import SubwordTokenizer
from entformer.training.lm_recipe import LMRecipe
from entformer.training.ranks import Ranks, spread
from entformer.training.task import Results

SAMPLE = 4  # rows on which densities are measured
SCORED_TOKENS = 8192  # tokens of a batch of validation


def open_language_modeling(
    recipe: LMRecipe, folder: RunFolder, ranks: Ranks, say: Callable[[str], None], *, allow_new: bool = False
) -> "LanguageModeling":
    """Opens the text of a recipe; process 0 prepares it first if need be.

    Raises:
        ArgumentError: The recipe names no text.
        DataError: The tokenizer differs from that of the run.
    """
    data, where = recipe.data, recipe.data.prepared or folder.prepared
    if ranks.first and not (where / "prep.json").is_file():
        if data.corpus is None and not data.text:
            raise ArgumentError(
                "the recipe names no text; add --set data.prepared=DIR (of `entformer prep DIR --text FILES`), "
                "--set data.text=FILE or --set data.corpus=builtin."
            )
        say(f"preparing text in {where}")
        files = {"train": data.text, "valid": data.valid, "test": data.test} if data.text else {}
        subwords = None if data.subwords is None else SubwordTokenizer.load(data.subwords)
        prepare_text({split: paths for split, paths in files.items() if paths}, where, data.config(), subwords=subwords)
    ranks.share(None, patient=True)
    text = PreparedText.open(where)
    if folder.latest() is not None and folder.model.is_file():
        fingerprint = read_lm_info(folder.model).tokenizer.fingerprint
        if text.tokenizer.fingerprint != fingerprint:
            raise DataError(
                f"the tokenizer of {where} (fingerprint {text.tokenizer.fingerprint}) is not the one that {folder.path} was "
                f"trained with ({fingerprint}); prepare the text with --subwords {folder.subwords}, or start a new run."
            )
    return LanguageModeling(recipe, text)


class LanguageModeling:
    """Prediction of the next token; a `Task`."""

    def __init__(self, recipe: LMRecipe, text: PreparedText) -> None:
        self.recipe, self.text = recipe, text
        self.metric: str = recipe.training.metric
        self.higher_is_better = self.metric == "accuracy"
        self.fingerprint = text.fingerprint

    def describe(self) -> str:
        train, tokenizer = self.text.splits["train"], self.text.tokenizer
        documents = f"{train['documents']:,} document{'s' * (train['documents'] > 1)}"
        return f"{documents}, {train['tokens']:,} tokens of {tokenizer.size:,} ({tokenizer.name})"

    def build_model(self) -> CausalLM:
        return CausalLM(self.recipe.model_for(self.text.tokenizer.size))

    def train_batches(self, *, rank: int, world_size: int, per_step: int | None = None) -> TextBatches:
        config = self.recipe.training
        ids = self.text.ids("train")
        rows = max(1, config.tokens // config.context)
        return TextBatches(
            ids,
            length=config.context,
            rows=rows,
            seed=config.seed,
            rank=rank,
            world_size=world_size,
            per_step=per_step,
        )

    def sample(self) -> TextBatch:
        ids, length = self.text.ids("train"), self.recipe.training.context
        last = len(ids) - length - 1
        return TextBatch.cut(ids, np.random.default_rng(0).integers(0, max(last, 0) + 1, SAMPLE), length)

    def loss(self, model: AttentionModel, batch: TextBatch) -> LossSums:
        return cast(CausalLM, model).loss(batch.inputs, batch.labels, cu_seqlens=batch.cu_seqlens)

    def eval_settings(self, best: float | None = None) -> dict[str, Any]:
        return {}

    def evaluate(
        self,
        model: AttentionModel,
        file: Path,
        settings: Mapping[str, Any],
        should_stop: Callable[[], bool] = lambda: False,
        ranks: Ranks | None = None,
    ) -> Results | None:
        """Returns the loss on the validation text, in windows of the training length."""
        began = time.perf_counter()
        context = self.recipe.training.context
        found = score_text(cast(CausalLM, model), self.text.ids("valid"), context, context, should_stop, ranks=ranks)
        if found is None:
            return None
        bits = found.bits_per_byte(self.text.splits["valid"]["bytes"])
        return {
            "loss": found.loss,
            "nll": found.loss,
            "perplexity": found.perplexity,
            "accuracy": found.accuracy,
            "bits_per_byte": bits,
            "seconds": time.perf_counter() - began,
        }

    def summarize(self, results: Results) -> str:
        loss = f"loss {results['loss']:.3f}  perplexity {results['perplexity']:.2f}  accuracy {results['accuracy']:.3f}"
        return f"{loss}  bits per byte {results['bits_per_byte']:.3f}  ({results['seconds']:.0f} s)"

    def save_assets(self, folder: RunFolder, model: AttentionModel) -> None:
        self.text.tokenizer.save(folder.subwords)
        config = cast(CausalLM, model).config
        info = lm_info(config, self.text.tokenizer, context=self.recipe.training.context, data_fingerprint=self.fingerprint)
        write_json(folder.model, info)


@dataclass(frozen=True)
class TextScore:
    """How well a model predicts a text."""

    nll: float
    """Of all tokens, with natural logarithms; EOS counted."""
    correct: int
    tokens: int
    by_position: NDArray[np.float64]
    """The mean of -ln p at each position of a window, (context,)."""

    @property
    def loss(self) -> float:
        return self.nll / self.tokens

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))

    @property
    def accuracy(self) -> float:
        return self.correct / self.tokens

    def bits_per_byte(self, size: int) -> float:
        """Returns bits per byte of a text of `size` bytes."""
        return self.nll / math.log(2.0) / max(size, 1)


@torch.no_grad()
def score_text(
    model: CausalLM,
    ids: NDArray[Any],
    context: int,
    stride: int,
    should_stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int, int], None] | None = None,
    ranks: Ranks | None = None,
) -> TextScore | None:
    """Scores every token of a text, once.

    Args:
        model: The model.
        ids: The text, as `PreparedText.ids` gives it.
        context: Tokens that the model reads at a time.
        stride: By how much the window advances: a token is predicted from at least context - stride tokens before it, except at
            the beginning. The smaller, the slower and the better.
        should_stop: Called between batches.
        progress: Called with the tokens done and all tokens.
        ranks: Processes that share the work; each must call this.

    Returns:
        The score, or None if `should_stop` returned True.
    """
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    sums, counts = (torch.zeros(context, dtype=torch.float64) for _ in range(2))
    seen = 0

    def score(item: tuple[TextBatch, int]) -> tuple[Tensor, int, int]:
        nonlocal seen
        batch, new = item
        losses, hits = token_losses(model, batch.to(device))
        seen += new * len(losses)
        if progress is not None:
            progress(seen, len(ids))
        return losses[:, -new:].double().sum(0).cpu(), len(losses), int(hits[:, -new:].sum())

    try:
        results = spread(ranks, windows(ids, context, stride, max(1, SCORED_TOKENS // context)), score, should_stop)
    finally:
        model.train(training)
    if results is None:
        return None
    correct = done = 0
    for losses, rows, hits in results:
        # The new labels of a window are its last; the only window shorter than `context` is that of a shorter text.
        end = min(context, len(ids))
        sums[end - len(losses) : end] += losses
        counts[end - len(losses) : end] += rows
        correct += hits
        done += rows * len(losses)
    return TextScore(float(sums.sum()), correct, done, (sums / counts.clamp_min(1)).numpy())


def token_losses(model: CausalLM, batch: TextBatch) -> tuple[Tensor, Tensor]:
    """Returns -ln p of every label, (B, L), and whether it has the highest score."""
    shape = batch.inputs.shape
    ids = batch.inputs if batch.cu_seqlens is None else batch.inputs.reshape(1, -1)
    scores = model(ids, cu_seqlens=batch.cu_seqlens).float().view(*shape, -1)
    losses = torch.nn.functional.cross_entropy(scores.flatten(0, 1), batch.labels.flatten(), reduction="none")
    return losses.view(shape), scores.argmax(-1) == batch.labels
