"""Reports on the language models of `entformer train`: the heads of a `CausalLM` on long text.

The pages, measures and roles (induction, duplicate-token, previous-token and first-token heads) are those of Hugging Face
decoders: `LMTracer` has the interface of `Tracer`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from entformer.analysis.history import learned_alphas_of, settings_of, validation_scores
from entformer.analysis.hugging_face import LayerTrace
from entformer.checkpoint.folder import RunFolder
from entformer.checkpoint.language_model import LoadedLM
from entformer.decoding.attention_record import attention_hooks
from entformer.kernels.attention.api import Attention
from entformer.models.lm import CausalLM
from entformer.nn.dense import masked_scores
from entformer.nn.hooks import AttentionTrace
from entformer.nn.masks import ScoreTerms
from entformer.nn.multihead_attention import MultiheadAttention
from entformer.text.documents import DocumentTokenizer
from entformer.text.tokenizer import BOS, SPACE
from entformer.training.metrics import metrics_of


@dataclass(frozen=True, eq=False)
class LMCall:
    """One call of attention, as `LayerTrace` reads it."""

    query: Tensor
    key: Tensor
    terms: ScoreTerms
    sinks: None = None

    def scores(self) -> tuple[Tensor, Tensor]:
        """Returns the scores (1, H, Lq, Lk), and which are allowed."""
        scores, _ = masked_scores(self.query, self.key, self.terms)
        return scores, scores > -torch.inf


class LMTracer:
    """Runs a `CausalLM` and passes on every attention call."""

    def __init__(self, model: CausalLM) -> None:
        self.model = model
        self.alphas = {
            (kind, layer): own[layer].double().cpu().numpy()
            for kind, own in model.alphas().items()
            for layer in range(len(own))
        }
        self.normalizers = {kind: module.normalizer for kind, _, module in model.attention_layers()}

    @torch.no_grad()
    def run(self, inputs: Mapping[str, Any], hook: Callable[[LayerTrace], None]) -> Tensor:
        """Runs the model on one text, calls `hook` for every attention call, and returns the scores of the next tokens."""

        def pass_on(kind: str, layer: int, module: MultiheadAttention, trace: AttentionTrace) -> None:
            call: Any = LMCall(trace.query, trace.key, ScoreTerms(trace.masks, module.slopes, trace.causal, trace.offset))
            hook(LayerTrace(kind, layer, call, Attention(trace.query, trace.stats, trace.support)))

        training = self.model.training
        self.model.eval()
        try:
            with attention_hooks(self.model, pass_on):
                found: Tensor = self.model(inputs["input_ids"])
                return found
        finally:
            self.model.train(training)


class PieceDecoder:
    """Shows tokens one by one with the space that begins a word, as the pages expect of a tokenizer."""

    def __init__(self, tokenizer: DocumentTokenizer) -> None:
        self.tokenizer = tokenizer

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.tokenizer.pieces(ids)).replace(SPACE, " ")


def lm_report_data(
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
    title: str | None,
    progress: Callable[..., None] | None = None,
) -> dict[str, Any]:
    """Returns ReportData of a run on text: windows of `length` tokens, each within a document and begun with BOS."""
    from entformer.analysis.hugging_face_report import hf_report_data

    device = next(loaded.model.parameters()).device
    inputs = [{"input_ids": torch.tensor([row], device=device)} for row in _windows(ids, length, texts)]
    content = hf_report_data(
        loaded.model,
        inputs,
        name=name,
        tokenizer=PieceDecoder(loaded.tokenizer),
        data_name=data_name,
        length=length,
        examples=examples,
        title=title,
        progress=progress,
    )
    (report,) = content["runs"]
    folder = RunFolder(run)
    final = {(row["attn_type"], row["layer"], row["head"]): row["alpha"] for row in report["heads"] if row["alpha"] is not None}
    report["settings"] = settings_of(folder)
    report["scores"] = validation_scores(folder, metrics_of(folder.metrics), loaded.step, which)
    report["step"] = loaded.step
    report |= learned_alphas_of(folder, loaded.model.config, final, loaded.step)
    return content


def _windows(ids: NDArray[Any], length: int, most: int) -> list[list[int]]:
    """Returns up to `most` windows of at most `length` tokens, each of one document."""
    found: list[list[int]] = []
    borders = [at for at, token in enumerate(ids.tolist()) if token == BOS]
    for start, end in zip(borders, [*borders[1:], len(ids)], strict=True):
        tokens = ids[start + 1 : end].tolist()
        for at in range(0, len(tokens), length - 1):
            part = tokens[at : at + length - 1]
            if len(part) > 1:
                found.append([BOS, *part])
            if len(found) == most:
                return found
    return found
