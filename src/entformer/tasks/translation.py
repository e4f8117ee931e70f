"""The task of translation: batches of sentence pairs, the loss of `Seq2Seq`, and BLEU of translations of the validation text.

A model early in training does not end its sentences, and translations up to the usual length limit would take longer than the
training. The limit is therefore taken from the training pairs, and greedy search cuts translations that repeat themselves.
"""

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from entformer.checkpoint.folder import RunFolder
from entformer.checkpoint.load import model_info, read_model_info
from entformer.data.batch import Batch
from entformer.data.batching import TokenBatches, collate
from entformer.data.prepared import Prepared
from entformer.data.store import TokenStore
from entformer.decoding.beam import beam_search
from entformer.decoding.length_penalty import MaxLength
from entformer.decoding.scoring import corpus_scores, title
from entformer.errors import DataError
from entformer.files import write_json, write_text
from entformer.models.attention_settings import AttentionModel
from entformer.models.fused_loss import LossSums
from entformer.models.seq2seq import Seq2Seq
from entformer.tasks.corpora import open_prepared
from entformer.training.ranks import Ranks, spread
from entformer.training.recipe import Recipe
from entformer.training.task import Results

EXTRA = 10  # tokens added to the source before lengths are compared, so that short sentences need no limit of their own
USUAL = 0.999  # the share of training pairs that the length limit of validation admits
SAMPLE = 128  # pairs on which densities are measured
MIN_SCORE = 1.0  # BLEU and chrF below which a wide beam is not worth its time


def usual_lengths(store: TokenStore) -> MaxLength:
    """Returns a length limit that nearly all pairs of the store satisfy: a multiple of the source length + EXTRA."""
    ratios = store.target_lengths / (store.source_lengths + EXTRA)
    ratio = max(float(np.quantile(ratios, USUAL)), 1.0)
    return MaxLength(ratio, math.ceil(EXTRA * ratio))


def open_translation(
    recipe: Recipe, folder: RunFolder, ranks: Ranks, say: Callable[[str], None], *, allow_new: bool = False
) -> "Translation":
    """Opens the data of a recipe; process 0 prepares them first if need be.

    Raises:
        DataError: The data differ from those of the run and `allow_new` is False, or its subwords do.
    """
    where = recipe.data.prepared or folder.prepared
    has_weights = folder.latest() is not None
    if ranks.first:
        open_prepared(recipe.data, where, say, run_subwords=folder.subwords if has_weights else None, allow_new=allow_new)
    ranks.share(None, patient=True)
    prepared = Prepared.open(where)
    if has_weights and folder.model.is_file():
        info, _ = read_model_info(folder.model)
        size, fingerprint = info.subwords.size, info.subwords.fingerprint
        if prepared.subwords.fingerprint != fingerprint:
            raise DataError(
                f"the model in {folder.path} has {size} types of subwords (fingerprint {fingerprint}), the prepared data have "
                f"{prepared.subwords.size} (fingerprint {prepared.subwords.fingerprint}); prepare the data with "
                f"{folder.subwords}, or start a new run."
            )
    return Translation(recipe, prepared)


