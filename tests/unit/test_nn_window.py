"""The windows of sparse ALiBi heads: proven, tight enough to matter, and a cache cut there that changes nothing."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from entformer.errors import ArgumentError
from entformer.nn import window
from entformer.nn.cache import KeyValueCache, WindowedCache
from entformer.nn.multihead_attention import MultiheadAttention
from entformer.nn.positions import Positions
from entformer.nn.scaling import ASEntmaxScaling
from entformer.nn.window import alibi_windows

from .tensors import random

WIDTH, HEADS = 16, 4
CLOSE: dict[str, Any] = {"rtol": 0.0, "atol": 2e-6}


def normed(batch: int, length: int, gain: Tensor, shift: Tensor | None = None, seed: int = 0) -> Tensor:
    """What a norm gives: rows of norm sqrt(WIDTH) at most, times the gain, plus the shift."""
    x = nn.functional.rms_norm(random(batch, length, WIDTH, seed=seed), (WIDTH,)) * gain
    return x if shift is None else x + shift


def layer(**options: Any) -> MultiheadAttention:
    torch.manual_seed(3)
    return MultiheadAttention(WIDTH, HEADS, batch_first=True, **{"positions": "nape", "bias": False} | options).eval()


GAIN = torch.linspace(0.5, 1.5, WIDTH)
SPARSE = {
    "entmax15": {"normalizer": "entmax15"},
    "sparsemax": {"normalizer": "sparsemax"},
    "learned": {"normalizer": "entmax", "alpha": "learned"},
    "asentmax": {"normalizer": "asentmax"},
    "rela": {"normalizer": "rela"},
    "alibi": {"normalizer": "entmax15", "positions": "alibi"},
    "bias": {"normalizer": "entmax15", "bias": True},
}


@pytest.mark.parametrize("options", SPARSE.values(), ids=SPARSE.keys())
@torch.no_grad()
def test_a_cut_cache_gives_the_same_output(options: dict[str, Any]) -> None:
    module = layer(**options)
    if module.in_proj_bias is not None:
        nn.init.normal_(module.in_proj_bias, 0.0, 0.3)
    shift = 0.2 * random(WIDTH, seed=9) if options.get("bias") else None
    x = normed(2, 1722, GAIN, shift)
    full, cut = KeyValueCache(), WindowedCache(alibi_windows(module, GAIN, shift))
    for piece in x.split([1600, 1, 1, 40, *[1] * 80], 1):  # a long prompt, tokens, a short prompt, tokens
        whole, _ = module(piece, piece, piece, need_weights=False, is_causal=True, cache=full)
        short, _ = module(piece, piece, piece, need_weights=False, is_causal=True, cache=cut)
        torch.testing.assert_close(short, whole, **CLOSE)
    assert cut.length == full.length == 1722
    assert cut.bytes < full.bytes


@torch.no_grad()
def test_the_window_is_proven_for_the_worst_inputs() -> None:
    """Queries and keys along the singular vectors that make scores as far apart as they can be."""
    module = layer(normalizer="entmax15")
    windows = alibi_windows(module, GAIN)
    w_q, w_k, _ = module.state_dict()["in_proj_weight"].double().chunk(3)
    size = WIDTH // HEADS
    for head in range(HEADS // 2):
        rows = slice(head * size, (head + 1) * size)
        u, _, v = torch.linalg.svd((w_q[rows] * GAIN).T @ (w_k[rows] * GAIN))
        best, worst = WIDTH**0.5 * v[0], -(WIDTH**0.5) * v[0]
        window = windows[head]
        assert window is not None
        length = window + 20
        x = worst.repeat(length, 1)
        x[-1] = -(WIDTH**0.5) * u[:, 0]  # the query; its own key is as it falls
        x[:-1] = worst if torch.dot(u[:, 0], v[0]) < 0 else best
        x = (x * GAIN).float()[None]
        _, weights = module(x, x, x, is_causal=True, average_attn_weights=False)
        used = (weights[0, head, -1] > 0).nonzero()[:, 0]
        assert length - used.min() <= window


def test_heads_without_a_proven_end_have_no_window() -> None:
    assert alibi_windows(layer(normalizer="softmax"), GAIN) == [None] * HEADS
    assert alibi_windows(layer(normalizer="topk"), GAIN) == [None] * HEADS
    assert alibi_windows(layer(normalizer="entmax15", positions="rotary"), GAIN) == [None] * HEADS
    # all heads scaled by the length: scores have no bound
    assert alibi_windows(layer(normalizer="asentmax", positions="alibi"), GAIN) == [None] * HEADS
    nape = alibi_windows(layer(normalizer="asentmax", scaling=ASEntmaxScaling(WIDTH, HEADS)), GAIN)
    assert [window is None for window in nape] == [False, False, True, True]
    assert nape[0] < nape[1]  # type: ignore[operator]  # the steeper slope, the shorter window


@torch.no_grad()
def test_memory_of_windowed_heads_stops_growing() -> None:
    module = layer(normalizer="entmax15", positions=Positions("nape", share=1.0))
    cache, sizes = WindowedCache(alibi_windows(module, GAIN)), []
    for piece in normed(1, 12000, GAIN).split(300, 1):
        module(piece, piece, piece, need_weights=False, is_causal=True, cache=cache)
        sizes.append(cache.bytes)
    assert cache.length == 12000
    assert sizes[-1] == max(sizes[10:20])
    assert sizes[-1] < 12000 * WIDTH * 2 * 4 / 4


@torch.no_grad()
def test_left_padding_and_reordering() -> None:
    module = layer(normalizer="asentmax")
    x = normed(2, 300, GAIN)
    ignored = torch.zeros(2, 300, dtype=torch.bool)
    ignored[1, :37] = True
    full, cut = KeyValueCache(), WindowedCache(alibi_windows(module, GAIN))
    for start, end in ((0, 250), (250, 251), (251, 300)):
        piece = x[:, start:end]
        options: dict[str, Any] = {"need_weights": False, "is_causal": True, "key_padding_mask": ignored[:, :end]}
        whole, _ = module(piece, piece, piece, cache=full, **options)
        short, _ = module(piece, piece, piece, cache=cut, **options)
        torch.testing.assert_close(short, whole, **CLOSE)
    order = torch.tensor([1, 0, 1])
    full.reorder(order)
    cut.reorder(order)
    piece = x[order, :1]
    whole, _ = module(piece, piece, piece, need_weights=False, is_causal=True, cache=full)
    short, _ = module(piece, piece, piece, need_weights=False, is_causal=True, cache=cut)
    torch.testing.assert_close(short, whole, **CLOSE)


def test_unsupported_calls_raise() -> None:
    module, x = layer(normalizer="entmax15"), normed(1, 4, GAIN)
    cache = WindowedCache(alibi_windows(module, GAIN))
    with torch.no_grad(), pytest.raises(ArgumentError, match="need_weights=False"):
        module(x, x, x, is_causal=True, cache=cache)
    with torch.no_grad(), pytest.raises(ArgumentError, match="causal"):
        module(x, x, x, need_weights=False, cache=cache)


def test_bounds_are_computed_once_until_weights_change(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    computed = window._score_bounds
    monkeypatch.setattr(window, "_score_bounds", lambda *given: calls.append(1) or computed(*given))  # type: ignore[func-returns-value]
    module = layer(normalizer="entmax15")
    first = alibi_windows(module, GAIN)
    with torch.inference_mode():
        assert alibi_windows(module, GAIN) == first
    assert len(calls) == 1
    other = alibi_windows(module, GAIN * 2)
    assert len(calls) == 2
    assert other != first
    assert module.in_proj_weight is not None
    module.in_proj_weight.data.mul_(2.0)  # no version counter sees this
    assert alibi_windows(module, GAIN) == other  # q and k twice as large: scores as with twice the gain
    assert len(calls) == 3
    torch.optim.SGD([module.in_proj_weight], lr=0.1).step()  # no gradient, no change
    alibi_windows(module, GAIN)
    assert len(calls) == 3
    module.load_state_dict(layer(normalizer="entmax15").state_dict())
    assert alibi_windows(module, GAIN) == first
