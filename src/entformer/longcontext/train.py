"""Length generalization as a `Task`: trains a method on short sequences and evaluates it on long ones.

AdamW (0.9, 0.99), gradient norm at most 1, linear warm-up, cosine decay to zero; lengths from half the training length to all.
Batch i is a function of the seed and i, so every method is trained on the same sequences in the same order. With
`TaskConfig.validate_at` the evaluated weights are those with the best exact match (then token accuracy) at that length on
validation sequences. A stopped run is resumed by the same call and ends with the same weights.
"""

import contextlib
import hashlib
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from entformer.checkpoint.device import usable_device
from entformer.checkpoint.folder import RunFolder
from entformer.checkpoint.weights import load_weights
from entformer.errors import ArgumentError, RunFailed
from entformer.files import write_json
from entformer.longcontext.evaluate import LengthResult, evaluate
from entformer.longcontext.methods import get_method, get_positions
from entformer.longcontext.registry import TaskConfig
from entformer.longcontext.retrieval import Retriever
from entformer.longcontext.tasks import IGNORE, MaxRetrieval, Task, make_task, mixed
from entformer.models.attention_settings import AttentionModel, attention_penalty
from entformer.models.fused_loss import LossSums
from entformer.models.lm import CausalLM
from entformer.models.lm_config import LMConfig
from entformer.nn.normalizers import get_normalizer
from entformer.training.metrics import metrics_of
from entformer.training.ranks import Ranks
from entformer.training.recipe import RunRecipe, TrainingConfig
from entformer.training.recipe_file import saved_recipe
from entformer.training.setup import run_training
from entformer.training.summary import RunSummary
from entformer.training.task import Results
from entformer.training.update import Diverged

__all__ = ["ExperimentResult", "RunSpec", "build", "select_device", "train_and_evaluate"]

MEASURED_STEPS = 20  # timed to estimate how many fit into `TaskConfig.seconds`
LOG_LINES = 20
EVALUATION_SEED = 1_000_003
VALIDATION_SEED = 2_000_003
SAMPLE = 16  # sequences on which densities are measured

Progress = Callable[[int, int, float], None]  # step, number of steps, loss


@dataclass(frozen=True)
class RunSpec:
    """Identifies a run of a task."""

    method: str
    positions: str
    seed: int

    @property
    def name(self) -> str:
        """Directory name of the run."""
        return f"{self.method.replace(':', '.')}_{self.positions}_{self.seed}"


@dataclass
class ExperimentResult:
    """Result of a run."""

    recipe: TaskConfig
    spec: RunSpec
    steps: int = 0
    seconds: float = 0.0  # of training
    parameters: int = 0
    loss: float = math.nan  # mean over the last tenth of the steps
    diverged: bool = False
    chosen: int | None = None  # step of the evaluated weights, if selected by validation
    lengths: list[LengthResult] = field(default_factory=list)


class LengthRecipe(RunRecipe):
    """All settings of a run: those of the trainer follow from those of the task."""

    task: Literal["length_generalization"] = "length_generalization"
    length: TaskConfig
    spec: RunSpec

    @classmethod
    def make(cls, length: TaskConfig, spec: RunSpec, steps: int, device: str) -> "LengthRecipe":
        """Returns the recipe of a run of `steps` steps."""
        share = length.warmup_share
        training = TrainingConfig(
            seed=spec.seed,
            steps=steps,
            lr=length.lr,
            schedule="cosine",
            warmup=length.warmup if share is None else min(length.warmup, int(share * steps + 1e-9)),
            betas=(0.9, 0.99),
            eps=1e-8,
            weight_decay=length.weight_decay,
            alpha_lr_factor=1.0,  # as published
            precision=length.precision,  # type: ignore[arg-type]  # checked by TrainingConfig
            device=device,
            validate_every=length.validate_every if length.validate_at else steps,
            validate_beam=0,
            metric="accuracy",
            average="none",
            keep_last=1,
            save_minutes=1.0,
            log_every=max(1, steps // LOG_LINES),
        )
        return cls(name=spec.name, length=length, spec=spec, training=training)


@dataclass(frozen=True)
class SequenceBatch:
    """Sequences of a task."""

    inputs: Tensor
    labels: Tensor
    examples: tuple[int, ...]

    @property
    def num_labels(self) -> int:
        return int((self.labels != IGNORE).sum())

    def to(self, device: torch.device) -> "SequenceBatch":
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device))

    def split(self) -> tuple["SequenceBatch", "SequenceBatch"]:
        middle = len(self.examples) // 2
        first, second = (
            SequenceBatch(self.inputs[part], self.labels[part], self.examples[part])
            for part in (slice(None, middle), slice(middle, None))
        )
        return first, second

    def describe(self) -> str:
        return f"{self.inputs.shape[1]} tokens"

    def lengths(self, kind: str) -> tuple[Tensor, Tensor]:
        rows, size = self.inputs.shape[:2]
        queries, keys = (1, size - 1) if kind == "cross" else (size, size)
        return torch.full((rows,), queries), torch.full((rows,), keys)


