"""Properties of attention over long contexts (Vasylenko et al. 2025): dispersion, phase change, windows, reductions.

Properties of rows are checked in float64, to rounding.
"""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from entformer.kernels.attention.api import attention
from entformer.kernels.entmax.api import entmax
from entformer.nn.multihead_attention import MultiheadAttention
from entformer.nn.scaling import SSMaxScaling

property_settings = settings(max_examples=60, deadline=None, derandomize=True)
CLOSE: dict[str, Any] = {"rtol": 0.0, "atol": 1e-5}
alphas = st.sampled_from([1.25, 1.5, 2.0, 3.0])
rows = st.lists(st.integers(-256, 256), min_size=1, max_size=30).map(lambda row: [score / 64 for score in row])


def tensor(row: list[float]) -> Tensor:
    return torch.tensor(row, dtype=torch.float64)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# ---- what is under the threshold changes nothing --------------------------------------------------------------------


@property_settings
@given(row=rows, alpha=alphas, more=st.lists(st.integers(0, 256), min_size=1, max_size=50))
def test_keys_under_the_threshold_leave_entmax_alone_and_dilute_softmax(
    row: list[float], alpha: float, more: list[int]
) -> None:
    scores = tensor(row)
    low = scores.max() - 1.0 / (alpha - 1.0) - tensor([extra / 64 for extra in more])
    longer = torch.cat([scores, low])
    before, after = entmax(scores, alpha), entmax(longer, alpha)
    torch.testing.assert_close(after[: len(row)], before, rtol=0.0, atol=1e-12)
    assert (after[len(row) :] == 0.0).all()
    assert (longer.softmax(0)[: len(row)] < scores.softmax(0)).all()


# ---- two levels -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0])
@pytest.mark.parametrize("k", [1, 4, 16])
@pytest.mark.parametrize("n", [32, 1000, 65536])
def test_k_keys_above_the_rest_share_all_weight_at_any_length(alpha: float, k: int, n: int) -> None:
    gap = 1.001 * k ** -(alpha - 1.0) / (alpha - 1.0)  # at the gap itself rounding decides what has weight
    scores = torch.zeros(n, dtype=torch.float64)
    scores[:k] = gap
    weights = entmax(scores, alpha)
    torch.testing.assert_close(weights[:k], torch.full((k,), 1.0 / k, dtype=torch.float64))
    assert int((weights > 0).sum()) == k
    assert scores.softmax(0)[0].item() == pytest.approx(math.exp(gap) / (k * math.exp(gap) + n - k))


# ---- SSMax ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gap", "expected"), [(3.0, (0.705, 0.834, 0.918, 0.961)), (2.0, (0.420, 0.316, 0.238, 0.175))])
def test_ssmax_has_a_phase_change_at_gap_times_s_of_one(gap: float, expected: tuple[float, ...]) -> None:
    found = []
    for n in (16, 256, 4096, 65536):
        factor = SSMaxScaling(1, init=0.43, spread=0.0)(torch.zeros(1, 1, 1), torch.tensor([[n]])).double().item()
        scores = torch.zeros(n, dtype=torch.float64)
        scores[0] = gap
        found.append((factor * scores).softmax(0)[0].item())
        assert found[-1] == pytest.approx(n ** (0.43 * gap) / (n ** (0.43 * gap) + n - 1), rel=1e-5)
    assert found == pytest.approx(list(expected), abs=6e-4)
    assert sorted(found, reverse=0.43 * gap < 1.0) == found


# ---- dispersion ---------------------------------------------------------------------------------------------------


