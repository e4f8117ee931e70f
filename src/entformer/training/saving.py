"""Checkpoints of a run in training.

Process 0 writes the whole model, while the others wait. Under FSDP every process writes its shard in a thread while training
goes on; the checkpoint is complete when all have, and the next step after that gives it its name.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from entformer.checkpoint.average import last_checkpoints, points_to_average
from entformer.checkpoint.folder import RunFolder, checkpoint_name
from entformer.checkpoint.weights import tensors_of
from entformer.errors import RunFailed
from entformer.training.engine import Engine
from entformer.training.finish import compared_with
from entformer.training.optim import optimizer_tensors
from entformer.training.recipe import TrainingConfig
from entformer.training.state import Progress, random_tensors, save_progress, state_json
from entformer.training.task import Task, metric_value


@dataclass(frozen=True)
class _Pending:
    """A sharded checkpoint that is being written."""

    step: int
    staged: Path
    state: dict[str, Any]
    future: Any


class Saver:
    """Saves checkpoints, points `best` and `last` to them and removes those that are no longer wanted."""

    def __init__(
        self,
        folder: RunFolder,
        config: TrainingConfig,
        task: Task[Any],
        engine: Engine,
        optimizer: torch.optim.Optimizer,
        progress: Progress,
        per_step: int,
    ) -> None:
        self.folder, self.config, self.task, self.engine = folder, config, task, engine
        self.optimizer, self.progress, self.per_step = optimizer, progress, per_step
        self.ranks = engine.ranks
        self.saved_at = time.perf_counter()
        self._pending: _Pending | None = None
        # Threads of a checkpoint must not communicate in the group of the training.
        self._group = dist.new_group(backend="gloo") if engine.sharded else None

    @property
    def due(self) -> bool:
        """Whether the last checkpoint is as old as `save_minutes`."""
        return time.perf_counter() - self.saved_at > 60 * self.config.save_minutes

    @property
    def written(self) -> bool:
        """Whether this process has written its part of a checkpoint that is not complete yet."""
        return self._pending is not None and self._pending.future.done()

    def save(self, *, scheduled: bool) -> None:
        """Saves a checkpoint of now. Every process must call this."""
        self.complete()
        random_states = random_tensors(self.ranks)
        self.saved_at = time.perf_counter()
        options: dict[str, Any] = {"scheduled": scheduled, "data_fingerprint": self.task.fingerprint}
        state = state_json(self.progress, self.ranks, per_step=self.per_step, **options)
        model, optimizer = self.engine.model, self.optimizer
        if self._group is not None and not self._only_state_changed(state):
            from entformer.checkpoint.sharded import save_shards

            step = self.progress.step
            staged = self.ranks.share(self.folder.stage(step) if self.ranks.first else None)
            tensors = tensors_of(model) | optimizer_tensors(optimizer, model) | random_states
            self._pending = _Pending(step, staged, state, save_shards(staged, tensors, self._group))
        elif self.ranks.first:
            save_progress(self.folder, state, model=model, optimizer=optimizer, random_states=random_states)
            self._point_and_prune()

    def _only_state_changed(self, state: dict[str, Any]) -> bool:
        """Whether the checkpoint of this step exists: its tensors are the same."""
        found: bool = self.ranks.share(any(one.step == state["step"] for one in self.folder.complete()))
        return found

    def complete(self) -> None:
        """Waits until the checkpoint that is being written is complete, and names it. Every process must call this."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.future.result()
        except Exception as err:
            raise RunFailed(
                f"process {self.ranks.rank} could not write its shard of {checkpoint_name(pending.step)} "
                f"({' '.join(str(err).split())[:300]}). The checkpoint before is intact; free some space and run the same "
                "command again."
            ) from err
        if self.ranks.first:
            self.folder.set_pointer("last", self.folder.commit(pending.step, pending.staged, pending.state))
            self._point_and_prune()
        self.ranks.share(None)

    def convert(self) -> None:
        """Converts the sharded checkpoints of the run, which has ended, to whole tensors."""
        self.complete()
        if self.ranks.first:
            sharded = [checkpoint for checkpoint in self.folder.complete() if checkpoint.sharded]
            if sharded:
                from entformer.checkpoint.sharded import convert

                for checkpoint in sharded:
                    convert(self.folder, checkpoint)
        self.ranks.share(None, patient=True)

    def _point_and_prune(self) -> None:
        self.point_best()
        kept = {checkpoint.step for checkpoint in last_checkpoints(self.folder, self.config.kept_last)}
        latest = self.folder.latest()
        self.folder.prune(kept | {step for step, _ in self.progress.best} | ({latest.step} if latest else set()))

    def point_best(self) -> None:
        """Points `best` to the checkpoint that validated best, unless the average is better."""
        if not self.ranks.first or not self.progress.best:
            return
        step, value = self.progress.best[0]
        if points_to_average(self.folder) and compared_with(self.folder) == checkpoint_name(step):
            return  # the average is better than this checkpoint, and no better checkpoint came since
        if any(one.step == step for one in self.folder.complete()):
            best = self.folder.checkpoint(str(step))
            self.folder.set_pointer("best", best, metric=self.task.metric, value=metric_value(self.task, value))
