"""A run whose model copies, so that every translation is known; and a real run folder with an untrained Transformer."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from entformer.checkpoint import LoadedRun, RunFolder
from entformer.text.tokenizer import EOS, SubwordTokenizer


class CopyState:
    def __init__(self, source: Tensor) -> None:
        self.source = source
        self.at = 0

    def reorder(self, index: Tensor) -> None:
        self.source = self.source[index]


class CopyModel(nn.Module):
    """Says the source again, token by token; the second choice is always the id after it."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.source_embedding = nn.Parameter(torch.zeros(vocabulary, 1))
        self.sizes: list[tuple[int, ...]] = []

    def start(self, source: Tensor, source_mask: Tensor | None) -> CopyState:
        assert not self.training
        self.sizes.append(tuple(source.shape))
        return CopyState(source)

    def step(self, tokens: Tensor, state: CopyState) -> Tensor:
        state.at += 1 if tokens.dim() == 1 else tokens.shape[1]
        vocabulary = len(self.source_embedding)
        logits = torch.full((len(state.source), vocabulary), math.log(1e-6))
        place = min(state.at, state.source.shape[1]) - 1
        wanted = state.source[:, place].masked_fill(state.source[:, place] < EOS, EOS)
        logits.scatter_(1, (wanted + 1).clamp(max=vocabulary - 1)[:, None], math.log(0.2))
        return logits.scatter_(1, wanted[:, None], math.log(0.7))

    def log_probs(self, logits: Tensor) -> Tensor:
        return logits


@pytest.fixture(scope="session")
def subwords(make_run: Callable[..., LoadedRun]) -> SubwordTokenizer:
    return make_run().subwords


@pytest.fixture
def copying(make_run: Callable[..., LoadedRun], subwords: SubwordTokenizer) -> LoadedRun:
    model: Any = CopyModel(subwords.size)
    return replace(make_run(), model=model)


@pytest.fixture(scope="session")
def run_folder(
    make_run: Callable[..., LoadedRun],
    save_run: Callable[[LoadedRun, Path], RunFolder],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    return save_run(make_run(seed=3), tmp_path_factory.mktemp("decode") / "run").path
