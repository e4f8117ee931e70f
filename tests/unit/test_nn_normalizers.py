"""Every normalizer inside MultiheadAttention: gradients, padding, alphas, ReLA's norm and null rows, low precision."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

from entformer.kernels.entmax.api import entmax
from entformer.nn.multihead_attention import MultiheadAttention
from entformer.nn.normalizers import NORMALIZERS, get_normalizer

from .tensors import random

CLOSE: dict[str, Any] = {"rtol": 0.0, "atol": 1e-5}  # two float32 ways to one result of order one
EMBED, HEADS, BATCH, QUERIES, KEYS = 12, 3, 2, 5, 7


@pytest.mark.parametrize("name", NORMALIZERS)
@pytest.mark.parametrize("causal", [False, True])
def test_forward_and_backward_of_every_normalizer(name: str, causal: bool) -> None:
    torch.manual_seed(1)
    short = {"max_span": 6.0, "init": 1.5, "ramp": 3.0} if name == "adaptive_span" else {}  # shorter than the rows here
    module = MultiheadAttention(EMBED, HEADS, normalizer=name, normalizer_options=short, batch_first=True)
    x = random(BATCH, KEYS, EMBED).requires_grad_()
    padding = torch.arange(KEYS) >= torch.tensor([[KEYS], [4]])
    out, heads = module(x, x, x, key_padding_mask=padding, is_causal=causal, average_attn_weights=False)
    (out * random(*out.shape, seed=6)).sum().backward()
    assert out.isfinite().all()
    assert x.grad.isfinite().all()
    for key, parameter in module.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.any(), key
    traits = get_normalizer(name)
    assert (heads[1, :, :, 4:] == 0.0).all()  # padded keys
    assert (heads < 0.0).any() == traits.signed
    if traits.sums_to_one:
        torch.testing.assert_close(heads.sum(-1), torch.ones(BATCH, HEADS, KEYS))
    allowed = ~padding[:, None, None] & (torch.ones(KEYS, KEYS).tril().bool() if causal else True)
    if traits.causal_only:
        allowed = allowed & torch.ones(KEYS, KEYS).tril(-1).bool()
    if name != "topk":  # its k is larger than these rows
        assert (heads == 0.0)[allowed.expand_as(heads)].any() == traits.exact_zeros


@pytest.mark.parametrize("name", NORMALIZERS)
@pytest.mark.parametrize("causal", [False, True])
def test_padding_changes_nothing(name: str, causal: bool) -> None:
    """A padded sequence gives what it gives alone, whatever the padding holds; length-aware ones count visible keys."""
    module = MultiheadAttention(EMBED, HEADS, normalizer=name, batch_first=True)
    x = random(BATCH, KEYS, EMBED)
    lengths = (KEYS, 4)
    padding = torch.arange(KEYS) >= torch.tensor(lengths)[:, None]
    x[1, 4:] = torch.tensor([math.nan, math.inf, -math.inf])[:, None]
    queries = random(BATCH, KEYS, EMBED).requires_grad_()
    together, _ = module(queries, x, x, key_padding_mask=padding, is_causal=causal, need_weights=False)
    (gradient,) = torch.autograd.grad(together.sin().sum(), queries)
    for row, length in enumerate(lengths):
        # Of all queries, if those beyond the end see the same keys.
        own = queries.detach()[row : row + 1, : length if causal else KEYS].requires_grad_()
        alone, _ = module(own, *[x[row : row + 1, :length]] * 2, is_causal=causal, need_weights=False)
        torch.testing.assert_close(together[row, : own.shape[1]], alone[0], **CLOSE)
        (right,) = torch.autograd.grad(alone.sin().sum(), own)
        torch.testing.assert_close(gradient[row, : own.shape[1]], right[0], **CLOSE)


@pytest.mark.parametrize("name", NORMALIZERS)
def test_masks_that_mean_the_same_give_the_same(name: str) -> None:
    """Also for the length-aware normalizers, which count keys, and for added masks, which take the dense path."""
    extra = not get_normalizer(name).uses_positions  # such keys have no place
    module = MultiheadAttention(EMBED, HEADS, normalizer=name, add_zero_attn=extra, batch_first=True)
    x = random(BATCH, KEYS, EMBED)
    later = torch.ones(KEYS, KEYS).triu(1).bool()
    padding = torch.tensor([[False, False, True, False, True, False, False], [False, True, False, False, False, False, True]])
    added = torch.zeros(KEYS, KEYS).masked_fill(later, -torch.inf)
    dense = added.clone().requires_grad_()  # not looked into, so it stays an addition
    padded = torch.zeros(BATCH, KEYS).masked_fill(padding, -torch.inf).requires_grad_()
    expected, _ = module(x, x, x, is_causal=True, key_padding_mask=padding, need_weights=False)
    merged = (later | padding[:, None]).repeat_interleave(HEADS, 0)
    for arguments in (
        {"attn_mask": later, "key_padding_mask": padding},
        {"attn_mask": added, "key_padding_mask": padding},
        {"attn_mask": dense, "key_padding_mask": padding},
        {"attn_mask": later, "key_padding_mask": padded},
        {"attn_mask": dense, "key_padding_mask": padded},
        {"attn_mask": merged},
        {"key_mask": ~padding, "mask": ~later[None, None]},
        {"key_padding_mask": padding, "mask": ~later[None, None]},
    ):
        torch.testing.assert_close(module(x, x, x, need_weights=False, **arguments)[0], expected, **CLOSE)


@pytest.mark.parametrize("alpha", [1.0, 1.3, 2.0, "learned"])
@pytest.mark.parametrize("tied", ["head", "layer"])
def test_alpha_is_used_and_learned(alpha: float | str, tied: str) -> None:
    torch.manual_seed(0)
    module = MultiheadAttention(EMBED, HEADS, alpha=alpha, alpha_tied=tied, batch_first=True)
    x = 3.0 * random(BATCH, KEYS, EMBED)
    out, heads = module(x, x, x, average_attn_weights=False)
    q, k, _ = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (x @ module.state_dict()["in_proj_weight"].T).chunk(3, -1))
    scores = q @ k.transpose(-1, -2) / (EMBED / HEADS) ** 0.5
    alphas = module.alphas
    torch.testing.assert_close(heads, entmax(scores, alphas, alpha_dim=1).detach(), **CLOSE)
    if alpha == "learned":
        assert alphas.unique().numel() == (1 if tied == "layer" else HEADS)
        out.square().sum().backward()
        (pre_alpha,) = (p for n, p in module.named_parameters() if n == "alpha.value")
        assert pre_alpha.shape == ((1,) if tied == "layer" else (HEADS,))
        assert (pre_alpha.grad != 0.0).all()
    else:
        torch.testing.assert_close(alphas, torch.full((HEADS,), float(alpha)))


# ---- ReLA ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["gated", "init", "plain"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_rela_null_rows_give_the_output_bias(variant: str, dtype: torch.dtype) -> None:
    """All scores negative: no weight anywhere, no NaN from 0 / 0, and no gradient to what made the scores."""
    module = MultiheadAttention(EMBED, HEADS, normalizer="rela", rela_norm=variant, batch_first=True, dtype=dtype)
    size = EMBED
    with torch.no_grad():
        module.in_proj_weight[: 2 * size] = torch.eye(size).repeat(2, 1)  # type: ignore[index]
        module.out_proj.bias.copy_(random(size, seed=8))
    query, key = torch.ones(1, 3, size, dtype=dtype), -torch.ones(1, 4, size, dtype=dtype)
    query.requires_grad_()
    out, weights = module(query, key, random(1, 4, size).to(dtype))
    assert not weights.any()
    assert torch.equal(out, module.out_proj.bias.expand(1, 3, size))
    out.sum().backward()
    assert not query.grad.any()
    assert all(p.grad is None or p.grad.isfinite().all() for p in module.parameters())


@pytest.mark.parametrize("name", NORMALIZERS)
def test_fully_masked_queries_give_the_output_bias(name: str) -> None:
    module = MultiheadAttention(EMBED, HEADS, normalizer=name, batch_first=True)
    nn.init.normal_(module.out_proj.bias)
    x = random(BATCH, KEYS, EMBED).requires_grad_()
    padding = torch.tensor([[True] * KEYS, [False] * KEYS])
    out, weights = module(x, x, x, key_padding_mask=padding)
    torch.testing.assert_close(out[0], module.out_proj.bias.expand(KEYS, EMBED), **CLOSE)
    assert not weights[0].any()
    (out.square().sum() + weights.square().sum()).backward()
    assert not x.grad[0].any()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())


@pytest.mark.parametrize("name", NORMALIZERS)
def test_low_precision_and_autocast(name: str) -> None:
    torch.manual_seed(0)
    module = MultiheadAttention(EMBED, HEADS, normalizer=name)
    x = random(QUERIES, BATCH, EMBED)
    expected, _ = module(x, x, x)
    low = copy.deepcopy(module).to(torch.bfloat16)
    out, weights = low(*[x.to(torch.bfloat16)] * 3)
    assert out.dtype == weights.dtype == torch.bfloat16
    close: dict[str, Any] = {
        "rtol": 0.0,
        "atol": 0.06,
    }  # bfloat16 keeps 8 bits: 0.4% of values up to about 3, through four products
    torch.testing.assert_close(out.float(), expected, **close)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(module(x, x, x)[0].float(), expected, **close)
