"""Conversion between half precision and float32, on every instruction set: exact one way, rounded to nearest the other."""

import pytest
import torch

from entformer.kernels.attention.api import attention
from entformer.kernels.entmax.api import entmax


@pytest.mark.usefixtures("isa")
def test_every_finite_half_is_read_and_written_exactly() -> None:
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16)
    value = every[every.isfinite()].view(-1, 1, 1, 64)  # 992 sequences of one key, whose weight is 1
    query = torch.zeros(len(value), 1, 1, 8, dtype=torch.float16)
    assert torch.equal(attention(query, query, value, alpha=1.5, impl="cpu"), value)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("flush", [False, True])
def test_results_are_rounded_to_the_nearest_half(flush: bool) -> None:
    scores = 8.0 * torch.randn(64, 333, generator=torch.Generator().manual_seed(0)).half()
    if not torch.set_flush_denormal(flush):
        pytest.skip("this CPU does not flush subnormal numbers")
    try:
        found = entmax(scores, 1.01, impl="cpu")
        expected = entmax(scores.float(), 1.01, impl="cpu").half()
    finally:
        torch.set_flush_denormal(False)
    smallest_normal = torch.finfo(torch.float16).smallest_normal
    assert ((found > 0) & (found < smallest_normal)).any()
    assert torch.equal(found, expected)
