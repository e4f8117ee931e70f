"""MultiheadAttention beyond torch's: positions, hooks, shared alphas, torch's softmax, weights that can be supervised."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from entformer.nn.alpha import LearnedAlpha
from entformer.nn.cache import KeyValueCache
from entformer.nn.hooks import AttentionTrace
from entformer.nn.multihead_attention import MultiheadAttention
from entformer.nn.normalizers import NORMALIZERS
from entformer.nn.positions import alibi_slopes

from .tensors import random

CLOSE: dict[str, Any] = {"rtol": 0.0, "atol": 1e-5}
EMBED, HEADS, BATCH, LENGTH = 16, 4, 2, 9


def layer(**options: Any) -> MultiheadAttention:
    torch.manual_seed(0)
    return MultiheadAttention(EMBED, HEADS, batch_first=True, **options).eval()


# ---- positions -------------------------------------------------------------------------------------------------------------


def test_alibi_is_the_bias_it_says() -> None:
    plain, biased, x = layer(normalizer="entmax15"), layer(normalizer="entmax15", positions="alibi"), random(1, LENGTH, EMBED)
    at = torch.arange(LENGTH)
    bias = -alibi_slopes(HEADS)[:, None, None] * (at[:, None] - at).abs()  # (H, L, L)
    torch.testing.assert_close(biased(x, x, x)[0], plain(x, x, x, attn_mask=bias)[0], **CLOSE)


def test_rotary_moves_with_the_sequence() -> None:
    """Padding in front changes every position and no distance."""
    module, x = layer(normalizer="entmax15", positions="rotary"), random(1, LENGTH, EMBED)
    shifted = torch.cat([random(1, 3, EMBED, seed=1), x], 1)
    ignored = (torch.arange(LENGTH + 3) < 3)[None]
    torch.testing.assert_close(module(shifted, shifted, shifted, ignored)[0][:, 3:], module(x, x, x)[0], **CLOSE)
    assert not torch.allclose(module(x, x, x)[0].flip(1), module(x.flip(1), x.flip(1), x.flip(1))[0], atol=1e-3)


# ---- hooks --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NORMALIZERS)
@pytest.mark.parametrize("causal", [True, False])
def test_hook_receives_the_weights(name: str, causal: bool) -> None:
    module, x = layer(normalizer=name), random(BATCH, LENGTH, EMBED)
    ignored = torch.arange(LENGTH) >= torch.tensor([[LENGTH], [LENGTH - 3]])
    expected, weights = module(x, x, x, ignored, average_attn_weights=False, is_causal=causal)
    seen: list[AttentionTrace] = []
    module.hook = seen.append
    out, nothing = module(x, x, x, ignored, need_weights=False, is_causal=causal)
    torch.testing.assert_close(out, expected, **CLOSE)
    assert nothing is None
    [trace] = seen
    rows = torch.repeat_interleave(trace.support.crow.diff())
    dense = torch.zeros(BATCH * HEADS * LENGTH, LENGTH)
    dense[rows, trace.support.col.long()] = trace.support.weight
    torch.testing.assert_close(dense.view(weights.shape), weights, **CLOSE)
    assert torch.equal(trace.stats.support_size, (weights != 0).sum(-1).int())
    if NORMALIZERS[name].make_fn is not None:  # has no threshold
        assert trace.stats.logsumexp.isnan().all()
    assert trace.query.shape == trace.key.shape == (BATCH, HEADS, LENGTH, EMBED // HEADS)
    assert not trace.query.requires_grad
    assert trace.causal is causal
    assert torch.equal(trace.masks.keys, ~ignored)
    module.hook = None
    module(x, x, x)
    assert len(seen) == 1


def test_hook_in_training_and_decoding() -> None:
    module, x = layer(normalizer="entmax", dropout=0.5).train(), random(1, 5, EMBED)
    seen: list[AttentionTrace] = []
    module.hook = seen.append
    module(x, x, x, need_weights=False)[0].sum().backward()
    torch.testing.assert_close(seen[0].support.weight.sum(), torch.tensor(5.0 * HEADS))  # before dropout
    cache = KeyValueCache()
    with torch.no_grad():
        for t in range(3):
            module(x[:, t : t + 1], x[:, t : t + 1], x[:, t : t + 1], need_weights=False, is_causal=True, cache=cache)
    assert [trace.offset for trace in seen[1:]] == [0, 1, 2]
    assert seen[-1].key.shape[2] == 3


# ---- shared alphas, memories, torch's softmax ------------------------------------------------------------------------------


def test_a_shared_alpha_belongs_to_its_owner() -> None:
    alpha = LearnedAlpha(HEADS, tied=True, init=1.3, parametrization="sigmoid")
    model = nn.ModuleDict({"alpha": alpha, "a": layer(alpha=alpha), "b": layer(alpha=alpha)})
    assert [name for name in model.state_dict() if "pre_alpha" in name] == ["alpha.pre_alpha"]
    assert sum(p is alpha.pre_alpha for p in model.parameters()) == 1
    x = random(1, LENGTH, EMBED)
    for part in ("a", "b"):
        alpha.pre_alpha.grad = None
        model[part](x, x, x, need_weights=False)[0].square().sum().backward()
        assert alpha.pre_alpha.grad != 0.0
    twin: Any = copy.deepcopy(model)
    assert twin["a"].alpha is twin["b"].alpha is twin["alpha"]
    twin["a"].reset_parameters()


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_sdpa_computes_the_same_softmax(causal: bool, masked: bool) -> None:
    ours, theirs, x = layer(normalizer="softmax"), layer(normalizer="softmax", backend="sdpa"), random(BATCH, LENGTH, EMBED)
    ignored = torch.arange(LENGTH) >= torch.tensor([[LENGTH], [LENGTH - 3]]) if masked else None
    options: dict[str, Any] = {"key_padding_mask": ignored, "need_weights": False, "is_causal": causal}
    torch.testing.assert_close(theirs(x, x, x, **options)[0], ours(x, x, x, **options)[0], **CLOSE)
    options["need_weights"] = True
    torch.testing.assert_close(theirs(x, x, x, **options)[1], ours(x, x, x, **options)[1], **CLOSE)
    with torch.no_grad():
        cache, pieces = KeyValueCache(), []
        for piece in x.split([4, 1, 4], 1):
            pieces.append(theirs(piece, piece, piece, need_weights=False, is_causal=True, cache=cache)[0])
    torch.testing.assert_close(torch.cat(pieces, 1), ours(x, x, x, is_causal=True)[0], **CLOSE)


# ---- weights that can be supervised ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NORMALIZERS)
def test_supervision_alone_reaches_the_projections(name: str) -> None:
    module = MultiheadAttention(EMBED, HEADS, batch_first=True, normalizer=name)
    x = random(BATCH, LENGTH, EMBED, seed=4)
    _, weights = module(x, x, x, is_causal=True, average_attn_weights=False)
    with torch.no_grad():
        _, exact = module(x, x, x, is_causal=True, average_attn_weights=False)
    torch.testing.assert_close(weights, exact, rtol=0.0, atol=1e-6)
    weights.square().sum().backward()
    q_and_k, v = module.in_proj_weight.grad.split([2 * EMBED, EMBED])
    assert q_and_k.abs().sum() > 0.0
    assert v.abs().sum() == 0.0
    if name == "entmax":
        assert module.get_parameter("alpha.value").grad.abs().sum() > 0.0


@pytest.mark.parametrize("positions", ["none", "alibi"])
@pytest.mark.parametrize("average", [False, True])
def test_entmax_weights_pass_gradcheck(positions: str, average: bool) -> None:
    torch.manual_seed(0)
    module = MultiheadAttention(EMBED, HEADS, batch_first=True, alpha_init=1.4, positions=positions, dtype=torch.float64)

    def weights(query: Tensor, key: Tensor, pre_alpha: Tensor, bias: Tensor) -> Tensor:
        state = dict(module.named_parameters()) | {"alpha.value": pre_alpha}
        options = {"attn_mask": bias, "average_attn_weights": average, "key_padding_mask": ignored.double() * -1e4}
        return torch.func.functional_call(module, state, (query, key, key), options)[1]

    ignored = torch.tensor([[False] * 4, [False] * 3 + [True]])
    query, key = (random(BATCH, 4, EMBED, seed=seed, dtype=torch.float64).requires_grad_() for seed in (5, 6))
    pre_alpha = module.get_parameter("alpha.value").detach().clone().requires_grad_()
    bias = random(4, 4, seed=7, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(weights, (query, key, pre_alpha, bias), fast_mode=True)


def test_without_gradients_weights_come_from_the_exact_support(monkeypatch: pytest.MonkeyPatch) -> None:
    module = MultiheadAttention(EMBED, HEADS, batch_first=True)
    x = random(BATCH, LENGTH, EMBED)

    def dense(*_: Any, **__: Any) -> Tensor:
        raise AssertionError

    monkeypatch.setattr("entformer.nn.multihead_attention.attention_weights", dense)
    with torch.no_grad():
        assert module(x, x, x)[1] is not None
    with torch.inference_mode():
        assert module(x, x, x)[1] is not None


def test_per_sample_gradients_of_supervised_weights() -> None:
    module, x = MultiheadAttention(EMBED, HEADS, batch_first=True), random(3, 1, LENGTH, EMBED)
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
    module, x = MultiheadAttention(EMBED, HEADS, batch_first=True), random(BATCH, LENGTH, EMBED)
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    bias = random(LENGTH, LENGTH).requires_grad_()
    _, weights = module(x, x, x, attn_mask=bias)
    weights.square().sum().backward()
    assert bias.grad.abs().sum() > 0.0