class Translation:
    """Translation of one language into another; a `Task`."""

    def __init__(self, recipe: Recipe, prepared: Prepared) -> None:
        self.recipe, self.prepared = recipe, prepared
        self.metric: str = recipe.training.metric
        self.higher_is_better = self.metric != "loss"
        self.fingerprint = prepared.fingerprint

    def describe(self) -> str:
        data = self.prepared
        pair = f"{data.source_language}-{data.target_language}"
        return f"{pair}, {len(data.store('train')):,} pairs, {data.subwords.size:,} subwords"

    def build_model(self) -> Seq2Seq:
        return Seq2Seq(self.recipe.model_for(self.prepared.subwords.size))

    def train_batches(self, *, rank: int, world_size: int, per_step: int | None = None) -> TokenBatches:
        config = self.recipe.training
        return TokenBatches(
            self.prepared.store("train"),
            tokens=config.tokens,
            seed=config.seed,
            max_sentences=config.max_sentences,
            rank=rank,
            world_size=world_size,
            per_step=per_step,
        )

    def sample(self) -> Batch:
        return sample_of(self.prepared.store("train"))

    def loss(self, model: AttentionModel, batch: Batch) -> LossSums:
        return cast(Seq2Seq, model).loss(batch)

    def eval_settings(self, best: float | None = None) -> dict[str, Any]:
        usual, wide = self.recipe.training.validate_beam, self.recipe.decoding.beam
        if best is None:
            return {"beam": usual}
        return {"beam": min(usual, wide) if self.metric in ("bleu", "chrf") and best < MIN_SCORE else wide}

    @torch.no_grad()
    def evaluate(
        self,
        model: AttentionModel,
        file: Path,
        settings: Mapping[str, Any],
        should_stop: Callable[[], bool] = lambda: False,
        ranks: Ranks | None = None,
    ) -> Results | None:
        """Returns loss, accuracy and, with a beam of at least 1, BLEU and chrF; writes the translations to `file`.txt."""
        began = time.perf_counter()
        translator, prepared, beam = cast(Seq2Seq, model), self.prepared, settings["beam"]
        device = next(model.parameters()).device
        store = prepared.store("valid")
        was_training = model.training
        model.eval()
        limit = usual_lengths(prepared.store("train"))

        def score(batch: Batch) -> tuple[list[float], int, dict[int, str]]:
            batch = batch.to(device)
            found = translator.loss(batch)
            texts = {}
            if beam:
                hypotheses = beam_search(
                    translator,
                    batch.source,
                    batch.source_mask,
                    beam=beam,
                    length_penalty=self.recipe.decoding.length_penalty,
                    length_penalty_alpha=self.recipe.decoding.penalty_alpha,
                    max_length=limit,
                    cut_loops=True,
                )
                best = zip(batch.examples, hypotheses, strict=True)
                texts = {example: prepared.subwords.decode(own[0].tokens) for example, own in best}
            return [float(part) for part in (found.loss, found.nll, found.correct)], int(found.tokens), texts

        try:
            batches = TokenBatches(store, tokens=self.recipe.training.tokens, shuffle=False).epoch(0)
            results = spread(ranks, batches, score, should_stop)
        finally:
            model.train(was_training)
        if results is None:
            return None
        loss, nll, correct = (sum(sums[part] for sums, _, _ in results) for part in range(3))
        count = sum(tokens for _, tokens, _ in results)
        lines = {example: text for _, _, texts in results for example, text in texts.items()}
        scores = None
        if beam:
            _, references = prepared.text("valid")
            ordered = [lines[example] for example in range(len(store))]
            scores = corpus_scores(ordered, references, tokenized=prepared.tokenized, lowercase=prepared.lowercase)
            if ranks is None or ranks.first:
                write_text(file.with_name(f"{file.name}.txt"), "".join(f"{line}\n" for line in ordered))
        return {
            "loss": loss / count,
            "nll": nll / count,
            "perplexity": math.exp(min(nll / count, 700.0)),
            "accuracy": correct / count,
            "bleu": None if scores is None else scores.main.value,
            "signature": None if scores is None else scores.main.signature,  # how BLEU was computed, as sacreBLEU writes it
            "chrf": None if scores is None else scores.chrf,
            "seconds": time.perf_counter() - began,
        }

    def summarize(self, results: Results) -> str:
        signature = results["signature"] or ""
        kind = title("tokenized_bleu" if "tok:none" in signature else "bleu", signature)
        score = "" if results["bleu"] is None else f"  {kind} {results['bleu']:.2f}"
        loss = f"loss {results['loss']:.3f}  perplexity {results['perplexity']:.2f}  accuracy {results['accuracy']:.3f}"
        return f"{loss}{score}  ({results['seconds']:.0f} s)"

    def save_assets(self, folder: RunFolder, model: AttentionModel) -> None:
        data = self.prepared
        data.subwords.save(folder.subwords)
        info = model_info(
            cast(Seq2Seq, model).config,
            data.subwords,
            source_language=data.source_language,
            target_language=data.target_language,
            tokenized=data.tokenized,
            lowercase=data.lowercase,
            data_fingerprint=data.fingerprint,
        )
        write_json(folder.model, info)


def sample_of(store: TokenStore) -> Batch:
    """Returns pairs of a store, the same at every call. A batch of training would not do: its pairs have the same length."""
    count = min(SAMPLE, len(store))
    return collate(store, np.random.default_rng(0).choice(len(store), count, replace=False))
