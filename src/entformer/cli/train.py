"""`entformer train`: trains the model of a recipe: translation or language modeling."""

import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from entformer.cli.launch import MaxRestarts, Processes, launch, own_arguments
from entformer.cli.options import Json, Recipe, Settings, Threads
from entformer.errors import ArgumentError

if TYPE_CHECKING:
    from entformer.training.summary import RunSummary


def train(
    recipe: Recipe,
    out: Annotated[Path | None, typer.Option(metavar="RUN", help="Run directory.", show_default="runs/NAME")] = None,
    settings: Settings = None,
    resume_with_new_data: Annotated[
        bool, typer.Option("--resume-with-new-data", help="Resume even if the training data has changed; starts a new epoch.")
    ] = False,
    threads: Threads = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="DEVICE", help="cpu, cuda, cuda:1, ... or auto; as --set training.device=DEVICE."),
    ] = None,
    stop_after_minutes: Annotated[
        float | None, typer.Option(metavar="M", help="Save and stop after M minutes; rerun the same command to resume.")
    ] = None,
    nproc: Processes = None,
    max_restarts: MaxRestarts = 0,
    as_json: Json = False,
) -> None:
    """Train a translation model or a language model. Rerun the same command to resume from the last checkpoint.

    In several processes: --nproc N, or torchrun --nproc-per-node N -m entformer train RECIPE.

    Exit codes: 0 when training is complete or stopped by --stop-after-minutes; 130 after Ctrl-C and 143 after SIGTERM (a
    checkpoint is saved in both cases); 1 if training failed (NaN, disk full; the last checkpoint is intact); 2 for an invalid
    command or recipe.
    """
    if device is not None:
        settings = [*(settings or []), f"training.device={device}"]
    if max_restarts and nproc is None:
        raise ArgumentError("--max-restarts belongs to --nproc; with torchrun, give --max-restarts to torchrun.")
    if nproc is not None:
        from entformer.training.recipe_file import load_recipe

        load_recipe(recipe, settings or [])  # a mistake is reported once, and not repeated
        launch(nproc, own_arguments(), max_restarts=max_restarts)
        return
    from entformer.tasks import train as train_recipe
    from entformer.training.memory import keep_freed_memory

    keep_freed_memory()
    summary = train_recipe(
        recipe,
        out,
        settings=settings or [],
        resume_with_new_data=resume_with_new_data,
        threads=threads,
        stop_after_minutes=stop_after_minutes,
    )
    if summary.rank == 0:
        if as_json:
            print(json.dumps(summary.as_json(), indent=1))
        else:
            _print_summary(summary)
    if summary.exit_code:
        raise typer.Exit(summary.exit_code)


def _print_summary(summary: "RunSummary") -> None:
    from entformer.checkpoint.language_model import is_language_model
    from entformer.training.console import time_text

    lines = [
        f"stopped at step {summary.step} ({summary.stopped}); {summary.target_tokens:,} tokens in {time_text(summary.seconds)}"
    ]
    if summary.best is not None:
        lines.append(f"best validation: {summary.metric} {summary.best:#.4g} at step {summary.best_step}")
    if (choice := summary.choice) is not None:
        beam = f" with beam {choice.settings['beam']}" if choice.metric in ("bleu", "chrf") else ""
        lines.append(
            f"on the validation set{beam}: best checkpoint {choice.metric} {choice.checkpoint_value:#.4g}, average of "
            f"{len(choice.averaged_from)} checkpoints {choice.metric} {choice.averaged_value:#.4g}; best is now the "
            f"{'average' if choice.better == 'averaged' else 'checkpoint'}"
        )
    if summary.complete:
        command = "generate" if is_language_model(summary.run) else "translate"
        run = shlex.quote(str(summary.run))
        lines.append(f"{command} with: entformer {command} {run}")
        lines.append(f"see its heads with: entformer report {run}, or entformer explore {run}")
    else:
        # Processes of a launcher do not know the command that started it.
        alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
        command = f"with: {shlex.join(['entformer', *sys.argv[1:]])}" if alone else "with the same command"
        lines.append(f"everything is saved in {summary.run}; resume {command}")
    print("\n".join(lines), file=sys.stderr)