class LengthBatches:
    """Random sequences: batch i of an epoch is a function of (seed, epoch, i)."""

    def __init__(
        self, task: Task, recipe: LengthRecipe, rank: int = 0, world_size: int = 1, per_step: int | None = None
    ) -> None:
        self.task, self.recipe, self.rank, self.world_size = task, recipe, rank, world_size
        self.per_step = per_step or world_size

    def batches_in(self, epoch: int) -> int:
        return self.recipe.training.steps * self.per_step // self.world_size

    def epoch(self, epoch: int, start: int = 0) -> Iterator[SequenceBatch]:
        for index in range(start, self.batches_in(epoch)):
            yield self.draw(epoch, index * self.world_size + self.rank)

    def draw(self, epoch: int, index: int) -> SequenceBatch:
        """Returns batch `index` of all processes."""
        length = self.recipe.length
        seed = np.random.SeedSequence((self.recipe.spec.seed, epoch, index)).generate_state(1, np.uint64)[0]
        generator = torch.Generator().manual_seed(int(seed))
        drawn = (length.batch,) if length.mixed_lengths else ()
        n = torch.randint(length.shortest, length.train_length + 1, drawn, generator=generator)
        found = mixed(self.task, n, generator) if drawn else self.task.sample(length.batch, int(n), generator)
        first = index * length.batch
        return SequenceBatch(*found, tuple(range(first, first + length.batch)))


class LengthGeneralization:
    """A synthetic task, a method and positions; a `Task` of the trainer."""

    metric, higher_is_better = "score", True

    def __init__(self, recipe: LengthRecipe) -> None:
        self.recipe = recipe
        self.data = make_task(recipe.length.task, **recipe.length.options)
        names = ("task", "options", "train_length", "batch", "mixed_lengths")
        facts = {name: getattr(recipe.length, name) for name in names} | {"seed": recipe.spec.seed}
        self.fingerprint = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]

    def describe(self) -> str:
        return f"{self.recipe.length.task} up to length {self.recipe.length.train_length}"

    def build_model(self) -> AttentionModel:
        return build_model(self.recipe.length, self.recipe.spec, self.data)

    def train_batches(self, *, rank: int, world_size: int, per_step: int | None = None) -> LengthBatches:
        return LengthBatches(self.data, self.recipe, rank, world_size, per_step)

    def sample(self) -> SequenceBatch:
        generator = torch.Generator().manual_seed(0)
        return SequenceBatch(*self.data.sample(SAMPLE, self.recipe.length.train_length, generator), tuple(range(SAMPLE)))

    def loss(self, model: AttentionModel, batch: SequenceBatch) -> LossSums:
        scores, labels = model(batch.inputs).flatten(0, 1).float(), batch.labels.flatten()
        loss = F.cross_entropy(scores, labels, ignore_index=IGNORE, reduction="sum")
        penalty = attention_penalty(layer for _, _, layer in model.attention_layers())
        tokens = batch.num_labels
        correct = (scores.argmax(-1) == labels).sum()
        return LossSums(loss if penalty is None else loss + tokens * penalty, loss.detach(), correct, tokens)

    def eval_settings(self, best: float | None = None) -> dict[str, Any]:
        return {}

    def evaluate(
        self,
        model: AttentionModel,
        file: Path,
        settings: Mapping[str, Any],
        should_stop: Callable[[], bool],
        ranks: Ranks | None = None,
    ) -> Results | None:
        """Returns exact match and token accuracy at `validate_at`, and the score that ranks by one, then the other."""
        length = self.recipe.length
        if not length.validate_at:  # the last weights count
            return {"score": 0.0}
        options: dict[str, Any] = {"sequences": length.sequences, "seed": VALIDATION_SEED, "heads": False}
        with autocast(model, length):
            found = evaluate(model, self.data.validation(), length.validate_at, **options)
        # Two exact matches differ by 1 / sequences at least, so the accuracies below decide between equal ones only.
        score = found.exact_match + found.token_accuracy / (2 * length.sequences)
        return {"score": score, "exact_match": found.exact_match, "token_accuracy": found.token_accuracy}

    def summarize(self, results: Results) -> str:
        names = (name for name in ("exact_match", "token_accuracy") if name in results)
        return ", ".join(f"{name.replace('_', ' ')} {100 * results[name]:.1f}" for name in names) or "the last weights count"

    def save_assets(self, folder: RunFolder, model: AttentionModel) -> None:
        write_json(folder.model, {"format": 1, "task": self.recipe.task, "data_fingerprint": self.fingerprint})


