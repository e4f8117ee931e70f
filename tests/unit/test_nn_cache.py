"""The cache of keys and values, and decoding with it: token by token equals all at once, for every normalizer."""

from typing import Any

import pytest
import torch
from torch import Tensor

from entformer.errors import ArgumentError
from entformer.nn.cache import KeyValueCache, WindowedCache
from entformer.nn.multihead_attention import MultiheadAttention
from entformer.nn.normalizers import NORMALIZERS

from .tensors import random

CLOSE: dict[str, Any] = {"rtol": 0.0, "atol": 1e-5}  # the same float32 sums in another order
EMBED, HEADS, BATCH, LENGTH = 12, 3, 2, 37  # longer than the cache's first buffer twice over


# ---- the cache alone -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [[1] * 20, [3, 1, 40, 2], [17], [0, 5, 0]])
@pytest.mark.parametrize("capacity", [1, 4, 64])
def test_append_gives_all_so_far(pieces: list[int], capacity: int, poisoned_memory: None) -> None:
    cache = KeyValueCache(capacity)
    k, v = random(2, 3, sum(pieces), 4), random(2, 3, sum(pieces), 5, seed=1)
    end = 0
    for piece in pieces:
        start, end = end, end + piece
        keys, values = cache.append(k[:, :, start:end], v[:, :, start:end])
        assert torch.equal(keys, k[:, :, :end])
        assert torch.equal(values, v[:, :, :end])
        assert cache.length == len(cache) == end


def test_growth_is_by_doubling() -> None:
    """Each buffer is moved rarely: its places in memory over 1000 appends are few, so the copying is O(L) in all."""
    cache, moves, before = KeyValueCache(), 0, 0
    for _ in range(1000):
        keys, _ = cache.append(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2))
        moves += keys.data_ptr() != before
        before = keys.data_ptr()
    assert moves <= 7  # 16, 32, ... 1024


def test_append_does_not_keep_the_given_tensor() -> None:
    cache, k = KeyValueCache(), torch.ones(1, 1, 2, 2)
    cache.append(k, k)
    k.zero_()
    assert cache.views()[0].eq(1.0).all()


@pytest.mark.parametrize("index", [[1, 0, 2], [2, 2, 0], [0], [0, 0, 1, 1, 2, 2]])
def test_reorder(index: list[int]) -> None:
    cache = KeyValueCache(4)
    k, v = random(3, 2, 3, 4), random(3, 2, 3, 4, seed=1)
    cache.append(k, v)
    cache.reorder(torch.tensor(index))
    keys, values = cache.views()
    assert torch.equal(keys, k[index])
    assert torch.equal(values, v[index])
    new = random(len(index), 2, 6, 4, seed=2)
    keys, _ = cache.append(new, new)
    assert torch.equal(keys, torch.cat([k[index], new], 2))


def test_invalid_arguments_raise() -> None:
    cache, k = KeyValueCache(), torch.ones(2, 3, 1, 4)
    with pytest.raises(ArgumentError, match="the cache is empty"):
        cache.views()
    with pytest.raises(ArgumentError, match="capacity=0"):
        KeyValueCache(0)
    with pytest.raises(ArgumentError, match=r"torch.no_grad\(\)"):
        cache.append(k.clone().requires_grad_(), k)


# ---- decoding ------------------------------------------------------------------------------------------------------------


def full(module: MultiheadAttention, x: Tensor, padding: Tensor | None = None) -> Tensor:
    return module(x, x, x, key_padding_mask=padding, need_weights=False, is_causal=True)[0]


CHUNKS = [5, 1, 1, 20, 10]
DECODING: dict[str, tuple[list[int], dict[str, Any]]] = {
    "token by token": ([1] * LENGTH, {}),
    "extra keys": (CHUNKS, {"add_bias_kv": True, "add_zero_attn": True}),
    **{positions: (CHUNKS, {"positions": positions}) for positions in ("rotary", "alibi", "nape")},
}


