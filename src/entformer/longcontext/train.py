"""One run: train a method on short sequences, evaluate it on long ones. In: a recipe, method, positions and seed. Out: a `Run`.

AdamW (0.9, 0.99), gradient norm at most 1, linear warm-up, cosine to zero; lengths from half the training length to all of it.
Every method sees the same sequences in the same order. With `Recipe.validate_at` the weights evaluated are those that were
best at that length on sequences of their own: by exact match, and by token accuracy where that is equal (the published
choice falls back on BLEU). State is saved now and then and whenever the run is stopped; a run that goes on ends with the same
weights as one that never stopped.
"""

import io
import math
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from entformer.checkpoint.atomic import write_bytes
from entformer.errors import ArgumentError, DataError
from entformer.longcontext.evaluate import AtLength, evaluate
from entformer.longcontext.methods import method_of, positions_of
from entformer.longcontext.registry import Recipe, recipe_from
from entformer.longcontext.retrieval import Retriever
from entformer.longcontext.tasks import IGNORE, MaxRetrieval, Task, make_task, mixed
from entformer.models.attention_settings import attention_penalty
from entformer.models.lm import CausalLM
from entformer.models.lm_config import LMConfig
from entformer.nn.normalizers import get_normalizer

__all__ = ["Run", "RunSpec", "build", "device_here", "train_and_evaluate"]

SAVE_EVERY = 60.0  # seconds
MEASURED = 20  # updates that tell how many fit into a time
EVALUATION_SEED = 1_000_003
VALIDATION_SEED = 2_000_003

Progress = Callable[[int, int, float], None]  # update, of how many, loss


@dataclass(frozen=True)
class RunSpec:
    """Who runs."""

    method: str
    positions: str
    seed: int

    @property
    def name(self) -> str:
        """A name fit for a folder."""
        return f"{self.method.replace(':', '.')}_{self.positions}_{self.seed}"


