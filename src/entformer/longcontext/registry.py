"""Tasks by name and the configurations they are trained with. Does not import torch.

Size "laptop" trains in minutes on two cores. Size "paper" is the published configuration (Vasylenko et al. 2025, appendix G and
the authors' code) for a GPU; where the two differ (warm-up, feed-forward width of Reverse), it follows the code. Training
lengths are drawn from half the training length to all of it.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from entformer.errors import ArgumentError

__all__ = ["ABOUT", "SIZES", "TaskConfig", "get_task_config", "make_command", "parse_task_config", "task_name"]

ABOUT: dict[str, str] = {
    "mqmtar": "Associative recall: many key-value pairs in noise, then several keys whose values are to be given.",
    "sort": "Put the tokens in ascending order.",
    "copy": "Repeat the tokens.",
    "reverse": "Repeat the tokens in reverse order.",
    "local-count": "For each token, how many equal tokens precede it directly.",
    "n-back": "For each token, the one two positions before.",
    "flip-flop": "Read the bit that was last written; most instructions are to be ignored.",
    "parity": "Is the number of ones even?",
    "max-retrieval": "Items with a priority and a class: give the class of the highest priority. Takes seconds.",
}


@dataclass(frozen=True)
class TaskConfig:
    """Everything about a run except method, positions and seed."""

    task: str
    options: dict[str, Any] = field(default_factory=dict)  # of the task
    train_length: int = 16
    eval_lengths: tuple[int, ...] = ()  # default: 1, 2, 4, 8 and 16 times the training length
    sequences: int = 128  # evaluated at each length
    layers: int = 2
    width: int = 64
    heads: int = 8
    hidden: int = 128
    steps: int = 1500
    batch: int = 32
    lr: float = 1e-3
    warmup: int = 300
    warmup_share: float | None = 0.1  # limit of the warm-up as a fraction of the steps
    weight_decay: float = 0.0
    init_std: float | None = None  # of all matrices, and of embeddings, which are scaled by sqrt(width); None: see LMConfig
    mixed_lengths: bool = False  # sequences of a batch differ in length, padded on the right
    validate_at: int = 0  # evaluate the checkpoint that was best at this length; 0: the last one
    validate_every: int = 5000  # steps between validations
    precision: str = "float32"  # "bfloat16": autocast, float32 weights
    size: str = "laptop"
    seconds: float | None = None  # training time instead of `steps`

    @property
    def shortest(self) -> int:
        """Minimum training length."""
        return min(max(4, (self.train_length + 1) // 2), self.train_length)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Evaluated lengths."""
        return self.eval_lengths or tuple(self.train_length * factor for factor in (1, 2, 4, 8, 16))


