"""Saves and loads the state of a training, so that resuming is bitwise identical on the CPU.

Saved: weights, the optimizer's moments, the random states of torch and Python for every process, the position in the data, the
sums of the current log interval, the ranking of the validations. The learning rate is a function of the step.
"""

import random
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, Field, NonNegativeInt, PositiveInt, ValidationError
from torch import Tensor

from entformer import __version__
from entformer.checkpoint.folder import Checkpoint, RunFolder
from entformer.checkpoint.load import first_problem
from entformer.checkpoint.weights import (
    STATE_SEPARATOR,
    check_names,
    fill,
    is_sharded,
    is_state,
    load_weights,
    read_tensors,
    save_tensors,
    save_weights,
    tensors_of,
)
from entformer.errors import DataError
from entformer.models.attention_settings import AttentionModel
from entformer.training.optim import load_optimizer_tensors, optimizer_tensors
from entformer.training.ranks import Ranks

_RANDOM = "random/"


class Progress(BaseModel):
    """State of a training other than tensors."""

    step: NonNegativeInt = 0
    epoch: NonNegativeInt = 0
    position: NonNegativeInt = 0
    """Batches of the epoch that are done, of each process."""
    target_tokens: NonNegativeInt = 0
    seconds: float = 0.0
    """Spent on updates."""
    interval: Annotated[list[float], Field(min_length=6, max_length=6)] = [0.0] * 6
    """Since the last line of the log: loss, nll, correct, tokens, sum of gradient norms, updates."""
    alpha_gradients: list[float] = []
    """Since the last line of the log: `AlphaGradients.state`."""
    density: dict[str, Any] = {}
    """`DensityTarget.state`, where there is a density to reach."""
    validated: int = -1
    """The step of the last validation."""
    best: list[tuple[int, float]] = []
    """(step, value) of the best validations, best first; higher is better."""
    worse: NonNegativeInt = 0
    """Validations since the best one."""

    def rank(self, step: int, value: float, keep: int) -> bool:
        """Ranks a validation; returns whether it is the best so far. Of equals the earlier one is better."""
        is_best = not self.best or value > self.best[0][1]
        self.best = sorted([*self.best, (step, value)], key=lambda entry: (-entry[1], entry[0]))[:keep]
        self.worse = 0 if is_best else self.worse + 1
        return is_best


def random_tensors(ranks: Ranks) -> dict[str, Tensor]:
    """Returns the random states of all processes. Every process must call this."""
    states = {f"{_RANDOM}torch.{rank}": state for rank, state in enumerate(ranks.gather(torch.get_rng_state()))}
    if ranks.device.type == "cuda":
        own = ranks.gather(torch.cuda.get_rng_state(ranks.device))
        states |= {f"{_RANDOM}cuda.{rank}": state for rank, state in enumerate(own)}
    return states


def state_json(progress: Progress, ranks: Ranks, *, per_step: int, scheduled: bool, data_fingerprint: str) -> dict[str, Any]:
    """Returns the content of state.json."""
    version, numbers, gauss = random.getstate()
    return {
        **progress.model_dump(),
        "scheduled": scheduled,
        "data_fingerprint": data_fingerprint,
        "processes": ranks.size,
        "per_step": per_step,
        "threads": torch.get_num_threads(),
        "versions": {"entformer": __version__, "torch": torch.__version__},
        "python_random": [version, list(numbers), gauss],
    }


def save_progress(
    folder: RunFolder,
    state: dict[str, Any],
    *,
    model: AttentionModel,
    optimizer: torch.optim.Optimizer,
    random_states: dict[str, Tensor],
) -> Checkpoint:
    """Writes a checkpoint and points last.json to it; `state` is that of `state_json`."""

    def write(path: Path) -> None:
        save_weights(path / "model.safetensors", model)
        save_tensors(path / "state.safetensors", optimizer_tensors(optimizer, model) | random_states)

    checkpoint = folder.save(state["step"], write, state)
    folder.set_pointer("last", checkpoint)
    return checkpoint


def planned_batches(checkpoint: Checkpoint | None, accumulate: int, size: int) -> int:
    """Returns the batches of all processes in a step: as many as before if they can be divided among the processes."""
    if checkpoint is None:
        return accumulate * size
    state = _read_state(checkpoint)
    before = state.per_step or accumulate * state.processes
    return max(1, round(before / size)) * size


