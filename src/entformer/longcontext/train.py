"""Training of a method on short sequences and evaluation on long ones.

AdamW (0.9, 0.99), gradient norm at most 1, linear warm-up, cosine decay to zero; lengths from half the training length to all.
Every method is trained on the same sequences in the same order. With `TaskConfig.validate_at` the evaluated weights are those
with the best exact match (then token accuracy) at that length on validation sequences. State is saved periodically and when
the run is stopped; a resumed run ends with the same weights as an uninterrupted one.
"""

import io
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from entformer.checkpoint.device import usable_device
from entformer.errors import ArgumentError, DataError
from entformer.files import write_bytes
from entformer.longcontext.evaluate import LengthResult, evaluate
from entformer.longcontext.methods import get_method, get_positions
from entformer.longcontext.registry import TaskConfig, parse_task_config
from entformer.longcontext.retrieval import Retriever
from entformer.longcontext.tasks import IGNORE, MaxRetrieval, Task, make_task, mixed
from entformer.models.attention_settings import AttentionModel, attention_penalty
from entformer.models.lm import CausalLM
from entformer.models.lm_config import LMConfig
from entformer.nn.alpha import learned_alphas, project_alphas
from entformer.nn.normalizers import get_normalizer

__all__ = ["ExperimentResult", "RunSpec", "build", "select_device", "train_and_evaluate"]

SAVE_EVERY_S = 60.0
MEASURED_STEPS = 20  # timed to estimate how many fit into `TaskConfig.seconds`
EVALUATION_SEED = 1_000_003
VALIDATION_SEED = 2_000_003

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


