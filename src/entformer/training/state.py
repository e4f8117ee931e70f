"""Saves and loads the state of a training, so that resuming is bitwise identical on the CPU.

Saved: weights, the optimizer's moments, the random states of torch and Python for every process, the position in the data, the
sums of the current log interval, the ranking of the validations. The learning rate is a function of the step.
"""

import random
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, Field, NonNegativeInt, PositiveInt, ValidationError
from torch import Tensor

from entformer import __version__
from entformer.checkpoint.folder import Checkpoint, RunFolder
from entformer.checkpoint.load import first_problem
from entformer.checkpoint.weights import load_weights, read_tensors, save_tensors, save_weights
from entformer.errors import DataError
from entformer.models.seq2seq import Seq2Seq
from entformer.training.optim import load_optimizer_tensors, optimizer_tensors
from entformer.training.ranks import Ranks

_RANDOM = "random/"


@dataclass
class Progress:
    """State of a training other than tensors."""

    step: int = 0
    epoch: int = 0
    position: int = 0
    """Batches of the epoch that are done, of each process."""
    target_tokens: int = 0
    seconds: float = 0.0
    """Spent on updates."""
    interval: list[float] = field(default_factory=lambda: [0.0] * 6)
    """Since the last line of the log: loss, nll, correct, tokens, sum of gradient norms, updates."""
    alpha_gradients: list[float] = field(default_factory=list)
    """Since the last line of the log: `AlphaGradients.state`."""
    density: dict[str, Any] = field(default_factory=dict)
    """`DensityTarget.state`, where there is a density to reach."""
    validated: int = -1
    """The step of the last validation."""
    best: list[tuple[int, float]] = field(default_factory=list)
    """(step, value) of the best validations, best first; higher is better."""
    worse: int = 0
    """Validations since the best one."""

    def rank(self, step: int, value: float, keep: int) -> bool:
        """Enter a validation into the ranking; whether it is the best so far. Of equals the earlier one is better."""
        is_best = not self.best or value > self.best[0][1]
        self.best = sorted([*self.best, (step, value)], key=lambda entry: (-entry[1], entry[0]))[:keep]
        self.worse = 0 if is_best else self.worse + 1
        return is_best


def random_tensors(ranks: Ranks) -> dict[str, Tensor]:
    """The random states of all processes. Every process must call this."""
    states = {f"{_RANDOM}torch.{rank}": state for rank, state in enumerate(ranks.collect(torch.get_rng_state()))}
    if ranks.device.type == "cuda":
        own = torch.cuda.get_rng_state(ranks.device)
        states |= {f"{_RANDOM}cuda.{rank}": state for rank, state in enumerate(ranks.collect(own))}
    return states


def save_progress(
    folder: RunFolder,
    progress: Progress,
    *,
    model: Seq2Seq,
    optimizer: torch.optim.Optimizer,
    random_states: dict[str, Tensor],
    ranks: Ranks,
    scheduled: bool,
    data_fingerprint: str,
) -> Checkpoint:
    """Write a checkpoint and point last.json to it."""

    def write(path: Path) -> None:
        save_weights(path / "model.safetensors", model)
        save_tensors(path / "state.safetensors", optimizer_tensors(optimizer, model) | random_states)

    version, numbers, gauss = random.getstate()
    state: dict[str, Any] = {
        **asdict(progress),
        "scheduled": scheduled,
        "data_fingerprint": data_fingerprint,
        "processes": ranks.size,
        "threads": torch.get_num_threads(),
        "versions": {"entformer": __version__, "torch": torch.__version__},
        "python_random": [version, list(numbers), gauss],
    }
    checkpoint = folder.save(progress.step, write, state)
    folder.set_pointer("last", checkpoint)
    return checkpoint


def load_progress(
    checkpoint: Checkpoint, *, model: Seq2Seq, optimizer: torch.optim.Optimizer, ranks: Ranks, seed: int
) -> tuple[Progress, list[str]]:
    """Fill model, optimizer and random states; the numbers, and remarks on what is not as it was."""
    state = _checked_state(checkpoint)
    checkpoint.verify("state.safetensors")  # load_weights looks at the other file
    load_weights(checkpoint.weights, model)
    tensors = read_tensors(checkpoint.tensors)
    moments = {name: tensor for name, tensor in tensors.items() if not name.startswith(_RANDOM)}
    load_optimizer_tensors(optimizer, model, moments, str(checkpoint.tensors))
    names = set(Progress.__dataclass_fields__)
    progress = Progress(**{name: value for name, value in state.items() if name in names})
    # When training goes on from an older checkpoint, better ones of later steps may have replaced some of its ranking.
    here = {other.step for other in RunFolder(checkpoint.path.parent.parent).complete()}
    progress.best = [(step, value) for step, value in progress.best if step in here]
    remarks = _remarks(state, ranks)
    processes = state["processes"]
    version, numbers, gauss = state["python_random"]
    try:
        random.setstate((version, tuple(numbers), gauss))
        if processes == ranks.size:
            torch.set_rng_state(tensors[f"{_RANDOM}torch.{ranks.rank}"])
            if ranks.device.type == "cuda" and f"{_RANDOM}cuda.{ranks.rank}" in tensors:
                torch.cuda.set_rng_state(tensors[f"{_RANDOM}cuda.{ranks.rank}"], ranks.device)
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as problem:
        raise DataError(
            f"{checkpoint.path} is damaged: its random states cannot be restored ({problem}); remove that checkpoint."
        ) from problem
    if processes != ranks.size:
        progress.position = progress.position * processes // ranks.size
        torch.manual_seed(seed + progress.step + ranks.rank)
    return progress, remarks


class _State(BaseModel):
    """The types of state.json, so that a wrong one is named before anything is filled."""

    step: NonNegativeInt
    epoch: NonNegativeInt
    position: NonNegativeInt
    target_tokens: NonNegativeInt
    seconds: float
    interval: Annotated[list[float], Field(min_length=6, max_length=6)]
    alpha_gradients: list[float] = []
    density: dict[str, Any] = {}
    validated: int
    best: list[tuple[int, float]]
    worse: NonNegativeInt
    processes: PositiveInt
    threads: int
    versions: dict[str, str]
    python_random: tuple[int, list[int], float | None]


def _checked_state(checkpoint: Checkpoint) -> dict[str, Any]:
    """state.json with every value of its type."""
    state = checkpoint.state()
    try:
        checked = _State.model_validate(state)
    except ValidationError as problem:
        raise DataError(
            f"{checkpoint.path / 'state.json'} is damaged ({first_problem(problem)}); remove that checkpoint."
        ) from problem
    if checked.step != checkpoint.step:
        raise DataError(
            f"{checkpoint.path / 'state.json'} is of step {checked.step}, not of this checkpoint; remove that checkpoint."
        )
    return state | checked.model_dump()


def _remarks(state: dict[str, Any], ranks: Ranks) -> list[str]:
    """What differs from the run so far and keeps it from going on bit for bit."""
    now = {
        "processes": (state["processes"], ranks.size),
        "threads": (state["threads"], torch.get_num_threads()),
        "torch": (state["versions"].get("torch"), torch.__version__),
    }
    return [f"{what}: {before} before, {after} now" for what, (before, after) in now.items() if before != after]
