"""Softmax attention: torch's kernel where it computes the same, ours elsewhere, with equal results."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from entformer.kernels.attention import api, sdpa
from entformer.kernels.attention.api import attention

pytestmark = pytest.mark.usefixtures("kernels")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many queries each call of torch's kernel had."""
    seen: list[int] = []
    original = sdpa.softmax_attention

    def counted(call: Any) -> Tensor:
        seen.append(call.query.shape[2])
        return original(call)

    monkeypatch.setattr(api.sdpa, "softmax_attention", counted)
    return seen


def tensors(length: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)
    return [torch.randn(2, 2, length, 16, generator=generator) for _ in range(4)]


@pytest.mark.parametrize("causal", [False, True])
def test_output_and_gradients_agree(causal: bool, calls: list[int]) -> None:
    *inputs, grad = tensors(70)
    found = []
    for impl in ("auto", "cpu"):
        leaves = [t.clone().requires_grad_() for t in inputs]
        out = attention(*leaves, alpha=1.0, is_causal=causal, scale=0.3, impl=impl)  # type: ignore[arg-type]
        assert isinstance(out, Tensor)
        found.append((out.detach(), *torch.autograd.grad(out, leaves, grad)))
    assert calls == [70]
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "how",
    [
        {"alpha": 1.0001},
        {"alpha": torch.ones(2)},
        {"dropout_p": 0.1},
        {"key_mask": torch.ones(2, 70, dtype=torch.bool)},
        {"attn_mask": torch.zeros(70, 70)},
        {"is_causal": True, "causal_offset": 1},
        {"window": (3, 3)},
        {"sinks": torch.zeros(2)},
        {"softcap": 3.0},
        {"alibi_slopes": torch.ones(2)},
        {"return_stats": True},
        {"normalizer": "rela"},
        {"normalizer": "sigmoid"},
        {"impl": "cpu"},
    ],
)
def test_what_torch_does_not_compute_the_same_way(how: dict[str, Any], calls: list[int]) -> None:
    q, k, v, _ = tensors(70)
    attention(q, k, v, **{"alpha": 1.0, **how})
    assert calls == []


@pytest.mark.parametrize(
    ("length", "causal", "used"), [(3, False, 0), (4, False, 1), (127, True, 1), (128, True, 0), (128, False, 1)]
)
def test_lengths_at_which_ours_is_faster(length: int, causal: bool, used: int, calls: list[int]) -> None:
    q, k, v, _ = tensors(length)
    attention(q, k, v, normalizer="softmax", is_causal=causal)
    assert len(calls) == used


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_later_keys_hold_does_not_reach_earlier_queries(value: float, calls: list[int]) -> None:
    q, k, v, _ = tensors(20)
    clean = attention(q, k, v, alpha=1.0, is_causal=True)
    k[:, :, 15], v[:, :, 15] = value, value
    out = attention(q, k, v, alpha=1.0, is_causal=True)
    assert isinstance(out, Tensor)
    assert isinstance(clean, Tensor)
    torch.testing.assert_close(out[:, :, :15], clean[:, :, :15], rtol=1e-4, atol=1e-5)
    assert out[:, :, 15:].isnan().all()
    assert calls == [20]  # the clean call alone