def select_device(name: str) -> torch.device:
    """Returns the device; "auto" is a GPU if torch finds one, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return usable_device(name)


def build(recipe: TaskConfig, spec: RunSpec) -> tuple[Task, AttentionModel]:
    """Returns the task and the untrained model; the same seed gives all methods the same projections."""
    task = make_task(recipe.task, **recipe.options)
    attention = get_method(spec.method, published=recipe.size == "paper")
    torch.manual_seed(spec.seed)
    if isinstance(task, MaxRetrieval):
        if get_normalizer(attention.normalizer).uses_positions:
            raise ArgumentError(f"the method {spec.method!r} requires ordered keys; max-retrieval has a set of items.")
        return task, Retriever(attention, task.classes, recipe.width, recipe.heads)
    sizes: dict[str, Any] = {name: getattr(recipe, name) for name in ("layers", "heads", "width", "hidden")}
    if recipe.init_std is not None:
        scaled = recipe.init_std * math.sqrt(recipe.width)
        sizes |= {"init_std": recipe.init_std, "embedding_std": scaled, "scaled_embedding": True}
    config = LMConfig(vocab_size=task.vocab_size, attention=attention, **sizes, **get_positions(spec.positions))
    return task, CausalLM(config)


def train_and_evaluate(
    recipe: TaskConfig,
    spec: RunSpec,
    folder: Path | None = None,
    progress: Progress | None = None,
    stop_at: int | None = None,
    *,
    device: str = "cpu",
) -> tuple[ExperimentResult, AttentionModel]:
    """Trains and evaluates at every length.

    Args:
        recipe: The task and its sizes.
        spec: Method, positions and seed.
        folder: Directory of the run; an interrupted run in it is resumed.
        progress: Called with the step, the number of steps and the loss.
        stop_at: Stop after this step, without evaluation.
        device: Device of the model.
    """
    task, model = build(recipe, spec)
    model.to(device)
    run = ExperimentResult(recipe, spec, parameters=sum(parameter.numel() for parameter in model.parameters()))
    trainer = _Trainer(recipe, spec, task, model, run)
    state = None if folder is None else folder / "state.pt"
    if state is not None and state.exists():
        trainer.load(state)
    saved = time.monotonic()
    try:
        while trainer.step < trainer.steps and not run.diverged and trainer.step != stop_at:
            loss = trainer.train_step()
            if progress is not None and trainer.step % 10 == 0:
                progress(trainer.step, trainer.steps, loss)
            if state is not None and time.monotonic() - saved > SAVE_EVERY_S:
                trainer.save(state)
                saved = time.monotonic()
    finally:
        if state is not None:
            trainer.save(state)
    run.steps, run.seconds, run.loss = trainer.step, trainer.seconds, trainer.mean_loss()
    if trainer.step == trainer.steps and not run.diverged:
        run.chosen = trainer.use_best()
        for length in recipe.lengths:
            seed = EVALUATION_SEED + length  # the same sequences for every run
            with trainer.precision():
                run.lengths.append(evaluate(model, task.held_out(), length, sequences=recipe.sequences, seed=seed))
    return run, model


class _Trainer:
    """Model, optimizer, data generator and losses of a run."""

    def __init__(self, recipe: TaskConfig, spec: RunSpec, task: Task, model: AttentionModel, run: ExperimentResult) -> None:
        self.recipe, self.task, self.model, self.run = recipe, task, model, run
        self.generator = torch.Generator().manual_seed(spec.seed + 1)
        alphas = [owner.parameter for owner in learned_alphas(model)]
        own = set(alphas)
        groups: list[dict[str, Any]] = [{"params": [one for one in model.parameters() if one not in own]}]
        if alphas:  # decay would pull them to a bound, or to the middle
            groups.append({"params": alphas, "weight_decay": 0.0})
        decay = recipe.weight_decay
        self.optimizer = torch.optim.AdamW(groups, lr=recipe.lr, betas=(0.9, 0.99), weight_decay=decay, fused=True)
        self.step = 0
        self.steps = recipe.steps if recipe.seconds is None else 10**9  # until the first steps have been timed
        self.seconds = 0.0
        self.losses: list[float] = []
        self.device = next(model.parameters()).device
        self.best: dict[str, Any] | None = None  # step, score and weights

    def precision(self) -> torch.autocast:
        """Returns the autocast context."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.precision == "bfloat16")

    def train_step(self) -> float:
        """Does one optimizer step and returns its loss."""
        begun = time.perf_counter()
        recipe = self.recipe
        drawn = (recipe.batch,) if recipe.mixed_lengths else ()
        n = torch.randint(recipe.shortest, recipe.train_length + 1, drawn, generator=self.generator)
        draw = mixed(self.task, n, self.generator) if drawn else self.task.sample(recipe.batch, int(n), self.generator)
        inputs, labels = (part.to(self.device) for part in draw)
        self.model.train()
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.lr * self._rate()
        self.optimizer.zero_grad()
        with self.precision():
            scores: Tensor = self.model(inputs)
        loss = F.cross_entropy(scores.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORE)
        penalty = attention_penalty(layer for _, _, layer in self.model.attention_layers())
        (loss if penalty is None else loss + penalty).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        value = float(loss.detach())
        if math.isfinite(value):
            self.optimizer.step()
            project_alphas(self.model, self.optimizer)
        else:
            self.run.diverged = True
        self.step += 1
        self.losses.append(value)
        self.seconds += time.perf_counter() - begun
        if recipe.seconds is not None and self.step == MEASURED_STEPS:
            self.steps = max(MEASURED_STEPS + 1, round(recipe.seconds / self.seconds * MEASURED_STEPS))
        due = self.step % recipe.validate_every == 0 or self.step == self.steps
        if recipe.validate_at and due and not self.run.diverged:
            self._validate()
        return value

    def _validate(self) -> None:
        """Keeps a copy of the weights if they are the best so far at `validate_at`."""
        recipe, held = self.recipe, self.task.validation()
        with self.precision():
            found = evaluate(
                self.model, held, recipe.validate_at, sequences=recipe.sequences, seed=VALIDATION_SEED, heads=False
            )
        score = [found.exact_match, found.token_accuracy]
        if self.best is None or score > self.best["score"]:
            weights = {name: t.detach().cpu().clone() for name, t in self.model.state_dict().items()}
            self.best = {"step": self.step, "score": score, "model": weights}

    def use_best(self) -> int | None:
        """Loads the best validated weights; returns their step, or None without validation."""
        if self.best is None:
            return None
        self.model.load_state_dict(self.best["model"])
        return int(self.best["step"])

    def _rate(self) -> float:
        """Returns the learning-rate factor: warm-up, then a cosine to zero."""
        share = self.recipe.warmup_share
        warmup = self.recipe.warmup if share is None else min(self.recipe.warmup, int(share * self.steps + 1e-9))
        if self.step < warmup:
            return (self.step + 1) / warmup
        return 0.5 * (1.0 + math.cos(math.pi * (self.step - warmup) / max(self.steps - warmup, 1)))

    def mean_loss(self) -> float:
        """Returns the mean loss over the last tenth of the steps."""
        last = self.losses[-max(1, len(self.losses) // 10) :]
        return sum(last) / len(last) if last else math.nan

    def save(self, path: Path) -> None:
        """Saves everything the next step depends on."""
        buffer = io.BytesIO()
        torch.save(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "data": self.generator.get_state(),
                "random": torch.get_rng_state(),
                "step": self.step,
                "steps": self.steps,
                "seconds": self.seconds,
                "losses": self.losses,
                "diverged": self.run.diverged,
                "best": self.best,
                "recipe": asdict(replace(self.recipe, eval_lengths=(), sequences=1)),
            },
            buffer,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, buffer.getvalue())

    def load(self, path: Path) -> None:
        """Restores a saved state of the same training."""
        try:
            held = torch.load(path, weights_only=True, map_location=self.device)
            recipe = asdict(parse_task_config(held["recipe"]))
        except Exception as err:  # torch.load raises many types for a damaged file
            raise DataError(f"{path} cannot be read ({err}); remove it to restart this run.") from err
        if recipe != asdict(replace(self.recipe, eval_lengths=(), sequences=1)):
            raise DataError(f"{path} was saved with other settings; choose another --out, or remove it.")
        if len(held["optimizer"]["param_groups"]) != len(self.optimizer.param_groups):
            raise DataError(f"{path} is of a version in which alphas had weight decay; remove it to restart this run.")
        self.model.load_state_dict(held["model"])
        self.optimizer.load_state_dict(held["optimizer"])
        self.generator.set_state(held["data"].cpu())
        torch.set_rng_state(held["random"].cpu())
        self.step, self.steps, self.seconds = held["step"], held["steps"], held["seconds"]
        self.losses, self.run.diverged, self.best = held["losses"], held["diverged"], held.get("best")
