"""Writes metrics.jsonl, one JSON object per line, and TensorBoard files if requested.

    {"kind": "train", "step", "epoch", "loss", "nll", "accuracy", "lr", "grad_norm", "target_tokens", "tokens_per_second",
     "seconds"}                        means of the interval; target_tokens and seconds since the run began
    {"kind": "alphas", "step", "encoder": [[alpha of each head] per layer], "decoder", "cross"}
    {"kind": "alpha_gradients", "step", "steps", "encoder": [[mean of dL/dalpha over the steps of the interval]], "encoder_std"
     (its standard deviation over these steps), ...}
    {"kind": "densities", "step", "encoder": [[density of each head on a sample of the training data]], ...}
    {"kind": "density_target", "step", "density", "target", "multiplier", "price"}; per attention type: "density_encoder", ...
    {"kind": "valid", "step", "loss", "nll", "perplexity", "accuracy", "bleu", "signature", "chrf", "seconds"}
    {"kind": "batches", "step", "examples": [[numbers of the examples] per process]}   with training.log_batches
    {"kind": "averaged", ...}          as valid, of the averaged weights

When a run is resumed, lines of later steps and an incomplete line are removed first.
"""

import contextlib
import json
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from entformer.files import plain, wrap_os_errors, write_bytes


class Metrics:
    """Writes lines as they come, each complete at once. A context manager."""

    def __init__(self, path: Path, *, from_step: int, validated: int = -1, tensorboard: Path | None = None) -> None:
        self.path = path
        self.notes: list[str] = []
        forget_after(path, from_step, validated)
        self._file: IO[str] = open(path, "a", encoding="utf-8")  # noqa: SIM115 (closed by __exit__)
        self._board: Any = None
        if tensorboard is not None:
            self._board = self._open_board(tensorboard, from_step)

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        with contextlib.suppress(OSError):  # of a line that could not be written; `write` has said so
            self._file.close()
        if self._board is not None:
            self._board.close()

    def write(self, kind: str, step: int, **numbers: Any) -> None:
        """Append one line."""
        with wrap_os_errors(self.path):
            self._file.write(json.dumps(plain({"kind": kind, "step": step, **numbers}), ensure_ascii=False) + "\n")
            self._file.flush()
        if self._board is not None:
            self._to_board(kind, step, numbers)

    def _open_board(self, folder: Path, from_step: int) -> Any:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            self.notes.append("TensorBoard is not installed (pip install 'entformer[tensorboard]'); see metrics.jsonl instead.")
            return None
        return SummaryWriter(str(folder), purge_step=from_step + 1)

    def _to_board(self, kind: str, step: int, numbers: dict[str, Any]) -> None:
        for name, value in numbers.items():
            if isinstance(value, int | float):
                self._board.add_scalar(f"{kind}/{name}", value, step)
            elif isinstance(value, list):
                for layer, heads in enumerate(value):
                    for head, alpha in enumerate(heads):
                        self._board.add_scalar(f"{kind}/{name}.{layer}.{head}", alpha, step)


def metrics_of(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of metrics.jsonl; an incomplete line is skipped."""
    if not path.is_file():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # a run in training may be writing it
        if isinstance(entry, dict) and "kind" in entry and "step" in entry:
            found.append(entry)
    return found


def forget_after(path: Path, step: int, validated: int) -> None:
    """Remove the lines of later steps, of validations after step `validated`, and what is not a whole line."""
    if not path.is_file():
        return
    lines = path.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if line.endswith(b"\n") and _belongs(line, step, validated)]
    if len(kept) < len(lines):
        write_bytes(path, b"".join(kept))


def _belongs(line: bytes, step: int, validated: int) -> bool:
    try:
        entry = json.loads(line)
        # A validation can be on file before the checkpoint that counts it; it will be made again.
        return bool(entry["step"] <= (min(step, validated) if entry["kind"] == "valid" else step))
    except (ValueError, KeyError, TypeError):
        return False
