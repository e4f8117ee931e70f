"""A short run of the fuzzer (kernel_fuzzer.py) on every instruction set: the same cases on every machine."""

import pytest
import torch

from . import kernel_fuzzer
from .attention_fuzzer import check_attention

pytestmark = pytest.mark.usefixtures("poisoned_memory")

CASES = 300
EACH = 30


@pytest.mark.parametrize("first", range(1, CASES, EACH))
@pytest.mark.parametrize("kind", kernel_fuzzer.CHECKS)
def test_random_problems(kind: str, first: int, isa: str) -> None:
    for number in range(first, first + EACH):
        if (number % 2 == 0) == (kind == "rows"):
            kernel_fuzzer.CHECKS[kind](number, [isa])


@pytest.mark.parametrize("first", range(1, CASES, EACH))
def test_random_problems_in_half_precision(first: int, half_isa: str) -> None:
    for number in range(first, first + EACH, 2):
        check_attention(number, [half_isa], torch.bfloat16 if number % 4 == 1 else torch.float16)
