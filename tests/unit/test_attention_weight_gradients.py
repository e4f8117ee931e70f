"""The weights that MultiheadAttention returns are differentiable, so that attention can be supervised."""

from typing import Any

import pytest
import torch
from torch import Tensor

from entformer.nn.multihead_attention import MultiheadAttention
from entformer.nn.normalizers import NORMALIZERS

EMBED, HEADS, BATCH, QUERIES, KEYS = 12, 3, 2, 5, 7
CLOSE: dict[str, Any] = {"rtol": 0.0, "atol": 1e-5}


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def padding() -> Tensor:
    ignored = torch.zeros(BATCH, KEYS, dtype=torch.bool)
    ignored[1, 4:] = True
    return ignored


@pytest.mark.parametrize("name", NORMALIZERS)
def test_supervision_alone_reaches_the_projections(name: str) -> None:
    module = MultiheadAttention(EMBED, HEADS, batch_first=True, normalizer=name)
    x = random(BATCH, QUERIES, EMBED, seed=4)
    _, weights = module(x, x, x, is_causal=True, average_attn_weights=False)
    with torch.no_grad():
        _, exact = module(x, x, x, is_causal=True, average_attn_weights=False)
    torch.testing.assert_close(weights, exact, rtol=0.0, atol=1e-6)
    weights.square().sum().backward()
    assert module.in_proj_weight is not None
    q_and_k, v = module.in_proj_weight.grad.split([2 * EMBED, EMBED])  # type: ignore[union-attr]
    assert q_and_k.abs().sum() > 0.0
    assert v.abs().sum() == 0.0
    if name == "entmax":
        assert module.get_parameter("alpha.value").grad.abs().sum() > 0.0  # type: ignore[union-attr]


@pytest.mark.parametrize("positions", ["none", "alibi"])
@pytest.mark.parametrize("average", [False, True])
def test_entmax_weights_pass_gradcheck(positions: str, average: bool) -> None:
    torch.manual_seed(0)
    module = MultiheadAttention(EMBED, HEADS, batch_first=True, alpha_init=1.4, positions=positions, dtype=torch.float64)

    def weights(query: Tensor, key: Tensor, pre_alpha: Tensor, bias: Tensor) -> Tensor:
        state = dict(module.named_parameters()) | {"alpha.value": pre_alpha}
        options = {"attn_mask": bias, "average_attn_weights": average, "key_padding_mask": ignored.double() * -1e4}
        found: Tensor = torch.func.functional_call(module, state, (query, key, key), options)[1]
        return found

    ignored = padding()[:, :QUERIES]
    query, key = (random(BATCH, QUERIES, EMBED, seed=seed, dtype=torch.float64).requires_grad_() for seed in (5, 6))
    pre_alpha = module.get_parameter("alpha.value").detach().clone().requires_grad_()
    bias = random(QUERIES, QUERIES, seed=7, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(weights, (query, key, pre_alpha, bias))


def test_without_gradients_weights_come_from_the_exact_support(monkeypatch: pytest.MonkeyPatch) -> None:
    module = MultiheadAttention(EMBED, HEADS, batch_first=True)
    x = random(BATCH, QUERIES, EMBED)

    def dense(*_: Any, **__: Any) -> Tensor:
        raise AssertionError

    monkeypatch.setattr("entformer.nn.multihead_attention.attention_weights", dense)
    with torch.no_grad():
        assert module(x, x, x)[1] is not None
    with torch.inference_mode():
        assert module(x, x, x)[1] is not None


def test_per_sample_gradients_of_supervised_weights() -> None:
    module, x = MultiheadAttention(EMBED, HEADS, batch_first=True), random(3, 1, QUERIES, EMBED)
    state = dict(module.named_parameters())

    def loss(state: dict[str, Tensor], t: Tensor) -> Tensor:
        weights: Tensor = torch.func.functional_call(module, state, (t, t, t))[1]
        return weights.square().sum()

    per_sample = torch.func.vmap(torch.func.grad(loss), (None, 0))(state, x)
    for i in range(3):
        one = torch.func.grad(loss)(state, x[i])
        for name in state:
            torch.testing.assert_close(per_sample[name][i], one[name], **CLOSE)


def test_masks_of_a_bias_are_differentiable_too() -> None:
    module, x = MultiheadAttention(EMBED, HEADS, batch_first=True), random(BATCH, QUERIES, EMBED)
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    bias = random(QUERIES, QUERIES).requires_grad_()
    _, weights = module(x, x, x, attn_mask=bias)
    weights.square().sum().backward()
    assert bias.grad is not None
    assert bias.grad.abs().sum() > 0.0
