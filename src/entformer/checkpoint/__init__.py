"""Runs on disk: checkpoints, averaging and loading.

    from entformer.checkpoint import load_run
    run = load_run(Path("runs/demo"))          # run.model, run.subwords, run.source_language, ...

The layout of a run directory is in `checkpoint/folder.py`. Nothing in it is pickled.
"""

from entformer.checkpoint.average import average_checkpoints
from entformer.checkpoint.folder import Checkpoint, RunFolder
from entformer.checkpoint.load import LoadedRun, load_run, model_info
from entformer.checkpoint.weights import load_weights, save_weights

__all__ = [
    "Checkpoint",
    "LoadedRun",
    "RunFolder",
    "average_checkpoints",
    "load_run",
    "load_weights",
    "model_info",
    "save_weights",
]
