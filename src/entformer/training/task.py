"""What the trainer knows of a task: `Task`, its batches, its loss and its validation.

`tasks/` and `longcontext/` implement it for translation, language modeling and length generalization. Everything else of a run
(steps, checkpoints, resuming, precision, schedules, processes, averaging, metrics) is the same for all of them.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor

from entformer.checkpoint.folder import RunFolder
from entformer.models.attention_settings import AttentionModel
from entformer.models.fused_loss import LossSums
from entformer.training.ranks import Ranks

Results = dict[str, Any]
"""Of a validation: numbers and text by name. A density target compares "loss", per label."""

WORST = -1e300  # finite, so that JSON can hold it


class Batch(Protocol):
    """Input of one forward pass."""

    @property
    def num_labels(self) -> int:
        """Terms of the loss, which is averaged over them."""

    @property
    def examples(self) -> tuple[int, ...]:
        """Numbers of the training examples, for messages."""

    def to(self, device: torch.device) -> Self:
        """Returns the batch on another device."""

    def split(self) -> tuple[Self, Self]:
        """Returns the batch as two, each with half of the examples."""

    def describe(self) -> str:
        """Returns the size of the batch, for messages."""

    def lengths(self, kind: str) -> tuple[Tensor, Tensor]:
        """Returns the numbers of queries and of keys (B,) of each example in this type of attention."""


B = TypeVar("B", bound=Batch)
B_co = TypeVar("B_co", bound=Batch, covariant=True)


class BatchSource(Protocol[B_co]):
    """Batches whose order is a pure function of (seed, epoch, index): two integers are enough to resume."""

    def batches_in(self, epoch: int) -> int:
        """Returns the number of batches of an epoch for this process; the same for all processes."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[B_co]:
        """Yields the batches of an epoch for this process, skipping the first `start`."""


class Task(Protocol[B]):
    """What is trained: data, model, loss and validation."""

    @property
    def metric(self) -> str:
        """The name of the result of `evaluate` that ranks checkpoints."""

    @property
    def higher_is_better(self) -> bool:
        """Whether higher values of `metric` are better."""

    @property
    def fingerprint(self) -> str:
        """Of the data; a run with other data is not resumed unless the user says so."""

    def describe(self) -> str:
        """Returns the data in a few words for the log."""

    def build_model(self) -> AttentionModel:
        """Returns the untrained model; it depends on torch's random state alone."""

    def train_batches(self, *, rank: int, world_size: int, per_step: int | None = None) -> BatchSource[B]:
        """Returns the training data of one process; an epoch has a multiple of `per_step` batches over all processes."""

    def sample(self) -> B:
        """Returns training examples, the same at every call, on which the densities of heads are measured."""

    def loss(self, model: AttentionModel, batch: B) -> LossSums:
        """Returns the loss summed over the labels."""

    def eval_settings(self, best: float | None = None) -> dict[str, Any]:
        """Returns settings of `evaluate`: for validations, or, given the best value so far, for the comparison at the end."""

    def evaluate(
        self,
        model: AttentionModel,
        file: Path,
        settings: Mapping[str, Any],
        should_stop: Callable[[], bool],
        ranks: Ranks | None = None,
    ) -> Results | None:
        """Validates the model; outputs go to `file`, whose suffix is the task's. Returns None if `should_stop` returns True.

        All of `ranks` call this with the same weights and share the work; process 0 writes the file.
        """

    def summarize(self, results: Results) -> str:
        """Returns results as one line."""

    def save_assets(self, folder: RunFolder, model: AttentionModel) -> None:
        """Writes what is needed to use the weights: model.json, the tokenizer."""


def rank_value(task: Task[Any], results: Results) -> float:
    """Returns the value that ranks checkpoints, higher is better; WORST if there is none or it is NaN."""
    value = results.get(task.metric)
    found = WORST if value is None else value if task.higher_is_better else -value
    return found if found > WORST else WORST


def metric_value(task: Task[Any], ranked: float) -> float:
    """Returns the metric of a value of `rank_value`."""
    return ranked if task.higher_is_better else -ranked
