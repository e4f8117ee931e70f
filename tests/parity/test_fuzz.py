"""A short run of the fuzzer (kernel_fuzzer.py) on every instruction set: the same cases on every machine."""

import pytest

from . import kernel_fuzzer

pytestmark = pytest.mark.usefixtures("poisoned_memory")

CASES = 300
EACH = 30


@pytest.mark.parametrize("first", range(1, CASES, EACH))
@pytest.mark.parametrize("kind", kernel_fuzzer.CHECKS)
def test_random_problems(kind: str, first: int, isa: str) -> None:
    for number in range(first, first + EACH):
        if (number % 2 == 0) == (kind == "rows"):
            kernel_fuzzer.CHECKS[kind](number, [isa])
