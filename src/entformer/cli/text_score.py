"""Language models for `entformer score` and `entformer report`: perplexity and bits per byte with a signature, and heads."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from entformer.cli.output import progress_bar
from entformer.cli.translate import describe_weights
from entformer.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from entformer.checkpoint.language_model import LoadedLM


def score_language_model(
    run: Path,
    *,
    data: Path | None,
    test_set: str | None,
    test: str | None,
    context: int | None,
    stride: int | None,
    checkpoint: str,
    device: str,
    as_json: bool,
) -> None:
    """Prints how well a run predicts the test text of its data, or a file."""
    from entformer import __version__
    from entformer.checkpoint.language_model import load_language_model
    from entformer.tasks.language_modeling import score_text

    loaded = load_language_model(run, checkpoint, device=device)
    context = loaded.context if context is None else context
    stride = max(1, context // 2) if stride is None else stride
    if stride > context:
        raise ArgumentError(f"--stride {stride} is larger than the context of {context}: tokens would be skipped.")
    if test is not None and (test_set is not None or data is not None):
        raise ArgumentError("--test names a file; remove --test-set and --data.")
    name, ids, size = text_to_score(run, loaded, data=data, split=test_set, file=None if test is None else Path(test))
    with progress_bar(Console(stderr=True, highlight=False, soft_wrap=True)) as show:
        found = score_text(loaded.model, ids, context, stride, progress=lambda done, total: show("scoring", done, total))
    if found is None:
        return
    tokenizer = f"{loaded.tokenizer.name}-{loaded.tokenizer.size}-{loaded.tokenizer.fingerprint[:8]}"
    signature = f"context:{context}|stride:{stride}|tok:{tokenizer}|eos:counted|version:entformer-{__version__}"
    bits = found.bits_per_byte(size)
    if as_json:
        content = {
            "model": str(run),
            "checkpoint": checkpoint,
            "step": loaded.step,
            "text": name,
            "tokens": found.tokens,
            "bytes": size,
            "loss": found.loss,
            "perplexity": found.perplexity,
            "bits_per_byte": bits,
            "accuracy": found.accuracy,
            "signature": signature,
        }
        print(json.dumps(content, indent=1, ensure_ascii=False))
        return
    print(f"{run}, {describe_weights(run, checkpoint, loaded.step)}, on {name}: {found.tokens:,} tokens, {size:,} bytes")
    print(f"perplexity {found.perplexity:.2f}  bits per byte {bits:.4f}  accuracy {100 * found.accuracy:.1f}%")
    print(f"  {signature}")


def text_to_score(
    run: Path, loaded: "LoadedLM", *, data: Path | None, split: str | None, file: Path | None
) -> "tuple[str, NDArray[Any], int]":
    """Returns the name, the ids and the bytes of a file, or of a split of prepared text: of `data`, or of the run's own."""
    from entformer.checkpoint.folder import RunFolder
    from entformer.data.text import PreparedText
    from entformer.text.lines import read_text
    from entformer.text.tokenizer import BOS
    from entformer.training.lm_recipe import LMRecipe
    from entformer.training.recipe_file import saved_recipe

    if file is not None:
        tokens = [BOS, *loaded.tokenizer.encode(read_text(file))]
        if len(tokens) == 1:
            raise DataError(f"{file}: there is no text in this file.")
        return str(file), np.array(tokens), len(loaded.tokenizer.decode(tokens).encode())
    recipe = saved_recipe(RunFolder(run).recipe, LMRecipe)
    own = None if recipe is None else recipe.data.prepared
    text = PreparedText.open(data or own or RunFolder(run).prepared)
    if text.tokenizer.fingerprint != loaded.tokenizer.fingerprint:
        raise DataError(f"{text.folder} has another tokenizer than {run}; give the file itself.")
    split = split or ("test" if "test" in text.splits else "valid")
    return f"{split} text of {text.folder}", text.ids(split), text.splits[split]["bytes"]


def language_report(
    runs: Mapping[Path, str],
    *,
    data: str | None,
    split: str,
    checkpoint: str,
    length: int,
    texts: int,
    examples: int,
    title: str | None,
    progress: Callable[..., None],
) -> dict[str, Any]:
    """Returns the data of a report on runs of language models, by their names."""
    from entformer.analysis.data import make_report
    from entformer.analysis.language_model_report import lm_report
    from entformer.checkpoint.language_model import load_language_model

    reports = []
    for run, name in runs.items():
        loaded = load_language_model(run, checkpoint)
        given = None if data is None else Path(data)
        file, folder = (given, None) if given is not None and given.is_file() else (None, given)
        shown, ids, _ = text_to_score(run, loaded, data=folder, split=None if split == "test" else split, file=file)
        options: dict[str, Any] = {"length": length, "texts": texts, "examples": examples, "runs": len(runs)}
        options |= {"name": name, "data_name": shown, "which": checkpoint, "progress": progress}
        reports.append(lm_report(run, loaded, ids, **options))
    return make_report(reports, title)
