"""Results of a training run: the comparison of averaged weights, `RunSummary` and exit codes."""

import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from entformer.checkpoint.folder import checkpoint_name
from entformer.training.task import Results

Stopped = Literal["finished", "no better validation", "time is up", "Ctrl-C", "SIGTERM"]
EXIT_CODES: dict[str, int] = {"Ctrl-C": 128 + signal.SIGINT, "SIGTERM": 128 + signal.SIGTERM}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The averaged weights compared with the best checkpoint: same validation set, same settings."""

    metric: str
    settings: dict[str, Any]
    """Of the validation of both: the beam of a translation."""
    checkpoint: str
    """Name of the best checkpoint."""
    checkpoint_value: float
    averaged_value: float
    averaged_from: tuple[str, ...]
    better: Literal["checkpoint", "averaged"]
    """What `best` points to; the checkpoint if both are equal."""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """Result of `train`."""

    run: Path
    stopped: Stopped
    step: int
    epoch: int
    seconds: float
    """Spent on training steps, over all restarts."""
    target_tokens: int
    metric: str
    best_step: int | None
    best: float | None
    """The best value of the metric at a validation."""
    validation: Results | None
    """The last validation since the run was started or resumed."""
    averaged: Results | None
    """Of the averaged weights; None if there are none."""
    choice: Choice | None
    """Averaged weights or best checkpoint; None if nothing was averaged."""
    rank: int
    """Rank of this process in a distributed run; process 0 writes the files."""

    @property
    def complete(self) -> bool:
        """Whether training has finished."""
        return self.stopped in ("finished", "no better validation")

    @property
    def exit_code(self) -> int:
        """Exit code: 0, 130 after Ctrl-C, 143 after SIGTERM."""
        return EXIT_CODES.get(self.stopped, 0)

    @property
    def recommended(self) -> str | None:
        """The weights that validated best: a checkpoint's name or "averaged"."""
        if self.choice is not None and self.choice.better == "averaged":
            return "averaged"
        return None if self.best_step is None else checkpoint_name(self.best_step)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "run": str(self.run), "complete": self.complete, "recommended": self.recommended}