@dataclass
class Run:
    """What came of it."""

    recipe: Recipe
    spec: RunSpec
    steps: int = 0
    seconds: float = 0.0  # of training
    parameters: int = 0
    loss: float = math.nan  # mean of the last tenth of the updates
    diverged: bool = False
    chosen: int | None = None  # the update whose weights were evaluated, where a validation chose them
    lengths: list[AtLength] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def device_here(name: str) -> torch.device:
    """The device of this name; "auto": a GPU where torch finds one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ArgumentError(f"the device {name!r} is not known; choose auto, cpu, cuda, or cuda:1 and so on.")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ArgumentError(f"the device is {name}, and torch finds {torch.cuda.device_count()} GPUs here; use cpu or auto.")
    return device


def build(recipe: Recipe, spec: RunSpec) -> tuple[Task, nn.Module]:
    """The task and the untrained model; the same seed gives all methods the same projections."""
    task = make_task(recipe.task, **recipe.options)
    attention = method_of(spec.method, published=recipe.size == "paper")
    torch.manual_seed(spec.seed)
    if isinstance(task, MaxRetrieval):
        if get_normalizer(attention.normalizer).uses_positions:
            raise ArgumentError(f"the method {spec.method!r} needs an order of keys; max-retrieval has none.")
        return task, Retriever(attention, task.classes, recipe.width, recipe.heads)
    sizes: dict[str, Any] = {name: getattr(recipe, name) for name in ("layers", "heads", "width", "hidden")}
    if recipe.init_std is not None:
        scaled = recipe.init_std * math.sqrt(recipe.width)
        sizes |= {"init_std": recipe.init_std, "embedding_std": scaled, "scaled_embedding": True}
    config = LMConfig(vocab_size=task.vocab_size, attention=attention, **sizes, **positions_of(spec.positions))
    return task, CausalLM(config)


def train_and_evaluate(
    recipe: Recipe,
    spec: RunSpec,
    folder: Path | None = None,
    progress: Progress | None = None,
    stop_at: int | None = None,
    *,
    device: str = "cpu",
) -> tuple[Run, nn.Module]:
    """Train, going on from what `folder` holds, and evaluate at every length. `stop_at`: leave off after this update."""
    task, model = build(recipe, spec)
    model.to(device)
    run = Run(recipe, spec, parameters=sum(parameter.numel() for parameter in model.parameters()))
    trainer = _Trainer(recipe, spec, task, model, run)
    state = None if folder is None else folder / "state.pt"
    if state is not None and state.exists():
        trainer.load(state)
    saved = time.monotonic()
    try:
        while trainer.step < trainer.steps and not run.diverged and trainer.step != stop_at:
            loss = trainer.update()
            if progress is not None and trainer.step % 10 == 0:
                progress(trainer.step, trainer.steps, loss)
            if state is not None and time.monotonic() - saved > SAVE_EVERY:
                trainer.save(state)
                saved = time.monotonic()
    finally:
        if state is not None:
            trainer.save(state)
    run.steps, run.seconds, run.loss = trainer.step, trainer.seconds, trainer.mean_loss()
    if trainer.step == trainer.steps and not run.diverged:
        run.chosen = trainer.use_best()
        for length in recipe.lengths:
            seed = EVALUATION_SEED + length  # the same sequences for every spec
            with trainer.precision():
                run.lengths.append(evaluate(model, task.held_out(), length, sequences=recipe.sequences, seed=seed))
    return run, model


class _Trainer:
    """The loop's state: model, optimizer, the data's generator, the losses so far."""

    def __init__(self, recipe: Recipe, spec: RunSpec, task: Task, model: nn.Module, run: Run) -> None:
        self.recipe, self.task, self.model, self.run = recipe, task, model, run
        self.generator = torch.Generator().manual_seed(spec.seed + 1)
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=recipe.lr, betas=(0.9, 0.99), weight_decay=recipe.weight_decay, fused=True
        )
        self.step = 0
        self.steps = recipe.steps if recipe.seconds is None else 10**9  # until the first updates have been timed
        self.seconds = 0.0
        self.losses: list[float] = []
        self.device = next(model.parameters()).device
        self.best: dict[str, Any] | None = None  # step, score and weights

    def precision(self) -> torch.autocast:
        """The context in which the model computes."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.precision == "bfloat16")

    def update(self) -> float:
        """One batch. In: nothing; out: its loss."""
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
        (loss if (penalty := self._penalty()) is None else loss + penalty).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        value = float(loss.detach())
        if math.isfinite(value):
            self.optimizer.step()
        else:
            self.run.diverged = True
        self.step += 1
        self.losses.append(value)
        self.seconds += time.perf_counter() - begun
        if recipe.seconds is not None and self.step == MEASURED:
            self.steps = max(MEASURED + 1, round(recipe.seconds / self.seconds * MEASURED))
        due = self.step % recipe.validate_every == 0 or self.step == self.steps
        if recipe.validate_at and due and not self.run.diverged:
            self._validate()
        return value

    def _penalty(self) -> Tensor | None:
        if not isinstance(self.model, CausalLM):
            return None
        return attention_penalty(layer for _, _, layer in self.model.attention_layers())

    def _validate(self) -> None:
        """Keep the weights if none were better at `validate_at`."""
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
        """Put the best weights into the model. Out: after which update they were; None: no validation chose any."""
        if self.best is None:
            return None
        self.model.load_state_dict(self.best["model"])
        return int(self.best["step"])

    def _rate(self) -> float:
        """Warm-up, then a cosine to zero."""
        share = self.recipe.warmup_share
        warmup = self.recipe.warmup if share is None else min(self.recipe.warmup, int(share * self.steps + 1e-9))
        if self.step < warmup:
            return (self.step + 1) / warmup
        return 0.5 * (1.0 + math.cos(math.pi * (self.step - warmup) / max(self.steps - warmup, 1)))

    def mean_loss(self) -> float:
        """Over the last tenth."""
        last = self.losses[-max(1, len(self.losses) // 10) :]
        return sum(last) / len(last) if last else math.nan

    def save(self, path: Path) -> None:
        """Everything the next update depends on, in one step."""
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
        """Go on from there, if it is of the same training."""
        try:
            held = torch.load(path, weights_only=True, map_location=self.device)
            recipe = asdict(recipe_from(held["recipe"]))
        except Exception as problem:  # whatever a damaged file makes torch raise
            raise DataError(f"{path} cannot be read ({problem}); remove it to begin this run again.") from problem
        if recipe != asdict(replace(self.recipe, eval_lengths=(), sequences=1)):
            raise DataError(f"{path} is of a training with other settings; give another --out, or remove it.")
        self.model.load_state_dict(held["model"])
        self.optimizer.load_state_dict(held["optimizer"])
        self.generator.set_state(held["data"].cpu())
        torch.set_rng_state(held["random"].cpu())
        self.step, self.steps, self.seconds = held["step"], held["steps"], held["seconds"]
        self.losses, self.run.diverged, self.best = held["losses"], held["diverged"], held.get("best")
