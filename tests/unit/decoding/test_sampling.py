"""Choice of the next token: each filter alone, greedy choice, and generation with the cache."""

from typing import Any

import pytest
import torch

from entformer.decoding.sampling import Sampling, generate_tokens
from entformer.errors import ArgumentError
from entformer.models.lm import CausalLM
from entformer.models.lm_config import LMConfig

SCORES = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()[torch.tensor([2, 0, 3, 1])]  # 0.15, 0.5, 0.05, 0.3


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.15, 0.5, 0.05, 0.3]),
        ({"temperature": 0.0}, [0.0, 1.0, 0.0, 0.0]),
        ({"top_k": 2}, [0.0, 0.625, 0.0, 0.375]),
        ({"top_p": 0.5}, [0.0, 1.0, 0.0, 0.0]),
        ({"top_p": 0.51}, [0.0, 0.625, 0.0, 0.375]),
        ({"min_p": 0.25}, [3 / 19, 10 / 19, 0.0, 6 / 19]),
        ({"top_k": 3, "min_p": 0.5}, [0.0, 0.625, 0.0, 0.375]),
    ],
)
def test_probabilities(options: dict[str, Any], expected: list[float]) -> None:
    torch.testing.assert_close(Sampling(**options).probabilities(SCORES), torch.tensor(expected))


def test_entmax_gives_unlikely_tokens_probability_zero() -> None:
    found = Sampling(alpha=2.0).probabilities(SCORES)
    assert found.sum() == pytest.approx(1.0)
    assert found[2] == 0.0
    assert found.argmax() == 1


@pytest.mark.parametrize("options", [{"temperature": -1.0}, {"alpha": 0.5}, {"top_k": 0}, {"top_p": 0.0}, {"min_p": 1.5}])
def test_invalid_settings_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=f"{next(iter(options))}="):
        Sampling(**options)


def test_generation_equals_the_model_and_ends_before_eos() -> None:
    torch.manual_seed(0)
    model = CausalLM(LMConfig(vocab_size=11, layers=2, heads=2, width=16, hidden=16)).eval()
    prompt = torch.tensor([[2, 5, 6]])
    expected = model.generate(prompt, 8)[0].tolist()
    assert list(generate_tokens(model, [2, 5, 6], 8, Sampling(temperature=0.0))) == expected
    eos = expected[3]
    assert list(generate_tokens(model, [2, 5, 6], 8, Sampling(temperature=0.0), eos=eos)) == expected[: expected.index(eos)]
    same = [
        list(generate_tokens(model, [2], 8, Sampling(), generator=torch.Generator().manual_seed(seed))) for seed in (1, 1, 2)
    ]
    assert same[0] == same[1] != same[2]
    with pytest.raises(ArgumentError, match="at least one token"):
        next(generate_tokens(model, [], 1, Sampling()))
