"""Results of a training run: validations, the comparison of averaged weights, `RunSummary` and exit codes."""

import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from entformer.checkpoint.folder import checkpoint_name
from entformer.decoding.scoring import title

Stopped = Literal["finished", "no better validation", "time is up", "Ctrl-C", "SIGTERM"]
EXIT_CODES: dict[str, int] = {"Ctrl-C": 128 + signal.SIGINT, "SIGTERM": 128 + signal.SIGTERM}

WORST = -1e300  # finite, so that JSON can hold it


@dataclass(frozen=True)
class Validation:
    """Results on the validation set. Loss and nll are per target token, with natural logarithms."""

    loss: float
    nll: float
    perplexity: float
    accuracy: float
    bleu: float | None
    signature: str | None
    """How BLEU was computed, as sacreBLEU writes it."""
    chrf: float | None
    seconds: float

    def value(self, metric: str) -> float:
        """Returns the value that ranks checkpoints, higher is better; WORST if there is none or it is NaN."""
        found = {"bleu": self.bleu, "chrf": self.chrf, "accuracy": self.accuracy, "loss": -self.loss}[metric]
        return WORST if found is None or not found > WORST else found


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The averaged weights compared with the best checkpoint: same validation set, same beam."""

    metric: str
    beam: int
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
    validation: Validation | None
    """The last validation since the run was started or resumed."""
    averaged: Validation | None
    """Of the averaged weights, with the beam of `decoding`; None if there are none."""
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


def as_read(metric: str, value: float) -> float:
    """Converts a value of the ranking, where losses are negated, to the metric."""
    return -value if metric == "loss" else value


def describe(found: Validation) -> str:
    """Formats a validation as one line."""
    signature = found.signature or ""
    kind = title("tokenized_bleu" if "tok:none" in signature else "bleu", signature)
    score = "" if found.bleu is None else f"  {kind} {found.bleu:.2f}"
    loss = f"loss {found.loss:.3f}  perplexity {found.perplexity:.2f}  accuracy {found.accuracy:.3f}"
    return f"{loss}{score}  ({found.seconds:.0f} s)"
