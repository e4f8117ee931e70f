"""Entmax sampling gives tokens outside the support probability zero."""

import pytest
import torch

from entformer import entmax, hf
from entformer.errors import ArgumentError

from .tiny_models import tiny


def test_probabilities_are_those_of_entmax() -> None:
    scores = torch.tensor([[2.0, 1.5, 0.1, -3.0, -torch.inf], [0.0, 5.0, 5.0, torch.finfo(torch.float32).min, 1.0]])
    found = hf.EntmaxLogitsProcessor(1.5, temperature=0.5)(None, scores).softmax(-1)
    expected = entmax(scores[:, :5].clamp_min(-1e4) / 0.5, 1.5)
    assert torch.allclose(found, expected, atol=1e-6)
    assert torch.equal(found > 0, expected > 0)


def test_generation_samples_from_the_support_only() -> None:
    model = tiny("llama")
    torch.manual_seed(0)
    ids = torch.randint(3, 90, (1, 6))
    out = model.generate(
        ids,
        do_sample=True,
        max_new_tokens=5,
        logits_processor=[hf.EntmaxLogitsProcessor(2.0)],
        output_scores=True,
        return_dict_in_generate=True,
    )
    for step, scores in enumerate(out.scores):
        assert torch.isfinite(scores[0, out.sequences[0, 6 + step]])
        assert torch.isinf(scores).any()


def test_arguments() -> None:
    with pytest.raises(ArgumentError, match="at least 1"):
        hf.EntmaxLogitsProcessor(0.9)
    with pytest.raises(ArgumentError, match="above 0"):
        hf.EntmaxLogitsProcessor(1.5, temperature=0.0)
