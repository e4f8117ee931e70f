"""`entformer average`: the mean of a run's checkpoints. In: a run folder and which. Out: RUN/averaged/model.safetensors."""

import json
from collections.abc import Sequence
from pathlib import Path

from entformer.checkpoint.average import average_checkpoints, best_checkpoints, last_checkpoints
from entformer.checkpoint.folder import RunFolder
from entformer.errors import ArgumentError, DataError


def run(path: Path, *, last: int | None, best: int | None, names: Sequence[str], as_json: bool) -> None:
    """Average what was asked for; the last 5 if nothing was."""
    if sum(option is not None for option in (last, best)) + bool(names) > 1:
        raise ArgumentError("give one of --last, --best and --checkpoint.")
    folder = RunFolder(path)
    if not folder.model.is_file():
        raise DataError(f"{path} is not a run of entformer: it has no model.json.")
    if not names:
        chosen = best_checkpoints(folder, best) if best is not None else last_checkpoints(folder, last or 5)
        names = [checkpoint.name for checkpoint in chosen]
        if not names:
            raise DataError(f"{path} has no {'validated' if best is not None else 'complete'} checkpoint to average.")
    written = average_checkpoints(folder, names)
    if as_json:
        print(json.dumps({"averaged": str(written), "checkpoints": list(names)}))
    else:
        print(f"{written}: the mean of {', '.join(names)}")