def autocast(model: AttentionModel, recipe: TaskConfig) -> torch.autocast:
    """Returns the context of the recipe's precision."""
    return torch.autocast(next(model.parameters()).device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16")


def select_device(name: str) -> torch.device:
    """Returns the device; "auto" is a GPU if torch finds one, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return usable_device(name)


def build(recipe: TaskConfig, spec: RunSpec) -> tuple[Task, AttentionModel]:
    """Returns the task and the untrained model; the same seed gives all methods the same projections."""
    task = make_task(recipe.task, **recipe.options)
    torch.manual_seed(spec.seed)
    return task, build_model(recipe, spec, task)


def build_model(recipe: TaskConfig, spec: RunSpec, task: Task) -> AttentionModel:
    """Returns the untrained model of a task."""
    attention = get_method(spec.method, published=recipe.size == "paper")
    if isinstance(task, MaxRetrieval):
        if get_normalizer(attention.normalizer).uses_positions:
            raise ArgumentError(f"the method {spec.method!r} requires ordered keys; max-retrieval has a set of items.")
        return Retriever(attention, task.classes, recipe.width, recipe.heads)
    sizes: dict[str, Any] = {name: getattr(recipe, name) for name in ("layers", "heads", "width", "hidden")}
    if recipe.init_std is not None:
        scaled = recipe.init_std * math.sqrt(recipe.width)
        sizes |= {"init_std": recipe.init_std, "embedding_std": scaled, "scaled_embedding": True}
    return CausalLM(LMConfig(vocab_size=task.vocab_size, attention=attention, **sizes, **get_positions(spec.positions)))


def train_and_evaluate(
    recipe: TaskConfig,
    spec: RunSpec,
    folder: Path | None = None,
    progress: Progress | None = None,
    *,
    device: str = "cpu",
) -> tuple[ExperimentResult, AttentionModel]:
    """Trains and evaluates at every length.

    Args:
        recipe: The task and its sizes.
        spec: Method, positions and seed.
        folder: Directory of the run; an interrupted run in it is resumed.
        progress: Called with the step, the number of steps and the loss.
        device: Device of the model.

    Raises:
        RunFailed: Training was interrupted; the same call resumes it.
    """
    task, model = build(recipe, spec)
    model.to(device)
    result = ExperimentResult(recipe, spec, parameters=sum(parameter.numel() for parameter in model.parameters()))
    with contextlib.ExitStack() as stack:
        out = Path(stack.enter_context(tempfile.TemporaryDirectory())) if folder is None else folder
        try:
            summary = _train(LengthRecipe.make(recipe, spec, _num_steps(recipe, spec, out, device), device), out, progress)
        except Diverged as err:
            result.steps, result.diverged = err.step, True
            return result, model
        if not summary.complete:
            raise RunFailed(f"stopped at step {summary.step} ({summary.stopped}); run the same command again to resume.")
        result.steps, result.seconds = summary.step, summary.seconds
        last = [entry["loss"] for entry in metrics_of(out / "metrics.jsonl") if entry["kind"] == "train"]
        last = last[-max(1, LOG_LINES // 10) :]
        result.loss = sum(last) / len(last) if last else math.nan
        result.chosen = summary.best_step if recipe.validate_at else None
        chosen = RunFolder(out).checkpoint(str(summary.step if result.chosen is None else result.chosen))
        load_weights(chosen.weights, model)
    for length in recipe.lengths:
        seed = EVALUATION_SEED + length  # the same sequences for every run
        with autocast(model, recipe):
            result.lengths.append(evaluate(model, task.held_out(), length, sequences=recipe.sequences, seed=seed))
    return result, model


def _train(recipe: LengthRecipe, out: Path, progress: Progress | None) -> RunSummary:
    return run_training(recipe, lambda own, *_, **__: LengthGeneralization(own), out, quiet=True, on_interval=progress)


def _num_steps(recipe: TaskConfig, spec: RunSpec, out: Path, device: str) -> int:
    """Returns the steps of a run: those of the recipe, or as many as fit into its time, measured once."""
    if recipe.seconds is None:
        return recipe.steps
    begun = saved_recipe(out / "recipe.yaml", LengthRecipe)
    if begun is not None:
        return begun.training.steps
    with tempfile.TemporaryDirectory() as work:
        measured = replace(recipe, seconds=None, validate_at=0)
        seconds = _train(LengthRecipe.make(measured, spec, MEASURED_STEPS, device), Path(work), None).seconds
    return max(MEASURED_STEPS + 1, round(recipe.seconds / seconds * MEASURED_STEPS))
