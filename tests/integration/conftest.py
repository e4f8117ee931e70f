"""A task small enough to train in a second: spell a word of a few letters backwards."""

import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from entformer.cli.main import main

LETTERS = "abcdefgh"


def backwards(count: int, seed: int) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    words = [[rng.choice(LETTERS) for _ in range(rng.randint(2, 6))] for _ in range(count)]
    return [(" ".join(word), " ".join(reversed(word))) for word in words]


def write_text(folder: Path, count: int = 80, seed: int = 1) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for split, size, own in (("train", count, seed), ("valid", 12, 99)):
        pairs = backwards(size, own)
        for side, language in enumerate(("xx", "yy")):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    write_text(folder)
    return folder


RecipeMaker = Callable[..., Path]


@pytest.fixture
def make_recipe(text: Path, tmp_path: Path) -> RecipeMaker:
    """Writes a recipe file; keyword arguments change its training section."""

    def make(name: str = "tiny", model: dict[str, object] | None = None, **training: object) -> Path:
        recipe: dict[str, Any] = {
            "name": name,
            "data": {
                "train": ["text/train.xx", "text/train.yy"],
                "valid": ["text/valid.xx", "text/valid.yy"],
                "source_language": "xx",
                "target_language": "yy",
                "vocab_size": 300,
            },
            "model": {
                "encoder_layers": 1,
                "decoder_layers": 1,
                "heads": 2,
                "width": 16,
                "hidden": 32,
                "dropout": 0.1,
                "attention_dropout": 0.1,
                **(model or {}),
            },
            "training": {
                "steps": 12,
                "tokens": 64,
                "lr": 0.01,
                "warmup": 4,
                "validate_every": 4,
                "log_every": 2,
                "average_count": 2,
                "keep_last": 2,
                **training,
            },
            "decoding": {"beam": 2},
        }
        if training.get("average") == "none":
            del recipe["training"]["average_count"]  # a setting without effect is an error
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
        return path

    return make


Entformer = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def entformer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Entformer:
    """Runs a command line in this process."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["entformer", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        return subprocess.CompletedProcess(sys.argv, int(stopped.value.code or 0), captured.out, captured.err)

    return run
