"""Mappings without a fused kernel: equations written out, gradients, masks, garbage behind them, blocks of rows, your own."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from entformer.errors import ArgumentError
from entformer.nn import dense
from entformer.nn.dense import dense_attention
from entformer.nn.masks import Masks, ScoreTerms
from entformer.nn.multihead_attention import MultiheadAttention
from entformer.nn.normalizer_functions import (
    AdaptiveSpan,
    AdaptiveTemperature,
    Elementwise,
    ReluN,
    Sigmoid,
    Softmax1,
    StickBreaking,
    TopK,
)
from entformer.nn.normalizers import NORMALIZERS, get_normalizer, make_normalizer_fn

from . import tensors

DENSE = [name for name, traits in NORMALIZERS.items() if traits.make_fn is not None]
SHORT: dict[str, Any] = {"max_span": 9.0, "init": 2.5, "ramp": 3.0}  # spans that end inside the rows of these tests
random = partial(tensors.random, dtype=torch.float64)


def make_fn(name: str, heads: int = 2) -> Any:
    found = make_normalizer_fn(
        get_normalizer(name), heads, SHORT if name == "adaptive_span" else {"k": 3} if name == "topk" else {}
    )
    return found.double() if isinstance(found, torch.nn.Module) else found


# ---- the equations ---------------------------------------------------------------------------------------------------------


def test_softmax1_is_softmax_with_a_zero_more() -> None:
    scores = random(4, 7)
    torch.testing.assert_close(Softmax1()(scores), scores.exp() / (1.0 + scores.exp().sum(-1, keepdim=True)))
    assert Softmax1()(torch.full((1, 5), -800.0)).sum() == 0.0  # attends to nothing, without NaN
    torch.testing.assert_close(Softmax1()(torch.tensor([[800.0, 800.0]])), torch.tensor([[0.5, 0.5]]))


@pytest.mark.parametrize("attend_current", [False, True])
def test_stickbreaking_by_hand(attend_current: bool) -> None:
    scores = 2.0 * random(6, 6)
    scores[4, 1] = -math.inf  # hidden: breaks nothing off
    distance = torch.arange(6)[:, None] - torch.arange(6)
    found = StickBreaking(attend_current=attend_current)(scores, distance)
    for i in range(6):
        left = 1.0
        for j in range(i if attend_current else i - 1, -1, -1):  # the most recent key first
            share = torch.sigmoid(scores[i, j]).item()
            assert found[i, j].item() == pytest.approx(left * share, rel=1e-12, abs=1e-300)
            left *= 1.0 - share
        assert not found[i, i + attend_current :].any()
        assert found[i].sum().item() == pytest.approx(1.0 - left, abs=1e-12)


def test_stickbreaking_of_large_scores_stays_finite() -> None:
    scores = torch.tensor([[300.0, -300.0, 0.0, 300.0]], dtype=torch.float32).requires_grad_()
    weights = StickBreaking()(scores, torch.tensor([[4, 3, 2, 1]]))
    torch.testing.assert_close(weights, torch.tensor([[0.0, 0.0, 0.0, 1.0]]))
    weights[0, 0].backward()
    assert scores.grad.isfinite().all()


def test_adaptive_span_by_hand() -> None:
    module = AdaptiveSpan(2, max_span=100.0, ramp=4.0, init=3.0).double()
    with torch.no_grad():
        module.pre_span[1] = math.log(10.0 / 90.0)  # z = 10
    torch.testing.assert_close(module.spans(), torch.tensor([3.0, 10.0], dtype=torch.float64))
    scores = random(1, 2, 12, 12)
    distance = torch.arange(12)[:, None] - torch.arange(12)
    found = module(scores, distance)
    for head, z in enumerate((3.0, 10.0)):
        mask = torch.tensor([[min(max((4.0 + z - abs(i - j)) / 4.0, 0.0), 1.0) for j in range(12)] for i in range(12)]).double()
        expected = mask * scores[0, head].exp()
        torch.testing.assert_close(found[0, head], expected / expected.sum(-1, keepdim=True))
        assert torch.equal(found[0, head] == 0.0, mask == 0.0)


def test_adaptive_span_sees_no_score_beyond_the_span() -> None:
    """The largest score of the row lies outside; without care everything inside would underflow."""
    scores = torch.zeros(1, 1, 1, 50, dtype=torch.float64)
    scores[..., 0] = 2000.0
    found = AdaptiveSpan(1, max_span=10.0, ramp=2.0, init=4.0).double()(scores, torch.arange(49, -1, -1)[None])
    assert found[..., 0] == 0.0
    assert found.sum().item() == pytest.approx(1.0)


def test_spans_have_a_price_and_learn() -> None:
    module = AdaptiveSpan(2, max_span=100.0, ramp=4.0, init=30.0, penalty=0.5)
    assert module.penalty().item() == pytest.approx(15.0)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-2)
    for _ in range(20):
        optimizer.zero_grad()
        module.penalty().backward()
        optimizer.step()
    assert (module.spans() < 29.0).all()
    for wrong in ({"init": 0.0}, {"max_span": 3.0}, {"ramp": 0.0}, {"penalty": -1.0}):
        with pytest.raises(ArgumentError):
            AdaptiveSpan(2, **wrong)


@pytest.mark.parametrize(
    ("name", "function"),
    [("relu2", lambda s: s.relu() ** 2), ("gelu", F.gelu), ("leaky_relu", lambda s: torch.where(s > 0, s, 0.01 * s))],
)
def test_activations_in_place_of_relu(name: str, function: Any) -> None:
    scores = random(3, 8)
    torch.testing.assert_close(Elementwise(name)(scores), function(scores))
    with pytest.raises(ArgumentError, match="relu2, gelu, leaky_relu"):
        Elementwise("swish")


def test_topk_keeps_k() -> None:
    scores = random(5, 20)
    weights = TopK(4)(scores)
    assert ((weights > 0).sum(-1) == 4).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(5).double())
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


# ---- for all of them -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DENSE)
def test_gradients(name: str) -> None:
    found = make_fn(name).train()
    scores = random(1, 2, 5, 6, seed=3).requires_grad_()
    distance = torch.arange(5)[:, None] + 1 - torch.arange(6)
    own = list(found.parameters())

    def weights(shown: Tensor, *_: Tensor) -> Tensor:
        return found(shown, distance) if getattr(found, "uses_positions", False) else found(shown)

    assert torch.autograd.gradcheck(weights, (scores, *own))


@pytest.mark.parametrize("garbage", [math.nan, math.inf, 1e300])
@pytest.mark.parametrize("name", DENSE)
def test_garbage_behind_masks_leaks_nowhere(name: str, garbage: float) -> None:
    """Keys and values that no query may attend, and a row without any key."""
    q, k, v = (random(1, 2, 6, 4, seed=part) for part in range(3))
    pairs = torch.ones(6, 6).tril().bool()
    pairs[:, 2] = False  # nobody sees key 2
    pairs[3] = False  # query 3 sees nothing
    results = []
    for spoiled in (False, True):
        inputs = [t.clone() for t in (q, k, v)]
        if spoiled:
            for t in inputs[1:]:
                t[:, :, 2] = garbage
        for t in inputs:
            t.requires_grad_()
        masks = Masks(pairs[None, None], None, None)
        out = dense_attention(*inputs, make_fn(name), ScoreTerms(masks)).output  # type: ignore[misc]
        out[:, :, :5].square().sum().backward()
        results.append((out.detach()[:, :, :5], *(t.grad for t in inputs)))
    assert not results[0][0][:, :, 3].any()
    for clean, spoiled_result in zip(*results, strict=True):
        torch.testing.assert_close(spoiled_result, clean, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("name", DENSE)
def test_nan_in_an_attended_key_shows_in_its_rows_alone(name: str) -> None:
    q, k, v = (random(1, 1, 5, 4, seed=part) for part in range(3))
    k[:, :, 2] = math.nan
    out = dense_attention(q, k, v, make_fn(name, 1), ScoreTerms(Masks(None, None, None), causal=True)).output
    first = 3 if name == "stickbreaking" else 2  # which begins with the key before the query
    assert out[0, 0, :first].isfinite().all()
    assert out[0, 0, first:].isnan().all()


@pytest.mark.parametrize(
    ("norm", "per_head"), [("none", False), ("rms", False), ("rms", True), ("gated", False), ("gated", True), ("init", True)]
)
@pytest.mark.parametrize("name", NORMALIZERS)
def test_every_normalizer_takes_an_output_norm(name: str, norm: str, per_head: bool) -> None:
    """By hand: the output is the norm of the heads, through the output projection."""
    torch.manual_seed(0)
    module = MultiheadAttention(8, 2, normalizer=name, output_norm=norm, output_norm_per_head=per_head, batch_first=True)
    torch.nn.init.normal_(module.out_proj.bias)
    x = random(2, 6, 8).float()
    out, weights = module(x, x, x, average_attn_weights=False)
    state = module.state_dict()
    q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in (x @ state["in_proj_weight"].T).chunk(3, -1))
    if name == "rela":
        torch.testing.assert_close(weights, (q @ k.mT / 2.0).relu())
    heads = (weights @ v).transpose(1, 2)  # (B, L, H, head size)
    z = heads.flatten(2)
    assert ("norm.gain" in state, "norm.gate" in state) == (norm != "none", norm == "gated")
    if norm != "none":
        gain, bound = state["norm.gain"], (3 / 8) ** 0.5
        assert gain.abs().max() <= bound if norm == "init" else torch.equal(gain, torch.ones(8))
        rms = (heads.square().mean(-1 if per_head else (-2, -1), keepdim=True) + 1e-8).sqrt()
        gate = torch.sigmoid(state["norm.gate"] * z) if norm == "gated" else 1.0
        z = gate * gain * (heads / rms).flatten(2)
    torch.testing.assert_close(out, module.out_proj(z), rtol=1e-4, atol=1e-4)


def test_former_names_of_the_norm() -> None:
    """State keys and values are those of `output_norm`."""
    for former, now in (("gated", "gated"), ("plain", "rms"), ("init", "init")):
        torch.manual_seed(0)
        old = MultiheadAttention(8, 2, normalizer="rela", rela_norm=former, rela_per_head=True, batch_first=True)
        torch.manual_seed(0)
        new = MultiheadAttention(8, 2, normalizer="rela", output_norm=now, output_norm_per_head=True, batch_first=True)
        assert old.state_dict().keys() == new.state_dict().keys()
        x = random(2, 6, 8).float()
        assert torch.equal(old(x, x, x)[0], new(x, x, x)[0])
    default = MultiheadAttention(8, 2, normalizer="rela")
    assert set(default.state_dict()) >= {"norm.gain", "norm.gate"}


def test_blocks_of_rows_give_what_all_rows_give(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (random(2, 3, 17, 4, seed=part).float() for part in range(3))
    masks = Masks(random(2, 1, 17, 17, seed=5) > -0.5, random(2, 17, seed=6) > -1.0, 0.1 * random(1, 3, 17, 17, seed=7).float())
    terms = ScoreTerms(masks, torch.tensor([1.0, 0.5, 0.0]), causal=True)
    whole = dense_attention(q, k, v, TopK(3), terms, trace=True)
    monkeypatch.setattr(dense, "BLOCK", 2 * 3 * 17 * 4)
    pieces = dense_attention(q, k, v, TopK(3), terms, trace=True)
    torch.testing.assert_close(pieces.output, whole.output)
    assert torch.equal(pieces.support.col, whole.support.col)


# ---- your own ---------------------------------------------------------------------------------------------------------------


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
    x = random(2, 6, 8).float()
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
