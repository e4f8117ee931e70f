"""The training loop: steps, validations, checkpoints and metrics, until the recipe's end or an interruption.

    validate if due -> stop if finished -> one optimizer step -> log -> save if due -> repeat

Interruptions are handled after every step and between the batches of a validation. Checkpoints at validations do not depend
on how often the run was interrupted, and only they are ranked and averaged.
"""

import signal
import time
from collections.abc import Mapping
from typing import Any

import torch

from entformer.checkpoint.folder import RunFolder
from entformer.models.attention_settings import AttentionModel
from entformer.nn.alpha import LearnedAlpha
from entformer.training.console import Reporter, time_text
from entformer.training.density_target import DensityTarget, measure, reference_loss
from entformer.training.engine import Engine
from entformer.training.finish import finish
from entformer.training.metrics import Metrics
from entformer.training.prefetch import BatchPrefetcher
from entformer.training.recipe import TrainingConfig
from entformer.training.saving import Saver
from entformer.training.schedule import rate
from entformer.training.signals import StopSignals
from entformer.training.state import Progress
from entformer.training.summary import Choice, RunSummary, Stopped
from entformer.training.task import Results, Task, metric_value, rank_value
from entformer.training.trends import describe_trends
from entformer.training.update import Updater

SILENCE = 30.0  # seconds without a line, at most, where log intervals are long


