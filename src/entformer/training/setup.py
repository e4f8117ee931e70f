"""`train`: checks the recipe and the data, builds the model or loads the last checkpoint, and runs the training loop.

Calling `train` again with the same arguments resumes from the last complete checkpoint. On the CPU, with the same number of
threads, the result is bitwise identical to that of an uninterrupted run.
"""

import contextlib
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from entformer.checkpoint.folder import RunFolder
from entformer.checkpoint.load import model_info
from entformer.data.prepared import Prepared
from entformer.errors import ArgumentError
from entformer.files import write_json, write_text
from entformer.models.seq2seq import Seq2Seq
from entformer.nn.alpha import learned_alphas
from entformer.training.console import Reporter
from entformer.training.corpora import open_prepared
from entformer.training.loop import Trainer
from entformer.training.metrics import Metrics
from entformer.training.optim import make_optimizer
from entformer.training.precision import precision_here
from entformer.training.ranks import Ranks
from entformer.training.recipe import Recipe
from entformer.training.recipe_file import load_recipe, refuse_ineffective, to_yaml
from entformer.training.resume import as_begun, changes, same_data
from entformer.training.state import Progress, load_progress
from entformer.training.summary import RunSummary

BYTES_PER_PARAMETER = 12  # of a checkpoint: the weight and AdamW's two moments, float32


def train(
    recipe: Recipe | Path | str,
    out: Path | str | None = None,
    *,
    settings: Sequence[str] = (),
    resume_with_new_data: bool = False,
    threads: int | None = None,
    stop_after_minutes: float | None = None,
    quiet: bool = False,
) -> RunSummary:
    """Trains a model, or resumes training it.

    Args:
        recipe: A Recipe, a file, or the name of a built-in recipe.
        out: The run directory. Default: runs/NAME.
        settings: Changes to the recipe such as "training.lr=1e-3"; not together with a Recipe.
        resume_with_new_data: Resume even if the training data has changed; starts a new epoch.
        threads: Number of threads for torch and the kernels. Default: torch's.
        stop_after_minutes: Save and stop after this time; the same call later resumes.
        quiet: Write to RUN/train.log only.

    Returns:
        What was trained, the best checkpoint and its scores.

    Raises:
        ArgumentError: An argument or a setting is invalid, or contradicts the run to resume.
        DataError: The data or the run directory is damaged, or the data has changed.
    """
    if isinstance(recipe, Recipe):
        if settings:
            raise ArgumentError("settings apply to recipe files only; create the Recipe with these values instead.")
        refuse_ineffective(recipe)
    else:
        recipe = load_recipe(recipe, settings)
    if stop_after_minutes is not None and stop_after_minutes <= 0:
        raise ArgumentError(f"stop_after_minutes must be above 0, got {stop_after_minutes:g}.")
    folder = RunFolder(Path("runs") / recipe.name if out is None else Path(out))
    with _restored_state(threads), contextlib.ExitStack() as stack:
        ranks = Ranks(recipe.training.device)
        stack.callback(ranks.close)
        if ranks.first:
            folder.create()
            stack.enter_context(folder.locked())
        reporter = stack.enter_context(Reporter(folder.log if ranks.first else None, quiet=quiet or not ranks.first))
        trainer = _set_up(recipe, folder, ranks, reporter, stack, resume_with_new_data)
        return trainer.run(stop_after_minutes)


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
    recipe: Recipe,
    folder: RunFolder,
    ranks: Ranks,
    reporter: Reporter,
    stack: contextlib.ExitStack,
    new_data: bool,
) -> Trainer:
    """Checks what can be checked before the first step, builds the trainer, and loads the last checkpoint."""
    recipe = as_begun(folder, recipe)
    changed = changes(folder, recipe)
    prepared = _data(recipe, folder, ranks, reporter, new_data)
    same = same_data(folder, prepared, allow_new=new_data)
    config = recipe.training

    torch.manual_seed(config.seed)
    random.seed(config.seed)
    model = Seq2Seq(recipe.model_for(prepared.subwords.size)).to(ranks.device)
    if config.alpha_seed is not None:
        generator = torch.Generator(ranks.device).manual_seed(config.alpha_seed)
        for alpha in learned_alphas(model):
            alpha.reset_parameters(generator)
    ranks.same_weights(model)
    torch.manual_seed(config.seed + ranks.rank)  # each process has its own dropout
    optimizer = make_optimizer(model, config)
    parameters = sum(parameter.numel() for parameter in model.parameters())

    if ranks.first:
        for name in folder.remove_incomplete():
            reporter.say(f"{name} was incomplete and is removed.")
        for note in folder.set_damaged_aside():
            reporter.say(note)
        kept = config.kept_last + config.kept_best + 2 - len(folder.complete())
        folder.check_disk_space(BYTES_PER_PARAMETER * parameters * max(kept, 1))
        _write_facts(folder, recipe, model, prepared)
    ranks.share(None)  # the other processes wait until files are complete
    progress, resumed = Progress(), False
    latest = folder.latest()
    if latest is not None:
        progress, remarks = load_progress(latest, model=model, optimizer=optimizer, ranks=ranks, seed=config.seed)
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
            f"{recipe.name}: {prepared.source_language}-{prepared.target_language}, {len(prepared.store('train')):,} pairs, "
            f"{prepared.subwords.size:,} subwords, {parameters / 1e6:.2f} M parameters, "
            f"{threads} thread{'s' * (threads > 1)}, {precision_here(config.precision, ranks.device)}; "
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
        recipe=recipe,
        folder=folder,
        prepared=prepared,
        model=model,
        optimizer=optimizer,
        progress=progress,
        resumed=resumed,
        ranks=ranks,
        metrics=metrics,
        reporter=reporter,
    )


def _data(recipe: Recipe, folder: RunFolder, ranks: Ranks, reporter: Reporter, new_data: bool) -> Prepared:
    """Opens the prepared data; process 0 prepares them first if need be."""
    where = recipe.data.prepared or folder.prepared
    if ranks.first:
        trained = folder.subwords if folder.latest() is not None else None
        prepared = open_prepared(recipe.data, where, reporter.say, run_subwords=trained, allow_new=new_data)
        ranks.share(None)
        return prepared
    ranks.share(None)
    return Prepared.open(where)


def _write_facts(folder: RunFolder, recipe: Recipe, model: Seq2Seq, prepared: Prepared) -> None:
    """Writes recipe.yaml, model.json and subwords.model."""
    write_text(folder.recipe, to_yaml(recipe))
    prepared.subwords.save(folder.subwords)
    info = model_info(
        model.config,
        prepared.subwords,
        source_language=prepared.source_language,
        target_language=prepared.target_language,
        tokenized=prepared.tokenized,
        lowercase=prepared.lowercase,
        data_fingerprint=prepared.fingerprint,
    )
    write_json(folder.model, info)
