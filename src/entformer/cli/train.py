"""`entformer train`: a recipe in, a run folder out. Exit code 0; 130 after Ctrl-C, 143 after SIGTERM, with everything saved."""

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from entformer.training.console import time_text
from entformer.training.setup import train
from entformer.training.summary import RunSummary


def run(
    recipe: str,
    *,
    out: Path | None,
    settings: Sequence[str],
    resume_with_new_data: bool,
    threads: int | None,
    stop_after_minutes: float | None,
    as_json: bool,
) -> int:
    """Train, say how it went and what to do next, and return the exit code."""
    summary = train(
        recipe,
        out,
        settings=settings,
        resume_with_new_data=resume_with_new_data,
        threads=threads,
        stop_after_minutes=stop_after_minutes,
    )
    if summary.rank > 0:
        return summary.exit_code
    if as_json:
        print(json.dumps(summary.as_json(), indent=1))
    else:
        _print(summary, Console(stderr=True, highlight=False, soft_wrap=True))
    return summary.exit_code


def _print(summary: RunSummary, console: Console) -> None:
    spent = f"{summary.target_tokens:,} target tokens in {time_text(summary.seconds)}"
    console.print(f"stopped at step {summary.step} ({summary.stopped}); {spent}", markup=False)
    if summary.best is not None:
        console.print(f"best validation: {summary.metric} {summary.best:.4g} at step {summary.best_step}", markup=False)
    choice = summary.choice
    if choice is not None:
        beam = f" with beam {choice.beam}" if choice.metric in ("bleu", "chrf") else ""
        console.print(
            f"on the validation set{beam}: best checkpoint {choice.metric} {choice.checkpoint_value:.4g}, average of "
            f"{len(choice.averaged_from)} checkpoints {choice.metric} {choice.averaged_value:.4g}; best is now the "
            f"{'average' if choice.better == 'averaged' else 'checkpoint'}",
            markup=False,
        )
    if summary.complete:
        console.print(f"translate with: entformer translate {shlex.quote(str(summary.run))}", markup=False)
    else:
        again = shlex.join(["entformer", *sys.argv[1:]])
        console.print(f"everything is saved in {summary.run}; go on with: {again}", markup=False)
