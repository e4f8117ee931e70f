"""The data of a report (see `data.py`) on a language model of `entformer train`, on long text."""

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from entformer.analysis.alphas import initial_alphas
from entformer.analysis.data import Progress
from entformer.analysis.history import learned_alphas_of, settings_of, validation_scores
from entformer.analysis.language_model import LMTracer, lm_inputs
from entformer.analysis.text_report import text_report
from entformer.checkpoint.folder import RunFolder
from entformer.checkpoint.language_model import LoadedLM
from entformer.errors import DataError
from entformer.text.tokenizer import BOS
from entformer.training.metrics import metrics_of


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
        **learned_alphas_of(
            folder,
            loaded.model.config,
            final,
            loaded.step,
            densities={place: row["density"] for place, row in heads.items()},
            data_name=data_name,
        ),
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