def test_softmax_of_noise_tends_to_uniform_and_entmax_does_not() -> None:
    found: dict[int, dict[str, tuple[float, float, float]]] = {}
    for n in (16, 1024, 65536):
        scores = random(64, n, seed=n)
        found[n] = {}
        for name, weights in (("softmax", scores.softmax(-1)), ("entmax", entmax(scores, 1.5))):
            entropy = torch.special.entr(weights).sum(-1)
            support = (weights > 0).sum(-1)
            assert (entropy <= support.double().log() + 1e-4).all()
            found[n][name] = (
                entropy.mean().item() / math.log(n),
                support.float().mean().item(),
                weights.amax(-1).mean().item(),
            )
    assert found[16]["softmax"][0] < found[1024]["softmax"][0] < found[65536]["softmax"][0]
    assert found[65536]["softmax"][0] > 0.94
    assert found[65536]["softmax"][2] < 0.002
    assert found[16]["entmax"][0] > found[65536]["entmax"][0]
    assert found[65536]["entmax"][0] < 0.26
    assert found[65536]["entmax"][1] < 45
    assert found[65536]["entmax"][2] > 0.2


# ---- the window of ALiBi heads ------------------------------------------------------------------------------------------


@property_settings
@given(
    seed=st.integers(0, 10_000), alpha=alphas, slope=st.sampled_from([1.0, 0.5, 0.25]), scale=st.sampled_from([0.5, 1.0, 3.0])
)
def test_beyond_the_window_an_alibi_head_has_no_weight_and_may_forget(
    seed: int, alpha: float, slope: float, scale: float
) -> None:
    length = 160
    q, k, v = (scale * random(1, 1, length, 4, seed=seed + part) for part in range(3))
    scores = (q[0, 0, -1] @ k[0, 0].T) / 2.0
    window = math.floor((scores.max() - scores.min() + 1.0 / (alpha - 1.0)).item() / slope + 1.0)
    options: dict[str, Any] = {"alpha": alpha, "is_causal": True, "alibi_slopes": torch.tensor([slope])}
    last = q[:, :, -1:]
    whole: Any = attention(last, k, v, causal_offset=length - 1, return_support=True, **options)
    distance = length - 1 - whole.support.col
    assert (distance <= window).all()
    kept = min(window + 1, length)
    short = attention(last, k[:, :, -kept:], v[:, :, -kept:], causal_offset=kept - 1, **options)
    torch.testing.assert_close(short, whole.output, rtol=0.0, atol=1e-6)


# ---- paths of influence -------------------------------------------------------------------------------------------------


def test_what_no_chain_of_supports_links_has_no_influence() -> None:
    torch.manual_seed(0)
    sparse = MultiheadAttention(8, 1, bias=False, batch_first=True, normalizer="entmax15")
    with torch.no_grad():
        sparse.in_proj_weight[:16] *= 6.0  # type: ignore[index]  # large scores, few keys
    dense = MultiheadAttention.from_torch(torch.nn.MultiheadAttention(8, 1, bias=False, batch_first=True), normalizer="softmax")
    x = random(1, 12, 8)
    for module, exact in ((sparse, True), (dense, False)):

        def two_layers(given: Tensor, module: MultiheadAttention = module) -> Tensor:
            y, _ = module(given, given, given, need_weights=False, is_causal=True)
            return module(y, y, y, need_weights=False, is_causal=True)[0]

        y, first = module(x, x, x, is_causal=True)
        second = module(y, y, y, is_causal=True)[1]
        # A token acts as a key and value where it has weight, and as a query on its own row.
        steps = [((weights[0] > 0) | torch.eye(12, dtype=torch.bool)).double() for weights in (second, first)]
        linked = steps[0] @ steps[1] > 0  # (i, j): j reaches i
        jacobian = torch.autograd.functional.jacobian(two_layers, x)[0, :, :, 0].abs().sum((1, 3))
        assert (jacobian[~linked] == 0.0).all()
        assert bool((~linked.tril()).tril().any()) == exact


# ---- reductions ---------------------------------------------------------------------------------------------------------


# ---- plumbing -----------------------------------------------------------------------------------------------------------


def test_permuted_keys_give_permuted_weights_without_positions() -> None:
    torch.manual_seed(0)
    module = MultiheadAttention(16, 4, batch_first=True, normalizer="asentmax")
    x, order = random(1, 15, 16), torch.randperm(15, generator=torch.Generator().manual_seed(2))
    _, weights = module(x, x, x)
    _, permuted = module(x, x[:, order], x[:, order])
    torch.testing.assert_close(permuted, weights[:, :, order], **CLOSE)
