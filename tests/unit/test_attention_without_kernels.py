"""The operators of attention by dense arithmetic, which saved programs fall back to: shapes and numbers of the kernels."""

from typing import Any

import pytest
import torch
from torch import Tensor

from entformer.kernels.attention import fallback, ops

pytestmark = pytest.mark.usefixtures("kernels")

HOW: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal with masks": {"causal": True, "masked": True},
    "dropout": {"dropout": 0.4},
    "rela": {"rela": True},
    "alpha 1": {"alpha": 1.0},
    "alpha 2": {"alpha": 2.0},
}


def arguments(
    alpha: float = 1.4, causal: bool = False, masked: bool = False, dropout: float = 0.0, rela: bool = False
) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(shape, generator=generator) for shape in ((2, 4, 5, 8), (2, 2, 9, 8), (2, 2, 9, 6)))
    alphas = torch.full((2, 4), alpha, dtype=torch.float64)
    masks: tuple[Tensor | None, ...] = (None, None, None)
    if masked:
        pairs = (torch.arange(9) != 4).expand(2, 4, 5, 9)
        masks = (pairs, torch.arange(9) < torch.tensor([[9], [6]]), torch.full((2, 4), 0.1))
    return (q, k, v, alphas, *masks, 0.5, rela, causal, 2, dropout, torch.tensor(7), True, 16)


def check(ours: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> None:
    for one, other in zip(ours, right, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", HOW)
def test_forward_backward_and_support(how: str) -> None:
    given = arguments(**HOW[how])
    right, found = ops.attention_forward(*given), fallback.forward(*given)
    out, state, count, entropy, kept = right
    check((found[0], found[2], found[3]), (out, count, entropy))
    assert (found[1].shape, found[1].dtype) == (state.shape, state.dtype)
    assert (found[4].shape, found[4].dtype) == (kept.shape, kept.dtype)
    rela = given[8]
    if not rela:  # which has no threshold
        torch.testing.assert_close(found[1].sum(-1), state.sum(-1), rtol=1e-4, atol=1e-5)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    saved, numbers, seed = given[:7], given[7:12], given[12]
    check(
        fallback.backward(grad, *saved, found[1], found[2], found[4], *numbers, seed, not rela),
        ops.attention_backward(grad, *saved, state, count, kept, *numbers, seed, not rela),
    )
    q, k, _, alphas, *masks = saved
    crow = torch.nn.functional.pad(count.flatten().cumsum(0), (1, 0))
    check(
        fallback.support(q, k, alphas, *masks, found[1], crow, *numbers[:4]),
        ops.attention_support(q, k, alphas, *masks, state, crow, *numbers[:4]),
    )
