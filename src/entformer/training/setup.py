"""`run_training`: checks the recipe and the data, builds the model or loads the last checkpoint, and runs the training loop.

Calling it again with the same arguments resumes from the last complete checkpoint. On the CPU, with the same number of
threads, the result is bitwise identical to that of an uninterrupted run.
"""

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from entformer.checkpoint.folder import RunFolder
from entformer.errors import ArgumentError
from entformer.files import write_text
from entformer.nn.alpha import learned_alphas
from entformer.training.console import Reporter
from entformer.training.engine import Engine
from entformer.training.loop import Trainer
from entformer.training.metrics import Metrics
from entformer.training.optim import make_optimizer
from entformer.training.parallel import checkpoint_activations, make_engine
from entformer.training.precision import precision_here
from entformer.training.ranks import Ranks, lost_processes
from entformer.training.recipe import RunRecipe, TrainingConfig
from entformer.training.recipe_file import to_yaml
from entformer.training.resume import as_begun, changes, same_data
from entformer.training.state import Progress, load_progress, planned_batches
from entformer.training.summary import RunSummary
from entformer.training.task import Task

BYTES_PER_PARAMETER = 12  # of a checkpoint: the weight and AdamW's two moments, float32


OpenTask = Callable[..., Task[Any]]
"""Called with the recipe, the run, the ranks, a function that logs a line, and `allow_new`; opens the data."""


def run_training(
    recipe: RunRecipe,
    open_task: OpenTask,
    out: Path,
    *,
    resume_with_new_data: bool = False,
    threads: int | None = None,
    stop_after_minutes: float | None = None,
    quiet: bool = False,
    on_interval: Callable[[int, int, float], None] | None = None,
) -> RunSummary:
    """Trains the model of a task, or resumes training it; the arguments of `entformer.tasks.train`.

    Args:
        open_task: Opens the data of the recipe.
        on_interval: Called at every log interval with the step, the number of steps and the loss.
    """
    if stop_after_minutes is not None and stop_after_minutes <= 0:
        raise ArgumentError(f"stop_after_minutes must be above 0, got {stop_after_minutes:g}.")
    folder = RunFolder(out)
    with _restored_state(threads), contextlib.ExitStack() as stack:
        ranks = Ranks(recipe.training.device, recipe.training.timeout_minutes)
        stack.callback(ranks.close)
        if ranks.first:
            folder.create()
            stack.enter_context(folder.locked())
        reporter = Reporter(folder.log if ranks.first else None, quiet=quiet or not ranks.first, on_interval=on_interval)
        stack.enter_context(reporter)
        stack.enter_context(lost_processes(ranks))  # the log has what it says
        # Nothing here holds the trainer: `Ranks.close` has to free its engine.
        return _set_up(recipe, open_task, folder, ranks, reporter, stack, resume_with_new_data).run(stop_after_minutes)


@contextlib.contextmanager
def _restored_state(threads: int | None) -> Iterator[None]:
    """Restores the caller's number of threads and random states on exit."""
    threads_before, random_before = torch.get_num_threads(), random.getstate()
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads_before)
        random.setstate(random_before)


def _set_up(
    recipe: RunRecipe,
    open_task: OpenTask,
    folder: RunFolder,
    ranks: Ranks,
    reporter: Reporter,
    stack: contextlib.ExitStack,
    new_data: bool,
) -> Trainer:
    """Checks what can be checked before the first step, builds the trainer, and loads the last checkpoint."""
    recipe = as_begun(folder, recipe)
    changed = changes(folder, recipe)
    task = open_task(recipe, folder, ranks, reporter.say, allow_new=new_data)
    same = same_data(folder, task, allow_new=new_data)
    config = recipe.training

    torch.manual_seed(config.seed)
    random.seed(config.seed)
    model = task.build_model()
    if config.parallel != "fsdp" or ranks.size == 1:  # FSDP moves each part of a model that is too large for one device
        model.to(ranks.device)
    if config.alpha_seed is not None:
        generator = torch.Generator(next(model.parameters()).device).manual_seed(config.alpha_seed)
        for alpha in learned_alphas(model):
            alpha.reset_parameters(generator)
    ranks.same_weights(model)
    torch.manual_seed(config.seed + ranks.rank)  # each process has its own dropout
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if config.checkpoint_activations:
        checkpoint_activations(model)
    precision = precision_here(config.precision, ranks.device)
    engine = make_engine(
        config.parallel,
        model,
        task.loss,
        ranks,
        sample=task.sample().to(ranks.device),
        precision=precision,
        build=task.build_model,
    )
    stack.callback(engine.close)
    optimizer = make_optimizer(model, config)

    if ranks.first:
        for name in folder.remove_incomplete():
            reporter.say(f"{name} was incomplete and is removed.")
        for note in folder.set_damaged_aside():
            reporter.say(note)
        kept = config.kept_last + config.kept_best + 2 - len(folder.complete())
        folder.check_disk_space(BYTES_PER_PARAMETER * parameters * max(kept, 1))
        write_text(folder.recipe, to_yaml(recipe))
        task.save_assets(folder, model)
    ranks.share(None)  # the other processes wait until files are complete
    progress, resumed = Progress(), False
    latest = ranks.share(folder.latest())
    per_step = planned_batches(latest, config.accumulate, ranks.size)
    if latest is not None:
        options: dict[str, Any] = {"ranks": ranks, "seed": config.seed, "per_step": per_step}
        progress, remarks = load_progress(latest, model=model, optimizer=optimizer, **options)
        resumed = True
        reporter.say(f"resuming from {latest.path}")
        for remark in [*(f"recipe: {text}" for text in changed), *remarks]:
            reporter.say(f"  {remark}")
        if not same:
            reporter.say("  the data has changed; starting a new epoch")
            progress.epoch, progress.position = progress.epoch + 1, 0
    else:
        threads = torch.get_num_threads()
        reporter.say(
            f"{recipe.name}: {task.describe()}, {parameters / 1e6:.2f} M parameters, "
            f"{threads} thread{'s' * (threads > 1)}, {precision}{_processes(engine, config)}; "
            f"run directory {folder.path}"
        )
    metrics = None
    if ranks.first:
        metrics = stack.enter_context(
            Metrics(
                folder.metrics,
                from_step=progress.step if resumed else -1,
                validated=progress.validated,
                tensorboard=folder.path / "tensorboard" if config.tensorboard else None,
            )
        )
        for note in metrics.notes:
            reporter.say(note)
    return Trainer(
        config=config,
        task=task,
        folder=folder,
        engine=engine,
        optimizer=optimizer,
        progress=progress,
        resumed=resumed,
        per_step=per_step,
        metrics=metrics,
        reporter=reporter,
    )


def _processes(engine: Engine, config: TrainingConfig) -> str:
    """Returns the number of processes and how they train, for the log; nothing if there is one."""
    size = engine.ranks.size
    return "" if size == 1 else f", {size} processes ({'ddp' if config.parallel == 'auto' else config.parallel})"
