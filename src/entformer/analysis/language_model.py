"""Measures and reports of the language models of `entformer train`: the heads of a `CausalLM` on long text."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from entformer.analysis.alphas import initial_alphas
from entformer.analysis.data import Progress
from entformer.analysis.history import learned_alphas_of, settings_of, validation_scores
from entformer.analysis.text_report import text_report
from entformer.analysis.traces import Inputs, LayerTrace
from entformer.checkpoint.folder import RunFolder
from entformer.checkpoint.language_model import LoadedLM
from entformer.decoding.attention_record import attention_hooks
from entformer.errors import DataError
from entformer.models.lm import CausalLM
from entformer.nn.dense import masked_scores
from entformer.nn.hooks import AttentionTrace
from entformer.nn.masks import ScoreTerms
from entformer.nn.multihead_attention import MultiheadAttention
from entformer.text.tokenizer import BOS
from entformer.training.metrics import metrics_of


@dataclass(frozen=True, eq=False)
class LMCall:
    """One call of attention, an `AttentionCall`."""

    query: Tensor
    key: Tensor
    terms: ScoreTerms
    sinks: None = None

    def scores(self) -> tuple[Tensor, Tensor]:
        """Returns the scores (1, H, Lq, Lk), and which are allowed."""
        scores, _ = masked_scores(self.query, self.key, self.terms)
        return scores, scores > -torch.inf


class LMTracer:
    """Runs a `CausalLM` and passes on every attention call; a `TextTracer`."""

    def __init__(self, model: CausalLM) -> None:
        self.model = model
        self.alphas = {
            (kind, layer): own[layer].double().cpu().numpy()
            for kind, own in model.alphas().items()
            for layer in range(len(own))
        }
        self.normalizers = {kind: module.normalizer for kind, _, module in model.attention_layers()}

    def run(self, inputs: Inputs, hook: Callable[[LayerTrace], None]) -> Tensor:
        """Runs the model on one text, calls `hook` for every attention call, and returns the scores of the next tokens."""

        def pass_on(kind: str, layer: int, module: MultiheadAttention, trace: AttentionTrace) -> None:
            terms = ScoreTerms(trace.masks, module.slopes, trace.causal, trace.offset)
            hook(LayerTrace(kind, layer, LMCall(trace.query, trace.key, terms), trace.support))

        with attention_hooks(self.model, pass_on):
            found: Tensor = self.model(inputs["input_ids"])
            return found


def lm_inputs(model: CausalLM, texts: Iterable[Sequence[int]]) -> list[Inputs]:
    """Returns the inputs of a model for texts of ids."""
    device = next(model.parameters()).device
    return [{"input_ids": torch.as_tensor(ids, device=device).view(1, -1)} for ids in texts]


def lm_report(
    run: Path,
    loaded: LoadedLM,
    ids: NDArray[Any],
    *,
    name: str,
    data_name: str,
    which: str,
    length: int,
    texts: int,
    examples: int,
    runs: int = 1,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Returns the entry of a run in ReportData of so many `runs`, on a text.

    Args:
        run: The run directory.
        loaded: Its model.
        ids: The text, as `PreparedText.ids` gives it.
        name: Of the run.
        data_name: Of the text.
        which: The weights, as in `load_run`.
        length: The most tokens of a window of text; each is within a document and begins with BOS.
        texts: The most windows.
        examples: How many of them the page shows.
        runs: How many runs share the page.
        progress: Called with what is done, how much of it, and of how much.

    Raises:
        DataError: The text has no document with two tokens.
    """
    windows = cut_windows(ids, length, texts)
    if not windows:
        raise DataError(f"{data_name} has no document of at least two tokens; give a longer text.")
    report = text_report(
        LMTracer(loaded.model),
        lm_inputs(loaded.model, windows),
        name=name,
        tokens=loaded.tokenizer,
        data_name=data_name,
        examples=examples,
        runs=runs,
        progress=progress,
    )
    folder = RunFolder(run)
    metrics = metrics_of(folder.metrics)
    initial = initial_alphas(metrics)
    heads = {(row["attn_type"], row["layer"], row["head"]): row for row in report["heads"]}
    final = {place: row["alpha"] for place, row in heads.items() if row["alpha"] is not None}
    return {
        **report,
        "heads": [{**row, "alpha_initial": initial.get(place)} for place, row in heads.items()],
        "settings": settings_of(folder),
        "scores": validation_scores(folder, metrics, loaded.step, which),
        "step": loaded.step,
        **learned_alphas_of(folder, loaded.model.config, final, loaded.step),
    }


def cut_windows(ids: NDArray[Any], length: int, most: int) -> list[list[int]]:
    """Returns up to `most` windows of at most `length` tokens, each of one document."""
    found: list[list[int]] = []
    borders = (ids == BOS).nonzero()[0].tolist()
    for start, end in zip(borders, [*borders[1:], len(ids)], strict=True):
        tokens = ids[start + 1 : end].tolist()
        for at in range(0, len(tokens), length - 1):
            part = tokens[at : at + length - 1]
            if len(part) > 1:
                found.append([BOS, *part])
            if len(found) == most:
                return found
    return found