def _doubled(first: int, last: int) -> tuple[int, ...]:
    """Returns first, 2 first, 4 first, ... last."""
    return tuple(first << power for power in range((last // first).bit_length()))


_FEW_WORDS = {"letters": 16, "words": 16, "key_letters": 1, "value_letters": 1, "queries": 1}
_LAPTOP: dict[str, dict[str, Any]] = {
    "mqmtar": {
        "options": _FEW_WORDS,
        "eval_lengths": (16, 32, 48, 64, 80),
        "batch": 64,
        "steps": 3000,
        "lr": 3e-3,
        "warmup": 100,
    },
    "sort": {"options": {"alphabet": 16}, "steps": 2000, "lr": 2e-3},
    "copy": {"options": {"alphabet": 16}, "steps": 2000, "lr": 2e-3},
    "reverse": {"options": {"alphabet": 16}, "layers": 3, "steps": 2000, "lr": 2e-3},
    "local-count": {"options": {"max_repeats": 8}, "train_length": 32},
    "n-back": {"steps": 600, "lr": 2e-3},
    "flip-flop": {"batch": 64, "steps": 800, "lr": 2e-3},
    "parity": {},
    "max-retrieval": {
        "width": 64,
        "heads": 1,
        "batch": 128,
        "steps": 2000,
        "warmup": 0,
        "weight_decay": 1e-4,
        "sequences": 512,
        "eval_lengths": tuple(2**power for power in range(4, 13)),
    },
}

_PUBLISHED: dict[str, Any] = {
    "train_length": 64,
    "eval_lengths": _doubled(64, 4096),
    "sequences": 1000,
    "batch": 128,
    "warmup": 20_000,
    "warmup_share": None,
    "width": 256,
    "heads": 8,
    "hidden": 1024,
    "init_std": 0.02,
    "mixed_lengths": True,
    "validate_at": 512,
    "precision": "bfloat16",
}
_PAPER: dict[str, dict[str, Any]] = {
    "mqmtar": {
        "layers": 4,
        "width": 512,
        "heads": 16,
        "steps": 390_625,
        "lr": 2e-4,
        "eval_lengths": _doubled(64, 65_536),
    },
    "sort": {"steps": 312_500, "lr": 4e-4, "validate_at": 256},
    "copy": {"heads": 16, "steps": 156_250},
    "reverse": {"layers": 6, "steps": 234_375, "lr": 4e-4, "eval_lengths": tuple(sorted((96, *_doubled(64, 4096))))},
    "local-count": {"train_length": 128, "steps": 78_125, "warmup": 10_000, "lr": 4e-4},
    "n-back": {"steps": 78_125, "warmup": 10_000, "lr": 4e-4},
    "flip-flop": {"layers": 4, "hidden": 512, "steps": 78_125, "warmup": 10_000, "lr": 4e-4},
    "parity": {"steps": 78_125, "warmup": 10_000, "lr": 4e-4},
    "max-retrieval": {
        **_LAPTOP["max-retrieval"],
        "train_length": 16,
        "width": 128,
        "steps": 4000,
        "sequences": 1024,
        "init_std": None,
        "mixed_lengths": False,
        "validate_at": 0,
        "precision": "float32",
    },
}
SIZES = ("laptop", "paper")
OPTIONS = (
    *("train_length", "sequences", "layers", "width", "heads", "hidden"),
    *("steps", "batch", "lr", "warmup", "validate_every", "precision"),
)
"""Fields of `TaskConfig` with a command-line option of the same name."""


def task_name(name: str) -> str:
    """Returns the canonical name of a task; underscores are read as dashes."""
    known = name.strip().lower().replace("_", "-")
    if known not in ABOUT:
        raise ArgumentError(f"unknown task {name!r}; choose one of {', '.join(ABOUT)}.")
    return known


def get_task_config(task: str, size: str = "laptop") -> TaskConfig:
    """Returns the configuration of a task at a size."""
    name = task_name(task)
    if size not in SIZES:
        raise ArgumentError(f"unknown size {size!r}; choose one of {', '.join(SIZES)}.")
    return replace(TaskConfig(name, size=size), **(_LAPTOP[name] if size == "laptop" else {**_PUBLISHED, **_PAPER[name]}))


def parse_task_config(stored: Mapping[str, Any]) -> TaskConfig:
    """Returns the configuration stored in run.json; fields missing in older files get their defaults."""
    known = {entry.name for entry in fields(TaskConfig)}
    values = {name: value for name, value in stored.items() if name in known}
    return TaskConfig(**{"task": "", **values, "eval_lengths": tuple(stored.get("eval_lengths", ()))})


def make_command(recipe: TaskConfig, *, methods: Sequence[str], positions: Sequence[str], seeds: Sequence[int]) -> str:
    """Returns the `entformer longctx` command of these runs, without options at their defaults."""
    usual = get_task_config(recipe.task, recipe.size)
    parts = [recipe.task, "--methods", ",".join(methods), "--positions", ",".join(positions)]
    parts += [] if recipe.size == SIZES[0] else ["--size", recipe.size]
    first = list(seeds) == list(range(len(seeds)))
    parts += ["--seeds", str(len(seeds)) if first else ",".join(map(str, seeds)) + ("," if len(seeds) == 1 else "")]
    for name in OPTIONS:
        if (value := getattr(recipe, name)) != getattr(usual, name):
            parts += [f"--{name.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value)]
    if recipe.lengths != replace(usual, train_length=recipe.train_length).lengths:
        parts += ["--eval-lengths", ",".join(map(str, recipe.lengths))]
    if recipe.seconds is not None:
        parts += ["--budget", f"{recipe.seconds:g}s"]
    for name, value in recipe.options.items():
        if usual.options.get(name) != value:
            parts += ["--option", f"{name}={value}"]
    return shlex.join(["entformer", "longctx", *parts])
