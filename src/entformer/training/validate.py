"""Validates a model: loss, accuracy, BLEU, and the translations themselves.

A model early in training does not end its sentences, and translations up to the usual length limit would take longer than the
training. The limit is therefore taken from the training pairs, and greedy search cuts translations that repeat themselves.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from entformer.data.batching import TokenBatches
from entformer.data.prepared import Prepared
from entformer.data.store import TokenStore
from entformer.decoding.beam import beam_search
from entformer.decoding.length_penalty import MaxLength
from entformer.decoding.scoring import corpus_scores
from entformer.files import write_text
from entformer.models.seq2seq import Seq2Seq
from entformer.training.recipe import DecodingConfig
from entformer.training.summary import Validation

EXTRA = 10  # tokens added to the source before lengths are compared, so that short sentences need no limit of their own
USUAL = 0.999  # the share of training pairs that the length limit of validation admits


def usual_lengths(store: TokenStore) -> MaxLength:
    """Returns a length limit that nearly all pairs of the store satisfy: a multiple of the source length + EXTRA."""
    ratios = store.target_lengths / (store.source_lengths + EXTRA)
    ratio = max(float(np.quantile(ratios, USUAL)), 1.0)
    return MaxLength(ratio, math.ceil(EXTRA * ratio))


@torch.no_grad()
def validate(
    model: Seq2Seq,
    prepared: Prepared,
    *,
    beam: int,
    decoding: DecodingConfig,
    tokens: int,
    translations: Path,
    stopped: Callable[[], bool] = lambda: False,
) -> Validation | None:
    """Evaluates the model and writes its translations to the file `translations`.

    Args:
        model: The model.
        prepared: Data with a validation set.
        beam: Width of the beam; 1 is greedy search, 0 skips BLEU.
        decoding: Length penalty of the beam search.
        tokens: Size of a batch, as in training.
        translations: The file to write.
        stopped: Called between batches; if it returns True, validation is interrupted.

    Returns:
        The results, or None if interrupted.
    """
    began = time.perf_counter()
    device = next(model.parameters()).device
    store = prepared.store("valid")
    was_training = model.training
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    count = 0
    lines = [""] * len(store)
    limit = usual_lengths(prepared.store("train"))
    try:
        for batch in TokenBatches(store, tokens=tokens, shuffle=False).epoch(0):
            if stopped():
                return None
            batch = batch.to(device)
            found = model.loss(batch)
            sums += torch.stack([part.to(device, torch.float64) for part in (found.loss, found.nll, found.correct)])
            count += int(found.tokens)
            if beam:
                hypotheses = beam_search(
                    model,
                    batch.source,
                    batch.source_mask,
                    beam=beam,
                    length_penalty=decoding.length_penalty,
                    length_penalty_alpha=decoding.penalty_alpha,
                    max_length=limit,
                    cut_loops=True,
                )
                for example, best in zip(batch.examples, hypotheses, strict=True):
                    lines[example] = prepared.subwords.decode(best[0].tokens)
    finally:
        model.train(was_training)
    loss, nll, correct = sums.tolist()
    scores = None
    if beam:
        _, references = prepared.text("valid")
        scores = corpus_scores(lines, references, tokenized=prepared.tokenized, lowercase=prepared.lowercase)
        write_text(translations, "".join(f"{line}\n" for line in lines))
    return Validation(
        loss=loss / count,
        nll=nll / count,
        perplexity=math.exp(min(nll / count, 700.0)),
        accuracy=correct / count,
        bleu=None if scores is None else scores.main.value,
        signature=None if scores is None else scores.main.signature,
        chrf=None if scores is None else scores.chrf,
        seconds=time.perf_counter() - began,
    )
