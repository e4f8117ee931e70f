"""`entformer.compat.adasplash`: the documented semantics of the function of that name, on any device."""

import math

import pytest
import torch
from torch import Tensor

from entformer.compat import adasplash
from entformer.errors import ArgumentError
from entformer.kernels.entmax.api import entmax


def inputs(length: int = 9, key_heads: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    heads = (4, key_heads, key_heads)
    return [torch.randn(3, h, length, 16, generator=generator, dtype=torch.float64).requires_grad_() for h in heads]


def by_definition(q: Tensor, k: Tensor, v: Tensor, alpha: float, is_causal: bool, lengths: Tensor | None) -> Tensor:
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    at = torch.arange(q.shape[2])
    mask = torch.ones(3, 1, len(at), len(at), dtype=torch.bool)
    if is_causal:
        mask = mask & (at[None, :] <= at[:, None])
    if lengths is None:
        return entmax(scores, alpha, mask=mask) @ v
    mask = mask & (at < lengths[:, None])[:, None, None, :]
    return (entmax(scores, alpha, mask=mask) @ v) * (at < lengths[:, None])[:, None, :, None]


@pytest.mark.parametrize("lengths", [None, torch.tensor([9, 4, 1]), torch.tensor([2, 0, 7], dtype=torch.int32)], ids=str)
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(("alpha", "key_heads"), [(1.5, 4), (1.333, 2), (2.0, 1)])
def test_output_and_gradients(alpha: float, key_heads: int, is_causal: bool, lengths: Tensor | None) -> None:
    leaves = inputs(key_heads=key_heads)
    ours = adasplash(*leaves, alpha=alpha, is_causal=is_causal, varlen=lengths, niter=3)
    right = by_definition(*leaves, alpha=alpha, is_causal=is_causal, lengths=lengths)
    torch.testing.assert_close(ours, right)
    found, wanted = (torch.autograd.grad(out.cos().sum(), leaves) for out in (ours, right))
    for gradient, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(gradient, expected)


def test_defaults_are_theirs() -> None:
    q, k, v = inputs()
    torch.testing.assert_close(adasplash(q, k, v), by_definition(q, k, v, 1.5, True, None))


def test_lengths_that_are_none() -> None:
    q, k, v = inputs()
    with pytest.raises(ArgumentError, match="varlen must be 3 integers, the lengths of the sequences"):
        adasplash(q, k, v, varlen=torch.tensor([1, 2]))