def load_progress(
    checkpoint: Checkpoint,
    *,
    model: AttentionModel,
    optimizer: torch.optim.Optimizer,
    ranks: Ranks,
    seed: int,
    per_step: int = 1,
) -> tuple[Progress, list[str]]:
    """Loads model, optimizer and random states; returns the progress, and remarks on what is not as it was.

    Args:
        per_step: Batches of all processes in a step, from now on.
    """
    state = _read_state(checkpoint)
    tensors = _load_tensors(checkpoint, model)
    moments = {name: tensor for name, tensor in tensors.items() if not name.startswith(_RANDOM)}
    load_optimizer_tensors(optimizer, model, moments, str(checkpoint.path))
    progress = Progress.model_validate(state.model_dump())
    # When training resumes from an older checkpoint, better ones of later steps may have replaced some of its ranking.
    here = {other.step for other in RunFolder(checkpoint.path.parent.parent).complete()}
    progress.best = [(step, value) for step, value in progress.best if step in here]
    version, numbers, gauss = state.python_random
    try:
        random.setstate((version, tuple(numbers), gauss))
        if state.processes == ranks.size:
            torch.set_rng_state(tensors[f"{_RANDOM}torch.{ranks.rank}"])
            if ranks.device.type == "cuda" and f"{_RANDOM}cuda.{ranks.rank}" in tensors:
                torch.cuda.set_rng_state(tensors[f"{_RANDOM}cuda.{ranks.rank}"], ranks.device)
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as err:
        raise DataError(
            f"{checkpoint.path} is damaged: its random states cannot be restored ({err}); remove that checkpoint."
        ) from err
    if state.processes != ranks.size:
        progress.position = progress.position * state.processes // per_step * (per_step // ranks.size)
        torch.manual_seed(seed + progress.step + ranks.rank)
    return progress, _remarks(state, ranks, per_step)


def _load_tensors(checkpoint: Checkpoint, model: AttentionModel) -> dict[str, Tensor]:
    """Loads the weights into the model and returns the other tensors: moments, sharded as the model is, and random states."""
    if not checkpoint.sharded:
        checkpoint.verify("state.safetensors")  # load_weights looks at the other file
        load_weights(checkpoint.weights, model)
        return read_tensors(checkpoint.tensors)
    from entformer.checkpoint.sharded import load_shards, read_shards, shapes

    parameters = dict(model.named_parameters())
    if not any(map(is_sharded, parameters.values())):
        tensors = read_shards(checkpoint)
        fill(model, {name: tensor for name, tensor in tensors.items() if not is_state(name)}, checkpoint.path)
        return {name: tensor for name, tensor in tensors.items() if is_state(name)}
    weights = tensors_of(model)
    state: dict[str, Tensor] = {}
    for name, shape in shapes(checkpoint).items():
        if is_state(name):
            parameter = parameters.get(name.rpartition(STATE_SEPARATOR)[0])
            like = parameter if parameter is not None and parameter.shape == shape else None
            dtype = torch.uint8 if name.startswith(_RANDOM) else torch.float32
            state[name] = torch.zeros(shape, dtype=dtype) if like is None else torch.zeros_like(like, requires_grad=False)
    check_names(weights, {name: shape for name, shape in shapes(checkpoint).items() if not is_state(name)}, checkpoint.path)
    load_shards(checkpoint, {name: tensor.detach() for name, tensor in weights.items()} | state)
    return state


class _State(Progress):
    """state.json: the progress, and what resuming compares and restores."""

    processes: PositiveInt
    per_step: PositiveInt | None = None  # missing in older checkpoints
    threads: int
    versions: dict[str, str]
    python_random: tuple[int, list[int], float | None]


def _read_state(checkpoint: Checkpoint) -> _State:
    """Reads state.json with every value of its type."""
    path = checkpoint.path / "state.json"
    try:
        state = _State.model_validate(checkpoint.state())
    except ValidationError as err:
        raise DataError(f"{path} is damaged ({first_problem(err)}); remove that checkpoint.") from err
    if state.step != checkpoint.step:
        raise DataError(f"{path} is of step {state.step}, not of this checkpoint; remove that checkpoint.")
    return state


def _remarks(state: _State, ranks: Ranks, per_step: int) -> list[str]:
    """Returns what differs from the run so far, so that resuming is not bitwise identical."""
    now = {
        "processes": (state.processes, ranks.size),
        "batches in a step": (state.per_step or per_step, per_step),
        "threads": (state.threads, torch.get_num_threads()),
        "torch": (state.versions.get("torch"), torch.__version__),
    }
    return [f"{what}: {before} before, {after} now" for what, (before, after) in now.items() if before != after]