class Trainer:
    """Trains a model from its current progress on."""

    def __init__(
        self,
        *,
        config: TrainingConfig,
        task: Task[Any],
        folder: RunFolder,
        engine: Engine,
        optimizer: torch.optim.Optimizer,
        progress: Progress,
        resumed: bool,
        per_step: int,
        metrics: Metrics | None,
        reporter: Reporter,
    ) -> None:
        self.config, self.task, self.folder, self.engine, self.progress = config, task, folder, engine, progress
        self.model, self.ranks = model, ranks = engine.model, engine.ranks
        self.metrics, self.reporter, self.signals = metrics, reporter, StopSignals()
        self.batches = task.train_batches(rank=ranks.rank, world_size=ranks.size, per_step=per_step)
        self.accumulate = per_step // ranks.size
        self.saver = Saver(folder, config, task, engine, optimizer, progress, per_step)
        self.sample = task.sample().to(ranks.device)
        learned = (kind for kind, _, layer in model.attention_layers() if isinstance(layer.alpha, LearnedAlpha))
        self.learned_kinds = list(dict.fromkeys(learned))
        goal, start = config.density_target, config.density_start_step
        has_target = goal is not None and self.learned_kinds  # without a learned alpha it has no effect
        self.density = DensityTarget(model, self.sample, goal, start) if goal is not None and has_target else None
        self.updater = Updater(engine, optimizer, config, reporter.say, self.density)
        self.updater.alpha_gradients.load(progress.alpha_gradients)
        if self.density is not None:
            self.density.load(progress.density)
        if config.reference_run is not None:  # errors are reported before the first step
            reference_loss(config.reference_run, config.steps)
        self.last_validation: Results | None = None
        self._trends: list[dict[str, Any]] = []  # alphas and densities since the start of this process
        self._saved_step = progress.step if resumed else -1
        self._resumed = resumed
        self._started = self._last_line = time.perf_counter()
        self._steps_here, self._seconds_here = 0, 0.0
        self._interval_seconds = 0.0
        self._interval_tokens = 0
        # Sums stay on the device between log lines, so that logging costs no waiting.
        self._sums = torch.tensor(progress.interval[:4], dtype=torch.float64, device=ranks.device)
        self._norms, self._updates = progress.interval[4:]

    def run(self, stop_after_minutes: float | None) -> RunSummary:
        """Train until there is nothing left to do, or until told to stop."""
        deadline = float("inf") if stop_after_minutes is None else self._started + 60 * stop_after_minutes
        self.model.train()
        if self._resumed:
            self.saver.point_best()
        else:
            self._write_alphas()
        averaged: Results | None = None
        choice: Choice | None = None
        with self.signals:
            stopped = self._loop(deadline)
            if self.progress.step != self._saved_step:
                self._save(scheduled=False)
            self.saver.complete()
            self.reporter.end_bar()
            if stopped in ("finished", "no better validation"):
                self.saver.convert()
                if self.config.average != "none":
                    with self.engine.whole_model() as model:
                        averaged, choice = finish(
                            self.folder,
                            self.config,
                            self.task,
                            self.progress,
                            model,
                            ranks=self.ranks,
                            evaluate=self.evaluate,
                            say=self.reporter.say,
                            metrics=self.metrics,
                        )
                stopped = self._told_to_stop(float("inf")) or stopped
        return self._summary(stopped, averaged, choice)

    def _loop(self, deadline: float) -> Stopped:
        """Updates, and all that comes between them; why it stopped."""
        progress, total = self.progress, self._total_steps()
        self.reporter.begin_bar(total, progress.step)
        with BatchPrefetcher(self.batches, epoch=progress.epoch, position=progress.position) as stream:
            while True:
                if self._validation_due() and self._validate():
                    self._save(scheduled=True)
                stopped = self._end() or self._told_to_stop(deadline)
                if stopped is not None:
                    return stopped
                self._update(stream)
                if progress.step % self.config.log_every == 0:
                    self._log(total)
                else:
                    self._show_step(total)
                save, written = self.ranks.sum([self.saver.due, self.saver.written])
                if written == self.ranks.size:
                    self.saver.complete()
                if save:
                    self._save(scheduled=False)

    # ---- one update ------------------------------------------------------------------------------------------------------

    def _update(self, stream: BatchPrefetcher[Any]) -> None:
        began = time.perf_counter()
        progress = self.progress
        placed = [stream.take() for _ in range(self.accumulate)]
        batches = [one.batch for one in placed]
        (tokens,) = self.ranks.sum([sum(batch.num_labels for batch in batches)])
        step = progress.step + 1
        if self.config.log_batches:
            examples = self.ranks.gather([example for batch in batches for example in batch.examples])
            if self.metrics is not None:
                self.metrics.write("batches", step, examples=examples)
        done = self.updater.update(batches, tokens=tokens, step=step, rate=rate(self.config, step))
        progress.step, progress.epoch, progress.position = step, placed[-1].epoch, placed[-1].position
        progress.target_tokens += int(tokens)
        self._sums += done.sums
        self._norms += done.grad_norm
        self._updates += 1
        seconds = time.perf_counter() - began
        progress.seconds += seconds
        self._steps_here, self._seconds_here = self._steps_here + 1, self._seconds_here + seconds
        self._interval_seconds += seconds
        self._interval_tokens += int(tokens)

    def _show_step(self, total: int) -> None:
        """Moves the bar. Writes a line after the first step, and after a while without one; metrics have log intervals only."""
        step, now = self.progress.step, time.perf_counter()
        self.reporter.move_bar(step)
        if self._steps_here > 1 and now - self._last_line < SILENCE:
            return
        self._last_line = now
        loss, _, _, tokens = self._sums.tolist()
        per_step = self._seconds_here / self._steps_here
        left = f"{per_step:.1f} s for the first step"
        if self._steps_here > 1:
            left = f"{time_text((total - step) * per_step)} left"
        text = f"loss {loss / tokens:.3f}  {left}"
        every = self.config.log_every
        following = min(total, (step // every + 1) * every)
        self.reporter.interval(f"step {step}/{total}  epoch {self.progress.epoch}  {text}  (next: step {following})")
        self.reporter.move_bar(step, text)

    def _log(self, total: int) -> None:
        loss, nll, correct, tokens = self._sums.tolist()
        progress = self.progress
        speed = self._interval_tokens / max(self._interval_seconds, 1e-9)
        numbers = {
            "epoch": progress.epoch,
            "loss": loss / tokens,
            "nll": nll / tokens,
            "accuracy": correct / tokens,
            "lr": rate(self.config, progress.step),
            "grad_norm": self._norms / self._updates,
            "target_tokens": progress.target_tokens,
            "tokens_per_second": round(speed, 1),
            "seconds": round(progress.seconds, 2),
        }
        if self.metrics is not None:
            self.metrics.write("train", progress.step, **numbers)
            self._write_alphas()
        self._write_alpha_statistics()
        left = time_text((total - progress.step) * self._seconds_here / max(self._steps_here, 1))
        short = f"loss {numbers['loss']:.3f}  accuracy {numbers['accuracy']:.3f}  {speed:,.0f} tokens/s  {left} left"
        more = f"lr {numbers['lr']:.2e}  norm {numbers['grad_norm']:.2f}"
        self.reporter.interval(f"step {progress.step}/{total}  epoch {progress.epoch}  {short}  {more}")
        self.reporter.move_bar(progress.step, "\n".join(filter(None, (short, describe_trends(self._trends)))))
        if self.reporter.on_interval is not None:
            self.reporter.on_interval(progress.step, total, numbers["loss"])
        self._last_line = time.perf_counter()
        self._sums.zero_()
        self._norms = self._updates = self._interval_seconds = 0.0
        self._interval_tokens = 0

    def _write_alphas(self) -> None:
        """The alpha of every head of the kinds that learn it."""
        if self.metrics is not None and self.learned_kinds:
            alphas = {kind: own.tolist() for kind, own in self.model.alphas().items() if kind in self.learned_kinds}
            rounded = {kind: [[round(alpha, 6) for alpha in layer] for layer in own] for kind, own in alphas.items()}
            self.metrics.write("alphas", self.progress.step, **rounded)
            self._trends.append({"kind": "alphas", **rounded})

    def _write_alpha_statistics(self) -> None:
        """Writes the mean gradient of each alpha since the last line, the density of each head, and the price of density."""
        gradients = self.updater.alpha_gradients.reset()
        if not gradients or (self.metrics is None and not self.engine.sharded):
            return
        densities = measure(self.model, self.sample).density
        if self.metrics is None:
            return
        self.metrics.write("alpha_gradients", self.progress.step, **gradients)
        found: dict[str, list[list[float]]] = {}
        for (kind, _), values in densities.items():
            found.setdefault(kind, []).append([round(value, 5) for value in values.tolist()])
        self.metrics.write("densities", self.progress.step, **found)
        self._trends.append({"kind": "densities", **found})
        if self.density is not None:
            self.metrics.write("density_target", self.progress.step, **self.density.numbers())

    # ---- validation and saving -------------------------------------------------------------------------------------------

    def _validation_due(self) -> bool:
        progress = self.progress
        planned = progress.step % self.config.validate_every == 0 or self._reached_the_end()
        return progress.step > 0 and planned and progress.validated != progress.step

    def _validate(self) -> bool:
        """Validate; False if a signal came in between."""
        with self.engine.whole_model() as model:
            found = self.evaluate(model, str(self.progress.step), self.task.eval_settings())
        if found is None:
            return False
        progress = self.progress
        self.last_validation = found
        is_best = progress.rank(progress.step, rank_value(self.task, found), self.config.kept_best)
        progress.validated = progress.step
        if self.metrics is not None:
            self.metrics.write("valid", progress.step, **found)
            if progress.step % self.config.log_every:
                self._write_alphas()
        if self.density is not None:
            reference = None if self.config.reference_run is None else reference_loss(self.config.reference_run, progress.step)
            self.density.validated(found["loss"], self.config.max_loss_increase, reference)
        shown = self.task.summarize(found)
        self.reporter.say(f"validation at step {progress.step}: {shown}{'  (best so far)' if is_best else ''}")
        return True

    def evaluate(self, model: AttentionModel, name: str, settings: Mapping[str, Any]) -> Results | None:
        """Validate a model; outputs have this name. None if a signal came in between."""
        file = self.folder.validations / name
        return self.task.evaluate(model, file, settings, lambda: bool(self.signals.received), self.ranks)

    def _save(self, *, scheduled: bool) -> None:
        progress = self.progress
        progress.interval = [*self._sums.tolist(), self._norms, self._updates]
        progress.alpha_gradients = self.updater.alpha_gradients.state()
        progress.density = {} if self.density is None else self.density.state()
        self._saved_step = progress.step
        self.saver.save(scheduled=scheduled)

    # ---- the end ---------------------------------------------------------------------------------------------------------

    def _reached_the_end(self) -> bool:
        epochs = self.config.epochs
        return self.progress.step >= self.config.steps or (epochs is not None and self.progress.epoch >= epochs)

    def _end(self) -> Stopped | None:
        """Why nothing is left to do, if so. The last step is validated first."""
        progress, patience = self.progress, self.config.patience
        if self._reached_the_end() and progress.validated == progress.step:
            return "finished"
        if patience is not None and progress.worse >= patience and progress.validated == progress.step:
            return "no better validation"
        return None

    def _told_to_stop(self, deadline: float) -> Stopped | None:
        received = self.signals.received
        interrupt, terminate, late = self.ranks.sum(
            [received == signal.SIGINT, received == signal.SIGTERM, time.perf_counter() >= deadline]
        )
        return "Ctrl-C" if interrupt else "SIGTERM" if terminate else "time is up" if late else None

    def _total_steps(self) -> int:
        """The steps at most, by steps or epochs."""
        if self.config.epochs is None:
            return self.config.steps
        per_epoch = self.batches.batches_in(self.progress.epoch)
        return min(self.config.steps, self.config.epochs * per_epoch // self.accumulate)

    def _summary(self, stopped: Stopped, averaged: Results | None, choice: Choice | None) -> RunSummary:
        progress = self.progress
        best_step, best = progress.best[0] if progress.best else (None, None)
        return RunSummary(
            run=self.folder.path,
            stopped=stopped,
            step=progress.step,
            epoch=progress.epoch,
            seconds=progress.seconds,
            target_tokens=progress.target_tokens,
            metric=self.task.metric,
            best_step=best_step,
            best=None if best is None else metric_value(self.task, best),
            validation=self.last_validation,
            averaged=averaged,
            choice=choice,
            rank=self.ranks.rank,
        )
