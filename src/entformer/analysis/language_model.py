"""Reports on the language models of `entformer train`: the heads of a `CausalLM` on long text.

The pages, measures and roles (induction, duplicate-token, previous-token and first-token heads) are those of Hugging Face
decoders.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from entformer.analysis.history import learned_alphas_of, settings_of, validation_scores
from entformer.analysis.hugging_face_report import hf_report_data
from entformer.checkpoint.folder import RunFolder
from entformer.checkpoint.language_model import LoadedLM
from entformer.text.documents import DocumentTokenizer
from entformer.text.tokenizer import BOS, SPACE
from entformer.training.metrics import metrics_of


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