@pytest.mark.parametrize("name", NORMALIZERS)
@pytest.mark.parametrize("case", DECODING)
@torch.no_grad()
def test_decoding_equals_the_full_causal_computation(name: str, case: str) -> None:
    torch.manual_seed(0)
    pieces, options = DECODING[case]
    if case == "extra keys" and NORMALIZERS[name].uses_positions:
        return  # refused: such keys have no position
    module = MultiheadAttention(EMBED, HEADS, normalizer=name, batch_first=True, **options)
    x = random(BATCH, LENGTH, EMBED)
    padding = torch.arange(LENGTH) < torch.tensor([[0], [6]])  # on the left, as prompts of different lengths have it
    expected, expected_weights = module(x, x, x, key_padding_mask=padding, is_causal=True)
    cache, outputs = KeyValueCache(), []
    for piece in x.split(pieces, 1):
        now = cache.length + piece.shape[1]
        out, weights = module(piece, piece, piece, key_padding_mask=padding[:, :now], is_causal=True, cache=cache)
        outputs.append(out)
        rows = expected_weights[:, now - piece.shape[1] : now]
        torch.testing.assert_close(weights[..., :now], rows[..., :now], **CLOSE)
        torch.testing.assert_close(weights[..., now:], rows[..., LENGTH:], **CLOSE)  # the extra keys stand at the end
    torch.testing.assert_close(torch.cat(outputs, 1), expected, **CLOSE)


# Length scaling counts one more key in causal attention, so for it the hint is needed.
@pytest.mark.parametrize("name", [name for name, traits in NORMALIZERS.items() if traits.scaling in (None, "temperature")])
@torch.inference_mode()
def test_one_query_sees_all_keys_with_or_without_the_causal_hint(name: str) -> None:
    module = MultiheadAttention(EMBED, HEADS, normalizer=name)
    x = random(9, BATCH, EMBED)
    expected = full(module, x)
    cache = KeyValueCache()
    module(x[:8], x[:8], x[:8], is_causal=True, cache=cache)
    out, _ = module(x[8:], x[8:], x[8:], cache=cache)
    torch.testing.assert_close(out, expected[8:], **CLOSE)


@torch.no_grad()
def test_decoding_without_a_batch() -> None:
    module = MultiheadAttention(EMBED, HEADS)
    x = random(5, EMBED)
    cache = KeyValueCache()
    outputs = [module(token, token, token, need_weights=False, is_causal=True, cache=cache)[0] for token in x.split(1)]
    torch.testing.assert_close(torch.cat(outputs), full(module, x), **CLOSE)


@pytest.mark.parametrize("options", [{"normalizer": "stickbreaking"}, {"positions": "rotary"}], ids=str)
@torch.no_grad()
def test_a_memory_has_no_positions(options: dict[str, str]) -> None:
    module = MultiheadAttention(EMBED, HEADS, batch_first=True, **options)
    x = random(BATCH, 3, EMBED)
    with pytest.raises(ArgumentError, match="needs the positions of self-attention; a memory needs positions='none'"):
        module(x, None, None, cache=module.memory_cache(x))


@pytest.mark.parametrize("name", [name for name, traits in NORMALIZERS.items() if not traits.uses_positions])
@torch.no_grad()
def test_memory_projected_once(name: str) -> None:
    """Cross attention while decoding: the memory's keys and values are made at the first step and used at all."""
    module = MultiheadAttention(EMBED, HEADS, kdim=5, vdim=5, normalizer=name, batch_first=True)
    x, memory = random(BATCH, 3, EMBED), random(BATCH, 7, 5, seed=1)
    padding = torch.arange(7) >= torch.tensor([[7], [4]])
    expected, _ = module(x, memory, memory, key_padding_mask=padding)
    cache = KeyValueCache()
    out, _ = module(x[:, :1], memory, memory, key_padding_mask=padding, cache=cache)
    outputs = [out] + [module(x[:, i : i + 1], None, None, key_padding_mask=padding, cache=cache)[0] for i in (1, 2)]
    assert cache.length == 7
    torch.testing.assert_close(torch.cat(outputs, 1), expected, **CLOSE)


def test_heads_with_short_windows_share_one_buffer() -> None:
    cache = WindowedCache([3, 40, 500, 5000, None, None])
    k = torch.randn(1, 6, 9, 4)
    groups = cache.append(k, k)
    assert [group.heads for group in groups] == [slice(4, 6), slice(3, 4), slice(0, 3)]
    for group in groups:
        assert torch.equal(group.keys, k[:, group.heads])
