"""Length-aware scaling of queries: the formulas by hand, how keys are counted, and what they reduce to inside attention."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from entformer.errors import ArgumentError
from entformer.kernels.entmax.api import entmax
from entformer.nn.multihead_attention import MultiheadAttention
from entformer.nn.scaling import ASEntmaxScaling, PerHeadScaling, SSMaxScaling, make_scaling, row_length

from .tensors import random

CLOSE: dict[str, Any] = {"rtol": 0.0, "atol": 1e-5}  # two float32 ways to one result of order one
EMBED, HEADS, BATCH, LENGTH = 12, 3, 2, 7


# ---- counting keys -------------------------------------------------------------------------------------------------------

LEFT = torch.tensor([[True] * 6, [False, False, True, True, True, True]])  # (2, 6), True = may attend
SOME = torch.tensor([[True, False, True, True, False, True]] * 4).logical_and(torch.tensor([[True], [True], [False], [True]]))


@pytest.mark.parametrize("causal_offset", [None, 0, 2, 5, -2])
@pytest.mark.parametrize("key_mask", [None, LEFT], ids=["", "padding"])
@pytest.mark.parametrize("mask", [None, SOME[None, None], SOME.expand(2, 3, 4, 6), SOME[None, None, :1]])
def test_row_length_is_the_keys_seen_and_one_more_in_causal_rows(
    causal_offset: int | None, key_mask: Tensor | None, mask: Tensor | None
) -> None:
    length = row_length(4, 6, causal_offset=causal_offset, key_mask=key_mask, mask=mask).expand(2, 3, 4)
    for b in range(2):
        for h in range(3):
            for i in range(4):
                seen = 0
                for j in range(6):
                    allowed = causal_offset is None or j <= i + causal_offset
                    allowed &= key_mask is None or bool(key_mask[b, j])
                    allowed &= mask is None or bool(mask.expand(2, 3, 4, 6)[b, h, i, j])
                    seen += allowed
                assert length[b, h, i] == seen + (causal_offset is not None)


def test_a_mask_that_hides_all_later_keys_is_causal() -> None:
    """However causal attention is written down, n is that of the published log(i + 2)."""
    triangle = torch.ones(9, 9).tril().bool()[None, None]
    published = torch.arange(2, 11)
    assert torch.equal(row_length(9, 9, mask=triangle).flatten(), published)
    assert torch.equal(row_length(4, 9, mask=triangle[:, :, 5:]).flatten(), published[5:])  # the last queries, after a past
    packed = triangle & (torch.arange(9) // 5 == (torch.arange(9) // 5)[:, None])  # 5 and 4 tokens
    assert row_length(9, 9, mask=packed).flatten().tolist() == [2, 3, 4, 5, 6, 2, 3, 4, 5]
    both = torch.cat([triangle, torch.ones(1, 1, 9, 9, dtype=torch.bool)])  # a causal row of the batch beside one that is not
    assert row_length(9, 9, mask=both)[:, 0].tolist() == [published.tolist(), [9] * 9]
    assert row_length(1, 9, mask=triangle[:, :, 8:]).item() == 9  # one query says nothing about order


# ---- the formulas --------------------------------------------------------------------------------------------------------


def test_ssmax_by_hand() -> None:
    module = SSMaxScaling(HEADS)
    with torch.no_grad():
        module.s.copy_(torch.tensor([0.5, 1.0, -2.0]))
    length = torch.tensor([[2, 3, 10], [5, 5, 1000]])
    factor = module(torch.zeros(BATCH, 3, EMBED), length)
    assert factor.shape == (BATCH, HEADS, 3)
    for b, h, i in ((0, 0, 0), (0, 2, 1), (1, 1, 2), (1, 2, 0)):
        assert factor[b, h, i].item() == pytest.approx(module.s[h].item() * math.log(length[b, i].item()), rel=1e-6)


@pytest.mark.parametrize(("delta", "rho"), [(1.0, 2.0), (0.0, 1.0), (0.5, 3.0)])
def test_asentmax_by_hand(delta: float, rho: float) -> None:
    torch.manual_seed(0)
    module = ASEntmaxScaling(EMBED, HEADS, delta=delta, rho=rho, init="paper").double()
    nn.init.normal_(module.beta.bias)
    nn.init.normal_(module.gamma.bias)
    x, length = random(BATCH, LENGTH, EMBED).double(), torch.arange(2, 2 + LENGTH)[None]
    factor = module(x, length)
    assert factor.shape == (BATCH, HEADS, LENGTH)
    state = module.state_dict()
    for b, h, i in ((0, 0, 0), (1, 2, 6), (0, 1, 3)):
        beta = math.log1p(math.exp(float(state["beta.weight"][h] @ x[b, i] + state["beta.bias"][h])))
        gamma = rho * math.tanh(float(state["gamma.weight"][h] @ x[b, i] + state["gamma.bias"][h]))
        assert factor[b, h, i].item() == pytest.approx(delta + beta * math.log(2 + i) ** gamma, rel=1e-12)


def test_starts() -> None:
    torch.manual_seed(0)
    x, length = random(BATCH, LENGTH, 512), torch.arange(2, 2 + LENGTH)[None]
    identity = ASEntmaxScaling(512, HEADS)
    torch.testing.assert_close(identity(x, length), torch.full((BATCH, HEADS, LENGTH), 1.05))
    paper = ASEntmaxScaling(512, HEADS, init="paper")
    for projection in (paper.beta, paper.gamma):
        assert not projection.bias.any()
        assert projection.weight.std().item() == pytest.approx(0.02, rel=0.1)  # 1536 draws: 5 standard errors
    assert paper(x, length).std() > 0.1
    s = SSMaxScaling(4000).s
    assert s.mean().item() == pytest.approx(1.0, abs=1e-3)  # 6 standard errors
    assert s.std().item() == pytest.approx(0.01, rel=0.07)
    with pytest.raises(ArgumentError, match="init='zeros'"):
        ASEntmaxScaling(4, 2, init="zeros")


@pytest.mark.parametrize(
    "module", [SSMaxScaling(HEADS), ASEntmaxScaling(EMBED, HEADS, init="paper")], ids=["ssmax", "asentmax"]
)
def test_shapes_short_rows_and_low_precision(module: nn.Module) -> None:
    x = random(BATCH, 3, EMBED)
    short = module(x, torch.tensor([[0, 1, 2]]))  # a row without keys, or with none but its own, counts as 2
    assert short.isfinite().all()
    assert torch.equal(module(x, torch.tensor([[2, 2, 2]])), short)
    per_head = torch.tensor([[2, 3, 4], [5, 6, 7], [8, 9, 9]])[None]
    factor = module(x, per_head)
    for h in range(HEADS):
        assert torch.equal(factor[:, h], module(x, per_head[:, h])[:, h])
    with pytest.raises(ArgumentError, match=r"\(B, L\) or \(B, H, L\)"):
        module(x, torch.tensor([2, 3, 4]))
    half = module.to(torch.bfloat16)(x.to(torch.bfloat16), per_head)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, factor, rtol=0.1, atol=0.0)  # bfloat16 parameters and products, 8 bits
    module.float()


def test_per_head_scaling_by_hand_and_its_starts() -> None:
    x, length = torch.zeros(BATCH, 3, EMBED), torch.tensor([[2, 30, 1000]])
    module = PerHeadScaling(HEADS)
    torch.testing.assert_close(module(x, length), torch.full((BATCH, HEADS, 3), 1.05))
    with torch.no_grad():
        module.beta.copy_(torch.tensor([0.5, -1.0, 2.0]))
        module.gamma.copy_(torch.tensor([1.0, -0.5, 2.0]))
    expected = 1.0 + module.beta[:, None] * length.log() ** module.gamma[:, None]
    torch.testing.assert_close(module(x, length), expected.expand(BATCH, HEADS, 3))
    drawn = PerHeadScaling(2000, init="paper")
    assert 0.1 <= drawn.beta.min() <= drawn.beta.max() <= 1.0
    assert drawn.gamma.std().item() == pytest.approx(0.1, rel=0.1)


def test_scalings_by_name() -> None:
    assert isinstance(make_scaling("ssmax", EMBED, HEADS), SSMaxScaling)
    assert isinstance(make_scaling("per_head", EMBED, HEADS), PerHeadScaling)
    fixed = make_scaling("asentmax", EMBED, HEADS, gamma=1.0)
    assert isinstance(fixed, ASEntmaxScaling)
    assert set(fixed.state_dict()) == {"beta.weight", "beta.bias"}
    x, length = random(BATCH, 1, EMBED), torch.tensor([[100]])
    torch.testing.assert_close(fixed(x, length), 1.0 + fixed.beta_gamma(x)[0] * math.log(100))
    for arguments, words in ((("sharp", {}), "'sharp' is not known"), (("ssmax", {"gamma": 1.0}), "fixed gamma")):
        with pytest.raises(ArgumentError, match=words):
            make_scaling(arguments[0], EMBED, HEADS, **arguments[1])
    module = MultiheadAttention(EMBED, HEADS, normalizer="sparsemax", scaling="per_head")
    assert isinstance(module.scaling, PerHeadScaling)
    assert make_scaling("ssmax", EMBED, 4000, init=0.43).s.mean().item() == pytest.approx(0.43, abs=1e-3)  # type: ignore[union-attr, operator]
    assert make_scaling("asentmax", EMBED, HEADS, init="paper").init == "paper"
    for name, init in (("ssmax", "identity"), ("asentmax", 0.5), ("per_head", 1.0), ("temperature", "paper")):
        with pytest.raises(ArgumentError, match=f"does not fit scaling '{name}'"):
            make_scaling(name, EMBED, HEADS, init=init)


def test_temperature_divides_the_products() -> None:
    """softmax(q k^T / theta); sqrt(head size) is plain attention, and the learned ones start there."""
    x = random(BATCH, LENGTH, EMBED)
    torch.manual_seed(0)
    plain = MultiheadAttention(EMBED, HEADS, batch_first=True, normalizer="softmax")
    state = plain.state_dict()
    for theta in (0.5, (EMBED / HEADS) ** 0.5, "learned"):
        scaling = make_scaling("temperature", EMBED, HEADS, temperature=theta)
        module = MultiheadAttention(EMBED, HEADS, batch_first=True, normalizer="softmax_temperature", scaling=scaling)
        module.load_state_dict(state, strict=False)
        _, weights = module(x, x, x, average_attn_weights=False)
        q, k, _ = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (x @ state["in_proj_weight"].T).chunk(3, -1))
        divisor = (EMBED / HEADS) ** 0.5 if theta == "learned" else theta
        torch.testing.assert_close(weights, (q @ k.transpose(-1, -2) / divisor).softmax(-1), **CLOSE)
        assert ("scaling.log_factor" in module.state_dict()) == (theta == "learned")
    for theta in (0.0, math.inf, "cold"):
        with pytest.raises(ArgumentError, match="temperature="):
            make_scaling("temperature", EMBED, HEADS, temperature=theta)
    with pytest.raises(ArgumentError, match='scaling "temperature" only'):
        make_scaling("ssmax", EMBED, HEADS, temperature=1.0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("name", "alpha"), [("ssmax", 1.0), ("asentmax", 1.5)])
def test_weights_of_attention_by_hand(name: str, alpha: float, causal: bool) -> None:
    torch.manual_seed(1)
    scaling = make_scaling(name, EMBED, HEADS, init="paper")
    module = MultiheadAttention(EMBED, HEADS, batch_first=True, normalizer=name, scaling=scaling)
    x = 3.0 * random(BATCH, LENGTH, EMBED)
    q, k, _ = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (x @ module.state_dict()["in_proj_weight"].T).chunk(3, -1))
    length = torch.arange(2, 2 + LENGTH) if causal else torch.full((LENGTH,), LENGTH)  # query i sees i + 1 keys; n = i + 2
    scores = scaling(x, length[None])[..., None] * (q @ k.transpose(-1, -2)) / (EMBED / HEADS) ** 0.5
    expected = entmax(scores, alpha, mask=torch.ones(LENGTH, LENGTH).tril().bool() if causal else None)
    _, weights = module(x, x, x, is_causal=causal, average_attn_weights=False)
    torch.testing.assert_close(weights, expected, **CLOSE)
