"""Mappings without a fused kernel: what each gives, blocks of rows, rows without keys, and mappings of one's own by name."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from entformer.errors import ArgumentError
from entformer.nn import dense
from entformer.nn.dense import dense_attention
from entformer.nn.masks import Masks, ScoreTerms
from entformer.nn.multihead_attention import MultiheadAttention
from entformer.nn.normalizer_functions import AdaptiveTemperature, ReluN, Sigmoid, TopK
from entformer.nn.normalizers import get_normalizer

NOTHING = Masks(None, None, None)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_topk_keeps_k() -> None:
    scores = random(5, 20)
    weights = TopK(4)(scores)
    assert ((weights > 0).sum(-1) == 4).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(5))
    kept = weights > 0
    assert (scores[kept].min() >= scores.masked_fill(kept, -math.inf).amax(-1)).any()
    torch.testing.assert_close(TopK(50)(scores), scores.softmax(-1))
    with pytest.raises(ArgumentError, match="k=0"):
        TopK(0)


def test_adaptive_temperature_sharpens_only_uncertain_rows_and_only_in_evaluation() -> None:
    module, flat, sharp = AdaptiveTemperature(), 0.3 * random(1, 40), torch.tensor([[9.0, 0.0, 0.0, 0.0]])
    assert torch.equal(module.train()(flat), flat.softmax(-1))
    module.eval()
    entropy = torch.special.entr(flat.softmax(-1)).sum().item()
    factor = max(-0.037 * entropy**4 + 0.481 * entropy**3 - 2.3 * entropy**2 + 4.917 * entropy - 1.791, 1.0)
    assert factor > 1.0
    torch.testing.assert_close(module(flat), (factor * flat).softmax(-1))
    torch.testing.assert_close(module(sharp), sharp.softmax(-1))


def test_sigmoid_and_relu_n_by_hand() -> None:
    scores = torch.tensor([[1.0, -2.0, 0.5, -math.inf]])
    torch.testing.assert_close(Sigmoid()(scores)[0, :3], torch.sigmoid(scores[0, :3] - math.log(3.0)))
    torch.testing.assert_close(ReluN()(scores)[0, :3], torch.tensor([1.0, 0.0, 0.5]) / 3.0)


@pytest.mark.parametrize("causal", [False, True])
def test_softmax_as_a_normalizer_function_is_torch_attention(causal: bool) -> None:
    q, k, v = (random(2, 3, 9, 4, seed=part) for part in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    found = dense_attention(q, k, v, lambda s: s.softmax(-1), ScoreTerms(NOTHING, causal=causal), trace=True)
    torch.testing.assert_close(found.output, expected, rtol=0.0, atol=1e-5)
    assert found.stats is not None
    assert found.stats.logsumexp.isnan().all()
    visible = torch.arange(1, 10) if causal else torch.full((9,), 9)
    assert (found.stats.support_size == visible).all()


def test_blocks_of_rows_give_what_all_rows_give(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (random(2, 3, 17, 4, seed=part) for part in range(3))
    masks = Masks(random(2, 1, 17, 17, seed=5) > -0.5, random(2, 17, seed=6) > -1.0, 0.1 * random(1, 3, 17, 17, seed=7))
    terms = ScoreTerms(masks, torch.tensor([1.0, 0.5, 0.0]), causal=True)
    whole = dense_attention(q, k, v, TopK(3), terms, trace=True)
    monkeypatch.setattr(dense, "BLOCK", 2 * 3 * 17 * 4)
    pieces = dense_attention(q, k, v, TopK(3), terms, trace=True)
    torch.testing.assert_close(pieces.output, whole.output)
    assert pieces.support is not None
    assert whole.support is not None
    assert torch.equal(pieces.support.col, whole.support.col)


def test_a_row_without_keys_is_zero_and_sends_no_nan_back() -> None:
    q, k, v = (random(1, 1, 3, 4, seed=part).requires_grad_() for part in range(3))
    masked = Masks(torch.tensor([[True] * 3, [False] * 3, [True] * 3])[None, None], None, None)
    out = dense_attention(q, k, v, lambda s: s.softmax(-1), ScoreTerms(masked)).output
    out.square().sum().backward()
    assert (out[0, 0, 1] == 0.0).all()
    for t in (q, k, v):
        assert t.grad is not None
        assert t.grad.isfinite().all()


OWN = """
import torch
class Scaled(torch.nn.Module):
    def __init__(self, num_heads):
        super().__init__()
        self.s = torch.nn.Parameter(torch.ones(num_heads, 1, 1))
    def forward(self, scores):
        return (self.s * scores).softmax(-1)
class Needy(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
def plain(scores):
    return scores.softmax(-1)
def flat(scores):
    return scores.sum(-1)
value = 3
"""


def test_a_mapping_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_normalizer_for_tests.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    x = random(2, 6, 8)
    torch.manual_seed(0)
    softmax = MultiheadAttention(8, 2, batch_first=True, normalizer="softmax")
    for name in ("Scaled", "plain"):
        torch.manual_seed(0)
        mine = MultiheadAttention(8, 2, batch_first=True, normalizer=f"own_normalizer_for_tests:{name}")
        torch.testing.assert_close(mine(x, x, x)[0], softmax(x, x, x)[0], rtol=0.0, atol=1e-6)
        assert ("normalizer_fn.s" in mine.state_dict()) == (name == "Scaled")
    for name, words in (
        ("own_normalizer_for_tests:Needy", "num_heads is the only argument"),
        ("own_normalizer_for_tests:value", "no class or function"),
        ("own_normalizer_for_tests:missing", "no class or function"),
        ("no_such_module:It", "cannot be imported"),
        ("hardmax", "module:Name"),
    ):
        with pytest.raises(ArgumentError, match=words):
            get_normalizer(name).make_fn(2)  # type: ignore[misc]  # your own normalizer has one
    wrong = MultiheadAttention(8, 2, batch_first=True, normalizer="own_normalizer_for_tests:flat")
    with pytest.raises(ArgumentError, match="scores' shape"):
        wrong(x, x, x)
