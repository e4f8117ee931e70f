"""The operators of attention by dense arithmetic, which saved programs fall back to: shapes and numbers of the kernels."""

from typing import Any

import pytest
import torch
from torch import Tensor

from entformer.kernels.attention import ops
from entformer.kernels.attention import reference_ops as reference

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
    return (q, k, v, alphas, *masks, "relu" if rela else "entmax", 0.5, causal, 2, dropout, torch.tensor(7), True)


def check(ours: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> None:
    for one, other in zip(ours, right, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", HOW)
def test_forward_backward_and_support(how: str) -> None:
    given = arguments(**HOW[how])
    output, row_max, threshold, support_size, entropy, reserve = ops.attention(*given)
    found = reference.forward(*given)
    check((found[0], found[3], found[4]), (output, support_size, entropy))
    assert [(t.shape, t.dtype) for t in found[1:3]] == [(t.shape, t.dtype) for t in (row_max, threshold)]
    rela = given[7] == "relu"
    if not rela:  # which has no threshold
        torch.testing.assert_close(found[1] + found[2], row_max + threshold, rtol=1e-4, atol=1e-5)
    grad = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    inputs, how_much, seed = given[:7], given[7:12], given[12]
    arguments_of_backward = (grad, *inputs, row_max, threshold, support_size, reserve, *how_much, seed, not rela)
    check(reference.backward(*arguments_of_backward), ops.attention_backward(*arguments_of_backward))
    q, k, _, alphas, *masks = inputs
    crow = torch.nn.functional.pad(support_size.flatten().cumsum(0), (1, 0))
    arguments_of_support = (q, k, alphas, *masks, row_max, threshold, crow, *how_much[:4])
    check(reference.support(*arguments_of_support), ops.attention_support(*arguments_of_support))
