"""A short run of the fuzzer (fuzz_kernels.py) on every instruction set: the same cases on every machine."""

import pytest

from . import fuzz_kernels

pytestmark = pytest.mark.usefixtures("poisoned_memory")

CASES = 300
EACH = 30


@pytest.mark.parametrize("first", range(1, CASES, EACH))
@pytest.mark.parametrize("kind", fuzz_kernels.CHECKS)
def test_random_problems(kind: str, first: int, isa: str) -> None:
    for number in range(first, first + EACH):
        if (number % 2 == 0) == (kind == "rows"):
            fuzz_kernels.CHECKS[kind](number, [isa])
