"""What a run came to. In: facts of the loop. Out: `RunSummary`, for programs, the last lines on the screen, and exit codes."""

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
    """One look at the validation set. Loss and nll per target token, natural logarithms."""

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
        """The number that decides, higher is better; WORST if there is none or it is NaN."""
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
    """What `best` stands for. Of equals the checkpoint."""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """The end of a training, or of a part of it."""

    run: Path
    stopped: Stopped
    step: int
    epoch: int
    seconds: float
    """Spent on updates, over all restarts."""
    target_tokens: int
    metric: str
    best_step: int | None
    best: float | None
    """The best value of the metric at a validation; a loss as it is."""
    validation: Validation | None
    """The last one of this start."""
    averaged: Validation | None
    """Of the averaged weights, with the beam of `decoding`; None if there are none."""
    choice: Choice | None
    """Averaged weights or best checkpoint; None if nothing was averaged."""
    rank: int
    """Which process of a distributed run this one is; 0 is the one that writes."""

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do."""
        return self.stopped in ("finished", "no better validation")

    @property
    def exit_code(self) -> int:
        """0; 130 after Ctrl-C and 143 after SIGTERM, as shells do."""
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
    """A value of the ranking as people read it: losses are negative there."""
    return -value if metric == "loss" else value


def describe(found: Validation) -> str:
    """One validation in a line."""
    signature = found.signature or ""
    kind = title("tokenized_bleu" if "tok:none" in signature else "bleu", signature)
    score = "" if found.bleu is None else f"  {kind} {found.bleu:.2f}"
    loss = f"loss {found.loss:.3f}  perplexity {found.perplexity:.2f}  accuracy {found.accuracy:.3f}"
    return f"{loss}{score}  ({found.seconds:.0f} s)"
