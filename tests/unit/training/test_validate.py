"""Validation bounds the time that a model takes which does not end its sentences yet."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from entformer.data.store import TokenStore
from entformer.decoding.records import Hypothesis
from entformer.tasks.translation import Translation, usual_lengths
from entformer.training.recipe import Recipe

LINES = 40


class Model(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(1, 1)

    def loss(self, batch: Any) -> Any:
        one = torch.tensor(1.0)
        return SimpleNamespace(loss=one, nll=one, correct=one, tokens=1)


def prepared() -> Any:
    store = TokenStore.from_examples([([5, 6], [5, 6, 7])] * LINES)
    return SimpleNamespace(
        store=lambda _: store,
        text=lambda _: (["a b"] * LINES, ["a b c d"] * LINES),
        subwords=SimpleNamespace(decode=lambda _: "a b c d"),
        tokenized=False,
        lowercase=False,
        fingerprint="",
    )


def test_validation_bounds_the_length_of_translations_and_cuts_loops(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limits, cuts = [], []

    def beam_search(_: Any, source: torch.Tensor, *__: Any, max_length: Any, cut_loops: bool, **___: Any) -> Any:
        limits.append(max_length(2))
        cuts.append(cut_loops)
        return [[Hypothesis((5,), -1.0, -1.0, finished=False)] for _ in source]

    monkeypatch.setattr("entformer.tasks.translation.beam_search", beam_search)
    recipe = Recipe.model_validate({"data": {"corpus": "builtin"}, "training": {"tokens": 40}})
    found = Translation(recipe, prepared()).evaluate(Model(), tmp_path / "out", {"beam": 1})  # type: ignore[arg-type]
    assert found is not None
    assert (tmp_path / "out.txt").read_text(encoding="utf-8").count("\n") == LINES
    assert set(limits) == {12}  # the training pairs have 3 tokens for 2; a factor of 1 at least, and 10 more
    assert all(cuts)
    assert found["bleu"] == pytest.approx(100)


def test_the_limit_admits_nearly_all_training_pairs() -> None:
    pairs = [([4] * n, [4] * int(1.3 * n)) for n in range(5, 60)] * 40 + [([4], [4] * 300)]
    limit = usual_lengths(TokenStore.from_examples(pairs))
    assert all(len(target) <= limit(len(source)) for source, target in pairs[:-1])
    assert limit(50) < 2 * 50 + 10
    assert limit(1) < 300
